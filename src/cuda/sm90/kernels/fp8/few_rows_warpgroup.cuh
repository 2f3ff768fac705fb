// Decode from an fp8_656 cache, dense and sparse, and from other caches (few_rows_kernel.cuh), with the
// tokens' bytes straight from the cache to the tensor cores: of KV only bytes lie in shared memory. They
// become fp16 in registers, as A operands of
//
//   S^T = K Q^T        64 tokens x kRows, by the warpgroup whose block it is
//   O^T += V^T P^T     its part of d_v x kRows, by each warpgroup for all blocks
//
// One warpgroup computes S and P of a segment's even blocks, the other of the odd blocks. Each has half of
// the output's columns, for which it needs the P of all blocks.
//
//   even    S0       P0  O_l += V0^T P0    S2  O_l += V1^T P1    P2  O_l += V2^T P2    S4 ...
//   odd     S1       O_r += V0^T P0    P1  O_r += V1^T P1    S3  O_r += V2^T P2    P3 ...
//
// A row's base seldom moves, so no maximum is computed: probabilities are computed with the base so far, and
// again if any is too large. That takes the largest of a thread's probabilities, and one vote.
//
// Barriers: full and empty of a block's stage (arrivals: four loading warps and their bytes; all computing
// threads, which have read it). has_p[b] (128): P, statistics and ratios of warpgroup b's blocks. A warpgroup
// that overwrites those of its block before last has since waited for the other warpgroup, which has used
// them, and has voted with its own warps (Config::kPlaces).
#pragma once

#include "cuda/sm90/kernels/fp8/e4m3_block.cuh"
#include "cuda/sm90/kernels/fp8/few_rows_584.cuh"
#include "cuda/sm90/kernels/fp8/few_rows_656.cuh"
#include "cuda/sm90/kernels/fp8/few_rows_output.cuh"
#include "cuda/sm90/kernels/fp8/few_rows_query.cuh"
#include "cuda/sm90/kernels/fp8/products.cuh"
#include "cuda/sm90/kernels/fp8/ring_place.cuh"
#include "cuda/sm90/math/column_exchange.cuh"
#include "cuda/sm90/merge/cast_columns.cuh"

namespace flashlatent::fp8::few_rows {

inline constexpr int kAlone = 1;  // + which: the named barrier of one warpgroup

template <class Config>
class Warpgroup : protected WritingPart<SharedMemory<Config>, kAlone> {
  using Base = WritingPart<SharedMemory<Config>, kAlone>;

 public:
  __device__ __forceinline__ Warpgroup(SharedMemory<Config>& shared, const sm90::DecodeArguments& args)
      : Base(shared, args) {}

  /// Computes what takes many instructions, once a row and segment.
  __device__ __forceinline__ void prepare(const sm90::RowTile& tile) {
    if (threadIdx.x >= kRows) return;
    shared_.base[threadIdx.x] = -INFINITY;
    shared_.finite_base[threadIdx.x] = kNoBase;
    if constexpr (Config::kEdges) {
      if (threadIdx.x == 0) {
        shared_.edges.request = tile.request;
        shared_.edges.token = tile.first_token;
      }
    }
    locate_row(tile, threadIdx.x);
  }
  /// Q of that tile.
  __device__ __forceinline__ void begin(bool has_blocks) {
    meet();
    if (has_blocks) take_query();
  }

  /// All blocks of one segment that has begun.
  __device__ __forceinline__ void attend(const sm90::Work& work) {
    work_ = &work;
    const int blocks = work.blocks();
    start();
    begin_ = work.segment.block_begin * 64;
#pragma unroll 1
    for (int mine = me_;; mine += 2) {
      const bool has_one = mine < blocks;
      if (has_one) score(mine, place_.ahead(mine > 0));
#pragma unroll 1
      for (int block = mine - 1; block <= mine; ++block) {  // the other's, and its own
        if (block < 0 || block >= blocks) continue;
        if (block == mine) {
          softmax(block);
        } else {
          take_over(place_of(block));
        }
        add_product(block);
        place_.next();
      }
      if (!has_one) break;
    }
    finish_products();
  }

