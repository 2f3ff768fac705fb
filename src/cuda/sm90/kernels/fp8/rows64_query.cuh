// Q of a tile, loaded by the scorer while the output warpgroups still write the previous tile's output: fp16,
// its RoPE part bf16 except for e4m3 latents, times a power of two that brings the tile's largest value to
// 2^14, so that bf16 values down to 2^-28 of it are exact. If a call's first segment is short, all three
// computing warpgroups load its Q: 8 requests then take 0.9 us less, large batches up to 0.6 % more.
//
// It comes as it is in memory, by one box for each of the query's two tensors, and is converted in place,
// into the order in which K's columns reach registers (scorer.cuh): four units of 16 bytes, one of each lane
// of a quad, become four units with a word of each. The kernel for records (records64_kernel.cuh) takes Q
// likewise, in the order of record_keys.cuh.
#pragma once

#include "cuda/sm90/kernels/fp8/rows64_config.h"
#include "cuda/sm90/load/q_loader.cuh"
#include "cuda/sm90/load/query_maps.cuh"
#include "cuda/sm90/load/query_max.cuh"
#include "cuda/sm90/math/fp8_units.cuh"

namespace flashlatent::fp8::rows64 {

template <class Shared>
class Query {
  using Config = typename Shared::Config;

 public:
  __device__ __forceinline__ Query(Shared& shared, const sm90::DecodeArguments& args,
                                   const sm90::QueryMaps& maps)
      : shared_(shared), args_(args), maps_(maps) {}

  /// By the scorer, when this thread's products with the previous Q are done. Returns the factor of scores,
  /// to base 2.
  __device__ __forceinline__ float take(const sm90::Work& work) {
    const sm90::RowTile& tile = work.tile;
    find_thread();
    meet<1>();
    const bool asked = is_asked();
    if (!asked) copy(tile);
    load_angle(tile, asked);
    if constexpr (!Config::kRowsAlike) {
      if (thread_ < kRows) shared_.scored_rows.find(args_, tile, thread_);
    }
    ptx::wait(shared_.has_query, parity_);
    parity_ ^= 1;
    if constexpr (Config::kAsksAhead) {
      if (is_first_ && thread_ == 0) ptx::arrive(shared_.lists.first_query);
    }
    const int exponent = is_first_ && is_short(work)
                             ? bring_to_fp16<Config::kComputeGroups, kScorerTiles>(tile, Config::kOutputs)
                             : bring_to_fp16<1, Config::kQueryTiles>(tile, 0);
    is_first_ = false;
    if constexpr (Config::kEdges) ++items_;
    return args_.scale_log2 * sm90::power_of_two(127 - exponent);
  }
  /// The output warpgroups do not count an item without blocks.
  __device__ __forceinline__ void forget_angles() {
    if constexpr (Config::kEdges) --items_;
  }
  /// By the output warpgroups, at a call's first segment with blocks: each does its share of take().
  __device__ __forceinline__ void help(const sm90::Work& work) {
    if (!is_short(work)) return;
    find_thread();
    ptx::wait(shared_.has_query, 0);
    bring_to_fp16<Config::kComputeGroups, kHelperTiles>(work.tile, threadIdx.x / 128);
  }

  /// Loads the next Q, if there is one in line, before it is taken; by one thread.
  __device__ __forceinline__ void say_next(const sm90::Work* next) const {
    sm90::RowsInLine& rows = shared_.lists.next_query;
    rows.request = -1;
    if (next != nullptr && next->blocks() > 0 && args_.query.rows_in_boxes)
      rows = next->tile.in_line(args_.query);
  }
  /// By the scorer, when all of its products with this Q are done.
  __device__ __forceinline__ void ask_ahead() {
    meet<1>();
    if (threadIdx.x % 128 == 0 && shared_.lists.next_query.request >= 0) ask(shared_.lists.next_query);
    load_next_position();
  }

  /// Prefetches a later tile's Q, so that it need not come from memory when it is taken.
  __device__ __forceinline__ void bring_to_l2(const sm90::RowTile& tile) const { bring_to_l2(args_, tile); }
  /// The same by any 128 threads.
  __device__ __forceinline__ static void bring_to_l2(const sm90::DecodeArguments& args,
                                                     const sm90::RowTile& tile) {
    constexpr int kFirst = query_parts::first_columns(Config::kQkDim), kLine = 64;  // columns
    const int thread = threadIdx.x % 128, n = thread / 2;
    if (n >= tile.rows) return;
    const auto* row = sm90::query_row<__nv_bfloat16>(args.query, tile, n) + thread % 2 * kLine;
    static_assert(kFirst % (2 * kLine) == 0 && Config::kQkDim - kFirst <= kLine);
#pragma unroll
    for (int at = 0; at < kFirst; at += 2 * kLine) ptx::prefetch_line_to_l2(row + at);
    if (kFirst < Config::kQkDim && thread % 2 == 0) {
      ptx::prefetch_line_to_l2(sm90::query_rope_row<__nv_bfloat16>(args.query, tile, n));
    }
  }

