// The two output warpgroups; each has half of the output's columns. They are the last readers of a stage, so
// they refill it: with boxes the first warp does, token by token all warps do.
#pragma once

#include "cuda/sm90/kernels/mla_64_roles/supply.cuh"
#include "cuda/sm90/kernels/mla_64_roles/token_supply.cuh"
#include "cuda/sm90/merge/epilogue.cuh"
#include "cuda/sm90/merge/row_store.cuh"
#include "cuda/sm90/ptx/wgmma.cuh"
#include "cuda/sm90/walk/row_tile.cuh"

namespace flashlatent::mla_64_roles {

template <class Config>
class Output {
 public:
  using Element = typename Config::Element;
  using Shared = SharedMemory<Config>;

  __device__ __forceinline__ Output(Shared& shared, const sm90::DecodeArguments& args,
                                    const CUtensorMap& kv_map, const sm90::QueryMaps& query_maps, int me)
      : shared_(shared),
        args_(args),
        supply_(shared, args, kv_map, query_maps),
        me_(me),
        loads_(Config::kByTokens || uniform(threadIdx.x / 32) == 0),
        fragment_(sm90::fragment_of(threadIdx.x % 128)),
        v_(static_cast<std::uint32_t>(
            descriptors_.n_major(shared.kv[0].tiles + me * Config::kHalfChunks, sizeof(StageTile)))) {}

  /// Starts the loads of a full ring. By all warps.
  __device__ __forceinline__ void begin_list(std::uint32_t list_parity) {
    if (!loads_) return;
    supply_.begin(list_parity);
    fill_ring();
  }

  /// The same for items by kTurns.
  __device__ __forceinline__ void begin_turns() {
    supply_.begin_turns();
    fill_ring();
  }

  /// The same where a part is a share of one request. The loading warps find the part; the first warp lists
  /// it for the others while entries of the page table are loaded.
  template <class Part>
  __device__ __forceinline__ void begin_share(Part& part) {
    if (!loads_) return;
    const sm90::Work& work = part.find();
    supply_.begin(work);
    if (!Config::kByTokens || uniform(threadIdx.x / 32) == 0) sm90::list_share(shared_.segments, work);
    fill_ring();
  }

  /// Computes one segment.
  __device__ __forceinline__ void attend(const sm90::Work& work) {
    const int stages = uniform(stages_of(work.segment));
#pragma unroll
    for (float& x : o_) x = 0;
    Ends ends{{-INFINITY, -INFINITY}, {0, 0}, -INFINITY};
    if (stages > 0) {
      // These stages hold Q, which the scorer takes; it also frees them.
      for (int i = 0; i < sm90::kTileRows / kStageTokens; ++i) {
        prepare_refill();
        refill_while_multiplying();
        pass_stage();
      }
      int left = stages, place;
#pragma unroll 1
      for (;;) {
        attend_stage<0>();
        place = 0;
        if (--left == 0) break;
        give_back(0);
        attend_stage<1>();
        place = 1;
        if (--left == 0) break;
        give_back(1);
      }
      const Statistics& statistics = shared_.statistics[place];
      ends = {{statistics.bases[fragment_.row], statistics.bases[fragment_.row + 8]},
              {statistics.sums[fragment_.row], statistics.sums[fragment_.row + 8]},
              -INFINITY};
      if constexpr (Config::kTurns) ends.max = shared_.maxima.of_row[place][sm90::row_of_lane()];
      if (statistics.poisoned != 0) spread_poison();
      give_back(place);
    }
    write(work, ends);
  }

 private:
  /// The statistics of the rows at a segment's end.
  struct Ends {
    sm90::RowPair base, sum;
    float max;  // of sparse prefill, for the lane's row
  };

  __device__ __forceinline__ void fill_ring() {
    int stage = stage_;
#pragma unroll 1
    for (int i = 0; i < Config::kStages - Config::kByTokens; ++i) {
      prepare_refill();
      supply_.request(stage, 0, true);
      if (++stage == Config::kStages) stage = 0;
    }
  }

  /// Multiplies by one stage, but does not free it.
  template <int kPlace>
  __device__ __forceinline__ void attend_stage() {
    const Statistics& statistics = shared_.statistics[kPlace];
    prepare_refill();
    ptx::wait(shared_.p_full[kPlace], parities_ >> kPlace & 1);
    parities_ ^= 1U << kPlace;
    if (statistics.shrinks[fragment_.row] != 0) {
      sm90::rescale(o_, {statistics.factors[fragment_.row], statistics.factors[fragment_.row + 8]});
    }
    multiply<kPlace>();
    refill_while_multiplying();
    ptx::wgmma_wait<0>();
    ptx::pin_registers(o_);
  }

  /// o += P V for this warpgroup's half of V's columns.
  template <int kPlace>
  __device__ __forceinline__ void multiply() {
    const std::uint64_t p = descriptors_.k_major(shared_.p.bytes + kPlace * 64);
    const std::uint64_t v =
        ptx::with_low_word(descriptors_.n_major(shared_.kv[0].tiles, sizeof(StageTile)), v_);
    ptx::pin_registers(o_);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kStageTokens / 16; ++step) {
      ptx::Wgmma<Element, Config::kHalfDim>::template ss<true>(o_, p + step * ptx::kStepAlongRow,
                                                               v + step * ptx::kStepAlongRows, true);
    }
    ptx::wgmma_commit();
  }

