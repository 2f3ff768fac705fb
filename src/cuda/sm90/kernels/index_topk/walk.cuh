// Which tiles of keys a CTA scores: the tiles of all groups lie on a line, and each CTA has an equal run of
// it.
#pragma once

#include "cuda/sm90/kernels/index_topk/config.h"

namespace flashlatent::cuda::indexer {

struct ScoreArguments {
  IndexCall call;
  Shape shape;
  std::uint32_t* scores;  ///< From query token first_row on, score_stride apart; as sortable numbers.
  std::int64_t score_stride;
  int first_row, rows;  ///< Query tokens of this launch.
  int groups;
  int groups_of_request;  ///< Of calls that are not ragged.
  /// Where query tokens see no more places than these, no scores are made (IndexCall::needs_no_scores()).
  int places_without_scores;
};

inline int places_without_scores(const IndexCall& call) {
  return call.needs_no_scores(call.topk) ? call.topk : 0;
}

/// Query tokens of one request that a CTA works on together.
struct Group {
  int request = 0;
  int rows = 0;   ///< 0: no group has this number.
  int own = 0;    ///< The number of the group's first query token in its request.
  int count = 0;  ///< Query tokens of the request.
  int token = 0;  ///< The argument of OverTokens::at() for the first query token.
  int row = 0;    ///< The first query token's number in the call.
  int most = 0;   ///< The most keys that one of the query tokens sees.
};

/// How many keys query token `i` of a group sees.
__device__ __forceinline__ int visible(const IndexCall& call, const Group& group, int i) {
  return call.visible(group.request, group.token + i, group.own + i, group.count);
}

/// The group's query tokens in this launch.
__device__ __forceinline__ Group group_of(const ScoreArguments& arguments, int number) {
  const IndexCall& call = arguments.call;
  const int size = arguments.shape.group_rows;
  Group group;
  if (!call.ragged) {
    const int each = arguments.groups_of_request;  // mostly 1 in decode: no division then
    group.request = each == 1 ? number : number / each;
    group.own = (number - group.request * each) * size;
    group.count = call.tokens;
    group.token = group.own;
    group.row = group.request * call.tokens + group.own;
  } else {
    int low = 0, high = call.batch;  // the last request whose groups begin at `number` or before
#pragma unroll 1
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (call.cu_seqlens_q[middle * call.cu_stride] / size + middle <= number) {
        low = middle;
      } else {
        high = middle;
      }
    }
    if (call.batch == 0) return group;
    const int begin = call.cu_seqlens_q[low * call.cu_stride];
    group.request = low;
    group.own = (number - (begin / size + low)) * size;
    group.count = call.cu_seqlens_q[(low + 1) * call.cu_stride] - begin;
    group.token = group.row = begin + group.own;
  }
  const int before = max(arguments.first_row - group.row, 0);
  const int end = min(min(group.count - group.own, size), arguments.first_row + arguments.rows - group.row);
  group.rows = group.own < 0 ? 0 : max(end - before, 0);
  group.own += before;
  group.token += before;
  group.row += before;
  if (group.rows == 0) return group;
  if (!call.lengths_per_token) {
    group.most = visible(call, group, group.rows - 1);  // the last query token sees the most
  } else {
#pragma unroll 1
    for (int i = 0; i < group.rows; ++i) group.most = max(group.most, visible(call, group, i));
  }
  return group;
}

/// Tiles of the keys that some query token of the group sees; none where no scores are made.
template <class Config>
__device__ __forceinline__ int tiles_of(const ScoreArguments& arguments, const Group& group) {
  if (group.rows == 0) return 0;
  const int places = arguments.call.candidates > 0 ? arguments.call.span : group.most;
  return places <= arguments.places_without_scores ? 0 : (places + Config::kTile - 1) / Config::kTile;
}

/// Where a CTA begins, and how many tiles it has.
struct Run {
  int number, tile, tiles;
  int all_tiles;  ///< Of all CTAs.
  Group group;    ///< The one with this number.
  int group_tiles;
};

/// The tiles of all groups from the CTA's first one on, and how many it has. Runs differ by one tile at most.
struct Share {
  int begin, tiles;
};
__device__ __forceinline__ Share share_of_cta(int total) {
  const int ctas = static_cast<int>(gridDim.x), cta = static_cast<int>(blockIdx.x);
  const int each = total / ctas, more = total - each * ctas;
  return {each * cta + min(cta, more), each + (cta < more ? 1 : 0)};
}