 private:
  static constexpr int kRows = Config::kRows;
  static constexpr bool kRecords = Config::kTokens == Tokens::kRecords;
  /// RoPE's tile; with e4m3 latents it is like the others.
  static constexpr int kRope = Config::kE4m3 ? Config::kQueryTiles : Config::kQueryTiles - 1;
  /// Tiles of a call's first Q: those of each helping warpgroup, and the scorer's, the last ones.
  static constexpr int kHelperTiles = (Config::kQueryTiles + Config::kOutputs) / Config::kComputeGroups,
                       kScorerTiles = Config::kQueryTiles - Config::kOutputs * kHelperTiles;

  /// Has the load of the next Q begun?
  __device__ __forceinline__ bool is_asked() const {
    if constexpr (Config::kAsksAhead) return shared_.lists.next_query.request >= 0;
    return false;
  }
  /// If the guessed factor fits, one warpgroup takes 2,900 clocks for a call's first Q; three that first find
  /// the largest value take 6,300.
  __device__ __forceinline__ static bool is_short(const sm90::Work& work) {
    return !Config::kGuessesQuery && work.blocks() <= 16;
  }

  __device__ __forceinline__ void find_thread() {
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread_));  // so that it is not read again at each use
    thread_ %= 128;
  }
  /// So many warpgroups.
  template <int kGroups>
  __device__ __forceinline__ static void meet() {
    ptx::named_sync(kGroups == 1 ? kScorerBarrier : kQueryBarrier, kGroups * 128);
  }

  /// Converts Q in place, by so many warpgroups; this one has number `group` and so many tiles. Returns the
  /// exponent of the factor.
  template <int kGroups, int kTiles>
  __device__ __forceinline__ int bring_to_fp16(const sm90::RowTile& tile, int group) {
    const int first = group * kHelperTiles;
    auto& query_max = reinterpret_cast<int(&)[4 * kGroups]>(shared_.query_max);
    if constexpr (Config::kGuessesQuery) {
#pragma unroll 1
      for (int attempt = 0;; ++attempt) {  // one place in the code measures Q
        measure();
        if (attempt > 0) break;
        if (convert_by_guess(tile)) return kGuess;
      }
      if constexpr (Config::kEdges) {
        edge().apply(args_.edges.norm, args_.edges.query.positions != nullptr);
        norm_factor_ = 1;
        is_turned_ = true;
        meet<kGroups>();  // other threads read what this one has written
      }
    }
    const int max =
        static_cast<int>(sm90::QueryMax<kTiles, 128>(shared_.q[first], thread_, tile.rows).of_warp());
    if (thread_ % 32 == 0) query_max[group * 4 + thread_ / 32] = max;
    meet<kGroups>();
    const int exponent = sm90::query_exponent(query_max);
    convert(first, first + kTiles, static_cast<std::uint32_t>(127 + exponent) * 0x00800080U);
    ptx::fence_for_async_proxy();
    meet<kGroups>();
    return exponent;
  }

  /// Loads Q, by one box for each of its two tensors.
  __device__ __forceinline__ void ask(const sm90::RowsInLine& rows) const {
    ptx::arrive_expecting(shared_.has_query, sizeof(shared_.q));
    // There is one line (BoxMaps::query_lines): no registers are left for a division.
    sm90::copy_query_chunks<Config::kQkDim>(shared_.q, maps_, rows.first, 0, rows.request, shared_.has_query);
  }

  /// The same times 2^kGuess, which suits the queries of models, without finding the largest value first.
  /// False if it does not suit: then Q is again as in memory.
  __device__ __forceinline__ bool convert_by_guess(const sm90::RowTile& tile) {
    auto& query_max = reinterpret_cast<int(&)[4]>(shared_.query_max);
    const std::uint32_t pair = convert(0, Config::kQueryTiles, (127 + kGuess) * 0x00800080U) & 0x7FFF7FFFU;
    const std::uint32_t largest = thread_ % kRows < tile.rows ? ::max(pair & 0xFFFF, pair >> 16) : 0;
    const int of_warp = static_cast<int>(__reduce_max_sync(0xffffffff, largest));
    if (thread_ % 32 == 0) query_max[thread_ / 32] = of_warp;
    ptx::fence_for_async_proxy();
    meet<1>();
    int max = 0;
#pragma unroll
    for (const int x : query_max) max = ::max(max, x);
    if ((max >= kLeastGuessed && max < kMostGuessed) || max == 0) [[likely]]
      return true;
    meet<1>();  // all threads have read the maxima
    copy(tile);
    ptx::wait(shared_.has_query, parity_);
    parity_ ^= 1;
    return false;
  }

  /// Loads a pair's angle of the item's query token, by threads of 64; `asked`: its position has been loaded.
  __device__ __forceinline__ void load_angle(const sm90::RowTile& tile, bool asked) {
    if constexpr (Config::kEdges) {
      const edges::Rotary& rotary = turns_query() ? args_.edges.query : args_.edges.output;
      angle_ = {1, 0};
      if (thread_ >= 2 * sm90::kRotatedPairs || rotary.positions == nullptr) return;
      angle_ = rotary.angle(asked ? next_position_ : rotary.position(tile.request, tile.first_token),
                            thread_ % sm90::kRotatedPairs);
    }
  }
  /// Whether this thread has an angle of the query, not of the output.
  __device__ __forceinline__ bool turns_query() const {
    return thread_ < sm90::kRotatedPairs;
  }
  /// Loads the position of the next item, whose Q has been asked for.
  __device__ __forceinline__ void load_next_position() {
    if constexpr (Config::kEdges) {
      find_thread();
      const sm90::RowsInLine& rows = shared_.lists.next_query;
      const edges::Rotary& rotary = turns_query() ? args_.edges.query : args_.edges.output;
      if (rows.request < 0 || thread_ >= 2 * sm90::kRotatedPairs || rotary.positions == nullptr) return;
      next_position_ = rotary.position(rows.request, args_.query.group.quotient(rows.first));
    }
  }

  __device__ __forceinline__ sm90::QueryEdge<Config::kQueryTiles> edge() const {
    return {shared_.edges.query, ptx::shared_address(shared_.q[0]), thread_};
  }
  /// Finds the factor of the norm for this thread's row of Q as it came from memory, and publishes angles.
  __device__ __forceinline__ void measure() {
    if constexpr (Config::kEdges) {
      const float epsilon = args_.edges.norm;
      if (epsilon > 0) edge().add_squares();
      auto& edges = shared_.edges;
      if (thread_ < 2 * sm90::kRotatedPairs) {
        (turns_query() ? edges.query.angles
                       : edges.output[items_ % edges.kItems])[thread_ % sm90::kRotatedPairs] = angle_;
      }
      meet<1>();
      norm_factor_ = edge().factor(epsilon);
      is_turned_ = args_.edges.query.positions == nullptr;
    }
  }

  /// As it is in memory.
  __device__ __forceinline__ void copy(const sm90::RowTile& tile) const {
    if (args_.query.rows_in_boxes) {
      if (thread_ == 0) ask(tile.in_line(args_.query));
    } else {
      sm90::load_query<__nv_bfloat16, kRows, Config::kQueryTiles, 128>(shared_.q[0], args_.query, tile,
                                                                       thread_);
      ptx::arrive(shared_.has_query);
    }
  }

  /// Converts some of Q's tiles. `factor`: two bf16. Returns the largest magnitudes before multiplication,
  /// with any sign, of both halves of words. Tile by tile: a call's first instructions are fetched slowly,
  /// and unrolled code took 5,000 to 7,000 clocks in place of 2,300.
  __device__ __forceinline__ std::uint32_t convert(int begin, int end, std::uint32_t factor) const {
    if constexpr (kRecords) return convert_for_records(factor);
    std::uint32_t largest = 0;
    std::uint32_t units[4];
    uint4 next[4];
    auto load = [&](int tile, bool is_rope) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int half = thread_ / kRows;
        units[i] = ptx::shared_address(shared_.q[tile]) +
                   sm90::unit_offset(thread_ % kRows, is_rope ? 4 * half + i : 2 * i + half);
        next[i] = ptx::load_shared_16_bytes(units[i]);
      }
    };
    load(begin, begin == kRope);
