// What a warpgroup that scores 64 of a tile's 128 keys knows, for any format of keys: places in shared
// memory, and how a query token's scores are stored.
#pragma once

#include "cuda/sm90/kernels/index_topk/products.cuh"
#include "cuda/sm90/load/ring_place.cuh"
#include "cuda/sm90/ptx/wgmma_e4m3.cuh"

namespace flashlatent::cuda::indexer {

template <int kColumns, IndexFormat kFormat, bool kFp4Query>
class ScorerPlaces {
 public:
  using SharedLayout = Layout<kFormat, kFp4Query>;

  __device__ __forceinline__ ScorerPlaces(const ScoreArguments& arguments, std::uint8_t* shared,
                                          const SharedLayout& layout, Fixed& fixed)
      : arguments_(arguments),
        shared_(shared),
        keys_(shared + layout.keys),
        weights_(reinterpret_cast<float*>(shared + layout.weights)),
        factors_(reinterpret_cast<float*>(shared + layout.factors)),
        fixed_(fixed) {}

 protected:
  static constexpr int kBytes = index_keys::data_bytes(kFormat);
  using Stage = sm90::RingPlace<stages_of(kFormat)>;

  /// All warpgroups call it; earlier products must be done.
  __device__ __forceinline__ void bring_queries(const Group& group) const {
    ptx::named_sync(1, kConsumers);
    load_queries<kColumns, kFormat, kFp4Query>(arguments_, group, threadIdx.x, shared_, weights_, factors_,
                                               fixed_);
    ptx::fence_for_async_proxy();
    ptx::named_sync(1, kConsumers);
  }

  __device__ __forceinline__ const std::uint8_t* tile_of(int stage) const {
    return keys_ + stage * kTile * kBytes;
  }
  /// Call when this thread's products have read the stage.
  __device__ __forceinline__ void free_stage(int stage) const {
    __syncwarp();
    if (lane_ == 0) ptx::arrive(fixed_.empty[stage]);
  }

  /// A query token and a chunk of its heads.
  __device__ __forceinline__ int part_of(int token, int chunk) const {
    return token * arguments_.shape.head_chunks + chunk;
  }
  __device__ __forceinline__ const std::uint8_t* query(int part) const {
    return shared_ + part * kColumns * index_keys::kDim;
  }
  __device__ __forceinline__ const float* weights(int part) const { return weights_ + part * kColumns; }
  /// Does a head of the query token have scales that lie too far apart?
  __device__ __forceinline__ bool is_apart(int token) const {
    if constexpr (!kFp4Query) return false;
    return fixed_.apart[token] != 0;
  }

  /// A chunk's heads, kRareHeads at a time. `products` calls its argument with keys and a factor for each
  /// row, once or several times.
  template <class Products>
  __device__ __forceinline__ void add_rarely(Totals& totals, int token, int chunk, Products products) const {
    const int part = part_of(token, chunk);
    const float* factors = is_apart(token) ? factors_ + part * kColumns * index_keys::kGroups : nullptr;
#pragma unroll 1
    for (int first = 0; first < kColumns; first += kRareHeads) {
      float dots[4] = {};
      products([&](const Keys& keys, const float(&row_factors)[2]) {
        multiply_rarely<kColumns>(dots, keys, query(part), first, row_factors, factors, lane_);
      });
      add_rare_heads(totals, dots, weights(part), first, lane_);
    }
  }

  /// Stores a query token's scores of the two rows that four lanes share. `scale`, `exists`: those of the row
  /// mine().
  __device__ __forceinline__ void store(const Group& group, int token, int first_place, const Totals& totals,
                                        float scale, bool exists) const {
    float first = totals.first[0] + totals.first[1], second = totals.second[0] + totals.second[1];
#pragma unroll
    for (int step = 1; step <= 2; step *= 2) {
      first += __shfl_xor_sync(0xFFFFFFFF, first, step);
      second += __shfl_xor_sync(0xFFFFFFFF, second, step);
    }
    if (lane_ % 4 >= 2) return;
    const float score = (lane_ % 4 == 0 ? first : second) * scale;
    const int place = first_place + mine();
    const bool seen = exists && (arguments_.call.candidates > 0 || place < fixed_.seen[token]);
    arguments_.scores[(group.row + token - arguments_.first_row) * arguments_.score_stride + place] =
        seen ? sortable(score) : kNoToken;
  }
  /// Lane 0 of a row's four stores the first row's score, lane 1 the second one's.
  __device__ __forceinline__ int mine() const {
    return row_ + (lane_ & 1) * 8;
  }
  __device__ __forceinline__ bool exists(int stage, int row) const {
    return (fixed_.exists[stage][row / 32] >> row % 32 & 1) != 0;
  }

  const ScoreArguments& arguments_;
  std::uint8_t* const shared_;
  std::uint8_t* const keys_;
  float* const weights_;
  float* const factors_;
  Fixed& fixed_;
  const int lane_ = threadIdx.x % 32;
  const int row_ = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;  ///< Of the tile; and eight further on.
};

}  // namespace flashlatent::cuda::indexer
