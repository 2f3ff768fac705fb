#include "cuda/host/decode_arguments.h"

#include <algorithm>

#include "core/edge_rows.h"
#include "core/formats/formats.h"
#include "core/query_parts.h"
#include "core/return_if_error.h"
#include "cuda/host/geometry.h"
#include "cuda/host/latent_problem.h"
#include "cuda/host/tensors.h"

namespace flashlatent::cuda {

namespace {

/// One of the query's two tensors; absent if it has no columns.
sm90::QueryPart part_of(const ConstTensorView& view) {
  if (!view.present()) return {};
  const ConstTensorView part = with_batch(view);
  return {part.data, part.strides[0], part.strides[1], part.strides[2]};
}

/// The latent cache, or the cache of keys.
const ConstTensorView& cache_of(const DecodeInputs& inputs) {
  return inputs.key_cache.present() ? inputs.key_cache : inputs.kv_cache;
}

sm90::EdgeArguments edge_arguments(const DecodeProblem& problem, const DecodeInputs& inputs,
                                   const DecodeOutputs& outputs) {
  sm90::EdgeArguments edges = {};
  edges.norm = inputs.q_norm;
  edges.query = edges::rotary_of(inputs.q_rotate, /*back=*/false);
  edges.output = edges::rotary_of(inputs.out_rotate, /*back=*/true);
  edges.group_heads = Divisor(1);
  const Fp8Output& fp8 = outputs.out_fp8;
  if (!fp8.present()) return edges;
  edges.codes = static_cast<std::uint8_t*>(fp8.codes.data);
  edges.scales = static_cast<float*>(fp8.scales.data);
  edges.code_token_stride = fp8.codes.strides[0];
  edges.code_group_stride = fp8.codes.strides[1];
  edges.group_heads = Divisor(static_cast<int>(problem.query.heads / fp8.codes.shape[1]));
  edges.scale_lines = static_cast<int>(fp8.scales.shape[1]);
  edges.tokens = fp8.codes.shape[0];
  edges.padded_tokens = fp8.scales.shape[2];
  return edges;
}

}  // namespace

sm90::DecodeArguments decode_arguments(const DecodeCall& call) {
  constexpr int kEndless = (1U << 31) - 1;  // above the number of every row
  const auto& [problem, inputs, outputs, g, prefix, plan, workspace, executor, max_logits, held, choice,
               sparse_prefill] = call;
  const ConstTensorView q = with_batch(inputs.q);
  const TensorView out = outputs.out.present() ? with_batch(outputs.out) : TensorView{};
  const bool sparse = problem.sparse.enabled, token_items = has_token_items(problem);
  const ConstTensorView& entries = sparse ? inputs.indices : inputs.block_table;
  const ConstTensorView& lengths = sparse ? inputs.topk_length : inputs.cache_seqlens;
  sm90::DecodeArguments args = {};
  args.geometry = g;
  args.lanes = Divisor(g.lanes);
  args.sharers = Divisor(sparse ? problem.query.tokens : g.length_sharers);
  const bool in_turn = g.partition == schedule::Partition::kTurns;
  if (!in_turn) {
    const schedule::PlanView view = schedule::plan_view(g, plan.data);
    args.plan_header = view.header;
    args.cuts = view.cuts;
    args.merges = view.merges;
    args.successors = view.successors;
  }
  const int group = problem.query.heads / problem.cache.heads;
  args.query = {.first = part_of(inputs.q),
                .rope = part_of(query_parts::rope_of(problem, inputs)),
                .begins = static_cast<const std::int32_t*>(inputs.cu_seqlens_q.data),
                .total = static_cast<int>(std::min<std::int64_t>(q.shape[0], (1LL << 31) - 1)),
                .tokens = token_items ? 1 : problem.query.tokens,
                .group = Divisor(group),
                .row_tiles = Divisor((rows_of_item(problem) + g.tile_rows - 1) / g.tile_rows),
                .rows_in_boxes = rows_in_boxes(problem, inputs),
                .line = Divisor(rows_in_line(problem, inputs) ? kEndless : group),
                .is_e4m3 = problem.query.e4m3,
                .scale_a_head = inputs.q_scale.present() && inputs.q_scale.shape[0] > 1,
                .scale = static_cast<const float*>(inputs.q_scale.data)};
  args.cache.scale = static_cast<const float*>(inputs.kv_scale.data);
  args.cache.entries = static_cast<const std::int32_t*>(entries.data);
  args.cache.entries_stride = entries.strides[0];
  args.cache.entries_token_stride = sparse ? entries.strides[1] : 0;
  args.cache.indexed = sparse;
  const bool shared = held.lengths != nullptr;
  args.cache.lengths = shared ? held.lengths : static_cast<const std::int32_t*>(lengths.data);
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
  if (!in_turn) {
    args.partial.out =
        reinterpret_cast<float*>(static_cast<std::uint8_t*>(workspace.data) + sm90::kMergeStateBytes);
    args.partial.lse = args.partial.out + partial_rows(g) * problem.cache.v_dim;
    args.partial.units =
        reinterpret_cast<float2*>(args.partial.out + partial_rows(g) * problem.cache.v_dim / 2);
  }
  args.scale_log2 = problem.options.softmax_scale * sm90::kLog2E;
  args.positive_scale = args.scale_log2 > 0 ? args.scale_log2 : 1.0F;
  args.causal = problem.options.causal && !token_items;
  // If items are single query tokens, the lengths of lists already say which tokens are attended to.
  const bool masked = args.causal || (problem.options.window > 0 && !token_items);
  if (masked) args.spans = held.spans;
  args.spans_stride = problem.query.tokens;
  args.choice = choice;
  args.max_logits = {static_cast<float*>(max_logits.data), max_logits.strides[0], max_logits.strides[1]};
  args.edges = edge_arguments(problem, inputs, outputs);
  return args;
}

namespace {

/// RecordRows' names of kRecordFormats.
struct RecordOf {
  KvFormat format;
  sm90::Record record;
};
constexpr RecordOf kRecords[] = {{KvFormat::kMxfp8_528, sm90::Record::kMxfp8_528},
                                 {KvFormat::kNvfp4_288, sm90::Record::kNvfp4_288},
                                 {KvFormat::kFp8_528, sm90::Record::kFp8_528}};
static_assert(std::ranges::equal(kRecordFormats, kRecords, {}, {}, &RecordOf::format));

/// The Record of a format; for a format that RecordRows does not read the first, which is not used.
sm90::Record record_of(KvFormat format) {
  const auto* row = std::ranges::find(kRecords, format, &RecordOf::format);
  return row == std::end(kRecords) ? kRecords[0].record : row->record;
}

/// If a page's scales follow its data, the view's second stride is not a token's.
Status set_cache(const char* name, const ConstTensorView& cache, const LatentFormat& format, int page_size,
                 sm90::ListedCache& listed) {
  const std::int64_t size = size_of(cache.dtype);
  ConstTensorView aligned = cache;
  if (format.apart()) aligned.strides[1] = aligned.strides[2] = 0;
  FLASHLATENT_RETURN_IF_ERROR(check_alignment(name, aligned, 16));
  FLASHLATENT_RETURN_IF_ERROR(check_pages(name, cache));
  listed.data = static_cast<const std::uint8_t*>(cache.data);
  listed.page_bytes = cache.strides[0] * size;
  listed.token_bytes = format.token_stride(cache.strides[1] * size);
  listed.head_bytes = cache.strides[2] * size;
  listed.pages = static_cast<int>(cache.shape[0]);
  listed.page_size = Divisor(page_size);
  listed.scales_apart = format.apart();
  listed.record = record_of(format.format);
  return {};
}

void set_entries(const ConstTensorView& entries, bool indexed, sm90::ListedCache& listed) {
  listed.entries = static_cast<const std::int32_t*>(entries.data);
  listed.entries_stride = entries.strides[0];
  listed.entries_token_stride = indexed ? entries.strides[1] : 0;
  listed.indexed = indexed;
}

}  // namespace

Status set_listed_caches(const DecodeCall& call, sm90::CacheArguments& cache) {
  const DecodeProblem& problem = call.problem;
  const DecodeInputs& inputs = call.inputs;
  const ExtraCache& extra = problem.cache.extra;
  FLASHLATENT_RETURN_IF_ERROR(set_cache("kv_cache", inputs.kv_cache, format_of(problem.cache),
                                        problem.cache.page_size, cache.listed[0]));
  const bool indexed = problem.sparse.enabled;
  set_entries(indexed ? inputs.indices : inputs.block_table, indexed, cache.listed[0]);
  if (extra.enabled) {
    FLASHLATENT_RETURN_IF_ERROR(set_cache("extra_kv_cache", inputs.extra_kv_cache,
                                          extra_format_of(problem.cache), extra.page_size, cache.listed[1]));
    set_entries(extra.indexed ? inputs.extra_indices : inputs.extra_block_table, extra.indexed,
                cache.listed[1]);
  }
  cache.list_lengths = schedule::union_lengths(lengths_of(problem, inputs), call.held);
  return {};
}

}  // namespace flashlatent::cuda