  /// Writes the segment's result.
  __device__ __forceinline__ void finish() {
    const sm90::Work& work = *work_;
    publish_sum();
    meet();
    const std::int64_t first_row = this->partial_row(work);
    if (threadIdx.x < kRows) finish_row(first_row, threadIdx.x);
    if (!Config::kLists && is_poisoned()) [[unlikely]]
      spread_poison();
    if constexpr (Config::kRopeIsValue) {
      if (me_ == 1) Block::put_rope_in_pairs(o_[kRopeChunk], thread());
    }
    if constexpr (Config::kEdges) {
      if (work.segment.partial < 0) turn_back();
    }
    const auto codes = code_rows();
    const typename Base::OutputRows rows =
        this->output_rows();  // once all have synchronised, the next segment's take their place
    meet();
    const auto factor = columns_of(shared_.row_factor);
    if (work.segment.partial >= 0) {
      this->write(o_, factor, tile().rows, args_.partial.out + first_row * Config::kVDim);
    } else if constexpr (Config::kEdges) {
      if (args_.output.out != nullptr) this->write(o_, factor, rows);
      if (args_.edges.codes != nullptr) cast(codes);
    } else {
      this->write(o_, factor, rows);
    }
  }

 protected:
  using Base::args_, Base::kRows, Base::me_, Base::shared_;
  using Base::fragment, Base::is_poisoned, Base::meet_alone, Base::thread;
  using Columns = typename Base::Columns;
  static constexpr int kLargestExponent = 9;
  static_assert(Config::kLargestP == 1 << kLargestExponent);
  static constexpr bool kSumsLarge =
      Config::kE4m3 || Config::kRopeIsValue;  // of probabilities up to 2^9, not 1
  using Block =
      std::conditional_t<Config::kE4m3, E4m3Block<Config>,
                         std::conditional_t<Config::kUe8m0, Fp8_584Block<Config>, Fp8_656Block<Config>>>;
  static constexpr int kColumns = kRows / 4;                  // of S^T and O^T, a thread's
  static constexpr int kRopeChunk = Config::kPartChunks - 1;  // if it is value: the second warpgroup's

  __device__ __forceinline__ const sm90::RowTile& tile() const {
    return work_->tile;
  }

  /// Whole items are turned and cast here, others when they are merged.
  __device__ __forceinline__ void turn_back() {
    if (me_ != 1 || args_.edges.output.positions == nullptr) return;
    float(&x)[kRows / 2] = o_[kRopeChunk];
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) {
      if (i % 4 >= 2) continue;
      const float2 pair = sm90::turned(x[i], x[i + 2], angle_);
      x[i] = pair.x;
      x[i + 2] = pair.y;
    }
  }
  /// Where the codes of this thread's rows go.
  struct CodeRows {
    std::uint8_t* of_column[Config::kEdges ? kRows / 4 : 1];
  };
  __device__ __forceinline__ CodeRows code_rows() const {
    CodeRows rows;
    if constexpr (Config::kEdges) {
#pragma unroll
      for (int i = 0; i < kRows / 4; ++i) {
        rows.of_column[i] = shared_.edges.codes[i / 2 * 8 + fragment().column + i % 2];
      }
    }
    return rows;
  }
  struct Threads {
    __device__ __forceinline__ static int thread() { return Base::thread(); }
    __device__ __forceinline__ static int column() { return Base::fragment().column; }
  };
  __device__ __forceinline__ void cast(const CodeRows& codes) const {
    using Cast = sm90::CastColumns<Threads, kAlone, Config::kPartChunks, kRows / 2>;
    static_assert(sizeof(typename Cast::Memory) <= sizeof(shared_.p));
    Cast(o_, me_, reinterpret_cast<typename Cast::Memory&>(shared_.p))
        .write(
            args_, tile(), shared_.row_factor, [&](int i, int) { return codes.of_column[i]; },
            this->first_column(), 0);
  }

