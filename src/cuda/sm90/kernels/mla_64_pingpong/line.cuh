// Parts that are runs of the line of requests, or whole requests: the segments of a CTA, one after another.
// The loader announces them.
#pragma once

#include "cuda/sm90/kernels/mla_64_pingpong/warpgroup.cuh"
#include "cuda/sm90/load/kv_loader.cuh"
#include "cuda/sm90/merge/epilogue.cuh"
#include "cuda/sm90/merge/merge_step.cuh"
#include "cuda/sm90/merge/row_strips.cuh"
#include "cuda/sm90/walk/listed_items.cuh"

namespace flashlatent::mla_64_pingpong {

// Most rows have two parts. fp16, with twice as many pieces, takes 1.2 % less two parts at a time than four,
// which spills more registers.
template <class Config>
using MergeStep = sm90::MergeStep<typename Config::Element, Config::kComputeThreads, sm90::kTileRows,
                                  Config::kVDim, 2, 9, Config::kTokens>;

/// Is what runs once in a call kept short? With other loaders than TMA's the loop over blocks has no
/// registers for it: ptxas would keep some in memory.
template <class Config>
inline constexpr bool kBeginsEarly =
    std::is_same_v<typename Config::Loader, sm90::TmaLoader> && !Config::kTurns;
/// Does a part have whole items, which shapes tell? Then it reads no plan.
template <class Config>
__device__ __forceinline__ bool knows_items(const sm90::DecodeArguments& args) {
  const schedule::Partition partition = args.geometry.partition;
  return kBeginsEarly<Config> && args.query.begins == nullptr &&
         (partition == schedule::Partition::kWhole || partition == schedule::Partition::kTurns);
}

template <class Config>
class LineWarpgroup : public Warpgroup<Config> {
  using Base = Warpgroup<Config>;
  using Base::args_, Base::base_, Base::cache_scale_, Base::fragment_, Base::kUnits, Base::me_, Base::o_;

 public:
  using Base::Base;

  /// Writes the segment's result.
  __device__ __forceinline__ void finish(const sm90::Work& work) {
    if constexpr (Config::kTurns) return finish_whole(work);
    if constexpr (kStoresStrips) {
      if (work.segment.partial < 0) {
        const OutputRow row = output_row_of_lane(work.tile);
        if (__all_sync(0xffffffff, sm90::is_aligned(row.out))) return store_output(work, row);
      }
    }
    const sm90::RowPair sink = sinks(work);
    const auto& row_sum = this->add_up_rows(work);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = fragment_.row + 8 * half;
      const float sum = kUnits && work.blocks() == 0 ? 0.0F : row_sum[0][row] + row_sum[1][row];
      sm90::RowScale scale = sm90::finish_row(half ? base_.high : base_.low, sum);
      scale.factor *= cache_scale_;
      const std::int64_t slot = this->slot_of(work);
      const int column = me_ * Config::kHalfDim + fragment_.column;
      const bool writes_lse = column == 0;
      if (Config::kWritesOutput && work.segment.partial < 0) {
        sm90::write_output<typename Config::Element>(o_, row, half, scale, half ? sink.high : sink.low, args_,
                                                     work.tile, column, writes_lse);
      } else {
        sm90::write_partial<typename Config::Stored>(o_, slot * 64 + row, row < work.tile.rows, half, scale,
                                                     args_.partial, Config::kVDim, column, writes_lse);
      }
    }
    if (kStoresStrips && work.segment.partial < 0) this->meet();  // other warps may have stored strips
  }

 private:
  static constexpr bool kStoresStrips = kBeginsEarly<Config> && Config::kMerges;

