// A team: the kTeam CTAs of a cluster, each with a share of the blocks of one row tile, for batches too small
// to fill the device. Their outputs are merged without a trip to memory: every CTA sends each eight rows of
// its output (unnormalised; packed_row.cuh), and these rows' statistics, to the rows' owner by asynchronous
// stores that the owner's barrier counts, or by plain stores if it owns the rows itself; the owner adds them
// up in the order of ranks and writes. They are received where blocks of KV and P were: no CTA sends before
// all CTAs have read theirs.
//
// A part is one segment, a whole request (schedule::Partition::kWhole): nothing is sent after a CTA's own
// exchange, and no CTA need wait for others at the end, since each waits for everything that is sent to it.
#pragma once

#include "cuda/sm90/kernels/mla_64_pingpong/warpgroup.cuh"
#include "cuda/sm90/merge/epilogue.cuh"
#include "cuda/sm90/merge/packed_row.cuh"
#include "cuda/sm90/ptx/copy.cuh"
#include "cuda/sm90/walk/work_queue.cuh"
#include "plan/shares.h"

namespace flashlatent::mla_64_pingpong {

template <class Config>
class TeamMerge {
 public:
  using Element = typename Config::Element;

  __device__ __forceinline__ TeamMerge(SharedMemory<Config>& shared, const sm90::DecodeArguments& args,
                                       const sm90::Work& work)
      : shared_(shared),
        args_(args),
        tile_(work.tile),
        rank_(blockIdx.x % kTeam),
        blocks_(tile_.rows == 0 ? 0 : schedule::blocks_of(args.geometry, work.segment.length)) {
    const int others = min(blocks_, kTeam) - sends(rank_);
    if (threadIdx.x == 0) ptx::arrive_expecting(shared_.team.received, others * kBytesASender);
  }

  /// Arrivals at the barrier: of the thread that announces what others send, and of all lanes for this CTA's
  /// own values (racecheck does not see that one arrival a warp is enough).
  static constexpr int kArrivals = 1 + 2 * (8 / Config::kTeam) * 32;

  /// Sends one warpgroup's half of the output, and its part of the rows' sums. Call after all CTAs have read
  /// their KV; also in CTAs without blocks.
  __device__ __forceinline__ void send(int me, const float (&o)[Config::kHalfDim / 2], sm90::RowPair base,
                                       sm90::RowPair sum) const {
    const int lane = threadIdx.x % 32;
    const bool has = sends(rank_);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int eight = threadIdx.x % 128 / 32 * 2 + half;  // which of the tile's rows
      const int owner = eight / kOwned, place = eight % kOwned, row = 8 * place + lane / 4;
      if (!has) {
        if (owner == rank_) ptx::arrive(shared_.team.received);
        continue;
      }
      const Row packed(o, half, Row::quad_bound(o, half));
      const float4 statistics =
          make_float4(half ? base.high : base.low, half ? sum.high : sum.low, packed.unit, 0);
      if (owner == rank_) {
#pragma unroll
        for (int i = 0; i < kPackets; ++i) incoming()[rank_][place][me][i][lane] = packed.packets[i];
        if (lane % 4 == 0) rows()[rank_][row][me] = statistics;
        ptx::arrive(shared_.team.received);
        continue;
      }
      const std::uint32_t received = ptx::address_in(owner, &shared_.team.received);
      const std::uint32_t to = ptx::address_in(owner, &incoming()[rank_][place][me][0][lane]);
#pragma unroll
      for (int i = 0; i < kPackets; ++i) {
        ptx::send(to + i * static_cast<std::uint32_t>(sizeof(incoming()[0][0][0][0])), packed.packets[i],
                  received);
      }
      if (lane % 4 == 0) {
        ptx::send(ptx::address_in(owner, &rows()[rank_][row][me]), statistics, received);
      }
    }
  }

  /// Waits for what others send, adds up, and writes this CTA's rows.
  __device__ __forceinline__ void finish() const {
    ptx::wait_for_cluster(shared_.team.received, 0);
    if (blocks_ >= kTeam) return write_all_rows<true>();
    write_all_rows<false>();
  }

 private:
  static constexpr int kTeam = Config::kTeam;
  static constexpr int kOwned = 8 / kTeam;  // times eight rows
  using Row = sm90::PackedRow<Element, Config::kHalfDim / 2>;
  static constexpr int kPackets = Row::kPackets;
  static constexpr int kValues = sm90::kPacketValues<Element>;  // of one
  static constexpr int kBytesASender =
      kOwned * 2 * static_cast<int>(kPackets * 32 * sizeof(uint4) + 8 * sizeof(float4));

  /// From each rank, of each eight rows that are owned, of each warpgroup.
  using Incoming = uint4[kOwned][2][kPackets][32];
  static_assert(kTeam * sizeof(Incoming) <= sizeof(SharedMemory<Config>::kv));
  __device__ __forceinline__ Incoming* incoming() const {
    return reinterpret_cast<Incoming*>(shared_.kv);
  }