  __device__ __forceinline__ void start() {
    this->clear(o_);
    sums_ = {};
    largest_ = {};
    if constexpr (!Config::kLists) seen_by_all_ = seen(0);
  }

  /// What query row n sees.
  __device__ __forceinline__ TokenPrefix seen(int n) const {
    return shared_.rows.seen(*work_, n);
  }

  __device__ __forceinline__ void meet() {
    ptx::arrive(shared_.meeting);
    ptx::wait(shared_.meeting, meeting_);
    meeting_ ^= 1;
  }

  /// By all lanes: racecheck sees an order only between threads that arrive and threads that wait.
  __device__ __forceinline__ void release(int slot) const {
    ptx::arrive(shared_.empty[slot]);
  }

  __device__ __forceinline__ void locate_row(const sm90::RowTile& tile, int n) {
    if constexpr (!Config::kLists) shared_.rows.find(args_, tile, n);
    shared_.row_query[n] = {nullptr, nullptr};
    if constexpr (Config::kEdges) shared_.edges.codes[n] = nullptr;
    if constexpr (Config::kE4m3) {
      shared_.row_scale[n] = args_.scale_log2 * cache_scale(args_) * query_scale(args_.query, tile, n);
    }
    shared_.row_place[n] = sm90::RowPlace<__nv_bfloat16>::find(args_, tile, n);
    if (n >= tile.rows) return;
    shared_.row_query[n].first = query_row(args_.query.first, tile, n);
    if constexpr (Config::kEdges) {
      if (args_.edges.codes != nullptr)
        shared_.edges.codes[n] = sm90::codes_of_row<Config::kVDim>(args_, tile, n);
    }
    if constexpr (query_parts::has_rope(Config::kQkDim)) {
      shared_.row_query[n].rope = query_row(args_.query.rope, tile, n);
    }
  }
  __device__ __forceinline__ const uint4* query_row(const sm90::QueryPart& part, const sm90::RowTile& tile,
                                                    int n) const {
    return reinterpret_cast<const uint4*>(
        is_e4m3_query()
            ? static_cast<const void*>(sm90::row_of_part<std::uint8_t>(part, args_.query, tile, n))
            : sm90::row_of_part<__nv_bfloat16>(part, args_.query, tile, n));
  }

  __device__ __forceinline__ bool is_e4m3_query() const {
    return Config::kE4m3 && args_.query.is_e4m3;
  }

  /// All have done with the previous Q: they have synchronised since.
  __device__ __forceinline__ void take_query() {
    QueryShare<SharedMemory<Config>> share(shared_, is_e4m3_query());
    if constexpr (Config::kEdges) prepare_query(share);
    if (is_e4m3_query()) {
      share.store_codes(shared_);
      ptx::arrive(shared_.has_query);
      meet();
      return;
    }
    const int warp_max = share.warp_max();
    // With two lists of tokens an empty item may come first: a second phase could be over before loaders
    // wait.
    if (!Config::kLists || !has_taken_query_) ptx::arrive(shared_.has_query);
    if constexpr (Config::kLists) has_taken_query_ = true;
    if (thread() % 32 == 0) shared_.query_max[threadIdx.x / 32] = warp_max;
    meet();
    const int exponent = sm90::query_exponent(shared_.query_max);
    share.store(shared_, __int_as_float((127 + exponent) << 23));
    const float unit = __int_as_float((127 - exponent) << 23);
    if constexpr (Config::kE4m3) {
      if (threadIdx.x < kRows) shared_.row_scale[threadIdx.x] *= unit;
    } else {
      scale_ = args_.scale_log2 * unit;
    }
    meet();
  }

  /// Normalises and rotates Q, and loads the angle by which the output is turned.
  template <class Share>
  __device__ __forceinline__ void prepare_query(Share& share) {
    const sm90::EdgeArguments& edges = args_.edges;
    const int request = shared_.edges.request, token = shared_.edges.token;
    if (me_ == 1 && edges.output.positions != nullptr) {
      angle_ =
          edges.output.angle(edges.output.position(request, token), thread() / 32 * 8 + thread() % 32 / 4);
    }
    if (edges.norm == 0 && edges.query.positions == nullptr) return;
    const bool turns = edges.query.positions != nullptr;
    share.prepare(sm90::QueryRowEdge(edges, turns ? edges.query.position(request, token) : 0));
  }