  /// Frees the place of P and the stage.
  __device__ __forceinline__ void give_back(int place) {
    // All lanes arrive, since all have read statistics: racecheck sees no other order.
    ptx::arrive(shared_.p_empty[place]);
    __syncwarp();
    if (Config::kByTokens || threadIdx.x % 32 == 0) ptx::arrive(shared_.kv_empty[stage_]);
    pass_stage();
  }
  /// With boxes: refills the stage as soon as all warps have freed it. Then goes on to the next stage.
  __device__ __forceinline__ void pass_stage() {
    if constexpr (!Config::kByTokens) {
      if (loads_) supply_.request(stage_, parities_ >> kRound & 1, false);
    }
    v_ += sizeof(Stage<Config>) / 16;
    if (++stage_ == Config::kStages) {
      stage_ = 0;
      v_ -= Config::kStages * sizeof(Stage<Config>) / 16;
      parities_ ^= 1U << kRound;
    }
  }

  /// Token by token: a stage is refilled while the next stage is multiplied, because the other warpgroup has
  /// freed it by then. Work that needs many registers comes before those products.
  __device__ __forceinline__ void prepare_refill() {
    if constexpr (Config::kByTokens) supply_.prepare();
  }
  __device__ __forceinline__ void refill_while_multiplying() {
    if constexpr (Config::kByTokens) {
      const std::uint32_t round = parities_ >> kRound & 1;
      supply_.request(stage_ == 0 ? Config::kStages - 1 : stage_ - 1, stage_ == 0 ? round ^ 1 : round, false);
    }
  }

  /// Sets outputs to NaN where the scorer found V not finite in tokens that only some rows see.
  __device__ __forceinline__ void spread_poison() {
#pragma unroll
    for (int i = 0; i < Config::kHalfDim / 2; ++i) {
      const int column = me_ * Config::kHalfDim + i / 4 * 8 + fragment_.column + i % 2;
      if (shared_.poisoned_rows[column].contains(fragment_.row + i % 4 / 2 * 8)) o_[i] = NAN;
    }
  }

  /// Writes the segment's result.
  __device__ __forceinline__ void write(const sm90::Work& work, const Ends& ends) {
    if (Config::kTurns || work.segment.partial < 0) {
      write_output(work.tile, ends);
    } else {
      write_partial(work, ends);
    }
  }

  __device__ __forceinline__ void write_output(const sm90::RowTile& tile, const Ends& ends) {
    const sm90::OutputArguments& output = args_.output;
    const sm90::RowScale scale = sm90::finish_row(sm90::of_lane(ends.base), sm90::of_lane(ends.sum));
    const int row = sm90::row_of_lane();
    const bool live = row < tile.rows;
    const int token = tile.token(args_.query, live ? row : 0);
    const int head = tile.head(args_.query, live ? row : 0);
    if (live && me_ == 0) sm90::write_lse(output, tile, head, token, scale.lse);
    if constexpr (Config::kTurns) {
      if (live && me_ == 0) sm90::write_max_logit(args_.max_logits, tile, head, ends.max, scale.lse);
    }
    Element* out = sm90::output_row<Element>(output, tile, head, token) + me_ * Config::kHalfDim;
    sm90::store_rows<Element>(o_, sm90::output_factor(output, scale, head, live),
                              live ? reinterpret_cast<std::uint8_t*>(out) : nullptr, shared_.rows[me_]);
  }

  __device__ __forceinline__ void write_partial(const sm90::Work& work, const Ends& ends) {
    const int column = me_ * Config::kHalfDim + fragment_.column;
    const std::int64_t slot = static_cast<std::int64_t>(work.segment.partial) * args_.geometry.lanes +
                              args_.lanes.remainder(blockIdx.x);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = fragment_.row + 8 * half;
      const sm90::RowScale scale =
          sm90::finish_row(half ? ends.base.high : ends.base.low, half ? ends.sum.high : ends.sum.low);
      sm90::write_partial<typename Config::Stored>(o_, slot * 64 + row, row < work.tile.rows, half, scale,
                                                   args_.partial, Config::kVDim, column, column == 0);
    }
  }

  Shared& shared_;
  const sm90::DecodeArguments& args_;
  const ptx::Descriptors<false> descriptors_{&shared_};
  std::conditional_t<Config::kByTokens, TokenSupply<Config>, Supply<Config>> supply_;
  const int me_;
  const bool loads_;  // does this warp load KV?
  const sm90::Fragment fragment_;
  int stage_ = 0;
  std::uint32_t v_;  // low word of the descriptor of this half of V
  static constexpr int kRound = 2;
  std::uint32_t parities_ = 0;  // of both places of P, and of the pass through the ring
  float o_[Config::kHalfDim / 2];
};

}  // namespace flashlatent::mla_64_roles
