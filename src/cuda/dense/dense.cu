#include "cuda/dense/dense.h"

#include <algorithm>
#include <numeric>

#include "cuda/combine/combine.h"
#include "cuda/common/launch.h"
#include "cuda/common/tensor_map.h"
#include "cuda/cuda_backend.h"
#include "plan/host_plan.h"

namespace flashlatent::cuda {

namespace {

constexpr int kBlockTokens = 64;
constexpr int kFixedSplitBlocks = 32;  // batch_invariant: 2,048 tokens a split

/// Rows of one TMA box: the largest power of two that divides both a page and a block.
int box_tokens_of(int page_size) {
  return std::gcd(page_size, kBlockTokens);
}

std::int64_t partial_rows(const schedule::Geometry& g) {
  return schedule::max_slots(g) * g.lanes * g.tile_rows;
}

/// The kernel moves 16 bytes of q and kv_cache and 4 bytes of out at a time.
Status check_alignment(const char* name, const ConstTensorView& view, int bytes) {
  bool fits = reinterpret_cast<std::uintptr_t>(view.data) % bytes == 0;
  for (int i = 0; i + 1 < view.rank; ++i) {
    const std::int64_t stride_bytes = view.strides[i] * static_cast<std::int64_t>(size_of(view.dtype));
    fits = fits && (view.shape[i] <= 1 || (stride_bytes % bytes == 0 && stride_bytes >= 0));
  }
  if (fits) return {};
  return invalid_argument(name, " at ", view.data, " is ", to_string(view),
                          "; its address and strides must be multiples of ", bytes,
                          " bytes and not negative");
}

/// Are the rows of a tile, token by token and in each the heads of a group, at equal distances?
bool rows_in_line(const DecodeProblem& problem, const ConstTensorView& q) {
  const auto& s = q.strides;
  if (problem.query.ragged) {
    return problem.cache.heads == 1 && s[0] == problem.query.heads * s[1] &&
           q.shape[0] * problem.query.heads < 1LL << 31;
  }
  return problem.query.tokens == 1 || (problem.cache.heads == 1 && s[1] == problem.query.heads * s[2]);
}

/// q or out with four dimensions: ragged ones, (tokens, heads, dim), as a batch of single tokens, of which a
/// request has several one after another.
template <class View>
View with_batch(const View& view) {
  if (view.rank == 4) return view;
  View batch = view;
  batch.rank = 4;
  batch.shape = {view.shape[0], 1, view.shape[1], view.shape[2]};
  batch.strides = {view.strides[0], view.strides[0], view.strides[1], view.strides[2]};
  return batch;
}

parts::DecodeArguments arguments_of(const DecodeCall& call) {
  const auto& [problem, inputs, outputs, g, plan, workspace, executor] = call;
  const ConstTensorView q = with_batch(inputs.q);
  const TensorView out = with_batch(outputs.out);
  const bool sparse = problem.sparse.enabled;
  const ConstTensorView& entries = sparse ? inputs.indices : inputs.block_table;
  const ConstTensorView& lengths = sparse ? inputs.topk_length : inputs.cache_seqlens;
  const schedule::PlanView view = schedule::plan_view(g, plan.data);
  parts::DecodeArguments args = {};
  args.geometry = g;
  args.plan_header = view.header;
  args.cuts = view.cuts;
  args.merges = view.merges;
  const int group = problem.query.heads / problem.cache.heads;
  args.query = {.data = inputs.q.data,
                .batch_stride = q.strides[0],
                .token_stride = q.strides[1],
                .head_stride = q.strides[2],
                .begins = static_cast<const std::int32_t*>(inputs.cu_seqlens_q.data),
                .total = static_cast<int>(std::min<std::int64_t>(q.shape[0], (1LL << 31) - 1)),
                .tokens = sparse ? 1 : problem.query.tokens,
                .group = group,
                .row_tiles = (problem.rows_per_kv_head() + g.tile_rows - 1) / g.tile_rows,
                .rows_in_line = rows_in_line(problem, inputs.q)};
  args.cache = {.data = inputs.kv_cache.data,
                .page_stride = inputs.kv_cache.strides[0],
                .token_stride = inputs.kv_cache.strides[1],
                .head_stride = inputs.kv_cache.strides[2],
                .entries = static_cast<const std::int32_t*>(entries.data),
                .entries_stride = entries.strides[0],
                .entries_token_stride = sparse ? entries.strides[1] : 0,
                .indexed = sparse,
                .lengths = static_cast<const std::int32_t*>(lengths.data),
                .pages = static_cast<int>(inputs.kv_cache.shape[0]),
                .page_size = Divisor(problem.cache.page_size),
                .box_tokens = box_tokens_of(problem.cache.page_size)};
  args.output = {.out = outputs.out.data,
                 .batch_stride = out.strides[0],
                 .token_stride = out.strides[1],
                 .head_stride = out.strides[2],
                 .lse = static_cast<float*>(outputs.lse.data),
                 .lse_batch_stride = outputs.lse.strides[0],
                 .lse_head_stride = outputs.lse.strides[1],
                 .lse_token_stride = outputs.lse.strides[2],
                 .sink = static_cast<const float*>(inputs.attn_sink.data)};
  args.partial.out = static_cast<float*>(workspace.data);
  args.partial.lse = args.partial.out + partial_rows(g) * problem.cache.v_dim;
  args.scale_log2 = problem.options.softmax_scale * parts::kLog2E;
  args.causal = problem.options.causal;
  return args;
}

/// The map of q, where its rows are in line. No kernel uses it where q is empty.
Status query_map(const DecodeCall& call, DenseLaunch& launch) {
  ConstTensorView q = with_batch(call.inputs.q);
  if (q.elements() == 0) return {};
  if (!launch.args.query.rows_in_line) return {};
  if (call.problem.query.ragged) std::swap(q.shape[0], q.shape[1]);  // all rows are one request's
  return query_rows_map(q, launch.args.geometry.tile_rows, launch.query_rows);
}

}  // namespace

schedule::Geometry dense_geometry(const DecodeProblem& problem, int workers, const DenseShape& shape) {
  schedule::Geometry g;
  g.requests = problem.query.batch;
  if (problem.sparse.enabled) {
    g.length_sharers = problem.query.tokens;
    g.requests *= g.length_sharers;
  }
  g.tile_rows = shape.tile_rows;
  g.block_tokens = kBlockTokens;
  const std::int64_t reach = problem.sparse.enabled
                                 ? problem.sparse.topk
                                 : std::int64_t{problem.cache.max_pages} * problem.cache.page_size;
  g.max_tokens = static_cast<std::int32_t>(std::min<std::int64_t>(reach, (1LL << 31) - (1 << 14)));
  g.fixed_split = problem.options.batch_invariant ? kFixedSplitBlocks : 0;
  g.cost = shape.cost;
  const int row_tiles = (problem.rows_per_kv_head() + shape.tile_rows - 1) / shape.tile_rows;
  schedule::set_workers(g, row_tiles * problem.cache.heads, workers);
  return g;
}

std::size_t dense_workspace_bytes(const DecodeProblem& problem, const schedule::Geometry& g) {
  return partial_rows(g) * (problem.cache.v_dim + 1) * sizeof(float);
}

Loading loading_of(const DecodeProblem& problem) {
  if (problem.cache.format == KvFormat::kFp8_656) return Loading::kFp8;
  const bool boxes = !problem.sparse.enabled && box_tokens_of(problem.cache.page_size) >= 16;
  return boxes ? Loading::kBoxes : Loading::kTokens;
}

Loading loading_of(const DecodeProblem& problem, const ConstTensorView& kv_cache) {
  const Loading loading = loading_of(problem);
  return loading == Loading::kBoxes && kv_cache.shape[0] == 0 ? Loading::kTokens : loading;
}

const DenseInstance* find_instance(std::initializer_list<std::span<const DenseInstance>> tables,
                                   const InstanceKey& key) {
  for (const auto& table : tables) {
    for (const DenseInstance& instance : table) {
      if (instance.key == key) return &instance;
    }
  }
  return nullptr;
}

std::string not_latent(const DecodeProblem& problem) {
  return message("the cache is ", to_string(problem.cache.layout), "; a latent one is accepted");
}

std::string unknown_dimensions(const DecodeProblem& problem) {
  return message("qk_dim/v_dim is ", problem.cache.qk_dim, "/", problem.cache.v_dim,
                 problem.cache.format == KvFormat::kFp8_656 ? "; of an fp8_656 cache 576/512 is accepted"
                                                            : "; 576/512, 512/512 and 320/256 are accepted");
}

Status launch_dense(const DecodeCall& call,
                    const DenseInstance* (*find)(const DecodeCall& call, Loading loading)) {
  const ConstTensorView& cache = call.inputs.kv_cache;
  FLASHLATENT_RETURN_IF_ERROR(check_alignment("q", call.inputs.q, 16));
  FLASHLATENT_RETURN_IF_ERROR(check_alignment("kv_cache", cache, 16));
  FLASHLATENT_RETURN_IF_ERROR(check_alignment("out", call.outputs.out, 4));
  if (cache.shape[0] > (1LL << 31) - 1) {
    return invalid_argument("kv_cache has ", cache.shape[0],
                            " pages; at most 2^31 - 1 can be named by int32");
  }
  DeviceGuard guard(call.executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  Result<int> units = multiprocessors(call.executor.device);
  if (!units.ok()) return units.status();

  DenseLaunch launch = {};
  launch.args = arguments_of(call);
  const Loading loading = loading_of(call.problem, cache);
  if (loading == Loading::kBoxes) {
    FLASHLATENT_RETURN_IF_ERROR(kv_tensor_map(cache, launch.args.cache.box_tokens, launch.kv));
  }
  FLASHLATENT_RETURN_IF_ERROR(query_map(call, launch));
  if (call.problem.query.ragged) {
    FLASHLATENT_RETURN_IF_ERROR(write_missing_rows(launch.args, call.problem.query.heads, call.executor));
  }
  FLASHLATENT_RETURN_IF_ERROR(find(call, loading)->launch(launch, call.executor));
  return combine_plan(launch.args, call.problem.cache.dtype, call.problem.cache.v_dim, *units, call.executor);
}

}  // namespace flashlatent::cuda
