#include <algorithm>
#include <optional>

#include "core/message.h"
#include "cuda/common/combine.h"
#include "cuda/common/decode_arguments.h"
#include "cuda/common/launch_ctas.h"
#include "cuda/common/prefix_units.h"
#include "cuda/common/runtime.h"
#include "cuda/common/tensor_map.h"
#include "cuda/cuda_backend.h"
#include "cuda/paged/arguments.h"
#include "cuda/paged/instances.h"
#include "kernel/prefix_sharing.h"
#include "plan/host_plan.h"

namespace flashlatent::cuda {

namespace {

constexpr int kFixedSplitTokens = 2048;  // batch_invariant
constexpr int kDims[] = {64, 128, 256};  // of instances; smaller heads leave the rest of one out

int element_bytes(const DecodeProblem& problem) {
  return problem.cache.format == KvFormat::kE4m3 ? 1 : 2;
}

paged::CachedType cached_type(const DecodeProblem& problem) {
  if (problem.cache.format == KvFormat::kE4m3) return paged::CachedType::kE4m3;
  return problem.cache.dtype == Dtype::kBF16 ? paged::CachedType::kBF16 : paged::CachedType::kF16;
}

const paged::Instance* find(const DecodeProblem& problem) {
  const auto& cache = problem.cache;
  const auto* dim =
      std::find_if(std::begin(kDims), std::end(kDims), [&](int d) { return d >= cache.qk_dim; });
  if (dim == std::end(kDims)) return nullptr;
  // Columns are what a row tile costs; more rows are several tiles, which meet in the cache.
  const int columns = std::min(problem.rows_per_kv_head() <= 8 ? 8 : 16, paged::most_columns(*dim));
  const paged::InstanceKey key{cached_type(problem), *dim, columns, cache.layout == KvLayout::kPacked};
  for (const paged::Instances* table : {&paged::kBf16, &paged::kFp16, &paged::kE4m3}) {
    for (const paged::Instance& instance : *table) {
      if (instance.key == key) return &instance;
    }
  }
  return nullptr;
}

std::optional<std::string> declines(const DecodeProblem& problem) {
  const auto& cache = problem.cache;
  if (cache.layout == KvLayout::kLatent) return "the cache is latent; separate keys and values are accepted";
  if (cache.qk_dim != cache.v_dim) {
    return message("qk_dim is ", cache.qk_dim, " and v_dim ", cache.v_dim, "; equal ones are accepted");
  }
  const int unit = 16 / element_bytes(problem);
  if (cache.qk_dim % unit != 0 || find(problem) == nullptr) {
    return message("d is ", cache.qk_dim, "; multiples of ", unit, " up to 256 are accepted");
  }
  if (cache.layout == KvLayout::kPacked && cache.page_size % unit != 0) {
    return message("page_size is ", cache.page_size, "; of packed values multiples of ", unit,
                   " are accepted");
  }
  return std::nullopt;
}

/// What a CTA's warps take of a tile at once is a block: the fewer warps a tile has, the more tiles the CTA
/// has side by side.
int tiles_a_cta(const DecodeProblem& problem, const schedule::Geometry& g) {
  const paged::Instance& instance = *find(problem);
  return instance.warps * instance.step_tokens / g.block_tokens;
}

/// The schedule with so many tiles a CTA, if they are whole KV heads or parts of one.
std::optional<schedule::Geometry> geometry(const DecodeProblem& problem, int workers, int tiles) {
  const paged::Instance& instance = *find(problem);
  schedule::Geometry g;
  g.requests = problem.query.batch;
  g.tile_rows = instance.key.columns;
  g.block_tokens = instance.warps * instance.step_tokens / tiles;
  g.max_tokens = reach_of(problem);
  if (problem.options.separate.window > 0) {
    // The last tokens alone: what some query token sees, and what is left over in the first block.
    const std::int64_t seen =
        std::int64_t{problem.options.separate.window} + problem.query.tokens - 1 + g.block_tokens;
    g.max_tokens = static_cast<std::int32_t>(std::min<std::int64_t>(g.max_tokens, seen));
  }
  g.fixed_split = problem.options.batch_invariant ? kFixedSplitTokens / g.block_tokens : 0;
  // Nanoseconds: a block at a multiprocessor's share of the memory bandwidth, 34.8 bytes in each. What splits
  // cost is from calls of 64 requests, split and not.
  const double bytes = 2.0 * g.block_tokens * tiles * problem.cache.qk_dim * element_bytes(problem);
  g.cost = {.per_block = std::max(1, static_cast<int>(bytes / 34.8)), .per_split = 4000, .per_merge = 15000};
  const int row_tiles = (problem.rows_per_kv_head() + g.tile_rows - 1) / g.tile_rows;
  schedule::set_workers(g, row_tiles * problem.cache.heads, workers * tiles);
  const bool fits = g.lanes % tiles == 0 && (row_tiles % tiles == 0 || tiles % row_tiles == 0);
  return fits ? std::optional(g) : std::nullopt;
}

// Teams: a cluster of 8 finds room in any GPC; other devices may hold a few less at once.
constexpr int kMostTeam = 8;
constexpr int kUnusedSms = 12;

/// A team for each request and tile, for few of them: no combine step, and the plan needs no reading. Where a
/// request as long as the page table would rather have all multiprocessors, there are none.
std::optional<schedule::Geometry> team_geometry(const DecodeProblem& problem, int workers) {
  const schedule::Geometry split = *geometry(problem, workers, 1);
  const std::int64_t items = std::int64_t{split.requests} * split.rounds;
  for (int team = kMostTeam; team > 1; team /= 2) {
    if (items < 1 || split.rounds > 1 || items * split.lanes * team > workers - kUnusedSms) continue;
    const std::int64_t blocks = schedule::max_blocks(split);
    const std::int64_t by_team = (blocks + team - 1) / team * split.cost.per_block;
    const std::int64_t by_parts = blocks * split.cost.per_block / split.parts + split.cost.per_merge;
    if (by_team > by_parts) return std::nullopt;
    auto whole = schedule::whole_items(split);
    if (!whole) return std::nullopt;
    whole->team = team;
    whole->cost.per_block = std::max(1, split.cost.per_block / team);
    return whole;
  }
  return std::nullopt;
}

// More parts of a request than this are merged by a launch of their own: many thread blocks do then what one
// would.
constexpr int kMostMergingParts = 72;

/// Do the warps that split a request merge it themselves? With batch_invariant they might be any number.
bool merges_splits(const schedule::Geometry& g) {
  return schedule::max_merges(g) > 0 && g.fixed_split == 0 && g.parts <= kMostMergingParts;
}

// 4 take 1 % longer where lengths are equal, and 2 % less where they vary; 8, a warp each, longer always.
constexpr int kMostTiles = 2;
// What comes after a shared prefix is short: a CTA has few segments so (64 x 512 tokens: 0.070 ms with the
// prefix, 0.075 with 2).
constexpr int kMostTilesSharing = 4;

/// As many tiles a CTA, up to `most`, as leave a request, or a round of one, for every part: memory is faster
/// so, and splits are not.
schedule::Geometry geometry_of_tiles(const DecodeProblem& problem, int workers, int most) {
  for (int tiles = std::min(most, find(problem)->warps); tiles > 1; tiles /= 2) {
    const auto g = geometry(problem, workers, tiles);
    if (g && 10 * std::int64_t{g->requests} * g->rounds >= 9LL * g->parts) return *g;
  }
  return *geometry(problem, workers, 1);
}

/// Where prefixes may be shared: no teams.
schedule::Geometry sharing_geometry(const DecodeProblem& problem, int workers) {
  return geometry_of_tiles(problem, workers, kMostTilesSharing);
}

/// One tile a CTA, where a request must not feel its batch-mates.
schedule::Geometry geometry(const DecodeProblem& problem, int workers) {
  if (problem.options.batch_invariant) return *geometry(problem, workers, 1);
  if (prefix_shape_of(kPagedKernel, problem, workers).requests > 0) return sharing_geometry(problem, workers);
  if (const auto team = team_geometry(problem, workers)) return *team;
  return geometry_of_tiles(problem, workers, kMostTiles);
}

/// Of partial results; tickets come after them, one a warp for each of fewer merges than parts.
std::size_t partial_bytes(const DecodeProblem& problem, const schedule::Geometry& g) {
  return prefix::align(static_cast<std::int64_t>(decode_workspace_bytes(problem, g)));
}
std::size_t workspace_bytes(const DecodeProblem& problem, const schedule::Geometry& g) {
  const std::size_t warps = std::size_t{1} * g.parts * g.lanes * find(problem)->warps;
  return partial_bytes(problem, g) + (merges_splits(g) ? warps * sizeof(parts::Ticket) : 0);
}

/// Strides in bytes, of keys or values as (pages, page_size, h_kv, d).
paged::Plane rows(const ConstTensorView& cache, const ConstTensorView& scale) {
  const auto bytes = static_cast<std::int64_t>(size_of(cache.dtype));
  return {.data = static_cast<const std::uint8_t*>(cache.data),
          .page_stride = cache.strides[0] * bytes,
          .head_stride = cache.strides[2] * bytes,
          .token_stride = cache.strides[1] * bytes,
          .unit_stride = 16,
          .scale = static_cast<const float*>(scale.data),
          .scale_stride = scale.present() && scale.shape[0] > 1 ? 1 : 0};
}

/// Keys (pages, h_kv, d / x, page_size, x).
paged::Plane packed_keys(const ConstTensorView& cache, const ConstTensorView& scale) {
  const auto bytes = static_cast<std::int64_t>(size_of(cache.dtype));
  paged::Plane plane = rows(cache, scale);
  plane.head_stride = cache.strides[1] * bytes;
  plane.unit_stride = cache.strides[2] * bytes;
  plane.token_stride = cache.strides[3] * bytes;
  return plane;
}

/// Values (pages, h_kv, d, page_size).
paged::Plane packed_values(const ConstTensorView& cache, const ConstTensorView& scale) {
  const auto bytes = static_cast<std::int64_t>(size_of(cache.dtype));
  paged::Plane plane = rows(cache, scale);
  plane.head_stride = cache.strides[1] * bytes;
  plane.unit_stride = cache.strides[2] * bytes;
  plane.token_stride = bytes;
  return plane;
}

prefix::Shape prefix_shape(const DecodeProblem& problem, int workers) {
  const schedule::Geometry g = sharing_geometry(problem, workers);
  prefix::Shape shape = prefix_units_shape(problem, workers);
  // A multiprocessor can read some 65 bytes in a nanosecond, its share of the bandwidth is 34.8.
  shape.own_block_cost = std::max(1, g.cost.per_block * 348 / 650);
  shape.own_split_cost = g.cost.per_split;
  shape.lanes_a_worker = tiles_a_cta(problem, g);
  return shape;
}

/// Where requests may share prefixes: launches what attends to those, and leaves the rest to `args`.
Status share_prefixes(const DecodeCall& call, paged::Arguments& args) {
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
  return launch_prefix_units(call, shape, plan, out, lse);
}

/// Boxes of TMA for keys and values, if pages and strides allow: their tokens, else 0.
int make_maps(const DecodeProblem& problem, const DecodeInputs& inputs, paged::Arguments& args) {
  const int page_size = problem.cache.page_size;
  const auto dim = static_cast<std::uint32_t>(find(problem)->key.dim);
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
  // Keys: a unit of 16 tokens is one line.
  ConstTensorView keys = given;
  keys.rank = 4;
  keys.shape[3] = page_size * unit;
  keys.strides[3] = 1;
  if (!box_map("key_cache", keys, order, {16 * unit, dim / unit, 1, 1}, 0, args.key_map).ok()) return 0;
  // Values: lines of 16 tokens, or eight of these where they are all there is of a page.
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

Status launch(const DecodeCall& call) {
  const auto& [problem, inputs, outputs, g, prefix, plan, workspace, executor] = call;
  FLASHLATENT_RETURN_IF_ERROR(check_alignment("q", inputs.q, 16));
  FLASHLATENT_RETURN_IF_ERROR(check_alignment("key_cache", inputs.key_cache, 16));
  FLASHLATENT_RETURN_IF_ERROR(check_alignment("value_cache", inputs.value_cache, 16));
  FLASHLATENT_RETURN_IF_ERROR(check_alignment("out", outputs.out, 4));
  FLASHLATENT_RETURN_IF_ERROR(check_pages("key_cache", inputs.key_cache));
  DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  Result<int> units = multiprocessors(executor.device);
  if (!units.ok()) return units.status();

  const bool packed = problem.cache.layout == KvLayout::kPacked;
  paged::Arguments args = {};
  args.decode = decode_arguments(call);
  args.keys =
      packed ? packed_keys(inputs.key_cache, inputs.key_scale) : rows(inputs.key_cache, inputs.key_scale);
  args.values = packed ? packed_values(inputs.value_cache, inputs.value_scale)
                       : rows(inputs.value_cache, inputs.value_scale);
  args.score = {.alibi_slopes = static_cast<const float*>(inputs.alibi_slopes.data),
                .soft_cap = problem.options.separate.soft_cap,
                .window = problem.options.separate.window};
  args.dim = problem.cache.qk_dim;
  args.reach = reach_of(problem);
  args.given_is_bf16 = problem.cache.dtype == Dtype::kBF16;
  args.tiles_a_cta = tiles_a_cta(problem, g);
  args.team = g.team;
  args.ctas_a_part = Divisor(g.lanes / args.tiles_a_cta);
  args.box_tokens = make_maps(problem, inputs, args);
  if (merges_splits(g)) {
    args.tickets = reinterpret_cast<parts::Ticket*>(static_cast<std::uint8_t*>(workspace.data) +
                                                    partial_bytes(problem, g));
  }
  if (problem.query.ragged) {
    FLASHLATENT_RETURN_IF_ERROR(write_missing_rows(args.decode, problem.query.heads, executor));
  }
  FLASHLATENT_RETURN_IF_ERROR(share_prefixes(call, args));
  FLASHLATENT_RETURN_IF_ERROR(launch_ctas(find(problem)->kernel,
                                          g.parts * (g.lanes / args.tiles_a_cta) * args.team, args.team,
                                          executor, {&args}));
  if (args.tickets != nullptr) return {};
  return combine_plan(args.decode, problem.cache.dtype, problem.cache.v_dim, *units, executor);
}

}  // namespace

const DecodeKernel kPagedKernel = {
    .name = "paged",
    .backend = Backend::kCuda,
    .takes =
        "separate keys and values, also in vLLM's packed order: bf16, fp16 and e4m3, d up to 256, any heads, "
        "tokens "
        "and page size",
    .declines = declines,
    .geometry = geometry,
    .workspace_bytes = workspace_bytes,
    .launch = launch,
    .declines_prefixes = declines_prefix_units,
    .prefix_shape = prefix_shape,
};

}  // namespace flashlatent::cuda