  __device__ __forceinline__ std::uint32_t block_address(int slot) const {
    return ptx::shared_address(shared_.blocks[slot]);
  }

  /// s_ = K Q^T of this warpgroup's block, in base 2.
  __device__ __forceinline__ void score(int block, const fp8::RingPlace<Config>& place) {
    ptx::wait(shared_.full[place.slot()], place.parity());
    live_ = live_of(place.slot());
    if constexpr (Config::kUe8m0) {
      units_ = Block::score(
          s_, block_address(place.slot()),
          ptx::descriptor_k_major(__shfl_sync(0xffffffff, ptx::shared_address(shared_.q[0]), 0)),
          shared_.ratio[place_of(block)], [] { return fragment(); }, [&] { finish_products(); });
    } else {
      Block::score(
          s_, block_address(place.slot()),
          ptx::descriptor_k_major(__shfl_sync(0xffffffff, ptx::shared_address(shared_.q[0]), 0)),
          [] { return fragment(); }, [&] { finish_products(); });
    }
    if constexpr (Config::kE4m3) {
      const Columns scale = columns_of(shared_.row_scale);
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) s_[i] *= scale[i / 4 * 2 + i % 2];
    } else {
#pragma unroll
      for (float& x : s_) x *= scale_;
    }
  }

  /// One lane reads, the one that frees the stage, so that its arrival orders the read.
  __device__ __forceinline__ std::uint64_t live_of(int slot) const {
    std::uint64_t live = 0;
    if (thread() % 32 == 0) live = shared_.live[slot];
    return __shfl_sync(0xffffffff, live, 0);
  }

  /// From scores to P in shared memory, times the tokens' units. What is overwritten is no longer read.
  __device__ __forceinline__ void softmax(int block) {
    const int start = begin_ + block * 64;
    [[maybe_unused]] const std::uint32_t token =
        block_address(place_.slot()) + fragment().row * fp8_656::kTokenBytes;
    Units units = {};
    if constexpr (Config::kUe8m0) {
      units = units_;
    } else if constexpr (Config::kFp32Scales) {
      units = Block::units(token);
    }
    bool masked = false;
    if constexpr (Config::kLists) {  // all rows attend to all tokens
      if (live_ != sm90::kAllLive) [[unlikely]]
        sm90::mask_columns<kRows>(s_, live_, fragment(), [](int) { return TokenPrefix{64}; });
    } else if (live_ != sm90::kAllLive || sm90::partial_tokens(live_, seen_by_all_.from(start)) != 0)
        [[unlikely]] {
      sm90::mask_columns<kRows>(s_, live_, fragment(), [&](int n) { return seen(n).from(start); });
      masked = true;
    }
    const int place = place_of(block);
    if constexpr (Config::kFp32Scales) {
      Block::store_ratios(shared_.ratio[place], token, units, thread());
    }
    if (thread() == 0) shared_.flags[place] = Config::kE4m3 && masked ? kMasked : 0;
    Columns sums, largest;
    const bool exceeds = take_exponentials(place, units, sums, largest);
    if (ptx::named_any(kAlone + me_, 128, exceeds)) [[unlikely]]
      rebase(place, units, sums, largest);
    finish_products();  // products with the other's P, which may then be overwritten
    ptx::arrive(shared_.has_p[me_]);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      sums_[i] += sums[i];
      if constexpr (Config::kTurns) largest_[i] = fmaxf(largest_[i], largest[i]);
    }
  }

  /// The place of a block's P and its statistics.
  __device__ __forceinline__ static int place_of(int block) {
    return block % Config::kPlaces;
  }

  /// The other's P is ready: rescales the sums so far to its base.
  __device__ __forceinline__ void take_over(int place) {
    ptx::wait(shared_.has_p[me_ ^ 1], other_parity_);
    other_parity_ ^= 1;
    if (shrinks(place)) [[unlikely]]
      shrink_sums(place);
  }
  __device__ __forceinline__ bool shrinks(int place) const {
    if constexpr (Config::kE4m3) return (shared_.flags[place] & kShrinks) != 0;
    return shared_.flags[place] != 0;
  }
  __device__ __forceinline__ void shrink_sums(int place) {
    const Columns factor = columns_of(shared_.factor[place]);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      sums_[i] *= factor[i];
      if constexpr (Config::kTurns) largest_[i] *= factor[i];
    }
  }

  /// Computes P, relative to the bases so far, and the sums of this thread's columns; for kTurns also their
  /// largest probabilities, without units. Is any P too large?
  __device__ __forceinline__ bool take_exponentials(int place, Units units, Columns& sums,
                                                    Columns& largest_of_column) const {
    const float low_log = log_of(units.low), high_log = log_of(units.high);
    constexpr int kShareExponent = 254 - kLargestExponent * !kSumsLarge;
    const float low_share = sm90::power_of_two(kShareExponent - units.low),
                high_share = sm90::power_of_two(kShareExponent - units.high);
    const Columns base = columns_of(shared_.finite_base);
    float p[kRows / 2];
    [[maybe_unused]] float without_units[kRows / 2];
    float largest = 0;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int at = i / 2 * 4 + i % 2;
      p[at] = sm90::exp2_fast(s_[at] + low_log - base[i]);
      p[at + 2] = sm90::exp2_fast(s_[at + 2] + high_log - base[i]);
      if constexpr (Config::kRopeIsValue) {
        without_units[at] = p[at] * low_share;
        without_units[at + 2] = p[at + 2] * high_share;
        sums[i] = without_units[at] + without_units[at + 2];
      } else {
        sums[i] = Config::kE4m3 ? p[at] + p[at + 2] : fmaf(p[at], low_share, p[at + 2] * high_share);
      }
      if constexpr (Config::kTurns) {
        largest_of_column[i] =
            Config::kE4m3 ? fmaxf(p[at], p[at + 2]) : fmaxf(p[at] * low_share, p[at + 2] * high_share);
      }
      largest = fmaxf(largest, fmaxf(p[at], p[at + 2]));
    }
    if constexpr (Config::kRopeIsValue) {
      sm90::store_probabilities<__nv_bfloat16, kRows>(ptx::shared_address(shared_.p[Config::kPlaces + place]),
                                                      without_units, thread());
    }
    sm90::store_probabilities<__half, kRows>(ptx::shared_address(shared_.p[place]), p, thread());
    ptx::fence_for_async_proxy();
    return is_too_large(largest);
  }
  __device__ __forceinline__ static bool is_too_large(float p) {
    return p > Config::kLargestP * (1 << static_cast<int>(Config::kSlack));
  }

  __device__ __forceinline__ static float log_of(std::uint32_t unit) {
    return Config::kE4m3 ? 0 : sm90::log2_of(unit);
  }

  /// Raises bases, and computes P again.
  __device__ __forceinline__ void rebase(int place, Units units, Columns& sums, Columns& largest) {
    Columns max;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int at = i / 2 * 4 + i % 2;
      max[i] = fmaxf(s_[at] + log_of(units.low), s_[at + 2] + log_of(units.high));
    }
    put(shared_.warp_max[me_][thread() / 32], largest_over_tokens(max));
    meet_alone();
    if (thread() < kRows) settle_base(place, thread());
    meet_alone();
    if (shrinks(place)) shrink_sums(place);
    take_exponentials(place, units, sums, largest);
    meet_alone();
  }

  /// Row n's base. Whether it moves is decided as in take_exponentials(), by the row alone.
  __device__ __forceinline__ void settle_base(int place, int n) {
    const float before = shared_.base[n];
    const auto& of_warp = shared_.warp_max[me_];
    const float max = fmaxf(fmaxf(of_warp[0][n], of_warp[1][n]), fmaxf(of_warp[2][n], of_warp[3][n]));
    const bool moves = is_too_large(sm90::exp2_fast(max - shared_.finite_base[n]));
    const float base = moves ? max : before;
    const float factor = before == -INFINITY ? 1.0F : sm90::exp2_fast(before - base);
    if (factor != 1.0F && n < tile().rows) set_shrinks(place);
    shared_.base[n] = base;
    // Rounded up as in math/unit_scores.cuh.
    shared_.finite_base[n] = base == -INFINITY ? kNoBase : __fsub_ru(base, kLargestExponent);
    shared_.factor[place][n] = factor;
  }

  /// By any threads of a warpgroup, between two of its barriers.
  __device__ __forceinline__ void set_shrinks(int place) const {
    if constexpr (Config::kE4m3) {
      atomicOr(&shared_.flags[place], kShrinks);
    } else {
      shared_.flags[place] = kShrinks;
    }
  }

  /// o_ += V^T P^T, this warpgroup's columns of the block at place_.
  __device__ __forceinline__ void add_product(int block) {
    const int place = place_of(block);
    if (shrinks(place)) [[unlikely]] {
      finish_products();
      this->rescale(o_, columns_of(shared_.factor[place]));
    }
    const int slot = place_.slot();
    const int start = begin_ + block * 64;
    const std::uint64_t p =
        ptx::descriptor_k_major(__shfl_sync(0xffffffff, ptx::shared_address(shared_.p[place]), 0));
    if constexpr (Config::kE4m3) {
      if ((shared_.flags[place] & kMasked) != 0) [[unlikely]]
        silence(slot, start);
      add_e4m3_values(slot, p);
      return;
    }
    if constexpr (Config::kUe8m0) {
      Block::multiply(o_, block_address(slot), me_, thread(), shared_.ratio[place], p,
                      [&] { finish_products(); });
      return release(slot);
    }
    if (seen_by_all_.end < start + 64 && args_.causal) [[unlikely]]
      keep_from_poison(place, slot, start);
    const std::uint32_t row = this->value_row(slot);
    fp8::Operands a[2];
    std::uint32_t ratio[8];
    fp8::ValueBytes bytes = fp8::ValueBytes::at(row);
    this->pin(o_);
#pragma unroll
    for (int i = 0; i < Config::kPartChunks; ++i) {
      if (i % 2 == 0) this->load_ratios(ratio, shared_.ratio[place][me_ * Config::kPartGroups + i / 2]);
      if (i == 0) finish_products();
      if (i >= 2) ptx::wgmma_wait<1>();
      fp8::widen_values(a[i % 2], bytes, ratio);
      if (i + 1 < Config::kPartChunks) bytes = fp8::ValueBytes::at(row + (i + 1) * 64);
      ptx::wgmma_fence();
      fp8::multiply<__half, kRows>(o_[i], a[i % 2], p, true);
      ptx::wgmma_commit();
    }
    release(slot);
  }
  __device__ __forceinline__ void add_e4m3_values(int slot, std::uint64_t p) {
    const std::uint32_t row = Block::value_row(block_address(slot), me_, thread());
    fp8::Operands a[2];
    fp8::ValueBytes bytes = Block::values(row, 0);
    finish_products();
#pragma unroll
    for (int i = 0; i < Config::kPartChunks; ++i) {
      if (i >= 2) ptx::wgmma_wait<1>();
      fp8::widen_values(a[i % 2], bytes);
      if (i + 1 < Config::kPartChunks) bytes = Block::values(row, i + 1);
      ptx::wgmma_fence();
      fp8::multiply<__half, kRows>(o_[i], a[i % 2], p, true);
      ptx::wgmma_commit();
    }
    release(slot);
  }
  __device__ __forceinline__ void silence(int slot, int start) const {
    const std::uint64_t live = live_of(slot);
    Block::silence(shared_.blocks[slot], me_, thread(), live,
                   sm90::partial_tokens(live, seen_by_all_.from(start)));
    meet_alone();
  }
  /// Products stay under way until their results, or their operands' registers, are needed.
  __device__ __forceinline__ void finish_products() {
    ptx::wgmma_wait<0>();
    this->pin(o_);
  }

  /// For the block whose V is next.
  __device__ __forceinline__ void keep_from_poison(int place, int slot, int start) {
    Base::keep_from_poison(slot, shared_.ratio[place],
                           sm90::partial_tokens(live_of(slot), seen_by_all_.from(start)),
                           [&](int n) { return seen(n).from(start); });
  }

  __device__ __forceinline__ void spread_poison() {
    Base::spread_poison(o_);
    shared_.poisoned[me_] = 0;
  }

  /// This thread's columns of a row of kRows values.
  __device__ __forceinline__ static Columns columns_of(const float (&row)[kRows]) {
    return Base::columns_of(row, [] { return fragment().column; });
  }
  /// This lane's two columns after over_tokens().
  __device__ __forceinline__ void put(float (&row)[kRows], float2 values) const {
    *reinterpret_cast<float2*>(&row[sm90::first_of_lane<kRows>(thread() % 32)]) = values;
  }

  __device__ __forceinline__ void publish_sum() {
    put(shared_.warp_sum[me_][thread() / 32],
        sm90::over_tokens<kRows>(sums_, thread() % 32, [](float a, float b) { return a + b; }));
    if constexpr (Config::kTurns) {  // this warpgroup has done with its maxima
      put(shared_.warp_max[me_][thread() / 32], largest_over_tokens(largest_));
    }
  }
  __device__ __forceinline__ static float2 largest_over_tokens(const Columns& values) {
    return sm90::over_tokens<kRows>(values, thread() % 32, [](float a, float b) { return fmaxf(a, b); });
  }

  /// Row n's, once all have published.
  __device__ __forceinline__ sm90::RowStatistics statistics(int n) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < Config::kWarpgroups * 4; ++i) sum += shared_.warp_sum[i / 4][i % 4][n];
    return {shared_.base[n], sum * kSumUnit};
  }
  static constexpr float kSumUnit = kSumsLarge ? 1.0F / (1 << kLargestExponent) : 1.0F;

  /// Row n's factor, and its lse.
  __device__ __forceinline__ void finish_row(std::int64_t first_row, int n) {
    const sm90::RowStatistics row = statistics(n);
    shared_.row_factor[n] = Base::template finish_row<kLargestExponent>(
        *work_, [=] { return first_row; }, n, row.max, row.sum);
    if constexpr (Config::kE4m3) shared_.row_factor[n] *= cache_scale(args_);
    if constexpr (Config::kTurns) {
      float largest = 0;
#pragma unroll
      for (int i = 0; i < Config::kWarpgroups * 4; ++i) {
        largest = fmaxf(largest, shared_.warp_max[i / 4][i % 4][n]);
      }
      this->write_largest(*work_, n, row.max, row.sum, largest * kSumUnit);
    }
  }

  const sm90::Work* work_ = nullptr;
  fp8::RingPlace<Config> place_;    // of the next block whose V is to be read
  std::uint32_t other_parity_ = 0;  // of the barrier of the other warpgroup's next P
  std::uint32_t meeting_ = 0;       // of the next one
  TokenPrefix seen_by_all_ = {};
  int begin_ = 0;                 // the segment's first token
  float scale_ = 0;               // of scores, to base 2; of e4m3 each row has its own
  std::uint64_t live_ = 0;        // which tokens of this warpgroup's block count
  bool has_taken_query_ = false;  // of two lists: the call's first
  Units units_;                   // kUe8m0: of this thread's tokens of this warpgroup's block
  Columns sums_;                  // of this thread's tokens
  Columns largest_;               // kTurns: largest probabilities of its columns
  edges::Angle angle_;            // by which this thread's RoPE columns of the output are turned
  float s_[kRows / 2];
  typename Base::Accumulators o_;
};

}  // namespace flashlatent::fp8::few_rows
