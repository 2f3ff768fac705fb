#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/message.h"
#include "cuda/common/decode_arguments.h"
#include "cuda/common/launch_ctas.h"
#include "cuda/common/prefix_units.h"
#include "cuda/common/runtime.h"
#include "cuda/common/tensor_map.h"
#include "cuda/cuda_backend.h"
#include "cuda/prefill/instances.h"
#include "plan/host_plan.h"

namespace flashlatent::cuda {

namespace {

using prefill::Kind;
using prefill::kSharedTileRows;

constexpr int kLeastRows =
    17;  // of a KV head: of d up to 128 `paged` has 16 in a tile, and reads its tokens once
constexpr std::int64_t kMostTiles = 1 << 22;
constexpr int kDims[] = {64, 128, 256};  // of instances
constexpr int kLeastBoxTokens = 8;       // eight rows are an atom of the swizzle
// Nanoseconds a block, in proportion to d; a tile's begin and end.
constexpr int kBlockCost64 = 1200;
constexpr int kTileCost = 8000;
// The same without a mask, of 128 rows that share a prefix.
constexpr int kSharedBlockCost64 = 1000;
// Keys and values that the tiles under way read should stay in L2.
constexpr std::int64_t kSectionBytes = 16 << 20;

const prefill::Instance* find(const DecodeProblem& problem, Kind kind) {
  const auto* dim =
      std::find_if(std::begin(kDims), std::end(kDims), [&](int d) { return d >= problem.cache.qk_dim; });
  if (dim == std::end(kDims)) return nullptr;
  const prefill::InstanceKey key{problem.cache.dtype, *dim, kind};
  for (const auto* table : {&prefill::kBf16, &prefill::kFp16}) {
    for (const prefill::Instance& instance : *table) {
      if (instance.key == key) return &instance;
    }
  }
  return nullptr;
}

/// Of requests' own tokens.
const prefill::Instance* find(const DecodeProblem& problem) {
  const auto& options = problem.options;
  return find(problem, options.separate.soft_cap != 0 || options.separate.alibi ? Kind::kTransforms : Kind::kPlain);
}

/// Rows of one TMA box: whole parts of a page and of a block.
int box_tokens_of(const DecodeProblem& problem, int block_tokens) {
  return std::gcd(problem.cache.page_size, block_tokens);
}

/// Of the cache and the scores.
std::optional<std::string> declines_cache(const DecodeProblem& problem) {
  const auto& cache = problem.cache;
  if (cache.layout != KvLayout::kSeparate) {
    return message("the cache is ", to_string(cache.layout), "; separate keys and values are accepted");
  }
  if (cache.format != KvFormat::kPlain) {
    return message("the cache is ", to_string(cache.format), "; bf16 and fp16 are accepted");
  }
  if (cache.qk_dim != cache.v_dim) {
    return message("qk_dim is ", cache.qk_dim, " and v_dim ", cache.v_dim, "; equal ones are accepted");
  }
  if (cache.qk_dim % 8 != 0 || find(problem) == nullptr) {
    return message("d is ", cache.qk_dim, "; multiples of 8 up to 256 are accepted");
  }
  if (cache.page_size % kLeastBoxTokens != 0) {
    return message("page_size is ", cache.page_size, "; multiples of ", kLeastBoxTokens, " are accepted");
  }
  return std::nullopt;
}

int row_tiles_of(const DecodeProblem& problem) {
  const int rows = find(problem)->tile_rows;
  return (problem.rows_per_kv_head() + rows - 1) / rows;
}

std::optional<std::string> declines(const DecodeProblem& problem) {
  if (std::optional<std::string> reason = declines_cache(problem)) return reason;
  if (problem.rows_per_kv_head() < kLeastRows) {
    return message("a KV head has ", problem.rows_per_kv_head(), " query rows; at least ", kLeastRows,
                   " are accepted");
  }
  const std::int64_t tiles = std::int64_t{row_tiles_of(problem)} * problem.cache.heads;
  if (tiles * problem.query.batch > kMostTiles) {
    return message("q has ", tiles * problem.query.batch, " tiles of ", find(problem)->tile_rows,
                   " rows; at most ", kMostTiles, " are accepted");
  }
  return std::nullopt;
}

/// The kernel walks tiles by itself and splits nothing: to the plan there is one part. The estimate is what
/// counts, of whole waves of tiles.
schedule::Geometry geometry(const DecodeProblem& problem, int workers) {
  const prefill::Instance& instance = *find(problem);
  schedule::Geometry g;
  g.requests = problem.query.batch;
  g.tile_rows = instance.tile_rows;
  g.block_tokens = instance.block_tokens;
  g.max_tokens = reach_of(problem);
  g.lanes = row_tiles_of(problem) * problem.cache.heads;
  int block_cost = kBlockCost64 * instance.key.dim / 64 * instance.block_tokens / 128;
  int tile_cost = kTileCost;
  if (problem.options.batch_invariant) {
    // One split is all of a request, whatever the batch.
    g.fixed_split = std::max(schedule::max_blocks(g), 1);
    // What `paged` compares it with is one of its splits, 2,048 tokens.
    block_cost = std::max(block_cost * (2048 / g.block_tokens) / g.fixed_split, 1);
  } else if (g.requests > 0) {
    const double tiles = static_cast<double>(g.requests) * g.lanes;
    const double waves = std::ceil(tiles / std::max(workers, 1)) / g.requests;
    auto share = [&](int cost) { return std::max(static_cast<int>(std::min(cost * waves, 1e9)), 1); };
    block_cost = share(block_cost);
    tile_cost = share(tile_cost);
  }
  g.cost = {.per_block = block_cost, .per_split = tile_cost};
  return g;
}

/// What both launches have in common.
Status common_launch(const DecodeCall& call, const prefill::Instance& instance, prefill::Launch& launch) {
  const auto& [problem, inputs, outputs, g, prefix, plan, workspace, executor] = call;
  FLASHLATENT_RETURN_IF_ERROR(check_alignment("q", inputs.q, 16));
  FLASHLATENT_RETURN_IF_ERROR(check_alignment("key_cache", inputs.key_cache, 16));
  FLASHLATENT_RETURN_IF_ERROR(check_alignment("value_cache", inputs.value_cache, 16));
  FLASHLATENT_RETURN_IF_ERROR(check_pages("key_cache", inputs.key_cache));
  prefill::Arguments& args = launch.args;
  args.decode = decode_arguments(call);
  const int box_tokens = box_tokens_of(problem, instance.block_tokens);
  args.decode.cache.box_tokens = box_tokens;
  args.dim = problem.cache.qk_dim;
  args.reach = reach_of(problem);
  args.window = problem.options.separate.window;
  args.soft_cap = problem.options.separate.soft_cap;
  args.alibi_slopes = static_cast<const float*>(inputs.alibi_slopes.data);
  args.kv_heads = problem.cache.heads;
  args.sequences = problem.query.batch * problem.cache.heads;
  args.section = 1;
  if (inputs.key_cache.shape[0] == 0) return {};  // no page is ever one
  FLASHLATENT_RETURN_IF_ERROR(kv_tensor_map("key_cache", inputs.key_cache, box_tokens, launch.keys));
  return kv_tensor_map("value_cache", inputs.value_cache, box_tokens, launch.values);
}

/// What the CTAs count their jobs in.
std::size_t workspace_bytes(const DecodeProblem&, const schedule::Geometry&) {
  return sizeof(std::int32_t);
}

Status launch_instance(const prefill::Instance& instance, const prefill::Launch& launch,
                       const Executor& executor) {
  return launch_ctas(instance.kernel, launch.ctas, 1, executor,
                     {&launch.args, &launch.keys, &launch.values, &launch.query});
}

/// Q by TMA, if 64 rows are whole tokens.
Status query_map(const DecodeProblem& problem, const ConstTensorView& view, prefill::Launch& launch) {
  const int group = launch.args.decode.query.group.value;
  launch.args.query_boxes = 64 % group == 0 && view.elements() > 0;
  if (!launch.args.query_boxes) return {};
  ConstTensorView q = with_batch(view);
  if (problem.query.ragged) {  // all tokens are one request's
    std::swap(q.shape[0], q.shape[1]);
    std::swap(q.strides[0], q.strides[1]);
  }
  return query_group_map(q, 64 / group, group, launch.query);
}

Status launch(const DecodeCall& call) {
  const auto& [problem, inputs, outputs, g, prefix, plan, workspace, executor] = call;
  FLASHLATENT_RETURN_IF_ERROR(check_alignment("out", outputs.out, 4));
  DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  Result<int> units = multiprocessors(executor.device);
  if (!units.ok()) return units.status();
  const prefill::Instance& instance = *find(problem);
  prefill::Launch launch = {};
  FLASHLATENT_RETURN_IF_ERROR(common_launch(call, instance, launch));
  prefill::Arguments& args = launch.args;
  // How long requests are is not known here; of a prompt without a prefix as long as its query.
  const std::int64_t sequence_bytes = 4LL * problem.query.tokens * problem.cache.qk_dim;
  args.section =
      static_cast<int>(std::clamp<std::int64_t>(kSectionBytes / sequence_bytes, 1, args.sequences));
  args.jobs = args.sequences * args.decode.query.row_tiles.value;
  args.wide_output = check_alignment("out", outputs.out, 16).ok();
  FLASHLATENT_RETURN_IF_ERROR(query_map(problem, inputs.q, launch));
  launch.ctas = std::min(args.jobs, *units);
  if (args.jobs > launch.ctas) {
    args.next_job = static_cast<std::int32_t*>(workspace.data);
    FLASHLATENT_RETURN_IF_ERROR(to_status(
        cudaMemsetAsync(args.next_job, 0, sizeof(*args.next_job), static_cast<cudaStream_t>(executor.stream)),
        "cudaMemsetAsync"));
  }
  if (problem.query.ragged) {
    FLASHLATENT_RETURN_IF_ERROR(write_missing_rows(args.decode, problem.query.heads, executor));
  }
  return launch_instance(instance, launch, executor);
}

}  // namespace

const DecodeKernel kPrefillKernel = {
    .name = "prefill",
    .backend = Backend::kCuda,
    .takes =
        "separate keys and values of bf16 or fp16, d up to 256, pages of a multiple of 8 tokens, more "
        "than 16 query rows a KV head",
    .declines = declines,
    .geometry = geometry,
    .workspace_bytes = workspace_bytes,
    .launch = launch,
};

}  // namespace flashlatent::cuda

