#include "cuda/mma16/instance.cuh"

namespace flashlatent::mma16 {

constinit const TeamInstances kTeams512x512 = team_instances<512, 512>();

}  // namespace flashlatent::mma16
