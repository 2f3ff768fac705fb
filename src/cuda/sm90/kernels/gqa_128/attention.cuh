// A warpgroup's attention of 64 query rows over blocks of tokens, as in FlashAttention-2 and -3 (arXiv
// 2307.08691 and 2407.08608): while O += P V of one block runs, S = Q K^T of the next runs, and then its
// softmax.
#pragma once

#include "cuda/sm90/kernels/gqa_128/jobs.cuh"
#include "cuda/sm90/kernels/gqa_128/output.cuh"
#include "cuda/sm90/kernels/gqa_128/smem_layout.cuh"
#include "cuda/sm90/math/mask.cuh"
#include "cuda/sm90/math/softmax.cuh"
#include "cuda/sm90/ptx/wgmma.cuh"

namespace flashlatent::gqa_128 {

inline constexpr int kWarpgroupBarrier = 1;  // + warpgroup: the named barrier of each
inline constexpr int kComputeBarrier = 6;    // named barrier of all computing threads

/// Returns lane 0's value, so that the compiler knows all lanes to be equal.
__device__ __forceinline__ int uniform(int value) {
  return __shfl_sync(0xffffffff, value, 0);
}

/// The factor from products to scores in base 2 for a job's KV head, with the scale of its keys. Empty
/// without e4m3, since ptxas allocates registers differently even for a member that is not used.
template <bool kE4m3>
struct JobScale {};
template <>
struct JobScale<true> {
  float scale_log2_ = 0;
};

template <class Config>
class Attention : JobScale<Config::kE4m3> {
 public:
  using Element = typename Config::Element;

  __device__ __forceinline__ Attention(SharedMemory<Config>& shared, const Arguments& args)
      : shared_(shared),
        args_(args),
        warpgroup_(uniform(threadIdx.x / 128)),
        thread_(threadIdx.x % 128),
        fragment_(sm90::fragment_of(thread_)),
        sharers_(Config::kSegments ? args.block_sharers : 1),
        rank_(sharers_ > 1 ? warpgroup_ : 0),
        first_row_(sharers_ > 1 ? 0 : warpgroup_ * 64),
        row_(first_row_ + fragment_.row) {}

  /// Computes all jobs that come.
  __device__ __forceinline__ void run() {
    for (std::uint32_t i = 0;; ++i) {
      const std::uint32_t slot = i % kJobSlots;
      ptx::wait(shared_.jobs_full[slot], i / kJobSlots % 2);
      const Job& job = shared_.jobs[slot];
      if (uniform(job.tile.rows) == 0) return;
      start(job, i);
      const int first = uniform(job.block_begin), blocks = uniform(job.block_end) - first;
      if constexpr (Config::kSegments) {
        attend_in_turns(first, blocks);
      } else if (blocks > 0) {
        attend(first * Config::kBlockTokens, blocks);
      } else {
        give_back_query();
      }
      if (rank_ == 0) finish(job);
      ptx::arrive(shared_.jobs_empty[slot]);  // every lane, since all have read it
    }
  }

 private:
  static constexpr int kScores = Config::kBlockTokens / 2;  // registers of S
  static constexpr int kOutputs = Config::kDim / 2;         // registers of O

  /// A place in the ring of stages.
  struct Position {
    int stage = 0;
    std::uint32_t parity = 0;

    __device__ __forceinline__ void next(int step) {
      stage += step;
      if (stage >= Config::kStages) {
        stage -= Config::kStages;
        parity ^= 1;
      }
    }
    __device__ __forceinline__ Position after(int blocks) const {
      const int all = stage + blocks;
      return {all % Config::kStages, parity ^ (all / Config::kStages & 1)};
    }
  };

