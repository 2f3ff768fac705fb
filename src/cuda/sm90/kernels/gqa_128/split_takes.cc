#include <algorithm>

#include "cuda/cuda_backend.h"
#include "cuda/host/geometry.h"
#include "cuda/host/if_compiled.h"
#include "cuda/sm90/kernels/gqa_128/takes.h"

namespace flashlatent::cuda {

namespace {}  // namespace

const DecodeKernel kGqa128SplitKernel = {
    .name = "gqa_128_split",
    .architecture = Architecture::kSm90a,
    .takes =
        "separate keys and values of bf16 or fp16, d up to 256, or e4m3, d up to 128; pages of a multiple "
        "of 8 tokens, up to 128 query rows of a KV head at once",
    .declines = gqa_128::declines_cache,
    .workspace_bytes = decode_workspace_bytes,
    .launch = FLASHLATENT_IF_COMPILED(gqa_128::launch_segments),
};

}  // namespace flashlatent::cuda
