#include "cuda/direct/instance.cuh"

namespace flashlatent::direct {

constinit const Instances kTeams = instances<8>();

}  // namespace flashlatent::direct
