#include "cuda/seesaw/instance.cuh"

namespace flashlatent::seesaw {

// Not of fp16, which sends fp32: ptxas spills its outputs around every product (1,900 STL and LDL).
constinit const EvenTeamInstances kEvenTeams576x512 = {{team_instance<__nv_bfloat16, 2, true>(Dtype::kBF16)}};

}  // namespace flashlatent::seesaw
