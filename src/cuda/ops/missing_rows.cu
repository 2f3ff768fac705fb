#include <algorithm>

#include "cuda/host/decode_arguments.h"
#include "cuda/host/launch.h"
#include "cuda/sm90/walk/row_tile.cuh"

namespace flashlatent::cuda {

namespace missing_rows {

namespace {

constexpr int kThreads = 128;

/// One CTA a request.
__global__ void __launch_bounds__(kThreads)
    missing_rows_kernel(const __grid_constant__ sm90::DecodeArguments args, int heads) {
  for (int request = blockIdx.x; request < args.geometry.requests; request += gridDim.x) {
    const sm90::RequestTokens own = sm90::request_tokens(args.query, request);
#if FLASHLATENT_DEVICE_CHECKS
    if (threadIdx.x == 0 && args.query.begins[request + 1] != own.origin + own.count) {
      printf(
          "flashlatent: cu_seqlens_q gives request %d the tokens %d to %d; at most %d, of %d in all, are "
          "taken\n",
          request, own.origin, args.query.begins[request + 1], args.query.tokens, args.query.total);
    }
#endif
    const int missing = args.query.tokens - own.count;
    for (int i = threadIdx.x; i < heads * missing; i += kThreads) {
      const sm90::OutputArguments& output = args.output;
      output.lse[request * output.lse_batch_stride + i / missing * output.lse_head_stride +
                 (own.count + i % missing) * output.lse_token_stride] = output.empty_lse;
    }
  }
}

}  // namespace

}  // namespace missing_rows

Status write_missing_rows(const sm90::DecodeArguments& args, const DecodeProblem& problem,
                          const Executor& executor) {
  using namespace missing_rows;
  if (!problem.query.ragged) return {};
  // where query tokens are the plan's requests, this counts the batch's
  sm90::DecodeArguments requests = args;
  requests.geometry.requests /= args.sharers.value;
  requests.query.tokens *= args.sharers.value;
  const LaunchShape shape{.blocks = std::min(requests.geometry.requests, 1 << 16), .threads = kThreads};
  return launch(missing_rows_kernel, shape, executor, requests, problem.query.heads);
}

}  // namespace flashlatent::cuda
