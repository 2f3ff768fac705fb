#include "cuda/mma16/instance.cuh"

namespace flashlatent::mma16 {

constinit const TeamInstances kTeams576x512 = team_instances<576, 512>();

}  // namespace flashlatent::mma16
