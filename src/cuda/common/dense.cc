#include "cuda/common/dense.h"

#include <algorithm>
#include <numeric>

#include "core/message.h"
#include "cuda/common/combine.h"
#include "cuda/common/launch_ctas.h"
#include "cuda/common/runtime.h"
#include "cuda/common/tensor_map.h"
#include "cuda/cuda_backend.h"
#include "plan/host_plan.h"

namespace flashlatent::cuda {

namespace {

constexpr int kBlockTokens = 64;
constexpr int kLeastBoxTokens = 16;
constexpr int kFixedSplitBlocks = 32;  // batch_invariant: 2,048 tokens a split

/// Rows of one TMA box: the largest power of two that divides both a page and a block.
int box_tokens_of(int page_size) {
  return std::gcd(page_size, kBlockTokens);
}

/// The map of q, where its rows are in line. No kernel uses it where q is empty.
Status query_map(const DecodeCall& call, const BoxMaps& boxes, DenseLaunch& launch) {
  ConstTensorView q = with_batch(call.inputs.q);
  if (q.elements() == 0) return {};
  if (!launch.args.query.rows_in_line) return {};
  if (call.problem.query.ragged) std::swap(q.shape[0], q.shape[1]);  // all rows are one request's
  const int rows = boxes.query_rows > 0 ? boxes.query_rows : launch.args.geometry.tile_rows;
  return boxes.query(q, rows, launch.query_rows);
}

/// Without topk_length sparse requests are all as long as each other. If they stay whole, each is a part by
/// its number then, whatever the plan has: nobody waits for that to be read, 1.5 us.
schedule::Geometry geometry_of(const DecodeCall& call) {
  const schedule::Geometry& g = call.geometry;
  if (!call.problem.sparse.enabled || call.inputs.topk_length.present() || g.whole != schedule::kCutLine)
    return g;
  const std::optional<schedule::Geometry> whole = schedule::whole_items(g);
  return whole && schedule::estimate(*whole) <= schedule::estimate(g) ? *whole : g;
}

}  // namespace

schedule::Geometry split_geometry(const DecodeProblem& problem, int workers, const DenseShape& shape) {
  schedule::Geometry g;
  g.requests = problem.query.batch;
  if (problem.sparse.enabled) {
    g.length_sharers = problem.query.tokens;
    g.requests *= g.length_sharers;
  }
  g.tile_rows = shape.tile_rows;
  g.block_tokens = kBlockTokens;
  g.max_tokens = reach_of(problem);
  g.fixed_split = problem.options.batch_invariant ? kFixedSplitBlocks : 0;
  g.cost = shape.cost;
  // Those are of plain caches. From an fp8_656 one a block waits for what converts it, not for memory.
  if (problem.cache.format != KvFormat::kPlain) g.cost.per_block_alone = 0;
  const int row_tiles = (problem.rows_per_kv_head() + shape.tile_rows - 1) / shape.tile_rows;
  g.team = shape.team;
  schedule::set_workers(g, row_tiles * problem.cache.heads, workers / g.team);
  return g;
}

/// Nanoseconds that a call takes less if it reads no plan and launches no combine step: at the least.
constexpr std::int64_t kWholeSaves = 700;

schedule::Geometry dense_geometry(const DecodeProblem& problem, int workers, const DenseShape& shape) {
  const schedule::Geometry g = split_geometry(problem, workers, shape);
  const std::optional<schedule::Geometry> whole = schedule::whole_items(g);
  return whole && schedule::never_gains_from_splits(g, *whole, kWholeSaves) ? *whole : g;
}

Loading loading_of(const DecodeProblem& problem) {
  if (problem.cache.format == KvFormat::kFp8_656) return Loading::kFp8;
  const bool boxes = !problem.sparse.enabled && box_tokens_of(problem.cache.page_size) >= kLeastBoxTokens;
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

std::string too_many_rows(const DecodeProblem& problem, int most) {
  return message("s_q * h_q / h_kv is ", problem.rows_per_kv_head(), "; at most ", most,
                 " query rows a KV head are accepted");
}

std::string unknown_dimensions(const DecodeProblem& problem, const char* accepted) {
  if (problem.cache.format == KvFormat::kFp8_656) accepted = "of an fp8_656 cache 576/512 is";
  return message("qk_dim/v_dim is ", problem.cache.qk_dim, "/", problem.cache.v_dim, "; ", accepted,
                 " accepted");
}

bool merges_in_kernel(const schedule::Geometry& g) {
  const std::int64_t items = std::int64_t{g.requests} * g.rounds;
  return schedule::max_merges(g) > 0 && 2 * items >= g.parts && g.lanes <= 2 && g.fixed_split == 0 &&
         g.parts * g.lanes <= parts::kMostMergingCtas;
}

Status launch_dense(const DecodeCall& planned,
                    const DenseInstance* (*find)(const DecodeCall& call, Loading loading)) {
  const schedule::Geometry geometry = geometry_of(planned);
  const DecodeCall call = planned.with(geometry);
  const ConstTensorView& cache = call.inputs.kv_cache;
  FLASHLATENT_RETURN_IF_ERROR(check_alignment("q", call.inputs.q, 16));
  FLASHLATENT_RETURN_IF_ERROR(check_alignment("kv_cache", cache, 16));
  FLASHLATENT_RETURN_IF_ERROR(check_alignment("out", call.outputs.out, 4));
  FLASHLATENT_RETURN_IF_ERROR(check_pages("kv_cache", cache));
  DeviceGuard guard(call.executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  Result<int> units = multiprocessors(call.executor.device);
  if (!units.ok()) return units.status();

  DenseLaunch launch = {};
  launch.args = decode_arguments(call);
  launch.args.cache.data = cache.data;
  launch.args.cache.page_stride = cache.strides[0];
  launch.args.cache.token_stride = cache.strides[1];
  launch.args.cache.head_stride = cache.strides[2];
  launch.args.cache.box_tokens = box_tokens_of(call.problem.cache.page_size);
  const DenseInstance* instance = find(call, loading_of(call.problem, cache));
  if (instance->boxes.kv != kv_tensor_map && !heads_in_chunks(cache)) instance = find(call, Loading::kTokens);
  const BoxMaps& boxes = instance->boxes;
  launch.args.cache.box_tokens = std::min(launch.args.cache.box_tokens, boxes.most_tokens);
  if (instance->key.loading == Loading::kBoxes) {
    FLASHLATENT_RETURN_IF_ERROR(boxes.kv("kv_cache", cache, launch.args.cache.box_tokens, launch.kv));
  }
  FLASHLATENT_RETURN_IF_ERROR(query_map(call, boxes, launch));
  if (call.problem.query.ragged) {
    FLASHLATENT_RETURN_IF_ERROR(write_missing_rows(launch.args, call.problem.query.heads, call.executor));
  }
  const InstanceKey& key = instance->key;
  const bool merges = instance->merges && merges_in_kernel(geometry);
  if (merges) launch.args.merge_state = static_cast<parts::MergeState*>(call.workspace.data);
  FLASHLATENT_RETURN_IF_ERROR(
      launch_ctas(instance->kernel, launch.args.geometry.parts * launch.args.geometry.lanes * key.team,
                  key.cluster * key.team, call.executor, {&launch.args, &launch.kv, &launch.query_rows}));
  if (merges) return {};
  return combine_plan(launch.args, call.problem.cache.dtype, call.problem.cache.v_dim, *units, call.executor);
}

}  // namespace flashlatent::cuda
