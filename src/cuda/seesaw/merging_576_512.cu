#include "cuda/seesaw/instance.cuh"

namespace flashlatent::seesaw {

constinit const ShapeInstances kMerging576x512 = {
    {merging_instance<__nv_bfloat16, 1, parts::TmaLoader>(Dtype::kBF16, cuda::Loading::kBoxes),
     merging_instance<__nv_bfloat16, 1, parts::TokenLoader>(Dtype::kBF16, cuda::Loading::kTokens),
     merging_instance<__half, 1, parts::TmaLoader>(Dtype::kF16, cuda::Loading::kBoxes),
     merging_instance<__half, 1, parts::TokenLoader>(Dtype::kF16, cuda::Loading::kTokens)}};

}  // namespace flashlatent::seesaw