#pragma unroll 1
    for (int tile = begin; tile < end; ++tile) {
      std::uint32_t to[4], words[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        to[i] = units[i];
        if constexpr (Config::kEdges) {
          const bool turns = tile == kRope && !is_turned_;
          const edges::Angle* angles = shared_.edges.query.angles + (thread_ / kRows * 4 + i) * 4;
          next[i] =
              sm90::QueryEdge<Config::kQueryTiles>::prepared(next[i], norm_factor_, turns ? angles : nullptr);
        }
        if constexpr (Config::kGuessesQuery) {
          largest = sm90::larger_magnitudes(
              sm90::larger_magnitudes(largest, sm90::larger_magnitudes(next[i].x, next[i].y)),
              sm90::larger_magnitudes(next[i].z, next[i].w));
        }
        words[i][0] = sm90::times_bf16(next[i].x, factor);
        words[i][1] = sm90::times_bf16(next[i].y, factor);
        words[i][2] = sm90::times_bf16(next[i].z, factor);
        words[i][3] = sm90::times_bf16(next[i].w, factor);
      }
      if (tile + 1 < end) load(tile + 1, tile + 1 == kRope);
      if (tile < kRope) {
#pragma unroll
        for (auto& unit : words) {
#pragma unroll
          for (std::uint32_t& word : unit) {
            const float2 two = sm90::unpack<__nv_bfloat16>(word);
            word = sm90::pack<__half>(two.x, two.y);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        ptx::store_16_bytes(to[i], make_uint4(words[0][i], words[1][i], words[2][i], words[3][i]));
      }
    }
    return largest;
  }

  /// All tiles, in the order of record_keys.cuh: of 128 columns chunk `chunk` has units 4 q + 2 chunk + half
  /// of eight columns, q being a lane of the quad, and pairs of even and of odd columns become words q of
  /// four units. A thread has these columns of a row, reads them all, and then writes them.
  __device__ __forceinline__ std::uint32_t convert_for_records(std::uint32_t factor) const {
    constexpr int kGroups = Config::kQueryTiles / 2;
    std::uint32_t largest = 0;
#pragma unroll 1
    for (int group = thread_ / kRows; group < kGroups; group += 128 / kRows) {
      const std::uint32_t tiles = ptx::shared_address(shared_.q[2 * group]);
      const auto unit_at = [&](int unit) {
        return tiles + unit / 8 * Config::kTileBytes + sm90::unit_offset(thread_ % kRows, unit % 8);
      };
      uint4 units[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) units[i] = ptx::load_shared_16_bytes(unit_at(i));
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        uint4& unit = units[i];
        if constexpr (Config::kEdges) {
          const bool turns = i >= 8 && group == kGroups - 1 && !is_turned_;
          const edges::Angle* angles = shared_.edges.query.angles + (i - 8) * 4;
          unit = sm90::QueryEdge<Config::kQueryTiles>::prepared(unit, norm_factor_, turns ? angles : nullptr);
        }
        largest =
            sm90::larger_magnitudes(sm90::larger_magnitudes(largest, sm90::larger_magnitudes(unit.x, unit.y)),
                                    sm90::larger_magnitudes(unit.z, unit.w));
        unit = make_uint4(to_fp16(__byte_perm(unit.x, unit.y, 0x5410), factor),
                          to_fp16(__byte_perm(unit.x, unit.y, 0x7632), factor),
                          to_fp16(__byte_perm(unit.z, unit.w, 0x5410), factor),
                          to_fp16(__byte_perm(unit.z, unit.w, 0x7632), factor));
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // 2 chunk + half
        const uint4 &a = units[i], &b = units[4 + i], &c = units[8 + i], &d = units[12 + i];
        const uint4 to[4] = {make_uint4(a.x, b.x, c.x, d.x), make_uint4(a.y, b.y, c.y, d.y),
                             make_uint4(a.z, b.z, c.z, d.z), make_uint4(a.w, b.w, c.w, d.w)};
#pragma unroll
        for (int k = 0; k < 4; ++k) ptx::store_16_bytes(unit_at(4 * i + k), to[k]);
      }
    }
    return largest;
  }
  /// Two bf16 times two, as fp16.
  __device__ __forceinline__ static std::uint32_t to_fp16(std::uint32_t pair, std::uint32_t factor) {
    const float2 two = sm90::unpack<__nv_bfloat16>(sm90::times_bf16(pair, factor));
    return sm90::pack<__half>(two.x, two.y);
  }

  Shared& shared_;
  const sm90::DecodeArguments& args_;
  const sm90::QueryMaps& maps_;
  // Largest values of 2^-7 to 2^8 thus become 2^-1 to 2^14: bf16 values down to 2^-15 of the largest are
  // exact, and smaller values are right to 2^-24 of it.
  static constexpr int kGuess = 6, kLeastGuessed = (127 - 7) << 7, kMostGuessed = (127 + 9) << 7;

  int thread_;     // in take() and help()
  int items_ = 0;  // that have been taken
  // With edges:
  float norm_factor_ = 1;           // of this thread's row
  bool is_turned_ = true;           // Q in shared memory
  edges::Angle angle_;              // see load_angle()
  std::int64_t next_position_ = 0;  // load_next_position()
  bool is_first_ = true;            // the call's first Q
  std::uint32_t parity_ = 0;        // of the barrier of the next Q
};

}  // namespace flashlatent::fp8::rows64
