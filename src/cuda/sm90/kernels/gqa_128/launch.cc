#include <algorithm>
#include <numeric>
#include <span>

#include "cuda/cuda_backend.h"
#include "cuda/host/combine.h"
#include "cuda/host/decode_arguments.h"
#include "cuda/host/geometry.h"
#include "cuda/host/launch_ctas.h"
#include "cuda/host/prefix_units.h"
#include "cuda/host/runtime.h"
#include "cuda/host/tensor_map.h"
#include "cuda/host/tensors.h"
#include "cuda/sm90/kernels/gqa_128/instances.h"
#include "cuda/sm90/kernels/gqa_128/takes.h"

namespace flashlatent::gqa_128 {

namespace {

using cuda::check_alignment;
using cuda::check_pages;

// Bytes of keys and values that running tiles may read, so that these stay in L2.
constexpr std::int64_t kSectionBytes = 16 << 20;

const Instance* find(const InstanceKey* key) {
  using Instances = std::span<const Instance>;
  for (const Instances table : {Instances(kBf16), Instances(kFp16), Instances(kBf16Segments),
                                Instances(kFp16Segments), Instances(kBf16E4m3), Instances(kFp16E4m3)}) {
    for (const Instance& instance : table) {
      if (instance.key == *key) return &instance;
    }
  }
  return nullptr;
}

/// Tokens of one TMA box: it divides both a page and a block.
int box_tokens_of(const DecodeProblem& problem, int block_tokens) {
  return std::gcd(problem.cache.page_size, block_tokens);
}

/// The map of keys or values, by whole rows of e4m3 or chunks of 64 columns.
Status cache_map(const char* name, const ConstTensorView& cache, const InstanceKey& key, int box_tokens,
                 CUtensorMap& map) {
  if (!key.e4m3) return cuda::kv_tensor_map(name, cache, box_tokens, map);
  const std::uint32_t box[] = {static_cast<std::uint32_t>(key.dim), static_cast<std::uint32_t>(box_tokens), 1,
                               1};
  // element, token in the page, head, page
  return cuda::box_map(name, cache, {3, 1, 2, 0}, box, /*swizzle=*/0, map);
}

CacheScale scale_of(const ConstTensorView& scale) {
  return {static_cast<const float*>(scale.data), scale.present() && scale.shape[0] > 1 ? 1 : 0};
}

/// Fills what all launches have in common.
Status common_launch(const DecodeCall& call, const Instance& instance, Launch& launch) {
  const auto& [problem, inputs, outputs, g, prefix, plan, workspace, executor, max_logits, held, choice,
               sparse_prefill] = call;
  FLASHLATENT_RETURN_IF_ERROR(check_alignment("out", outputs.out, 4));
  FLASHLATENT_RETURN_IF_ERROR(check_alignment("q", inputs.q, 16));
  FLASHLATENT_RETURN_IF_ERROR(check_alignment("key_cache", inputs.key_cache, 16));
  FLASHLATENT_RETURN_IF_ERROR(check_alignment("value_cache", inputs.value_cache, 16));
  FLASHLATENT_RETURN_IF_ERROR(check_pages("key_cache", inputs.key_cache));
  Arguments& args = launch.args;
  args.decode = cuda::decode_arguments(call);
  const int box_tokens = box_tokens_of(problem, block_tokens_of(instance.key.dim, instance.key.kind));
  args.decode.cache.box_tokens = box_tokens;
  args.dim = problem.cache.qk_dim;
  args.reach = cuda::reach_of(problem);
  args.window = problem.options.window;
  args.soft_cap = problem.options.separate.soft_cap;
  args.alibi_slopes = static_cast<const float*>(inputs.alibi_slopes.data);
  args.kv_heads = problem.cache.heads;
  args.sequences = problem.query.batch * problem.cache.heads;
  args.section = 1;
  args.wide_output = check_alignment("out", outputs.out, 16).ok();
  args.key_scale = scale_of(inputs.key_scale);
  args.value_scale = scale_of(inputs.value_scale);
  if (inputs.key_cache.shape[0] == 0) return {};  // without pages no map is needed
  FLASHLATENT_RETURN_IF_ERROR(
      cache_map("key_cache", inputs.key_cache, instance.key, box_tokens, launch.keys));
  return cache_map("value_cache", inputs.value_cache, instance.key, box_tokens, launch.values);
}

Status launch_kernel(const cuda::CompiledKernel& kernel, const Launch& launch, const Executor& executor) {
  return cuda::launch_ctas(kernel, launch.ctas, 1, executor,
                           {&launch.args, &launch.keys, &launch.values, &launch.query});
}

/// Makes a map of Q if 64 rows are whole tokens.
Status query_map(const DecodeProblem& problem, const ConstTensorView& view, Launch& launch) {
  const int group = launch.args.decode.query.group.value;
  launch.args.query_boxes = 64 % group == 0 && view.elements() > 0;
  if (!launch.args.query_boxes) return {};
  ConstTensorView q = cuda::with_batch(view);
  if (problem.query.ragged) {  // all tokens count as one request's
    std::swap(q.shape[0], q.shape[1]);
    std::swap(q.strides[0], q.strides[1]);
  }
  return cuda::query_group_map(q, 64 / group, group, launch.query);
}

}  // namespace

Status launch(const DecodeCall& call) {
  const auto& [problem, inputs, outputs, g, prefix, plan, workspace, executor, max_logits, held, choice,
               sparse_prefill] = call;
  cuda::DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  FLASHLATENT_ASSIGN_OR_RETURN(const int units, cuda::multiprocessors(executor.device));
  const Instance& instance = *find(key_of(problem));
  Launch launch = {};
  FLASHLATENT_RETURN_IF_ERROR(common_launch(call, instance, launch));
  Arguments& args = launch.args;
  // Lengths are not known here. This is the length of a prompt without a prefix: its query tokens.
  const std::int64_t sequence_bytes = 4LL * problem.query.tokens * problem.cache.qk_dim;
  args.section =
      static_cast<int>(std::clamp<std::int64_t>(kSectionBytes / sequence_bytes, 1, args.sequences));
  args.jobs = args.sequences * args.decode.query.row_tiles.value;
  FLASHLATENT_RETURN_IF_ERROR(query_map(problem, inputs.q, launch));
  launch.ctas = std::min(args.jobs, units);
  if (args.jobs > launch.ctas) {
    args.next_job = static_cast<std::int32_t*>(workspace.data);
    FLASHLATENT_RETURN_IF_ERROR(cuda::to_status(
        cudaMemsetAsync(args.next_job, 0, sizeof(*args.next_job), static_cast<cudaStream_t>(executor.stream)),
        "cudaMemsetAsync"));
  }
  FLASHLATENT_RETURN_IF_ERROR(cuda::write_missing_rows(args.decode, problem, executor));
  return launch_kernel(instance.kernel, launch, executor);
}

Status launch_segments(const DecodeCall& call) {
  const auto& [problem, inputs, outputs, g, prefix, plan, workspace, executor, max_logits, held, choice,
               sparse_prefill] = call;
  cuda::DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  const Instance& instance = *find(key_of(problem, Kind::kSegments));
  Launch launch = {};
  FLASHLATENT_RETURN_IF_ERROR(common_launch(call, instance, launch));
  Arguments& args = launch.args;
  args.partial = {args.decode.partial.out, args.decode.partial.lse};
  launch.ctas = g.parts * g.lanes;
  FLASHLATENT_RETURN_IF_ERROR(cuda::write_missing_rows(args.decode, problem, executor));
  args.block_sharers = g.tile_rows <= 64 ? 2 : 1;
  FLASHLATENT_RETURN_IF_ERROR(launch_kernel(instance.kernel, launch, executor));
  return cuda::combine_plan(args.decode, problem.cache, cuda::Partials::kFp32, executor);
}

}  // namespace flashlatent::gqa_128

namespace flashlatent::cuda {

Status launch_prefix_units(const DecodeCall& call, const prefix::Shape& shape, const prefix::View& plan,
                           float* out, float* lse) {
  const gqa_128::Instance& instance = *gqa_128::find(key_of(call.problem, gqa_128::Kind::kShared));
  gqa_128::Launch launch = {};
  FLASHLATENT_RETURN_IF_ERROR(gqa_128::common_launch(call, instance, launch));
  launch.args.prefix = {shape, plan.header, plan.tiles, plan.members};
  launch.args.partial = {out, lse};
  launch.ctas = shape.workers;
  return gqa_128::launch_kernel(instance.kernel, launch, call.executor);
}

}  // namespace flashlatent::cuda
