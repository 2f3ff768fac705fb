// The two output warpgroups: P^T from a block's scores, and O^T += V^T P^T, each with half of the output's
// columns. V comes to registers as it is in the cache and becomes fp16 there.
//
// Four threads each have 16 tokens of a row of P. A row's base seldom moves, so no maximum is computed:
// probabilities are computed with the base so far, and again if any is too large (few_rows_warpgroup.cuh).
//
// Where RoPE is value, too (kRopeIsValue), it is the last 64 columns of the right warpgroup, multiplied
// unconverted by P in bf16 without units, so the size of the token's scales does not matter.
#pragma once

#include "cuda/sm90/kernels/fp8/e4m3_block.cuh"
#include "cuda/sm90/kernels/fp8/output_part.cuh"
#include "cuda/sm90/kernels/fp8/products.cuh"
#include "cuda/sm90/kernels/fp8/ring_place.cuh"
#include "cuda/sm90/kernels/fp8/rows64_query.cuh"
#include "cuda/sm90/kernels/fp8/rows64_smem.cuh"
#include "cuda/sm90/merge/column_output.cuh"
#include "cuda/sm90/ptx/store.cuh"

namespace flashlatent::fp8::rows64 {

template <class Config>
class Output : OutputPart<SharedMemory<Config>, kOutputBarrier> {
  using Base = OutputPart<SharedMemory<Config>, kOutputBarrier>;

 public:
  __device__ __forceinline__ Output(SharedMemory<Config>& shared, const sm90::DecodeArguments& args,
                                    const sm90::QueryMaps& query_maps)
      : Base(shared, args), query_maps_(query_maps) {}

  /// One segment.
  __device__ __forceinline__ void attend(const sm90::Work& work) {
    if (!finds_rows_ahead<Config>(work)) {
      meet_both();  // the previous rows are no longer written
      if (threadIdx.x < kRows) find_row(shared_, args_, work.tile, threadIdx.x);
      if (!Config::kGuessesQuery && is_first_ && work.blocks() > 0) {
        Query<SharedMemory<Config>>(shared_, args_, query_maps_).help(work);
        is_first_ = false;
      }
      meet_both();
    }
    add_blocks(work);
    finish(work);
  }

 private:
  /// All blocks of the segment. Rare cases are not in the loop: base_ seldom moves except at the begin, and
  /// few blocks have tokens that only some rows see.
  __device__ __forceinline__ void add_blocks(const sm90::Work& work) {
    this->clear(o_);
    base_ = -INFINITY;
    sum_ = 0;
    largest_ = 0;
    int left = work.blocks();
    const int of_some = blocks_of_some(work);
    if (left > 0) {  // the first block skips soften()
      ptx::arrive(shared_.p_free);
      ptx::arrive(shared_.has_p);
    }
    while (left > 0) {
      begin_again(work, left, left <= of_some);
      do {
        multiply();
        --left;
      } while (left > 0 && soften(left <= of_some));
    }
  }
  /// How many blocks at the end have tokens that some rows do not attend to.
  __device__ __forceinline__ int blocks_of_some(const sm90::Work& work) const {
    if constexpr (Config::kRowsAlike) return 0;
    const sm90::RowsBehind<kRows>& rows = shared_.output_rows;
    return rows.of_row[0] > 0 ? work.segment.block_end - rows.seen_by_all(work).end / 64 : 0;
  }

  /// Writes the segment's result.
  __device__ __forceinline__ void finish(const sm90::Work& work) {
    shared_.by_sharer[sharer()][row()] = sum_;
    if constexpr (Config::kTurns) shared_.largest.by_sharer[sharer()][row()] = largest_;
    if constexpr (Config::kRopeIsValue) {
      if (has_rope()) pair_rope();
    }
    if constexpr (Config::kEdges) {
      if (work.blocks() > 0) turn_back();
    }
    meet_both();
    if constexpr (Config::kEdges) {
      if (threadIdx.x == 0 && work.blocks() > 0) ++shared_.edges.turned;
    }
    if (sharer() == 0) finish_row(work, row());
    if constexpr (!Config::kRowsAlike) {
      if (this->is_poisoned()) [[unlikely]] {
        this->spread_poison(o_);
        if (thread() == 0) shared_.poisoned[me_] = 0;
      }
    }
    meet_both();
    if (work.segment.partial >= 0) {
      write_partial(work);
    } else if constexpr (Config::kEdges) {
      if (args_.output.out != nullptr) write();
      if (args_.edges.codes != nullptr) cast(work);
    } else {
      write();
    }
  }

