#include <algorithm>

#include "cuda/cuda_backend.h"
#include "cuda/host/combine.h"
#include "cuda/host/decode_arguments.h"
#include "cuda/host/geometry.h"
#include "cuda/host/launch_ctas.h"
#include "cuda/host/prefix_units.h"
#include "cuda/host/runtime.h"
#include "cuda/host/tensor_map.h"
#include "cuda/host/tensors.h"
#include "cuda/sm90/kernels/gqa_16/arguments.h"
#include "cuda/sm90/kernels/gqa_16/instances.h"
#include "cuda/sm90/kernels/gqa_16/takes.h"

namespace flashlatent::gqa_16 {

namespace {

using cuda::box_map;

const Instance* find(const InstanceKey& key) {
  for (const Instances* table : {&kBf16, &kFp16, &kE4m3}) {
    for (const Instance& instance : *table) {
      if (instance.key == key) return &instance;
    }
  }
  return nullptr;
}

/// Keys or values as (pages, page_size, h_kv, d).
Plane rows(const ConstTensorView& cache, const ConstTensorView& scale) {
  const auto bytes = static_cast<std::int64_t>(size_of(cache.dtype));
  return {.data = static_cast<const std::uint8_t*>(cache.data),
          .page_stride = cache.strides[0] * bytes,
          .head_stride = cache.strides[2] * bytes,
          .token_stride = cache.strides[1] * bytes,
          .unit_stride = 16,
          .scale = static_cast<const float*>(scale.data),
          .scale_stride = scale.present() && scale.shape[0] > 1 ? 1 : 0};
}

/// Keys as (pages, h_kv, d / x, page_size, x).
Plane packed_keys(const ConstTensorView& cache, const ConstTensorView& scale) {
  const auto bytes = static_cast<std::int64_t>(size_of(cache.dtype));
  Plane plane = rows(cache, scale);
  plane.head_stride = cache.strides[1] * bytes;
  plane.unit_stride = cache.strides[2] * bytes;
  plane.token_stride = cache.strides[3] * bytes;
  return plane;
}

/// Values as (pages, h_kv, d, page_size).
Plane packed_values(const ConstTensorView& cache, const ConstTensorView& scale) {
  const auto bytes = static_cast<std::int64_t>(size_of(cache.dtype));
  Plane plane = rows(cache, scale);
  plane.head_stride = cache.strides[1] * bytes;
  plane.unit_stride = cache.strides[2] * bytes;
  plane.token_stride = bytes;
  return plane;
}

/// If requests may share prefixes: launches the kernel that attends to the prefixes, and sets `args` for own
/// tokens.
Status share_prefixes(const DecodeCall& call, Arguments& args) {
  const prefix::Shape& shape = call.prefix;
  if (shape.requests == 0) return {};
  const prefix::View plan =
      prefix::view(shape, static_cast<std::uint8_t*>(call.plan.data) + prefix::offset(call.geometry));
  const auto own = static_cast<std::int64_t>(workspace_bytes(call.problem, call.geometry));
  auto* out = reinterpret_cast<float*>(static_cast<std::uint8_t*>(call.workspace.data) + prefix::align(own));
  const std::int64_t kept = prefix::max_partial_rows(shape);
  float* lse = out + prefix::workspace_rows(shape) * call.problem.cache.v_dim;
  args.prefix = {.shares = plan.shares,
                 .lengths = args.decode.cache.lengths,
                 .unseen = shape.unseen,
                 .results = {out, lse},
                 .kept = {out + kept * call.problem.cache.v_dim, lse + kept},
                 .kv_heads = shape.kv_heads,
                 .request_rows = shape.request_rows};
  args.decode.cache.lengths = nullptr;
  return cuda::launch_prefix_units(call, shape, plan, out, lse);
}

/// Makes TMA maps of keys and values if pages and strides allow them. Returns the tokens of a box; 0: no
/// maps.
int make_maps(const DecodeProblem& problem, const DecodeInputs& inputs, Arguments& args) {
  const int page_size = problem.cache.page_size;
  const auto dim = static_cast<std::uint32_t>(key_of(problem)->dim);
  const auto element = static_cast<std::uint32_t>(element_bytes(problem));
  const std::uint32_t unit = 16 / element;
  if (problem.cache.layout != KvLayout::kPacked) {
    const int tokens = page_size % 16 == 0 ? 16 : page_size % 8 == 0 ? 8 : 0;
    if (tokens == 0) return 0;
    const std::uint32_t bytes = std::min(dim * element, 128U);
    const int order[] = {3, 1, 2, 0};
    const std::uint32_t box[] = {bytes / element, static_cast<std::uint32_t>(tokens), 1, 1};
    const int swizzle = static_cast<int>(bytes);
    const bool made = box_map("key_cache", inputs.key_cache, order, box, swizzle, args.key_map).ok() &&
                      box_map("value_cache", inputs.value_cache, order, box, swizzle, args.value_map).ok();
    return made ? tokens : 0;
  }
  const ConstTensorView& given = inputs.key_cache;
  if (page_size % 16 != 0 || given.strides[3] != unit || given.strides[4] != 1) return 0;
  const int order[] = {3, 2, 1, 0};
  // Keys: 16 tokens of a unit are one line.
  ConstTensorView keys = given;
  keys.rank = 4;
  keys.shape[3] = page_size * unit;
  keys.strides[3] = 1;
  if (!box_map("key_cache", keys, order, {16 * unit, dim / unit, 1, 1}, 0, args.key_map).ok()) return 0;
  // Values: lines of 16 tokens, or of 8 where a page has no more.
  ConstTensorView values = inputs.value_cache;
  const bool in_line = page_size == 16 && values.strides[2] == 16;
  if (in_line) {
    values.shape[2] /= 8;
    values.shape[3] *= 8;
    values.strides[2] *= 8;
  }
  const std::uint32_t lines = in_line ? 8 : 1;
  const bool made =
      box_map("value_cache", values, order, {16 * lines, dim / lines, 1, 1}, 0, args.value_map).ok();
  return made ? 16 : 0;
}

}  // namespace

Status launch(const DecodeCall& call) {
  const auto& [problem, inputs, outputs, g, prefix, plan, workspace, executor, max_logits, held, choice,
               sparse_prefill] = call;
  FLASHLATENT_RETURN_IF_ERROR(cuda::check_alignment("q", inputs.q, 16));
  FLASHLATENT_RETURN_IF_ERROR(cuda::check_alignment("key_cache", inputs.key_cache, 16));
  FLASHLATENT_RETURN_IF_ERROR(cuda::check_alignment("value_cache", inputs.value_cache, 16));
  FLASHLATENT_RETURN_IF_ERROR(cuda::check_alignment("out", outputs.out, 4));
  FLASHLATENT_RETURN_IF_ERROR(cuda::check_pages("key_cache", inputs.key_cache));
  cuda::DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());

