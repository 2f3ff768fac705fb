// One of the two computing warpgroups of a team's CTA. Latency is what counts here, so that both do each
// block together:
//   scores over half of the columns each  | the other's 8 rows of them change hands
//   the softmax of 8 of 16 rows each      | P and by what rows shrink is put together
//   O += V^T P^T, V's columns that it scored over
// A tile of KV is one warpgroup's then, but for RoPE's, of which each takes two of four steps; nothing need
// be handed over at a segment's end.
//
// Barriers of kernel.cuh, but q_full, q_empty and has_handed: each warpgroup brings the columns of Q that it
// reads. empty of RoPE's tiles takes the arrivals of both. Both meet twice a block. What is written before a
// meeting and read after it is written again after the next one.
#pragma once

#include "cuda/etap/attention.cuh"
#include "cuda/etap/output.cuh"
#include "cuda/etap/team.cuh"
#include "cuda/etap/team_merge.cuh"
#include "cuda/parts/segments.cuh"

namespace flashlatent::etap {

template <class Config>
class TeamWarpgroup : Attention<Config, Config::kVChunks / 2> {
  using Base = Attention<Config, Config::kVChunks / 2>;

 public:
  using Element = typename Config::Element;

  __device__ __forceinline__ TeamWarpgroup(SharedMemory<Config>& shared, const parts::DecodeArguments& args)
      : Base(shared, args), first_(me_ * kHalf), scoring_(shared) {}

  /// Before the launch before this one is done: what the only segment of a part by shape, not ragged, needs
  /// of addresses.
  __device__ __forceinline__ void prepare(const parts::RowTile& tile) {
    tile_ = tile;
    find_query();
    find_places();
  }
  /// Afterwards: its Q is under way.
  __device__ __forceinline__ void begin() { ask_for_query(); }

  /// Both, of a segment with blocks or without.
  __device__ __forceinline__ void begin(const parts::RowTile& tile, bool has_blocks) {
    prepare(tile);
    if (has_blocks) ask_for_query();
  }

  /// All of this CTA's share of one segment of `segments`, which has been begun, from Q to writing the
  /// result.
  __device__ __forceinline__ void run(const schedule::Segment& segment,
                                      const parts::Segments<Config::kTeam>& segments) {
    const int blocks = segment.block_end - segment.block_begin;
    this->start(segment.length);
    max_ = {-INFINITY, -INFINITY};
    sum_ = {0, 0};
    Exchange<Config> exchange(shared_, me_, thread_, exchanges_, segments.team_blocks());
    if (blocks > 0) store_query();
    for (int block = segment.block_begin; block < segment.block_end; ++block) {
      attend(block * 64, block + 1 < segment.block_end);
    }
    finish(segment, blocks, segments, exchange);
    if (segments.team_blocks() == 0) return;
    ++exchanges_;
    meet();
  }

 private:
  using Base::args_;
  using Base::fragment_;
  using Base::kFirstV;
  using Base::kRows;
  using Base::me_;
  using Base::o_;
  using Base::ring_;
  using Base::shared_;
  using Base::thread_;
  using Base::tile_;
  static constexpr int kHalf = Config::kVChunks / 2;
  static_assert(kRows == 16 && RingPosition<Config>::kWholeBlocks && !Config::Loader::kPairs);

  /// Both warpgroups.
  __device__ __forceinline__ void meet() const { ptx::named_sync(kTogether, Config::kComputeThreads); }

  /// The place, in the order of loading, of this warpgroup's i-th tile of V.
  __device__ __forceinline__ int place(int i) const { return kFirstV + first_ + i; }

  /// Of Q, the columns that this warpgroup reads: of V, and of RoPE two of four steps.
  __device__ __forceinline__ void find_query() {
    const int row = thread_ / 8;
    const bool live = row < tile_.rows;
    query_at_ =
        reinterpret_cast<const uint4*>(parts::query_row<Element>(args_.query, tile_, live ? row : 0)) +
        thread_ % 8;
    if (!live) query_at_ = nullptr;
  }
  __device__ __forceinline__ bool has_rope() const { return thread_ % 8 / 4 == me_; }
  __device__ __forceinline__ int query_chunk(int i) const { return i < kHalf ? first_ + i : kHalf + i; }
  __device__ __forceinline__ void ask_for_query() {
#pragma unroll
    for (int i = 0; i < kHalf + kFirstV; ++i) {
      query_[i] = make_uint4(0, 0, 0, 0);
      if (query_at_ != nullptr && (i < kHalf || has_rope())) {
        query_[i] = ptx::load_16_bytes(query_at_ + query_chunk(i) * 8);
      }
    }
  }
  __device__ __forceinline__ void store_query() {
#pragma unroll
    for (int i = 0; i < kHalf + kFirstV; ++i) {
      if (i >= kHalf && !has_rope()) continue;
      *reinterpret_cast<uint4*>(shared_.q + query_chunk(i) * kRows * parts::kRowBytes +
                                parts::unit_offset(thread_ / 8, thread_ % 8)) = query_[i];
    }
    ptx::fence_for_async_proxy();
    this->meet_alone();
  }