  /// Turns RoPE's columns of the item's output, which are in pairs.
  __device__ __forceinline__ void turn_back() {
    const auto& angles = shared_.edges.output[shared_.edges.turned % LayerEdges::kItems];
    if (args_.edges.output.positions == nullptr || !has_rope()) return;
    const edges::Angle angle = angles[thread() / 32 * 8 + last_pair()];
    float(&x)[kRows / 2] = o_[Config::kPartChunks - 1];
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) {
      if (i % 4 >= 2) continue;
      const float2 pair = sm90::turned(x[i], x[i + 2], angle);
      x[i] = pair.x;
      x[i + 2] = pair.y;
    }
  }
  __device__ __forceinline__ void cast(const sm90::Work& work) {
    static_assert(Config::kPartChunks == 4 &&
                  2 * sizeof(OutputCast::Room) <= sizeof(shared_.p) + sizeof(shared_.plain));
    auto* rooms = reinterpret_cast<OutputCast::Room*>(shared_.p);
    OutputCast(o_, me_, rooms[me_], shared_.edges.factors[me_])
        .write(args_, work.tile, shared_.factor, shared_.edges.codes, has_rope());
  }

  using Base::args_, Base::first_column, Base::kRows, Base::me_, Base::shared_, Base::thread;
  static constexpr int kTokens = Config::kShareTokens;
  static constexpr int kSteps = 2 * Config::kPartChunks;  // of a block's product

  using Threads = OutputThreads;

  __device__ __forceinline__ static void meet_both() {
    ptx::named_sync(kOutputsBarrier, Config::kOutputThreads);
  }

  // This thread's row of P and of statistics, and its number among the row's threads.
  __device__ __forceinline__ static int row() {
    return thread() % kRows;
  }
  __device__ __forceinline__ int sharer() const {
    return me_ * 2 + thread() / kRows;
  }

  /// Stores P^T of the block that has been scored to shared memory, with the base so far, when the previous P
  /// is no longer read. Before all threads have stored theirs, prepares the begin of V's product. Returns
  /// false if the block must be begun again.
  __device__ __forceinline__ bool soften(bool of_some) {
    ptx::arrive(shared_.p_free);
    ptx::wait(shared_.scored, parity_);
    Probabilities p;
    if (take_exponentials(p)) shared_.restarts[parity_] = 1;
    ptx::wait(shared_.p_free, parity_);
    store(p);
    ptx::arrive(shared_.has_p);
    begin_product();
    ptx::wait(shared_.has_p, parity_);
    return !of_some && shared_.restarts[parity_] == 0;
  }

  /// Scales of the tokens of the block that has been scored.
  __device__ __forceinline__ TokenScales<Config>& tokens() const {
    return shared_.tokens[slot_.slot()];
  }

  __device__ __forceinline__ float score(int i) const {
    return shared_.scores.of_token[sharer() * kTokens + i][Scores<Config>::place(i, row())];
  }