  const bool packed = problem.cache.layout == KvLayout::kPacked;
  Arguments args = {};
  args.decode = cuda::decode_arguments(call);
  args.keys =
      packed ? packed_keys(inputs.key_cache, inputs.key_scale) : rows(inputs.key_cache, inputs.key_scale);
  args.values = packed ? packed_values(inputs.value_cache, inputs.value_scale)
                       : rows(inputs.value_cache, inputs.value_scale);
  args.score = {.alibi_slopes = static_cast<const float*>(inputs.alibi_slopes.data),
                .soft_cap = problem.options.separate.soft_cap,
                .window = problem.options.window};
  args.dim = problem.cache.qk_dim;
  args.reach = cuda::reach_of(problem);
  args.given_is_bf16 = problem.cache.dtype == Dtype::kBF16;
  args.tiles_a_cta = tiles_a_cta(problem, g);
  args.team = g.team;
  args.ctas_a_part = Divisor(g.lanes / args.tiles_a_cta);
  args.box_tokens = make_maps(problem, inputs, args);
  if (merges_splits(g)) {
    args.tickets = reinterpret_cast<sm90::Ticket*>(static_cast<std::uint8_t*>(workspace.data) +
                                                   partial_bytes(problem, g));
  }
  FLASHLATENT_RETURN_IF_ERROR(cuda::write_missing_rows(args.decode, problem, executor));
  FLASHLATENT_RETURN_IF_ERROR(share_prefixes(call, args));
  FLASHLATENT_RETURN_IF_ERROR(cuda::launch_ctas(find(*key_of(problem))->kernel,
                                                g.parts * (g.lanes / args.tiles_a_cta) * args.team, args.team,
                                                executor, {&args}));
  if (args.tickets != nullptr) return {};
  return cuda::combine_plan(args.decode, problem.cache, cuda::Partials::kFp32, executor);
}

}  // namespace flashlatent::gqa_16
