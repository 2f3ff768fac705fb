#include "cuda/mma16/instance.cuh"

namespace flashlatent::mma16 {

constinit const TeamInstances kTeams320x256 = team_instances<320, 256>();

}  // namespace flashlatent::mma16
