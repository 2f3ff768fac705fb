#include "cuda/etap/instance.cuh"

namespace flashlatent::etap {

constinit const TeamInstances kTeams320x256 = team_instances<320, 256>();

}  // namespace flashlatent::etap