  /// Maximum and sum of the rows, and the packed values' unit, from each rank's two warpgroups.
  using Rows = float4[8 * kOwned][2];
  static_assert(kTeam * sizeof(Rows) <= sizeof(sm90::Tile));
  __device__ __forceinline__ Rows* rows() const {
    return reinterpret_cast<Rows*>(shared_.p.bytes);
  }

  /// Does this CTA send? Not without blocks: sending 64 KB of zeros takes 0.9 us.
  __device__ __forceinline__ bool sends(int rank) const {
    return schedule::share_begin(blocks_, kTeam, rank) < schedule::share_begin(blocks_, kTeam, rank + 1);
  }

  /// kAll: all CTAs have sent, so no condition is checked (0.1 to 0.8 us less), and loads go together.
  template <bool kAll>
  __device__ __forceinline__ void write_all_rows() const {
#pragma unroll 1
    for (int place = 0; place < kOwned; ++place) write_rows<kAll>(place);
  }

  template <bool kAll>
  __device__ __forceinline__ void write_rows(int place) const {
    const int me = threadIdx.x / 128, lane = threadIdx.x % 32;  // each warpgroup has half of the columns
    const int owned_row = 8 * place + lane / 4, row = 8 * kOwned * rank_ + owned_row;
    float2 own[kTeam];
    float units[kTeam];
    float max = -INFINITY;
#pragma unroll
    for (int rank = 0; rank < kTeam; ++rank) {
      own[rank] = make_float2(-INFINITY, 0.0F);
      units[rank] = 0;
      if (!kAll && !sends(rank)) continue;
      const float4(&both)[2] = rows()[rank][owned_row];
      own[rank] = make_float2(both[0].x, both[0].y + both[1].y);
      units[rank] = both[me].z;
      max = fmaxf(max, own[rank].x);
    }
    const float base = sm90::finite_or_zero(max);
    float sum = 0;
    float weights[kTeam];
#pragma unroll
    for (int rank = 0; rank < kTeam; ++rank) {
      weights[rank] = sm90::exp2_fast(own[rank].x - base);
      sum += own[rank].y * weights[rank];
      weights[rank] *= units[rank];
    }
    const bool live = row < tile_.rows;
    const sm90::RowScale scale = sm90::finish_row(max, sum);
    const sm90::OutputArguments& output = args_.output;
    const int token = tile_.token(args_.query, live ? row : 0);
    const int head = tile_.head(args_.query, live ? row : 0);
    if (live && threadIdx.x < 32 && lane % 4 == 0) {
      sm90::write_lse(output, tile_, head, token, scale.lse);
    }
    const float factor = output.sink == nullptr
                             ? scale.factor
                             : scale.factor * sm90::sink_factor(scale.lse, __ldg(output.sink + head));
    Element* out = static_cast<Element*>(output.out) + tile_.origin * output.batch_stride +
                   token * output.token_stride + head * output.head_stride + me * Config::kHalfDim;
    const bool aligned = sm90::is_aligned(out);
    add_up<kAll>(place, weights, [&](int i, const float(&x)[kValues]) {
      std::uint32_t words[kValues / 2];
#pragma unroll
      for (int j = 0; j < kValues / 2; ++j) {
        words[j] = sm90::pack<Element>(x[2 * j] * factor, x[2 * j + 1] * factor);
      }
      if constexpr (kValues == 8) {
        sm90::store_words(out + 32 * i, words, live, aligned);
      } else if (live) {
        auto* at = reinterpret_cast<std::uint32_t*>(out + 16 * i) + lane % 4;
        at[0] = words[0];
        at[4] = words[1];
      }
    });
  }

  /// Adds up this warp's values of eight rows, by the weights in its lanes. `put` gets a packet's sums.
  template <bool kAll, class Put>
  __device__ __forceinline__ void add_up(int place, const float (&weights)[kTeam], Put put) const {
    const int me = threadIdx.x / 128, lane = threadIdx.x % 32;
#pragma unroll 1
    for (int i = threadIdx.x % 128 / 32; i < kPackets; i += 4) {
      float x[kValues] = {};
#pragma unroll
      for (int rank = 0; rank < kTeam; ++rank) {
        if (kAll || sends(rank)) sm90::add_packet(x, incoming()[rank][place][me][i][lane], weights[rank]);
      }
      put(i, x);
    }
  }

  SharedMemory<Config>& shared_;
  const sm90::DecodeArguments& args_;
  const sm90::RowTile& tile_;
  const int rank_;
  const int blocks_;  // of all CTAs together
};

template <class Config>
class TeamWarpgroup : public Warpgroup<Config> {
  using Base = Warpgroup<Config>;

 public:
  using Base::Base;

  /// The team's result of its only segment.
  __device__ __forceinline__ void finish(const sm90::Work& work) {
    const TeamMerge<Config> merge(this->shared_, this->args_, work);
    ptx::cluster_sync();  // all CTAs have read their KV
    if (this->shared_.poisoned[this->parities_[kMeeting]] != 0) this->spread_poison();
    merge.send(this->me_, this->o_, this->base_,
               {sm90::quad_sum(this->sum_.low), sm90::quad_sum(this->sum_.high)});
    merge.finish();
  }
};

}  // namespace flashlatent::mla_64_pingpong
