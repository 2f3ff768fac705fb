#include "cuda/direct/instance.cuh"

namespace flashlatent::direct {

constinit const Instances kInstances = instances<false>();
constinit const TeamInstances kTeams = {{instance<kTeamCtas, false, kTeamRows>()}};

}  // namespace flashlatent::direct