  /// Where this lane's row goes (sm90::row_of_lane()).
  struct OutputRow {
    std::uint8_t* out;  // null: the row is not live
    float* lse;
    float sink;
  };
  __device__ __forceinline__ OutputRow output_row_of_lane(const sm90::RowTile& tile) const {
    const int row = sm90::row_of_lane();
    if (row >= tile.rows) return {};
    const sm90::OutputArguments& output = args_.output;
    const int token = tile.token(args_.query, row), head = tile.head(args_.query, row);
    auto* out =
        sm90::output_row<typename Config::Element>(output, tile, head, token) + me_ * Config::kHalfDim;
    return {reinterpret_cast<std::uint8_t*>(out), sm90::lse_place(output, tile, head, token),
            sm90::sink_of(output, head)};
  }
  /// Writes an output by way of the place of P: a warp has half of the rows' place that it shares with a warp
  /// of the other warpgroup.
  __device__ __forceinline__ void store_output(const sm90::Work& work, const OutputRow& row) {
    using Rooms = sm90::RowStrip[4][2];
    static_assert(sizeof(Rooms) == sizeof(SharedMemory<Config>::p));
    const auto& sums = this->add_up_rows(work);
    const int n = sm90::row_of_lane();
    const sm90::RowScale scale = sm90::finish_row(sm90::of_lane(base_), sums[0][n] + sums[1][n]);
    if (me_ == 0 && row.out != nullptr) *row.lse = sm90::final_lse(args_.output.empty_lse, scale.lse);
    float factor = scale.factor * cache_scale_;
    if (args_.output.sink != nullptr) factor *= sm90::sink_factor(scale.lse, row.sink);
    sm90::store_strips<typename Config::Element>(
        o_, factor, row.out, reinterpret_cast<Rooms&>(this->shared_.p)[this->thread_ / 32][me_]);
    this->meet();  // P of the next segment may be stored
  }

  /// The sinks of this thread's rows, if the output is written; loaded before both warpgroups synchronise.
  __device__ __forceinline__ sm90::RowPair sinks(const sm90::Work& work) const {
    if (!Config::kWritesOutput || work.segment.partial >= 0) return {0, 0};
    const auto of = [&](int row) {
      return row < work.tile.rows ? sm90::sink_of(args_.output, work.tile.head(args_.query, row)) : 0.0F;
    };
    return {of(fragment_.row), of(fragment_.row + 8)};
  }

  /// Writes the output of a whole item, with its rows' largest scores.
  __device__ __forceinline__ void finish_whole(const sm90::Work& work) {
    const sm90::RowPair sink = sinks(work);
    const auto& sums = this->add_up_rows(work);
    const auto& maxima = this->shared_.row_sums.maxima;
    const int low = fragment_.row, high = low + 8;
    const sm90::RowPair sum{sums[0][low] + sums[1][low], sums[0][high] + sums[1][high]};
    const sm90::RowPair max{fmaxf(maxima[0][low].get(), maxima[1][low].get()),
                            fmaxf(maxima[0][high].get(), maxima[1][high].get())};
    this->meet();  // the next item's sums may be written
    const int column = me_ * Config::kHalfDim + fragment_.column;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = half ? high : low;
      sm90::RowScale scale = sm90::finish_row(half ? base_.high : base_.low, half ? sum.high : sum.low);
      scale.factor *= cache_scale_;
      if (column == 0 && row < work.tile.rows) {
        sm90::write_max_logit(args_.max_logits, work.tile, work.tile.head(args_.query, row),
                              half ? max.high : max.low, scale.lse);
      }
      sm90::write_output<typename Config::Element>(o_, row, half, scale, half ? sink.high : sink.low, args_,
                                                   work.tile, column, column == 0);
    }
  }
};

/// Computes all segments. The warpgroup's class finishes a segment: a team's CTA has only one.
template <class Warpgroup, class Config>
__device__ __forceinline__ void compute(SharedMemory<Config>& shared, const sm90::DecodeArguments& args,
                                        const sm90::QueryMaps& query_maps, int me) {
  sm90::wait_for_launch_before();
  if constexpr (Config::kMerges) {
    if (args.merge_state != nullptr && threadIdx.x >= Config::kComputeThreads - 32) {
      MergeStep<Config>::begin(args, shared.merge);
    }
  }
  Warpgroup warpgroup(shared, args, query_maps, me);
  sm90::WorkPosition position(shared.work);
  if (!kBeginsEarly<Config> && threadIdx.x < 32) warpgroup.request_query(position.get());
  for (; !position.get().is_end(); position.next()) {
    const sm90::Work& work = position.get();
    warpgroup.attend(work);
    if (threadIdx.x < 32) warpgroup.request_query(position.ahead().get());
    warpgroup.finish(work);
  }
}