  /// This thread's values of P, two a word: times units, and for RoPE also without units, in bf16.
  struct Probabilities {
    std::uint32_t in_units[kTokens / 2];
    std::uint32_t plain[Config::kRopeIsValue ? kTokens / 2 : 1];
  };
  /// Computes probabilities relative to the base so far, and their sum without units. Is any too large?
  __device__ __forceinline__ bool take_exponentials(Probabilities& probabilities) {
    auto& p = probabilities.in_units;
    const float base = finite_base();
    std::uint32_t largest = 0;  // of even and odd tokens
    block_sum_ = 0;
    block_largest_ = 0;
#pragma unroll
    for (int i = 0; i < kTokens; i += 4) {
      const float x[4] = {sm90::exp2_fast(score(i) - base), sm90::exp2_fast(score(i + 1) - base),
                          sm90::exp2_fast(score(i + 2) - base), sm90::exp2_fast(score(i + 3) - base)};
      if constexpr (Config::kE4m3) {
        block_sum_ += (x[0] + x[1]) + (x[2] + x[3]);
        note_largest(x);
      } else {
        const float4 share = *reinterpret_cast<const float4*>(&tokens().share[sharer() * kTokens + i]);
        if constexpr (Config::kRopeIsValue) {
          const float y[4] = {x[0] * share.x, x[1] * share.y, x[2] * share.z, x[3] * share.w};
          block_sum_ += (y[0] + y[1]) + (y[2] + y[3]);
          probabilities.plain[i / 2] = sm90::pack<__nv_bfloat16>(y[0], y[1]);
          probabilities.plain[i / 2 + 1] = sm90::pack<__nv_bfloat16>(y[2], y[3]);
        } else {
          block_sum_ += (x[0] * share.x + x[1] * share.y) + (x[2] * share.z + x[3] * share.w);
          note_largest({x[0] * share.x, x[1] * share.y, x[2] * share.z, x[3] * share.w});
        }
      }
      p[i / 2] = sm90::pack<__half>(x[0], x[1]);
      p[i / 2 + 1] = sm90::pack<__half>(x[2], x[3]);
      largest = sm90::larger(largest, sm90::larger(p[i / 2], p[i / 2 + 1]));
    }
    return exceeds(max(largest & 0xFFFF, largest >> 16));
  }
  /// Sparse prefill: takes four probabilities, without units, into the block's largest one.
  __device__ __forceinline__ void note_largest(const float (&y)[4]) {
    if constexpr (Config::kTurns) {
      block_largest_ = fmaxf(block_largest_, fmaxf(fmaxf(y[0], y[1]), fmaxf(y[2], y[3])));
    }
  }
  /// Is a P, as fp16, too large?
  __device__ __forceinline__ static bool exceeds(std::uint32_t p) {
    constexpr std::uint32_t kMost = (15U + Config::kLargestP + Config::kSlack) << 10;
    return p > kMost;
  }
  /// The base of a row that may need a new one, as take_exponentials() decides: by the row alone, though all
  /// rows are begun again.
  __device__ __forceinline__ float settle_base(float max) const {
    const float p = sm90::exp2_fast(max - finite_base());
    // Rounded up as in math/unit_scores.cuh.
    return exceeds(sm90::pack<__half>(p, 0) & 0xFFFF) ? __fsub_ru(max, Config::kLargestP) : base_;
  }
  __device__ __forceinline__ float finite_base() const {
    return base_ == -INFINITY ? kNoBase : base_;
  }
  __device__ __forceinline__ void store(const Probabilities& p) const {
    const std::uint32_t tile = ptx::shared_address(shared_.p);
#pragma unroll
    for (int i = 0; i < kTokens / 8; ++i) {
      const std::uint32_t unit = tile + sm90::unit_offset(row(), sharer() * (kTokens / 8) + i);
      const auto of = [i](const auto& words) {
        return make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
      };
      ptx::store_16_bytes(unit, of(p.in_units));
      if constexpr (Config::kRopeIsValue) ptx::store_16_bytes(unit + kPlainAfter, of(p.plain));
    }
    ptx::fence_for_async_proxy();
  }
  /// From one P to the other.
  static constexpr std::uint32_t kPlainAfter = Config::kTileBytes;

