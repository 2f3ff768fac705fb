// Parts that are stretches of the line of requests, or whole ones: the segments of a CTA, one after another.
// The loader tells of them.
#pragma once

#include "cuda/mla_64_pingpong/warpgroup.cuh"
#include "cuda/parts/epilogue.cuh"
#include "cuda/parts/kv_loader.cuh"
#include "cuda/parts/listed_items.cuh"
#include "cuda/parts/merge_step.cuh"

namespace flashlatent::mla_64_pingpong {

// Most rows have two parts: by twos fp16, whose pieces are twice as many, takes 1.2 % less than by fours,
// which spills more registers.
template <class Config>
using MergeStep = parts::MergeStep<typename Config::Element, Config::kComputeThreads, parts::kTileRows,
                                   Config::kVDim, 2, 9, Config::kTokens>;

template <class Config>
class LineWarpgroup : public Warpgroup<Config> {
  using Base = Warpgroup<Config>;
  using Base::args_, Base::base_, Base::cache_scale_, Base::fragment_, Base::kUnits, Base::me_, Base::o_;

 public:
  using Base::Base;

  /// Writes the segment's result.
  __device__ __forceinline__ void finish(const parts::Work& work) {
    if constexpr (Config::kTurns) return finish_whole(work);
    const parts::RowPair sink = sinks(work);
    const auto& row_sum = this->add_up_rows(work);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = fragment_.row + 8 * half;
      const float sum = kUnits && work.blocks() == 0 ? 0.0F : row_sum[0][row] + row_sum[1][row];
      parts::RowScale scale = parts::finish_row(half ? base_.high : base_.low, sum);
      scale.factor *= cache_scale_;
      const std::int64_t slot = this->slot_of(work);
      const int column = me_ * Config::kHalfDim + fragment_.column;
      const bool writes_lse = column == 0;
      if (Config::kWritesOutput && work.segment.partial < 0) {
        parts::write_output<typename Config::Element>(o_, row, half, scale, half ? sink.high : sink.low,
                                                      args_, work.tile, column, writes_lse);
      } else {
        parts::write_partial<typename Config::Stored>(o_, slot * 64 + row, row < work.tile.rows, half, scale,
                                                      args_.partial, Config::kVDim, column, writes_lse);
      }
    }
  }

 private:
  /// The sinks of this thread's rows, if they are written out: asked for before both warpgroups meet.
  __device__ __forceinline__ parts::RowPair sinks(const parts::Work& work) const {
    if (!Config::kWritesOutput || work.segment.partial >= 0) return {0, 0};
    const auto of = [&](int row) {
      return row < work.tile.rows ? parts::sink_of(args_.output, work.tile.head(args_.query, row)) : 0.0F;
    };
    return {of(fragment_.row), of(fragment_.row + 8)};
  }

  /// Writes the output of a whole item, with its rows' largest scores.
  __device__ __forceinline__ void finish_whole(const parts::Work& work) {
    const parts::RowPair sink = sinks(work);
    const auto& sums = this->add_up_rows(work);
    const auto& maxima = this->shared_.row_sums.maxima;
    const int low = fragment_.row, high = low + 8;
    const parts::RowPair sum{sums[0][low] + sums[1][low], sums[0][high] + sums[1][high]};
    const parts::RowPair max{fmaxf(maxima[0][low].get(), maxima[1][low].get()),
                             fmaxf(maxima[0][high].get(), maxima[1][high].get())};
    this->meet();  // the next item's may be written
    const int column = me_ * Config::kHalfDim + fragment_.column;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = half ? high : low;
      parts::RowScale scale = parts::finish_row(half ? base_.high : base_.low, half ? sum.high : sum.low);
      scale.factor *= cache_scale_;
      if (column == 0 && row < work.tile.rows) {
        parts::write_max_logit(args_.max_logits, work.tile, work.tile.head(args_.query, row),
                               half ? max.high : max.low, scale.lse);
      }
      parts::write_output<typename Config::Element>(o_, row, half, scale, half ? sink.high : sink.low, args_,
                                                    work.tile, column, column == 0);
    }
  }
};

/// All segments. How a warpgroup finishes one is a matter of its class: a team's CTA has but one.
template <class Warpgroup, class Config>
__device__ __forceinline__ void compute(SharedMemory<Config>& shared, const parts::DecodeArguments& args,
                                        const parts::QueryMaps& query_maps, int me) {
  parts::wait_for_launch_before();
  if constexpr (Config::kMerges) {
    if (args.merge_state != nullptr && threadIdx.x >= Config::kComputeThreads - 32) {
      MergeStep<Config>::begin(args, shared.merge);
    }
  }
  Warpgroup warpgroup(shared, args, query_maps, me);
  parts::WorkPosition position(shared.work);
  if (threadIdx.x < 32) warpgroup.request_query(position.get());
  for (; !position.get().is_end(); position.next()) {
    const parts::Work& work = position.get();
    warpgroup.attend(work);
    if (threadIdx.x < 32) warpgroup.request_query(position.ahead().get());
    warpgroup.finish(work);
  }
}

/// Loads all segments of a walk (parts/listed_items.cuh) that begins at `first`.
template <class Items, class Config, class First, class Tell>
__device__ __forceinline__ void load_items(SharedMemory<Config>& shared, const parts::DecodeArguments& args,
                                           const CUtensorMap& map, int thread, const First& first,
                                           Tell tell) {
  Items items(shared.items.of_warp[thread / 32], args);
  typename Config::Loader loader(args.cache, map, thread, shared.loader);
  Pipe<Config> pipe(shared.kv, shared.state);
  items.begin(first, tell, [&](const parts::ListedRange& range) { loader.look_ahead(range); });
  while (!items.get().is_end()) {
    const parts::ListedRange range = items.range();  // of this segment, when the next one is there
    loader.load(pipe, range, [&] {
      items.next();
      if (!items.get().is_end()) loader.look_ahead(items.range());
    });
    if (!items.get().is_end()) tell(items.get());
  }
}

template <class Config>
__device__ __forceinline__ void load(SharedMemory<Config>& shared, const parts::DecodeArguments& args,
                                     const CUtensorMap& map) {
  using Loader = typename Config::Loader;
  const int thread = threadIdx.x - Config::kComputeThreads;
  const parts::PartPlace<Config::kTeam, Config::kTurns> place(args);
  parts::wait_for_launch_before();
  if (thread >= Loader::threads(args.cache)) return;
  parts::WorkPosition position(shared.work);
  auto tell = [&](const parts::Work& work) {
    if (thread == 0) position.put(work);
  };
  if constexpr (Config::kWarpsWalk && Config::kTurns) {
    parts::Part<false, true, true> part(args);
    load_items<parts::ItemsInTurn>(shared, args, map, thread, part.find(), tell);
  } else if constexpr (Config::kWarpsWalk) {
    load_items<parts::PlannedItems>(shared, args, map, thread, place, tell);
  } else {
    parts::load_segments<Config::kTeam>(
        args, Loader(args.cache, map, thread, shared.loader), Pipe<Config>(shared.kv, shared.state), place,
        [] {}, tell);
  }
  parts::Work end;
  end.segment.request = -1;
  tell(end);
}

}  // namespace flashlatent::mla_64_pingpong