namespace flashlatent::cuda {

std::optional<std::string> declines_prefix_units(const DecodeProblem& problem) {
  if (std::optional<std::string> reason = declines_cache(problem)) return reason;
  if (problem.options.separate.soft_cap != 0) {
    return message("soft_cap is ", problem.options.separate.soft_cap, "; 0 is accepted");
  }
  if (problem.options.separate.alibi) return "alibi is true; false is accepted";
  const int rows = problem.rows_per_kv_head();
  if (2 * rows <= kSharedTileRows) return std::nullopt;
  return message("a request has ", rows, " query rows a KV head; at most ", kSharedTileRows / 2,
                 " are accepted");
}

prefix::Shape prefix_units_shape(const DecodeProblem& problem, int workers) {
  const prefill::Instance& instance = *find(problem, Kind::kShared);
  const double head_elements = static_cast<double>(problem.cache.heads) * problem.cache.qk_dim;
  return {.requests = problem.query.batch,
          .request_rows = problem.rows_per_kv_head(),
          .kv_heads = problem.cache.heads,
          .max_tokens = reach_of(problem),
          .tile_rows = kSharedTileRows,
          .block_tokens = instance.block_tokens,
          .workers = workers,
          // Alone, requests read what they share mostly from L2, at 9 TB/s (64 x 8,192 tokens: 0.246 ms); a
          // tile's products at 450 TFLOP/s. With groups a call begins and ends 16 us later, and their results
          // are written, read and merged.
          .read_cost = std::max(1, static_cast<int>(4 * head_elements / 9)),
          .tile_cost = std::max(1, static_cast<int>(4 * kSharedTileRows * head_elements / 450)),
          .member_cost = 200'000,
          .call_cost = 16'000'000,
          .unit_block_cost = kSharedBlockCost64 * instance.key.dim / 64 * instance.block_tokens / 128};
}

Status launch_prefix_units(const DecodeCall& call, const prefix::Shape& shape, const prefix::View& plan,
                           float* out, float* lse) {
  const prefill::Instance& instance = *find(call.problem, Kind::kShared);
  prefill::Launch launch = {};
  FLASHLATENT_RETURN_IF_ERROR(common_launch(call, instance, launch));
  launch.args.prefix = {shape, plan.header, plan.tiles, plan.members, out, lse};
  launch.ctas = shape.workers;
  return launch_instance(instance, launch, call.executor);
}

}  // namespace flashlatent::cuda