  /// Computes P^T again, with a base for this block's scores, and prepares the begin of V's product.
  /// `of_some`: only some rows see some of the tokens.
  __device__ __forceinline__ void begin_again(const sm90::Work& work, int left, bool of_some) {
    ptx::wait(shared_.scored, parity_);
    const int limit = shared_.output_rows.seen_by_all(work).end - (work.segment.block_end - left) * 64;
    if constexpr (Config::kE4m3) {
      silence(limit);
    } else {
      if (of_some) keep_from_poison(work, limit);
    }
    float max = -INFINITY;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) max = fmaxf(max, score(i));
    shared_.by_sharer[sharer()][row()] = max;
    meet_both();
    if (threadIdx.x == 0) shared_.restarts[parity_] = 0;
#pragma unroll
    for (int i = 0; i < Config::kSharers; ++i) max = fmaxf(max, shared_.by_sharer[i][row()]);
    const float before = base_;
    base_ = settle_base(max);
    const float factor = before == -INFINITY ? 1.0F : sm90::exp2_fast(before - base_);
    sum_ *= factor;
    largest_ *= factor;
    if (sharer() == 0) shared_.factor[row()] = factor;
    if (ptx::named_any(kOutputsBarrier, Config::kOutputThreads, factor != 1.0F)) rescale();
    Probabilities p;
    take_exponentials(p);
    store(p);
    begin_product();
    meet_both();
  }
  __device__ __forceinline__ void rescale() {
    Base::rescale(o_, Base::columns_of(shared_.factor, [column = Base::column()] { return column; }));
  }

  /// o_ += V^T P^T, this warpgroup's columns of a block, in steps of 32 tokens and 64 columns: operands of
  /// two steps are in registers, and the bytes of the next step are under way. The first step's operands are
  /// made before P is ready.
  __device__ __forceinline__ void begin_product() {
    load_values(value_row(), 0);
    if constexpr (Config::kFp32Scales) load_ratios(0);
    widen_values(a_[0], 0);
    load_values(value_row(), 1);
  }
  /// Bytes of a step, and with kUe8m0 its ratios. `row`: value_row().
  __device__ __forceinline__ void load_values(std::uint32_t row, int step) {
    constexpr int kChunkStep = Config::kE4m3 ? sm90::atoms::kAtomBytes : 64;
    ptx::load_matrices_transposed(bytes_, row + step / 2 * kChunkStep + step % 2 * 32 * Config::kTokenBytes);
    if constexpr (Config::kUe8m0) {
      const auto& of_group = tokens().ratio[me_ * Config::kPartGroups + step / 2];
      const uint4 ratios = *reinterpret_cast<const uint4*>(&of_group[thread() % 4 * 16 + step % 2 * 8]);
      ratio_[0] = ratios.x, ratio_[1] = ratios.y, ratio_[2] = ratios.z, ratio_[3] = ratios.w;
    }
  }
  /// Widens the values of 32 tokens.
  __device__ __forceinline__ void widen_values(std::uint32_t (*a)[4], int half) {
    if constexpr (Config::kE4m3) {
      fp8::widen_values(a, bytes_);
    } else if constexpr (Config::kUe8m0) {
      fp8::widen_values(a, bytes_, ratio_);
    } else {
      fp8::widen_values(a, bytes_, ratio_ + half * 4);
    }
  }
  /// Ratios of a group of V.
  __device__ __forceinline__ void load_ratios(int group) {
    if constexpr (Config::kFp32Scales)
      Base::load_ratios(ratio_, tokens().ratio[me_ * Config::kPartGroups + group]);
  }
  __device__ __forceinline__ std::uint32_t value_row() const {
    if constexpr (Config::kE4m3) {
      return E4m3Block<Config>::value_row(ptx::shared_address(shared_.blocks[slot_.slot()]), me_, thread());
    } else if constexpr (Config::kPairs) {
      return ptx::shared_address(shared_.blocks[slot_.slot()]) + pairs::data_offset(thread() % 32) +
             me_ * Config::kPartDim + thread() / 32 * 16;
    } else {
      return Base::value_row(slot_.slot());
    }
  }
  __device__ __forceinline__ void multiply() {
    if constexpr (Config::kRopeIsValue) {
      if (has_rope()) return add_product<true>();
    }
    add_product<false>();
  }
  template <bool kRope>
  __device__ __forceinline__ void make_operands(int step) {
    if constexpr (kRope) {
      if (is_rope<kRope>(step)) return take_rope(a_[step % 2]);
    }
    widen_values(a_[step % 2], step % 2);
  }
  template <bool kRope>
  __device__ __forceinline__ void load_step(std::uint32_t row, int step) {
    if constexpr (kRope) {
      if (is_rope<kRope>(step)) return load_rope(step % 2 * 32);
    }
    load_values(row, step);
  }
  /// kRope: the last columns are RoPE's.
  template <bool kRope>
  __device__ __forceinline__ void add_product() {
    ptx::arrive(shared_.softened);
    sum_ += block_sum_;
    largest_ = fmaxf(largest_, block_largest_);
    const std::uint32_t row = value_row();
    const std::uint64_t p =
        ptx::descriptor_k_major(__shfl_sync(0xffffffff, ptx::shared_address(shared_.p), 0));
    this->pin(o_);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int chunk = step / 2, half = step % 2;
      if (step > 0) {
        if (step % 4 == 0) load_ratios(step / 4);
        if (step > 1) ptx::wgmma_wait<1>();
        make_operands<kRope>(step);
        if (step + 1 < kSteps) load_step<kRope>(row, step + 1);
      }
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const std::uint64_t of_p = p + (half * 2 + k) * ptx::kStepAlongRow;
        if (is_rope<kRope>(step)) {
          ptx::Wgmma<__nv_bfloat16, kRows>::template rs<false>(o_[chunk], a_[half][k],
                                                               of_p + (kPlainAfter >> 4), true);
        } else {
          ptx::Wgmma<__half, kRows>::template rs<false>(o_[chunk], a_[half][k], of_p, true);
        }
      }
      ptx::wgmma_commit();
    }
    ptx::arrive(shared_.empty[slot_.slot()]);
    parity_ ^= 1;
    slot_.next();
    ptx::wgmma_wait<0>();
    this->pin(o_);
  }
  template <bool kRope>
  __host__ __device__ static constexpr bool is_rope(int step) {
    return kRope && step < kSteps && step >= kSteps - 2;
  }
  /// Is this the right one of the two warpgroups?
  __device__ __forceinline__ bool has_rope() const {
    return __shfl_sync(0xffffffff, me_, 0) != 0;
  }
  /// Operands of two products, for 32 tokens from `first` on: they replace a step's bytes and ratios.
  __device__ __forceinline__ void load_rope(int first) {
    const std::uint32_t row = ptx::shared_address(shared_.blocks[slot_.slot()]) +
                              pairs::data_offset(first + thread() % 32 / 16 * 8 + thread() % 8) +
                              Config::kRopeOffset + thread() / 32 * 32 + thread() % 16 / 8 * 16;
    ptx::load_matrices_transposed(bytes_, row);
    ptx::load_matrices_transposed(ratio_, row + 16 * Config::kTokenBytes);
  }
  __device__ __forceinline__ void take_rope(std::uint32_t (*a)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[0][i] = bytes_[i];
      a[1][i] = ratio_[i];
    }
  }
  /// A thread's RoPE columns r and r + 8 become neighbours, as other columns are: r and r + 1, or for odd r r
  /// + 7 and r + 8.
  __device__ __forceinline__ void pair_rope() {
    constexpr int kLane = 4;  // to the next column
    const bool odd = thread() & kLane;
    float(&x)[kRows / 2] = o_[Config::kPartChunks - 1];
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) {
      if (i % 4 >= 2) continue;
      const float other = __shfl_xor_sync(0xffffffff, odd ? x[i] : x[i + 2], kLane);
      x[i] = odd ? other : x[i];
      x[i + 2] = odd ? x[i + 2] : other;
    }
  }
  /// Which pair of its warp's columns a lane has in the last 64.
  __device__ __forceinline__ int last_pair() const {
    const int pair = thread() % 32 / 4;
    return me_ == 0 ? pair : pair / 2 + pair % 2 * 4;
  }

  /// For the block whose V is next.
  __device__ __forceinline__ void keep_from_poison(const sm90::Work& work, int limit) {
    const std::uint64_t partial = sm90::partial_tokens(shared_.live[slot_.slot()], {limit});
    const int start = shared_.output_rows.seen_by_all(work).end - limit;
    Base::keep_from_poison(slot_.slot(), tokens().ratio, partial,
                           [&](int n) { return shared_.output_rows.seen(work, n).from(start); });
  }

  /// The same for e4m3, with dead tokens.
  __device__ __forceinline__ void silence(int limit) const {
    const std::uint64_t live = shared_.live[slot_.slot()], partial = sm90::partial_tokens(live, {limit});
    if (live == sm90::kAllLive && partial == 0) return;
    this->meet_alone();  // all threads have read what soften() prepared, which is not used
    E4m3Block<Config>::silence(shared_.blocks[slot_.slot()], me_, thread(), live, partial);
    this->meet_alone();
  }

  /// The final output.
  __device__ __forceinline__ void write() const {
    if constexpr (Config::kRopeIsValue) return write_without_branches();
    const int first = first_column();
    sm90::put_rows<Threads>(
        o_, [&](int n) { return shared_.row_place[n].out; }, [&](int n) { return shared_.factor[n]; },
        [&](__nv_bfloat16* out, int chunk, float a, float b) {
          *reinterpret_cast<std::uint32_t*>(out + first + chunk * 64) = sm90::pack<__nv_bfloat16>(a, b);
        });
  }

  /// The same: branches around each row's stores take as long as the stores.
  __device__ __forceinline__ void write_without_branches() const {
    constexpr int kAtOnce = 4, kLast = Config::kPartChunks - 1;
    const int first = first_column(), last = first + (last_pair() - thread() % 32 / 4) * 2 + kLast * 64;
#pragma unroll
    for (int begin = 0; begin < kRows / 4; begin += kAtOnce) {
      __nv_bfloat16* to[kAtOnce];
      float factors[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int n = (begin + k) / 2 * 8 + Base::column() + k % 2;
        to[k] = shared_.row_place[n].out;
        factors[k] = shared_.factor[n];
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const bool is_there = to[k] != nullptr;
#pragma unroll
        for (int chunk = 0; chunk <= kLast; ++chunk) {
          const float* x = &o_[chunk][(begin + k) / 2 * 4 + k % 2];
          ptx::store_4_bytes_if(is_there, to[k] + (chunk == kLast ? last : first + chunk * 64),
                                sm90::pack<__nv_bfloat16>(x[0] * factors[k], x[2] * factors[k]));
        }
      }
    }
  }

  /// Row n's lse, and the final factor of its sums, once all threads have published theirs.
  __device__ __forceinline__ void finish_row(const sm90::Work& work, int n) {
    const auto& sums = shared_.by_sharer;
    const float sum = (sums[0][n] + sums[1][n]) + (sums[2][n] + sums[3][n]);
    const auto first_row = [&] { return this->partial_row(work); };
    float factor;
    if constexpr (Config::kLists) {
      factor = Base::template finish_row<Config::kLargestP>(
          work, first_row, n, base_, sum / (1 << Config::kLargestP),
          [&](const auto&) { return shared_.lists.sink[n]; });
    } else {
      constexpr float kUnit = Config::kE4m3 ? 1.0F / (1 << Config::kLargestP) : 1.0F;
      factor = Base::template finish_row<Config::kLargestP>(work, first_row, n, base_, sum * kUnit);
      if constexpr (Config::kTurns) {
        const auto& of = shared_.largest.by_sharer;
        const float largest = fmaxf(fmaxf(of[0][n], of[1][n]), fmaxf(of[2][n], of[3][n]));
        this->write_largest(work, n, base_, sum * kUnit, largest * kUnit);
      }
    }
    if constexpr (Config::kE4m3) factor *= cache_scale(args_);
    shared_.factor[n] = factor;
  }

  /// A partial result.
  __device__ __forceinline__ void write_partial(const sm90::Work& work) const {
    const sm90::HalvesOfColumns<Threads, kOutputBarrier, Config::kPartChunks, kRows / 2> halves(
        o_, me_, shared_.partial.bounds, shared_.partial.scale);
    const auto word_of = [&](int pair) { return halves.word_of(thread() / 32, pair); };
    halves.write(args_.partial, this->partial_row(work), work, shared_.factor,
                 Config::kRopeIsValue ? word_of(last_pair()) - word_of(thread() % 32 / 4) : 0);
  }

  const sm90::QueryMaps& query_maps_;
  bool is_first_ = true;           // segment with blocks
  fp8::RingPlace<Config> slot_;    // of the next block
  std::uint32_t parity_ = 0;       // of the next block, and place of its tokens' scales
  float base_, sum_;               // of this thread's row; -inf: no base yet
  float block_sum_;                // this thread's sum of the block
  float largest_, block_largest_;  // kTurns: its largest probability so far, and of the block
  // For the product under way: bytes of V and operands of two steps, ratios of a group (kUe8m0: of a step).
  std::uint32_t bytes_[4], ratio_[Config::kUe8m0 ? 4 : 8];
  std::uint32_t a_[2][2][4];
  typename Base::Accumulators o_;
};

}  // namespace flashlatent::fp8::rows64
