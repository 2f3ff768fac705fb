#include "cuda/etap/instance.cuh"

namespace flashlatent::etap {

constinit const TeamInstances kTeams576x512 = team_instances<576, 512>();

}  // namespace flashlatent::etap