  /// Where results will go, worked out while memory is waited for: divisions take long.
  struct Places {
    Element* out;  // of row 8 j + lane / 4 of the unit; null: not a live row
    float* lse;    // of row thread % kRows, if this thread writes it
    int head;      // of that row
  };
  __device__ __forceinline__ void find_places() {
    const int unit = max(Exchange<Config>::own_unit(me_), 0);
    const OutputRows<Element> rows(args_, tile_, Exchange<Config>::eight_rows(unit), thread_);
    const int n = thread_ % kRows;
    places_ = {rows.at(Exchange<Config>::chunk(unit)), nullptr, tile_.head(args_.query, n)};
    if (thread_ < kRows && n < tile_.rows && unit == n / 8) {  // the owner of the first columns writes it
      places_.lse = parts::lse_place(args_.output, tile_, places_.head, tile_.token(args_.query, n));
    }
    // Here, not where they are used.
    asm volatile("" : "+l"(places_.out), "+l"(places_.lse), "+r"(places_.head));
  }

  /// If the next block is there by the time this one's scores are, its own are under way meanwhile.
  __device__ __forceinline__ void attend(int start, bool more) {
    if (!scored_) score();
    take_scores();
    scored_ = add_scores(more);
    if (scored_) score();
    softmax(start);
    this->silence(start, [&](int i) -> parts::Tile& { return ring_.tile(place(i)); });
    ptx::fence_for_async_proxy();
    meet();  // all of P is there
    rescale_rows();
    multiply();
    ring_.next_block();
  }

