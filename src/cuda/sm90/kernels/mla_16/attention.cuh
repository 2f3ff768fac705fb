// The state of a computing warp, and what it does with a block: scores, softmax, output.
#pragma once

#include "cuda/sm90/kernels/mla_16/query.cuh"
#include "cuda/sm90/kernels/mla_16/smem_layout.cuh"
#include "cuda/sm90/math/mask.cuh"
#include "cuda/sm90/math/softmax.cuh"
#include "cuda/sm90/ptx/copy.cuh"

namespace flashlatent::mla_16 {

// Named barriers: kAll of all computing warps; kPair + n of the two warps of pair n.
inline constexpr int kAll = 1;
inline constexpr int kPair = 2;

/// The token of a warp's eight at place i of the products.
__device__ __forceinline__ int token_of(int i) {
  return i / 2 + i % 2 * 4;
}

template <class Config>
class Attention {
 public:
  using Element = typename Config::Element;

 protected:
  static constexpr int kTiles = Config::kWarpColumns / 8;  // tiles of the output, 16 x 8 each

  __device__ __forceinline__ Attention(SharedMemory<Config>& shared, const sm90::DecodeArguments& args)
      : shared_(shared),
        args_(args),
        lane_(threadIdx.x % 32),
        me_(__shfl_sync(0xffffffff, threadIdx.x / 32, 0)),
        half_(Config::kPairedWarps ? me_ % 2 : 0),
        ring_(shared) {}

  __device__ __forceinline__ void start(const sm90::Work& work) {
#pragma unroll
    for (float& x : o_) x = 0;
    max_ = {-INFINITY, -INFINITY};
    sum_ = {0, 0};
    start_token_ = work.segment.block_begin * 64;
    if constexpr (Config::kPairedWarps) find_offsets();
    seen_by_all_ = seen(work, 0);
  }

  /// Where a lane of paired warps reads and writes in tiles and in P. The compiler would compute these
  /// addresses in each block, since nothing but the loop over blocks encloses their use: 34 of 725
  /// instructions.
  struct LaneOffsets {
    std::uint32_t rope, strips[2];  // of K
    std::uint32_t p, all_p, v;
  };
  __device__ __forceinline__ void find_offsets() {
    const int token = 8 * (me_ / 2 * 2) + token_of(lane_ / 4);
    offsets_ = {sm90::unit_offset(token, 4 * half_ + lane_ % 4),
                {sm90::unit_offset(token, lane_ % 4), sm90::unit_offset(token, 4 + lane_ % 4)},
                sm90::unit_offset(lane_ / 4, me_) + lane_ % 4 * 4,
                ptx::shared_address(shared_.p) + sm90::unit_offset(lane_ % 16, lane_ / 16),
                sm90::unit_offset(v_token(), v_unit() + lane_ / 16)};
    asm volatile(""
                 : "+r"(offsets_.rope), "+r"(offsets_.strips[0]), "+r"(offsets_.strips[1]), "+r"(offsets_.p),
                   "+r"(offsets_.all_p), "+r"(offsets_.v));
  }

  __device__ __forceinline__ TokenPrefix seen(const sm90::Work& work, int row) const {
    return work.tile.seen(args_, work.segment.length, row);
  }

  /// Synchronises all computing warps.
  __device__ __forceinline__ static void meet() {
    ptx::named_sync(kAll, Config::kComputeThreads);
  }

  /// Call when Q has been loaded.
  __device__ __forceinline__ void arrange_query() {
    query_.arrange(hidden_zero());
  }

  /// From scores to the output; call after score().
  __device__ __forceinline__ void attend(const sm90::Work& work) {
    softmax(work);
    silence(work);
    meet();  // all of P is written
    multiply();
    ring_.next_block();
    start_token_ += 64;
  }

