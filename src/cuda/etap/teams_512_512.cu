#include "cuda/etap/instance.cuh"

namespace flashlatent::etap {

constinit const TeamInstances kTeams512x512 = team_instances<512, 512>();

}  // namespace flashlatent::etap