  /// Begins even_ + odd_ = Q K^T over this warpgroup's columns, tile by tile as they land.
  __device__ __forceinline__ void score() {
    const std::uint32_t q = ptx::shared_address(shared_.q);
    const std::uint32_t tiles = __shfl_sync(0xffffffff, ptx::shared_address(&scoring_.tile(0)), 0);
    const int first = __shfl_sync(0xffffffff, first_, 0);
    const std::uint64_t rope_step = __shfl_sync(0xffffffff, 2 * me_, 0) * ptx::kStepAlongRow;
#pragma unroll
    for (int i = 0; i < kFirstV; ++i) {
      wait_full(i);
      if (i == 0) take_live();
      ptx::wgmma_fence();
      const std::uint64_t a =
          ptx::descriptor_k_major(tiles + i * static_cast<std::uint32_t>(sizeof(parts::Tile))) + rope_step;
      const std::uint64_t b =
          ptx::descriptor_k_major(q + scoring_.chunk(i) * kRows * parts::kRowBytes) + rope_step;
      ptx::Wgmma<Element, kRows>::template ss<false>(even_, a, b, i > 0);
      ptx::Wgmma<Element, kRows>::template ss<false>(odd_, a + ptx::kStepAlongRow, b + ptx::kStepAlongRow,
                                                     i > 0);
    }
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      wait_full(place(i));
      if (kFirstV == 0 && i == 0) take_live();
      ptx::wgmma_fence();
      const std::uint64_t a = ptx::descriptor_k_major(
          tiles + (kFirstV + first + i) * static_cast<std::uint32_t>(sizeof(parts::Tile)));
      const std::uint64_t b = ptx::descriptor_k_major(q + (first + i) * kRows * parts::kRowBytes);
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        ptx::Wgmma<Element, kRows>::template ss<false>(
            step % 2 == 0 ? even_ : odd_, a + step * ptx::kStepAlongRow, b + step * ptx::kStepAlongRow,
            kFirstV > 0 || i > 0 || step > 1);
      }
    }
    ptx::wgmma_commit();
  }

  __device__ __forceinline__ void wait_full(int i) {
    scoring_.wait_full(i);
    if constexpr (Config::Loader::kReaderFences) ptx::fence_for_async_proxy();
  }

  /// Attention's, of the block that is scored.
  __device__ __forceinline__ void take_live() {
    std::uint64_t live = 0;
    if (thread_ % 32 == 0) live = scoring_.live();
    scored_live_ = __shfl_sync(0xffffffff, live, 0);
  }

  /// What score() has begun is in even_ then.
  __device__ __forceinline__ void take_scores() {
    ptx::wgmma_wait<0>();
    ptx::pin_registers(even_);
    ptx::pin_registers(odd_);
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) even_[i] += odd_[i];
#pragma unroll
    for (int i = 0; i < kFirstV; ++i) this->arrive_as_warp(scoring_.empty(i));
    this->live_ = scored_live_;
    scoring_.next_block();
  }

  /// Of this warpgroup's eight rows, s = what both have scored. Are there `more` blocks, and is the next one
  /// here?
  __device__ __forceinline__ bool add_scores(bool more) {
    float4 mine = make_float4(even_[0], even_[1], even_[2], even_[3]);
    float4 others = make_float4(even_[4], even_[5], even_[6], even_[7]);
    if (me_ == 1) {
      const float4 swap = mine;
      mine = others;
      others = swap;
    }
    shared_.team.scores[me_][thread_] = others;
    if (thread_ == 0) shared_.team.next_is_here[me_] = more && scoring_.is_full(place(kHalf - 1));
    meet();
    others = shared_.team.scores[me_ ^ 1][thread_];
    rows_[0] = mine.x + others.x;
    rows_[1] = mine.y + others.y;
    rows_[2] = mine.z + others.z;
    rows_[3] = mine.w + others.w;
    return shared_.team.next_is_here[me_];
  }

  /// From scores of this warpgroup's eight rows to P in shared memory, and by what the rows shrink.
  __device__ __forceinline__ void softmax(int start) {
    const float scale = parts::positive_scale(rows_, args_.scale_log2);
    if (this->live_ != parts::kAllLive || this->partial_tokens(start) != 0) {
      mask_columns<8>(rows_, this->live_, fragment_, [&](int n) { return this->limit(8 * me_ + n, start); });
    }
    const ColumnValues<8> before = max_;
    take_maximum(scale);
    ColumnValues<8> factor;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      factor[i] = parts::exp2_fast(before[i] - parts::finite_or_zero(max_[i]));
      sum_[i] *= factor[i];
      if (8 * me_ + fragment_.column + i >= tile_.rows) factor[i] = 1;
    }
    if (thread_ < 4) put(shared_.team.factor, factor);
    exponentials<8>(rows_, scale, max_, sum_);
    store_probabilities<Element, 8>(ptx::shared_address(shared_.p[0]) + me_ * 8 * parts::kRowBytes, rows_,
                                    thread_);
  }

  __device__ __forceinline__ void take_maximum(float scale) {
    const ColumnValues<8> mine = warp_max<8>(rows_);
    if (thread_ % 32 < 4) put(shared_.warp_max[0][thread_ / 32], mine);
    this->meet_alone();
#pragma unroll
    for (int warp = 0; warp < 4; ++warp) {
      const float2 pair =
          *reinterpret_cast<const float2*>(&shared_.warp_max[0][warp][8 * me_ + fragment_.column]);
      max_[0] = fmaxf(max_[0], pair.x * scale);
      max_[1] = fmaxf(max_[1], pair.y * scale);
    }
  }

  /// This thread's rows into all rows' values.
  __device__ __forceinline__ void put(float (&row)[kRows], const ColumnValues<8>& values) const {
    *reinterpret_cast<float2*>(&row[8 * me_ + fragment_.column]) = make_float2(values[0], values[1]);
  }

  /// The output so far shrinks to the new maxima.
  __device__ __forceinline__ void rescale_rows() {
    ColumnValues<kRows> factor;
    bool shrinks = false;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float2 pair = *reinterpret_cast<const float2*>(&shared_.team.factor[8 * j + fragment_.column]);
      factor[2 * j] = pair.x;
      factor[2 * j + 1] = pair.y;
      shrinks = shrinks || pair.x != 1.0F || pair.y != 1.0F;
    }
    if (__any_sync(0xffffffff, shrinks)) this->rescale(factor);
  }

  /// o += V^T P^T; a tile is given back as soon as its product is done.
  __device__ __forceinline__ void multiply() {
    const std::uint64_t p = ptx::descriptor_k_major(ptx::shared_address(shared_.p[0]));
    const std::uint32_t tiles = __shfl_sync(0xffffffff, ptx::shared_address(&ring_.tile(place(0))), 0);
#pragma unroll
    for (auto& chunk : o_) ptx::pin_registers(chunk);
    ptx::wgmma_fence();
#pragma unroll
    for (int chunk = 0; chunk < kHalf; ++chunk) {
      const std::uint64_t v = ptx::descriptor_n_major(
          tiles + chunk * static_cast<std::uint32_t>(sizeof(parts::Tile)), sizeof(parts::Tile));
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        ptx::Wgmma<Element, kRows>::template ss<false, true>(o_[chunk], v + step * ptx::kStepAlongRows,
                                                             p + step * ptx::kStepAlongRow, true);
      }
      ptx::wgmma_commit();
    }
    release_in_order(std::make_integer_sequence<int, kHalf>());