  __device__ __forceinline__ void start(const Job& job, std::uint32_t index) {
#pragma unroll
    for (float& x : o_) x = 0;
    base_ = {-INFINITY, -INFINITY};
    sum_ = {0, 0};
    all_ = seen_by_all<Config::kShared>(args_, job);
    all_ = {uniform(all_.begin), uniform(all_.end)};
    low_ = seen_by<Config::kShared>(args_, job, row_);
    high_ = seen_by<Config::kShared>(args_, job, row_ + 8);
    if ((Config::kTransforms || Config::kSegments) && args_.alibi_slopes != nullptr) {
      last_token_ = job.length - 1;
      slope_ = {slope_of(job, row_), slope_of(job, row_ + 8)};
    }
    if constexpr (Config::kE4m3) {
      this->scale_log2_ = args_.decode.scale_log2 * scale_of_head(args_.key_scale, job.tile.kv_head);
    }
    if (!Config::kSegments && args_.query_boxes) {
      ptx::wait(shared_.query_full[warpgroup_], index % 2);
    } else {
      load_query(job);
    }
  }

  /// ALiBi's slope of a row, for base 2.
  __device__ __forceinline__ float slope_of(const Job& job, int row) const {
    const RowPlace place = place_of<Config::kShared>(args_, job, min(row, job.tile.rows - 1));
    return __ldg(args_.alibi_slopes + place.head) * sm90::kLog2E;
  }

  /// Attends to this warpgroup's blocks among `blocks` blocks from block `first` on.
  __device__ __forceinline__ void attend_in_turns(int first, int blocks) {
    const Position begin = keys_;
    keys_ = values_ = begin.after(rank_);
    const int own = (blocks + sharers_ - 1 - rank_) / sharers_;
    if (own > 0) attend((first + rank_) * Config::kBlockTokens, own);
    keys_ = begin.after(max(blocks, 0));
    if (sharers_ == 1) return;
    if (blocks > 1) merge_halves();
    // In the next job a stage may belong to the other warpgroup, which must not wait for its block before
    // this job's block has come (keys.h, stages_of).
    ptx::named_sync(kComputeBarrier, Config::kComputeThreads);
  }

  /// Attends to `blocks` blocks from token `start` on.
  __device__ __forceinline__ void attend(int start, int blocks) {
    issue_scores(keys_);
    ptx::wgmma_wait<0>();
    ptx::pin_registers(s_);
    take_keys(keys_);
    if (blocks == 1) give_back_query();
    take_exponentials(start);
    sm90::pack_probabilities<Element>(p_, s_);
#pragma unroll 1
    for (int left = blocks - 1; left > 0; --left) {
      issue_scores(keys_);
      issue_outputs(values_);
      ptx::wgmma_wait<1>();
      ptx::pin_registers(s_);
      take_keys(keys_);
      if (left == 1) give_back_query();
      const sm90::RowPair factor = take_exponentials(start + stride());
      ptx::keep_before_wait(sum_.low + sum_.high);
      ptx::wgmma_wait<0>();
      ptx::pin_registers(o_);
      take_values(values_, start);
      if (sm90::shrinks(factor)) sm90::rescale(o_, factor);
      sm90::pack_probabilities<Element>(p_, s_);
      start += stride();
    }
    issue_outputs(values_);
    ptx::wgmma_wait<0>();
    ptx::pin_registers(o_);
    take_values(values_, start);
  }

  /// Tokens from one of this warpgroup's blocks to its next.
  __device__ __forceinline__ int stride() const {
    return Config::kBlockTokens * sharers_;
  }

