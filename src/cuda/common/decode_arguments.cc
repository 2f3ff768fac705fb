#include "cuda/common/decode_arguments.h"

#include <algorithm>

#include "cuda/common/geometry.h"
#include "cuda/common/tensors.h"

namespace flashlatent::cuda {

namespace {

/// The cache, or the one of keys.
const ConstTensorView& cache_of(const DecodeInputs& inputs) {
  return inputs.key_cache.present() ? inputs.key_cache : inputs.kv_cache;
}

}  // namespace

parts::DecodeArguments decode_arguments(const DecodeCall& call) {
  const auto& [problem, inputs, outputs, g, prefix, plan, workspace, executor] = call;
  const ConstTensorView q = with_batch(inputs.q);
  const TensorView out = with_batch(outputs.out);
  const bool sparse = problem.sparse.enabled;
  const ConstTensorView& entries = sparse ? inputs.indices : inputs.block_table;
  const ConstTensorView& lengths = sparse ? inputs.topk_length : inputs.cache_seqlens;
  const schedule::PlanView view = schedule::plan_view(g, plan.data);
  parts::DecodeArguments args = {};
  args.geometry = g;
  args.lanes = Divisor(g.lanes);
  args.sharers = Divisor(g.length_sharers);
  args.plan_header = view.header;
  args.cuts = view.cuts;
  args.merges = view.merges;
  args.successors = view.successors;
  const int group = problem.query.heads / problem.cache.heads;
  args.query = {.data = inputs.q.data,
                .batch_stride = q.strides[0],
                .token_stride = q.strides[1],
                .head_stride = q.strides[2],
                .begins = static_cast<const std::int32_t*>(inputs.cu_seqlens_q.data),
                .total = static_cast<int>(std::min<std::int64_t>(q.shape[0], (1LL << 31) - 1)),
                .tokens = sparse ? 1 : problem.query.tokens,
                .group = Divisor(group),
                .row_tiles = Divisor((problem.rows_per_kv_head() + g.tile_rows - 1) / g.tile_rows),
                .rows_in_line = rows_in_line(problem, inputs.q)};
  args.cache.entries = static_cast<const std::int32_t*>(entries.data);
  args.cache.entries_stride = entries.strides[0];
  args.cache.entries_token_stride = sparse ? entries.strides[1] : 0;
  args.cache.indexed = sparse;
  args.cache.lengths = static_cast<const std::int32_t*>(lengths.data);
  args.cache.pages = static_cast<int>(cache_of(inputs).shape[0]);
  args.cache.page_size = Divisor(problem.cache.page_size);
  args.output = {.out = outputs.out.data,
                 .batch_stride = out.strides[0],
                 .token_stride = out.strides[1],
                 .head_stride = out.strides[2],
                 .lse = static_cast<float*>(outputs.lse.data),
                 .lse_batch_stride = outputs.lse.strides[0],
                 .lse_head_stride = outputs.lse.strides[1],
                 .lse_token_stride = outputs.lse.strides[2],
                 .sink = static_cast<const float*>(inputs.attn_sink.data),
                 .empty_lse = problem.options.empty_lse};
  args.partial.out =
      reinterpret_cast<float*>(static_cast<std::uint8_t*>(workspace.data) + parts::kMergeStateBytes);
  args.partial.lse = args.partial.out + partial_rows(g) * problem.cache.v_dim;
  args.partial.units =
      reinterpret_cast<float2*>(args.partial.out + partial_rows(g) * problem.cache.v_dim / 2);
  args.scale_log2 = problem.options.softmax_scale * parts::kLog2E;
  args.causal = problem.options.causal;
  return args;
}

}  // namespace flashlatent::cuda