/// Tells the computing warpgroups their segments, and if it begins early asks for Q of the first one: a
/// warpgroup would have to wake up for that.
template <class Config>
class Announcer {
 public:
  __device__ __forceinline__ Announcer(SharedMemory<Config>& shared, const sm90::DecodeArguments& args,
                                       const sm90::QueryMaps& query_maps, int thread)
      : shared_(shared), args_(args), query_maps_(query_maps), thread_(thread), position_(shared.work) {}

  /// By all threads that load.
  __device__ __forceinline__ void tell(const sm90::Work& work) {
    if (thread_ == 0) position_.put(work);
    if constexpr (kBeginsEarly<Config>) {
      if (is_first_ && work.blocks() > 0) ask_for_query(work.tile);
      is_first_ = false;
    }
  }
  /// The only segment, whose Q has been asked for.
  __device__ __forceinline__ void tell_only(const sm90::Work& work) {
    is_first_ = false;
    tell(work);
    tell_end();
  }
  __device__ __forceinline__ void tell_end() {
    sm90::Work end;
    end.segment.request = -1;
    if (thread_ == 0) position_.put(end);
  }
  __device__ __forceinline__ void ask_for_query(const sm90::RowTile& tile) const {
    if (!args_.query.rows_in_boxes || thread_ >= 32) return;
    if (ptx::elect_one()) copy_query(shared_, args_, query_maps_, tile);
    __syncwarp();
  }

 private:
  SharedMemory<Config>& shared_;
  const sm90::DecodeArguments& args_;
  const sm90::QueryMaps& query_maps_;
  const int thread_;
  sm90::WorkPosition position_;
  bool is_first_ = true;
};

/// Loads all segments of a walk (walk/listed_items.cuh) that begins at `first`.
template <class Items, class Config, class First, class Tell>
__device__ __forceinline__ void load_items(SharedMemory<Config>& shared, const sm90::DecodeArguments& args,
                                           const CUtensorMap& map, int thread, const First& first,
                                           Tell tell) {
  Items items(shared.items.of_warp[thread / 32], args);
  typename Config::Loader loader(args.cache, map, thread, shared.loader);
  Pipe<Config> pipe(shared.kv, shared.state);
  items.begin(first, tell, [&](const sm90::ListedRange& range) { loader.look_ahead(range); });
  while (!items.get().is_end()) {
    const sm90::ListedRange range = items.range();  // of this segment, when the next one is there
    loader.load(pipe, range, [&] {
      items.next();
      if (!items.get().is_end()) loader.look_ahead(items.range());
    });
    if (!items.get().is_end()) tell(items.get());
  }
}

/// The items of a part that knows them: by kWhole one, by kTurns one or several.
template <class Config>
class KnownItems {
 public:
  __device__ __forceinline__ explicit KnownItems(const sm90::DecodeArguments& args)
      : args_(args),
        lane_(args.lanes.remainder(blockIdx.x / Config::kTeam)),
        next_(schedule::whole_cut(args.geometry, args.lanes.quotient(blockIdx.x / Config::kTeam))) {}