/// For up to 32 groups. Each warp finds it, so that none waits for another, and none computes the group
/// again.
template <class Config>
__device__ __forceinline__ Run run_of_few_groups(const ScoreArguments& arguments) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Group mine;
  if (lane < arguments.groups) mine = group_of(arguments, lane);
  const int tiles = tiles_of<Config>(arguments, mine);
  int inclusive = tiles;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(0xFFFFFFFF, inclusive, step);
    if (lane >= step) inclusive += other;
  }
  const auto from = [](int x, int other) { return __shfl_sync(0xFFFFFFFF, x, other); };
  const int total = from(inclusive, 31);
  const Share share = share_of_cta(total);
  const int number = __popc(__ballot_sync(0xFFFFFFFF, inclusive <= share.begin)) % 32;
  const Group group = {from(mine.request, number), from(mine.rows, number),  from(mine.own, number),
                       from(mine.count, number),   from(mine.token, number), from(mine.row, number),
                       from(mine.most, number)};
  return {
      number, share.begin - from(inclusive - tiles, number), share.tiles, total, group, from(tiles, number)};
}

/// All threads of the CTA call it. `room`: an int for each warp, and three more.
template <class Config>
__device__ inline Run run_of_cta(const ScoreArguments& arguments, int* room) {
  if (arguments.groups <= 32) return run_of_few_groups<Config>(arguments);
  constexpr int kThreads = Config::kThreads;
  const int thread = threadIdx.x, each = (arguments.groups + kThreads - 1) / kThreads;
  const int first = min(thread * each, arguments.groups), last = min(first + each, arguments.groups);
  int sum = 0;
#pragma unroll 1
  for (int i = first; i < last; ++i) sum += tiles_of<Config>(arguments, group_of(arguments, i));
  // An inclusive prefix sum: in warps, then over warps.
  int inclusive = sum;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(0xFFFFFFFF, inclusive, step);
    if (thread % 32 >= step) inclusive += other;
  }
  if (thread % 32 == 31) room[thread / 32] = inclusive;
  int* found = room + kThreads / 32;
  if (thread == 0) found[0] = found[1] = found[2] = 0;
  __syncthreads();
  int before = inclusive - sum, total = 0;
  for (int warp = 0; warp < kThreads / 32; ++warp) {
    if (warp < thread / 32) before += room[warp];
    total += room[warp];
  }
  const Share share = share_of_cta(total);
  if (share.tiles > 0 && share.begin >= before && share.begin < before + sum) {
    int group = first, tile = share.begin - before;
#pragma unroll 1
    for (int tiles; tile >= (tiles = tiles_of<Config>(arguments, group_of(arguments, group))); ++group)
      tile -= tiles;
    found[0] = group;
    found[1] = tile;
    found[2] = share.tiles;
  }
  __syncthreads();
  Run run = {found[0], found[1], found[2], total, {}, 0};
  if (run.tiles > 0) {
    run.group = group_of(arguments, run.number);
    run.group_tiles = tiles_of<Config>(arguments, run.group);
  }
  return run;
}

/// The tiles of a query token that is a group of its own.
template <class Config>
__device__ __forceinline__ Run run_of_row(const ScoreArguments& arguments, const IndexRow& row) {
  const int of_request = row.request * arguments.call.tokens + row.own;
  Run run = {arguments.call.ragged ? row.token + row.request : of_request, 0, 0, 0, {}, 0};
  if (row.count > 0) run.group = group_of(arguments, run.number);
  run.tiles = run.all_tiles = run.group_tiles = tiles_of<Config>(arguments, run.group);
  return run;
}
/// The `rank`-th of `ctas` equal parts of a query token's tiles.
__device__ __forceinline__ Run part_of(Run run, int rank, int ctas) {
  const int each = (run.tiles + ctas - 1) / ctas;
  run.tile = min(rank * each, run.tiles);
  run.tiles = min(each, run.tiles - run.tile);
  return run;
}

/// Steps through a run, tile by tile.
template <class Config>
class Walk {
 public:
  __device__ __forceinline__ Walk(const ScoreArguments& arguments, const Run& run)
      : arguments_(arguments),
        group_(run.group),
        number_(run.number),
        tile_(run.tile),
        left_(run.tiles),
        tiles_(run.group_tiles) {}
  __device__ __forceinline__ bool done() const { return left_ == 0; }
  __device__ __forceinline__ const Group& group() const { return group_; }
  __device__ __forceinline__ int first_place() const { return tile_ * Config::kTile; }
  /// Tiles of this group from here on.
  __device__ __forceinline__ int tiles_here() const { return min(left_, tiles_ - tile_); }
  __device__ __forceinline__ void next() { skip(1); }
  /// `count`: up to tiles_here().
  __device__ __forceinline__ void skip(int count) {
    left_ -= count;
    tile_ += count;
    if (left_ == 0 || tile_ < tiles_) return;
    tile_ = 0;
    do {
      group_ = group_of(arguments_, ++number_);
      tiles_ = tiles_of<Config>(arguments_, group_);
    } while (tiles_ == 0);
  }

 private:
  const ScoreArguments& arguments_;
  Group group_;
  int number_, tile_, left_, tiles_;
};

}  // namespace flashlatent::cuda::indexer