#pragma unroll
    for (auto& chunk : o_) ptx::pin_registers(chunk);
  }
  template <int... kChunk>
  __device__ __forceinline__ void release_in_order(std::integer_sequence<int, kChunk...>) {
    (
        [&] {
          ptx::wgmma_wait<kHalf - 1 - kChunk>();
          this->arrive_as_warp(ring_.empty(place(kChunk)));
        }(),
        ...);
  }

  /// Sends the CTA's share to the owners, and writes what it owns.
  __device__ __forceinline__ void finish(const schedule::Segment& segment, int blocks,
                                         const parts::Segments<Config::kTeam>& segments,
                                         Exchange<Config>& exchange) {
    exchange.open();
    const int n = thread_ % kRows;
    if (blocks > 0) {
      publish_statistics();
      this->meet_alone();
      exchange.send(o_, Base::row_of(shared_.own[0], 8 * me_ + thread_ % 8));
    }
    const int unit = Exchange<Config>::own_unit(me_);
    if (unit < 0) return;
    exchange.receive();
    float x[4];
    RowStatistics row = exchange.add_up(x, n, fragment_.column);
    bool partial = segment.slot >= 0;
    if (partial && args_.geometry.whole == schedule::kShared) {
      if (!merge_teams(x, unit, row, segment, segments)) return;
      partial = false;
    }
    const parts::RowScale scale = parts::finish_row(row.max, row.sum);
    float factor = scale.factor;
    if (!partial && args_.output.sink != nullptr && n < tile_.rows) {
      factor *= parts::sink_factor(scale.lse, __ldg(args_.output.sink + places_.head));
    }
    scale_unit(x, factor, 8 * Exchange<Config>::eight_rows(unit) + fragment_.column);
    if (!partial) {
      if (places_.lse != nullptr) *places_.lse = parts::final_lse(args_.output, scale.lse);
      OutputRows<Element>::write(places_.out, x);
      return;
    }
    const std::int64_t slot = this->slot_of(segment, segments.lane());
    if (places_.lse != nullptr) args_.partial.lse[slot * kRows + n] = scale.lse;
    write_partial_unit(x, Exchange<Config>::chunk(unit), Exchange<Config>::eight_rows(unit),
                       this->partial_out(slot), Config::kVDim, tile_.rows, fragment_);
  }

  __device__ __forceinline__ void publish_statistics() {
    ColumnValues<8> sum;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum[i] = across_token_lanes(sum_[i], [](float a, float b) { return a + b; });
    }
    if (thread_ % 32 < 4) {
      put(shared_.own[0].warp_sum[thread_ / 32], sum);
      if (thread_ < 4) put(shared_.own[0].max, max_);
    }
  }

  /// `x` and `row` are this team's part; the last of those that share the request gets all of it, and true.
  __device__ __forceinline__ bool merge_teams(float (&x)[4], int unit, RowStatistics& row,
                                              const schedule::Segment& segment,
                                              const parts::Segments<Config::kTeam>& segments) {
    const TeamMerge<Config> merge(args_, segment.request, segment.slot - segments.share(), segments.shares(),
                                  segments.lane(), unit, thread_);
    merge.store(segments.share(), x, row);
    this->meet_alone();  // all have
    bool& is_last = shared_.team.is_last[me_];
    if (thread_ == 0) is_last = merge.is_last();
    this->meet_alone();
    if (is_last) row = merge.add_up(x, thread_ % kRows, fragment_.column);
    return is_last;
  }

  const int first_;               // chunk of V that is this warpgroup's first
  RingPosition<Config> scoring_;  // the next block to be scored
  float even_[kRows / 2], odd_[kRows / 2];
  float rows_[4];              // scores of eight rows
  ColumnValues<8> max_, sum_;  // theirs, base 2; sum_ is this thread's share
  std::uint64_t scored_live_ = 0;
  bool scored_ = false;          // is the next block already being scored?
  std::uint32_t exchanges_ = 0;  // segments with blocks so far
  Places places_;
  const uint4* query_at_;  // this thread's share of a row of Q; null: not a live row
  uint4 query_[kHalf + kFirstV];
};

}  // namespace flashlatent::etap