  __device__ __forceinline__ bool more() const { return next_.round < args_.geometry.rounds; }
  /// Goes to the next item, of which there must be one; its length is asked for.
  __device__ __forceinline__ void next() {
    const schedule::Geometry& g = args_.geometry;
    item_ = next_;
    tile_ = sm90::row_tile(args_, item_.request, item_.round, lane_);
    given_ = schedule::length_of(g, args_.cache.lengths, item_.request);
    if constexpr (Config::kTeam > 1) {
      next_.round = g.rounds;
    } else {
      next_ = schedule::turn_after(g, item_);
    }
  }
  __device__ __forceinline__ const sm90::RowTile& tile() const { return tile_; }
  /// With this CTA's share of the item's blocks.
  __device__ __forceinline__ sm90::Work work() const {
    const schedule::Geometry& g = args_.geometry;
    const std::int32_t length = schedule::tokens_of(g, given_);
    const int blocks = schedule::blocks_of(g, length), rank = blockIdx.x % Config::kTeam;
    return {{item_.round, item_.request, length, schedule::share_begin(blocks, Config::kTeam, rank),
             schedule::share_begin(blocks, Config::kTeam, rank + 1), -1},
            tile_};
  }

 private:
  const sm90::DecodeArguments& args_;
  const int lane_;
  schedule::Cut item_, next_;
  sm90::RowTile tile_;
  std::int32_t given_;  // the item's length
};

/// Loads the items of a part that knows them. Q of an only item is asked for before its length is known.
template <class Config>
__device__ __forceinline__ void load_known_items(SharedMemory<Config>& shared,
                                                 const sm90::DecodeArguments& args, const CUtensorMap& map,
                                                 const sm90::QueryMaps& query_maps) {
  using Loader = typename Config::Loader;
  const int thread = threadIdx.x - Config::kComputeThreads;
  KnownItems<Config> items(args);
  Loader loader(args.cache, map, thread, shared.loader);
  sm90::wait_for_launch_before();
  if (thread >= Loader::threads(args.cache)) return;
  Announcer<Config> announcer(shared, args, query_maps, thread);
  items.next();
  const bool is_only = !items.more();
  if (is_only) announcer.ask_for_query(items.tile());
  sm90::Work work = items.work();
  if (is_only) {
    announcer.tell_only(work);
  } else {
    announcer.tell(work);
  }
  sm90::BlockRange range = sm90::block_range(args.cache, work.segment, work.tile);
  loader.look_ahead(range);
  Pipe<Config> pipe(shared.kv, shared.state);
  for (bool more = !is_only;;) {
    loader.load(pipe, range, [&] {
      if (!more) return;
      items.next();
      work = items.work();
      loader.look_ahead(sm90::block_range(args.cache, work.segment, work.tile));
    });
    if (!more) break;
    announcer.tell(work);
    range = sm90::block_range(args.cache, work.segment, work.tile);
    more = items.more();
    if (!more) announcer.tell_end();
  }
  if (is_only && work.blocks() == 0 && args.query.rows_in_boxes) {
    ptx::wait(shared.q_full, 0);  // nobody else does
  }
}

template <class Config>
__device__ __forceinline__ void load(SharedMemory<Config>& shared, const sm90::DecodeArguments& args,
                                     const CUtensorMap& map, const sm90::QueryMaps& query_maps) {
  if constexpr (kBeginsEarly<Config>) {
    if (knows_items<Config>(args)) return load_known_items<Config>(shared, args, map, query_maps);
  }
  using Loader = typename Config::Loader;
  const int thread = threadIdx.x - Config::kComputeThreads;
  const sm90::PartPlace<Config::kTeam, Config::kTurns> place(args);
  sm90::wait_for_launch_before();
  if (thread >= Loader::threads(args.cache)) return;
  Announcer<Config> announcer(shared, args, query_maps, thread);
  auto tell = [&](const sm90::Work& work) { announcer.tell(work); };
  if constexpr (Config::kWarpsWalk && Config::kTurns) {
    sm90::Part<false, true, true> part(args);
    load_items<sm90::ItemsInTurn>(shared, args, map, thread, part.find(), tell);
  } else if constexpr (Config::kWarpsWalk) {
    load_items<sm90::PlannedItems>(shared, args, map, thread, place, tell);
  } else {
    sm90::load_segments<Config::kTeam>(
        args, Loader(args.cache, map, thread, shared.loader), Pipe<Config>(shared.kv, shared.state), place,
        [] {}, tell);
  }
  announcer.tell_end();
}

}  // namespace flashlatent::mla_64_pingpong