  /// Merges both warpgroups' results of the same rows into the first one's. The second one's outputs go where
  /// queries were; the next queries may come after both have synchronised.
  __device__ __forceinline__ void merge_halves() {
    static_assert(sizeof(shared_.query) >= sizeof(o_) * 128 || !Config::kSegments);
    float* values = reinterpret_cast<float*>(shared_.query) + thread_;
    float(&halves)[Config::kSegments ? 4 : 1][128] = shared_.halves;
    ptx::named_sync(kComputeBarrier, Config::kComputeThreads);  // all queries have been used
    if (warpgroup_ > 0) {
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) values[128 * i] = o_[i];
      const float rows[] = {base_.low, base_.high, sum_.low, sum_.high};
#pragma unroll
      for (int i = 0; i < 4; ++i) halves[i][thread_] = rows[i];
    }
    ptx::named_sync(kComputeBarrier, Config::kComputeThreads);
    if (warpgroup_ == 0) {
      const sm90::RowPair other = {halves[0][thread_], halves[1][thread_]}, before = base_;
      base_ = {fmaxf(before.low, other.low), fmaxf(before.high, other.high)};
      const float low = sm90::finite_or_zero(base_.low), high = sm90::finite_or_zero(base_.high);
      const float own_factor[] = {sm90::exp2_fast(before.low - low), sm90::exp2_fast(before.high - high)};
      const float factor[] = {sm90::exp2_fast(other.low - low), sm90::exp2_fast(other.high - high)};
      sum_ = {sum_.low * own_factor[0] + halves[2][thread_] * factor[0],
              sum_.high * own_factor[1] + halves[3][thread_] * factor[1]};
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) {
        o_[i] = o_[i] * own_factor[i / 2 % 2] + values[128 * i] * factor[i / 2 % 2];
      }
    }
  }

  /// All scores of the job have been computed: the next job's query may come.
  __device__ __forceinline__ void give_back_query() const {
    if (args_.query_boxes) give_back(shared_.query_empty[warpgroup_]);
  }

  /// Loads Q into this warpgroup's swizzled tiles; rows and elements that do not exist become 0. A warp
  /// copies 16 rows, and each lane finds the address of one.
  __device__ __forceinline__ void load_query(const Job& job) const {
    ptx::named_sync(kWarpgroupBarrier + warpgroup_, 128);          // the previous job has used its query
    constexpr int kUnits = Config::kDim / 8, kRows = 32 / kUnits;  // of a warp's access
    constexpr int kTimes = 16 / kRows, kAtOnce = kTimes < 8 ? kTimes : 8;
    const int warp = thread_ / 32, lane = thread_ % 32, unit = lane % kUnits;
    auto row_at = [&](int time, int place) { return (time * 4 + warp) * kRows + place; };
    const std::int64_t found = query_offset(job, row_at(lane % 16 / kRows, lane % kRows));
#pragma unroll
    for (int first = 0; first < kTimes; first += kAtOnce) {
      uint4 values[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const std::int64_t offset = __shfl_sync(0xffffffff, found, (first + i) * kRows + lane / kUnits);
        values[i] = make_uint4(0, 0, 0, 0);
        if (offset < 0 || unit * 8 >= args_.dim) continue;
        const auto* q = static_cast<const Element*>(args_.decode.query.first.data) + offset;
        values[i] = __ldg(reinterpret_cast<const uint4*>(q) + unit);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        sm90::Tile& tile = shared_.query[warpgroup_][unit / 8];
        const int row = row_at(first + i, lane / kUnits);
        *reinterpret_cast<uint4*>(tile.bytes + sm90::unit_offset(row, unit % 8)) = values[i];
      }
    }
    ptx::fence_for_async_proxy();
    ptx::named_sync(kWarpgroupBarrier + warpgroup_, 128);
  }

  /// The offset in Q of a row of this warpgroup, in elements; -1: there is no such row.
  __device__ __forceinline__ std::int64_t query_offset(const Job& job, int row) const {
    if (first_row_ + row >= job.tile.rows) return -1;
    const sm90::QueryArguments& query = args_.decode.query;
    const RowPlace place = place_of<Config::kShared>(args_, job, first_row_ + row);
    return place.origin * query.first.batch_stride + place.token * query.first.token_stride +
           place.head * query.first.head_stride;
  }

  /// Starts s = Q K^T.
  __device__ __forceinline__ void issue_scores(Position at) {
    ptx::wait(shared_.stages[at.stage].keys_full, at.parity);
    ptx::wgmma_fence();
#pragma unroll
    for (int chunk = 0; chunk < Config::kChunks; ++chunk) {
      const std::uint64_t a = descriptors_.k_major(&shared_.query[warpgroup_][chunk]);
      const std::uint64_t b = descriptors_.k_major(shared_.keys[at.stage].chunks[chunk]);
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        ptx::Wgmma<Element, Config::kBlockTokens>::template ss<false>(
            s_, a + step * ptx::kStepAlongRow, b + step * ptx::kStepAlongRow, chunk + step > 0);
      }
    }
    ptx::wgmma_commit();
  }

  /// Starts o += P V.
  __device__ __forceinline__ void issue_outputs(Position at) {
    ptx::wait(shared_.stages[at.stage].values_full, at.parity);
    ptx::pin_registers(o_);
    ptx::wgmma_fence();
    const std::uint64_t b = descriptors_.n_major(&shared_.values[at.stage], Block<Config>::kChunkBytes);
#pragma unroll
    for (int step = 0; step < Config::kBlockTokens / 16; ++step) {
      ptx::Wgmma<Element, Config::kDim>::template rs<true>(o_, p_[step], b + step * ptx::kStepAlongRows,
                                                           true);
    }
    ptx::wgmma_commit();
  }

  /// One lane reads `word` for all: the one that frees the block, so that its arrival orders the read.
  template <class Word>
  __device__ __forceinline__ Word read_by_one(const Word& word) const {
    Word value = 0;
    if (thread_ % 32 == 0) value = word;
    return __shfl_sync(0xffffffff, value, 0);
  }

  /// Scores have been computed: takes the tokens that count, and frees the keys.
  __device__ __forceinline__ void take_keys(Position& at) {
    Stage<Config>& stage = shared_.stages[at.stage];
#pragma unroll
    for (int i = 0; i < Config::kWords; ++i) live_[i] = read_by_one(stage.live[i]);
    give_back(stage.keys_empty);
    at.next(sharers_);
  }

  /// The block's product has been added: adds what was not finite in V, and frees the values.
  __device__ __forceinline__ void take_values(Position& at, int start) {
    Stage<Config>& stage = shared_.stages[at.stage];
    if (start < all_.begin || start + Config::kBlockTokens > all_.end) {
#pragma unroll 1
      for (int quarter = 0; quarter < 4; ++quarter) {
        const std::uint32_t poisoned = read_by_one(stage.poisoned[quarter]);
        if (poisoned != 0) add_not_finite(at.stage, quarter, poisoned, start);
      }
    }
    give_back(stage.values_empty);
    at.next(sharers_);
  }

  __device__ __forceinline__ void give_back(ptx::Barrier& empty) const {
    __syncwarp();
    if (thread_ % 32 == 0) ptx::arrive(empty);
  }

  __device__ __forceinline__ void add_not_finite(int stage, int quarter, std::uint32_t poisoned, int start) {
#pragma unroll 1
    for (; poisoned != 0; poisoned &= poisoned - 1) {
      const int token = quarter * (Config::kBlockTokens / 4) + __ffs(static_cast<int>(poisoned)) - 1;
      const int place = start + token;
      const bool by_low = place >= low_.begin && place < low_.end;
      const bool by_high = place >= high_.begin && place < high_.end;
#pragma unroll
      for (int j = 0; j < kOutputs / 4; ++j) {
        const NotFinite noted = shared_.not_finite[stage][token][j];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float extra = 0;
          if (noted.plus >> (fragment_.column + i) & 1) extra += INFINITY;
          if (noted.minus >> (fragment_.column + i) & 1) extra -= INFINITY;
          if (by_low) o_[4 * j + i] += extra;
          if (by_high) o_[4 * j + 2 + i] += extra;
        }
      }
    }
  }

  /// Which of the block's 64 tokens from 64 * `word` on a row attends to, as bits that are shifted to this
  /// thread's first column.
  __device__ __forceinline__ std::uint64_t mask(int word, int start, TokenSpan seen) const {
    return seen.bits(start + 64 * word, live_[word]) >> fragment_.column;
  }

  /// Sets scores of tokens that are dead or not seen to -inf.
  __device__ __forceinline__ void mask_scores(int start) {
#pragma unroll
    for (int word = 0; word < Config::kWords; ++word) {
      const std::uint64_t low = mask(word, start, low_), high = mask(word, start, high_);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float* s = s_ + 32 * word + 4 * j + i;
          if (!(low >> (8 * j + i) & 1)) s[0] = -INFINITY;
          if (!(high >> (8 * j + i) & 1)) s[2] = -INFINITY;
        }
      }
    }
  }

  /// Is there a soft cap or ALiBi?
  __device__ __forceinline__ bool transforms() const {
    if constexpr (Config::kSegments) return args_.soft_cap != 0 || args_.alibi_slopes != nullptr;
    return Config::kTransforms;
  }

  /// The factor from products to scores in base 2; e4m3 keys are multiplied without their scale.
  __device__ __forceinline__ float scale_log2() const {
    if constexpr (Config::kE4m3) return this->scale_log2_;
    return args_.decode.scale_log2;
  }
  /// scale_log2(), or 1 where that is not positive, as DecodeArguments::positive_scale.
  __device__ __forceinline__ float positive_scale() const {
    if constexpr (Config::kE4m3) return this->scale_log2_ > 0 ? this->scale_log2_ : 1.0F;
    return args_.decode.positive_scale;
  }

  /// From products to scores in base 2: soft cap and ALiBi.
  __device__ __forceinline__ void transform(int start) {
    const float cap = args_.soft_cap;
    const float to_exponent = cap != 0 ? 2 * scale_log2() / cap : 0;
#pragma unroll
    for (int j = 0; j < kScores / 4; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float x = s_[4 * j + i] * scale_log2();
        // tanh(y) = 1 - 2 / (e^2y + 1) loses 1e-7 of the cap. Where that is much beside y the series is used.
        if (cap != 0) {
          const float exponent = s_[4 * j + i] * to_exponent, y = exponent * (sm90::kLn2 / 2);
          const float power = sm90::exp2_fast(exponent);
          if (fabsf(y) < 0.125F) {
            x *= 1 - y * y * (1.0F / 3 - 2.0F / 15 * y * y);
          } else {
            x = cap * sm90::kLog2E * (1 - __fdividef(2, power + 1));
          }
        }
        const int token = start + 8 * j + fragment_.column + i % 2;
        s_[4 * j + i] = fmaf(i < 2 ? slope_.low : slope_.high, static_cast<float>(token - last_token_), x);
      }
    }
  }

  /// From scores to probabilities. Returns the factor for the output so far.
  __device__ __forceinline__ sm90::RowPair take_exponentials(int start) {
    float scale = 1;
    if (transforms()) {
      transform(start);
    } else {
      sm90::scale_unless_positive(s_, scale_log2());
      scale = positive_scale();
    }
    bool whole = start >= all_.begin && start + Config::kBlockTokens <= all_.end;
#pragma unroll
    for (std::uint64_t word : live_) whole = whole && word == sm90::kAllLive;
    if (!whole) mask_scores(start);
    const sm90::RowPair before = base_;
    base_ = sm90::row_base(s_, scale, before, {0, 0});
    const sm90::RowPair factor = sm90::shrink(before, base_);
    const sm90::RowPair sum = sm90::exponentials(s_, scale, base_);
    sum_ = {sum_.low * factor.low + sum.low, sum_.high * factor.high + sum.high};
    return factor;
  }

  __device__ __forceinline__ void finish(const Job& job) const {
    const Output<Config> output(args_, job, fragment_);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const sm90::RowScale scale =
          sm90::finish_row(half ? base_.high : base_.low, sm90::quad_sum(half ? sum_.high : sum_.low));
      output.write(o_, row_ + 8 * half, half, scale);
    }
  }

  SharedMemory<Config>& shared_;
  const ptx::Descriptors<false> descriptors_{&shared_};
  const Arguments& args_;
  const int warpgroup_, thread_;
  const sm90::Fragment fragment_;
  const int sharers_;    // warpgroups that have the same rows and alternate blocks
  const int rank_;       // this warpgroup among them
  const int first_row_;  // of the tile, of this warpgroup's 64
  const int row_;        // this thread has rows row_ and row_ + 8
  Position keys_, values_;
  TokenSpan all_ = {}, low_ = {}, high_ = {};  // what all rows see, and what these two rows see
  std::uint64_t live_[Config::kWords];         // the block's tokens that count
  sm90::RowPair base_, sum_;
  sm90::RowPair slope_ = {0, 0};  // of ALiBi, base 2
  int last_token_ = 0;
  std::uint32_t p_[Config::kBlockTokens / 16][4];
  float s_[kScores];
  float o_[kOutputs];
};

}  // namespace flashlatent::gqa_128