  /// s_ = Q K^T for this warp's tokens. Paired warps compute a pair's tokens over half of the columns each.
  /// Tiles are used as they land; the reads of a strip are under way before the products of the strip before
  /// it.
  __device__ __forceinline__ void score() {
    using Strips = Strips<Config>;
    constexpr int kEights = Config::kPairedWarps ? 2 : 1;  // groups of eight tokens
    const int token = 8 * (me_ / kEights * kEights) + token_of(lane_ / 4);
    float even[kEights][4] = {}, odd[kEights][4] = {};
    // a lone warp has four sums, so that no product waits for another
    float more[Config::kPairedWarps ? 1 : 2][4] = {};
    uint4 columns[2][kEights];
    auto read = [&](int i) {
      if (Config::kWholeBlocks ? i == 0 : Strips::begins_tile(i))
        ring_.wait_full(Config::kWholeBlocks ? 0 : Strips::tile(i, half_));
      const std::uint32_t k = key_address(i, token);
#pragma unroll
      for (int j = 0; j < kEights; ++j) {
        columns[i % 2][j] = ptx::load_shared_16_bytes(k + j * 8 * sm90::kRowBytes);
      }
    };
    read(0);
    take_live();
#pragma unroll
    for (int i = 0; i < Strips::kCount; ++i) {
      if (i + 1 < Strips::kCount) read(i + 1);
      if constexpr (Config::kPairedWarps) {
#pragma unroll
        for (int j = 0; j < 2; ++j) query_.multiply(even[j], odd[j], i, columns[i % 2][j]);
      } else if (i % 2 == 0) {
        query_.multiply(even[0], odd[0], i, columns[0][0]);
      } else {
        query_.multiply(more[0], more[1], i, columns[1][0]);
      }
    }
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) even[j][i] += odd[j][i];
    }
    if constexpr (Config::kPairedWarps) {
      add_scores(even);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) s_[i] = even[0][i] + (more[0][i] + more[1][i]);
    }
  }

  /// The address of this lane's 16 bytes of a token's i-th strip.
  __device__ __forceinline__ std::uint32_t key_address(int i, int token) const {
    using Strips = Strips<Config>;
    if constexpr (!Config::kPairedWarps) {
      return ring_.unit_address(Strips::tile(i, half_), token, Strips::unit(i, half_) + lane_ % 4);
    } else {
      const std::uint32_t offset =
          i < Strips::kRope ? offsets_.rope : offsets_.strips[(i - Strips::kRope) % 2];
      return ptx::shared_address(&ring_.tile(Strips::tile(i, half_))) + offset;
    }
  }

  /// One lane reads `live`: the one that frees tile 0, so that its arrival orders the read.
  __device__ __forceinline__ void take_live() {
    std::uint64_t live = 0;
    // The live bits come with tile 0. Without RoPE the second warp of a pair has no strip of that tile, so it
    // has not waited for it.
    if constexpr (Config::kPairedWarps && Config::kRopeChunks == 0) ring_.wait_full(0);
    if (lane_ == 0) live = ring_.live();
    live_ = __shfl_sync(0xffffffff, live, 0);
  }

  /// A pair has 16 tokens. Each warp takes eight, and gives its sums of the other eight.
  __device__ __forceinline__ void add_scores(const float (&s)[2][4]) {
    const float(&mine)[4] = s[0], (&others)[4] = s[1];
    const float4 given = half_ == 0 ? make_float4(others[0], others[1], others[2], others[3])
                                    : make_float4(mine[0], mine[1], mine[2], mine[3]);
    shared_.scores[me_][lane_] = given;
    ptx::named_sync(kPair + me_ / 2, 64);
    const float4 taken = shared_.scores[me_ ^ 1][lane_];
    s_[0] = (half_ == 0 ? mine[0] : others[0]) + taken.x;
    s_[1] = (half_ == 0 ? mine[1] : others[1]) + taken.y;
    s_[2] = (half_ == 0 ? mine[2] : others[2]) + taken.z;
    s_[3] = (half_ == 0 ? mine[3] : others[3]) + taken.w;
  }

  /// From scores to P in shared memory; rescales the output so far to the new maximum.
  __device__ __forceinline__ void softmax(const sm90::Work& work) {
    sm90::multiply(s_, args_.scale_log2);
    if (live_ != sm90::kAllLive || partial_tokens() != 0) mask(work);
    const sm90::RowPair before = max_;
    take_maximum();
    const sm90::RowPair factor = sm90::shrink(before, max_);
    const sm90::RowPair sum = sm90::exponentials(s_, max_);
    sum_ = {fmaf(sum_.low, factor.low, sum.low), fmaf(sum_.high, factor.high, sum.high)};
    std::uint8_t* p = shared_.p + p_offset();
    *reinterpret_cast<std::uint32_t*>(p) = sm90::pack<Element>(s_[0], s_[1]);
    *reinterpret_cast<std::uint32_t*>(p + 8 * sm90::kRowBytes) = sm90::pack<Element>(s_[2], s_[3]);
    if (sm90::shrinks(factor)) sm90::rescale(o_, factor);
  }

  /// Where this lane writes its values of P, and where it reads P and V.
  __device__ __forceinline__ std::uint32_t p_offset() const {
    if constexpr (Config::kPairedWarps) return offsets_.p;
    return sm90::unit_offset(lane_ / 4, me_) + lane_ % 4 * 4;
  }
  __device__ __forceinline__ std::uint32_t p_address() const {
    if constexpr (Config::kPairedWarps) return offsets_.all_p;
    return ptx::shared_address(shared_.p) + sm90::unit_offset(lane_ % 16, lane_ / 16);  // unit 2 step + it
  }
  __device__ __forceinline__ std::uint32_t v_address() const {
    if constexpr (Config::kPairedWarps) return ptx::shared_address(&ring_.tile(v_tile())) + offsets_.v;
    return ring_.unit_address(v_tile(), v_token(), v_unit() + lane_ / 16);
  }
  __device__ __forceinline__ int v_token() const {
    return lane_ / 8 % 2 * 8 + token_of(lane_ % 8);
  }

  __device__ __forceinline__ std::uint64_t partial_tokens() const {
    return sm90::partial_tokens(live_, seen_by_all_.from(start_token_));
  }

  /// Sets scores to -inf: those of dead tokens, and those that a row does not see.
  __device__ __forceinline__ void mask(const sm90::Work& work) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const TokenPrefix of_row = seen(work, lane_ / 4 + 8 * half).from(start_token_);
      const std::uint64_t live = live_ & of_row.bits();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (!(live >> (8 * me_ + token_of(lane_ % 4 * 2 + i)) & 1)) s_[2 * half + i] = -INFINITY;
      }
    }
  }

  /// Raises max_ to the block's maxima over all warps.
  __device__ __forceinline__ void take_maximum() {
    const sm90::RowPair mine{quad_max(fmaxf(s_[0], s_[1])), quad_max(fmaxf(s_[2], s_[3]))};
    put(shared_.warp_max, mine);
    meet();  // K is not read after this
    if (!Config::kWholeBlocks && v_tile() != 0) give_back(ring_.empty(0));
    auto larger = [](float a, float b) { return fmaxf(a, b); };
    max_.low = fmaxf(max_.low, over_warps(shared_.warp_max[lane_ / 4], larger));
    max_.high = fmaxf(max_.high, over_warps(shared_.warp_max[lane_ / 4 + 8], larger));
  }

  __device__ __forceinline__ static float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
  }

  /// Writes this warp's values of the thread's two rows, which are the same in its quad.
  __device__ __forceinline__ void put(float (&values)[kRows][kWarps], sm90::RowPair mine) const {
    if (lane_ % 4 != 0) return;
    values[lane_ / 4][me_] = mine.low;
    values[lane_ / 4 + 8][me_] = mine.high;
  }

  template <class Combine>
  __device__ __forceinline__ static float over_warps(const float (&values)[kWarps], Combine combine) {
    const float4 a = *reinterpret_cast<const float4*>(&values[0]);
    const float4 b = *reinterpret_cast<const float4*>(&values[4]);
    return combine(combine(combine(a.x, a.y), combine(a.z, a.w)),
                   combine(combine(b.x, b.y), combine(b.z, b.w)));
  }

  /// The tile of V that has this warp's columns, in the ring's order, and their first unit in it.
  __device__ __forceinline__ int v_tile() const {
    return Config::kRopeChunks + me_ / Config::kWarpsAChunk;
  }
  __device__ __forceinline__ int v_unit() const {
    return me_ % Config::kWarpsAChunk * kTiles;
  }

  /// Zeroes V's rows of dead tokens, and what is not finite in V's rows of partly visible tokens.
  __device__ __forceinline__ void silence(const sm90::Work& work) {
    const std::uint64_t partial = partial_tokens();
    if (live_ == sm90::kAllLive && partial == 0) return;
    if (partial != 0) {
      spread_poison(work, partial);
      meet();
    }
    sm90::silence_tokens<Element, 1, 32>([&](int, int token) { return ring_.row(v_tile(), token); }, live_,
                                         partial, lane_);
    ptx::fence_for_async_proxy();  // orders these writes before the loader's next ones
  }

  /// Sets outputs to NaN in rows that see a token of `partial` whose V is not finite (see math/mask.cuh).
  __device__ __forceinline__ void spread_poison(const sm90::Work& work, std::uint64_t partial) {
    const TokenPrefix low = seen(work, lane_ / 4).from(start_token_);
    const TokenPrefix high = seen(work, lane_ / 4 + 8).from(start_token_);
    for (; partial != 0; partial &= partial - 1) {
      const int token = __ffsll(static_cast<long long>(partial)) - 1;
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        const auto pair = *reinterpret_cast<const std::uint32_t*>(
            ring_.row(v_tile(), token) + sm90::unit_in_row(token, v_unit() + j) + lane_ % 4 * 4);
        const bool first = sm90::low_is_poison<Element>(pair), second = sm90::high_is_poison<Element>(pair);
        if (first && token < low.end) o_[4 * j] = NAN;
        if (second && token < low.end) o_[4 * j + 1] = NAN;
        if (first && token < high.end) o_[4 * j + 2] = NAN;
        if (second && token < high.end) o_[4 * j + 3] = NAN;
      }
    }
  }

  /// o_ += P V; then frees V's tile.
  __device__ __forceinline__ void multiply() {
    const std::uint32_t p = p_address(), v = v_address();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      std::uint32_t a[4];
      ptx::load_matrices(a, p ^ (step * 32));
#pragma unroll
      for (int j = 0; j < kTiles; j += 2) {
        std::uint32_t b[4];
        ptx::load_matrices_transposed(b, (v ^ (j * 16)) + step * Config::kStepBytes);
        ptx::mma<Element>(tile_of_output(j), a, b[0], b[1]);
        ptx::mma<Element>(tile_of_output(j + 1), a, b[2], b[3]);
      }
    }
    ptx::Barrier* empty = &ring_.empty(Config::kWholeBlocks ? 0 : v_tile()) + zero_after_products();
    give_back(*empty);
  }

  /// Called by one lane, or by all.
  __device__ __forceinline__ void give_back(ptx::Barrier& empty) const {
    if (Config::Loader::kAllReadersArrive || lane_ == 0) ptx::arrive(empty);
  }

  /// Returns 0, which depends on all products being done. An arrival does not wait for reads that are under
  /// way, and TMA's refill overtakes a read that is queued behind loads from memory. But what a product has
  /// summed has been read. (fence.proxy.async waits for reads, too, but takes longer: one request of 16,384
  /// tokens 12.1 us, with this 10.9.)
  __device__ __forceinline__ int zero_after_products() const {
    std::uint32_t bits = 0;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) bits |= __float_as_uint(o_[4 * j]);
    return static_cast<int>(bits & hidden_zero());
  }

  /// Returns 0 that the compiler does not know to be 0.
  __device__ __forceinline__ std::uint32_t hidden_zero() const {
    return static_cast<std::uint32_t>(args_.query.row_tiles.value) >> 31;
  }

  /// The j-th 16 x 8 tile of o_.
  __device__ __forceinline__ float (&tile_of_output(int j))[4] {
    return reinterpret_cast<float(&)[4]>(o_[4 * j]);
  }

  /// The sums of the thread's two rows over all warps. Called by all computing warps.
  __device__ __forceinline__ sm90::RowPair row_sums() {
    put(shared_.warp_sum, {sm90::quad_sum(sum_.low), sm90::quad_sum(sum_.high)});
    meet();  // warp_sum is next written after two more barriers
    auto add = [](float a, float b) { return a + b; };
    return {over_warps(shared_.warp_sum[lane_ / 4], add), over_warps(shared_.warp_sum[lane_ / 4 + 8], add)};
  }

  SharedMemory<Config>& shared_;
  const sm90::DecodeArguments& args_;
  const int lane_, me_;
  const int half_;  // the half of the columns that this warp scores over
  RingPosition<Config> ring_;
  Query<Config> query_;
  LaneOffsets offsets_;
  int start_token_ = 0;  // first token of the block
  TokenPrefix seen_by_all_ = {};
  std::uint64_t live_ = 0;  // the block's tokens that count
  sm90::RowPair max_;       // base 2
  sm90::RowPair sum_;       // this thread's share
  float s_[4];
  float o_[Config::kWarpColumns / 2];
};

}  // namespace flashlatent::mla_16
