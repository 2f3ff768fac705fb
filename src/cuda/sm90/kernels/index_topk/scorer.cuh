// The warpgroups that score, each 64 keys of a tile. Keys are brought to registers once and multiplied by the
// heads of one query token after the other.
#pragma once

#include "cuda/sm90/kernels/index_topk/key_tile.cuh"
#include "cuda/sm90/load/ring_place.cuh"
#include "cuda/sm90/ptx/wgmma_e4m3.cuh"

namespace flashlatent::cuda::indexer {

template <class Config, int kColumns, IndexFormat kFormat, bool kFp4Query>
class Scorer {
 public:
  using SharedLayout = Layout<Config, kFormat, kFp4Query>;

  __device__ __forceinline__ Scorer(const ScoreArguments& arguments, std::uint8_t* shared,
                                    const SharedLayout& layout, Fixed<Config>& fixed)
      : arguments_(arguments),
        shared_(shared),
        keys_(shared + layout.keys),
        weights_(reinterpret_cast<float*>(shared + layout.weights)),
        factors_(reinterpret_cast<float*>(shared + layout.factors)),
        fixed_(fixed) {}

  __device__ __forceinline__ void score(const Run& run) const {
    Walk<Config> walk(arguments_, run);
    sm90::RingPlace<stages_of(kFormat)> stage;
    while (!walk.done()) {
      const Group& group = walk.group();
      bring_queries(group);
      const bool apart = has_apart(group);
      const int tiles = walk.tiles_here();
      int place = walk.first_place() + row_ + (lane_ & 1) * 8;
      std::uint32_t* to =
          arguments_.scores + (group.row - arguments_.first_row) * arguments_.score_stride + place;
#pragma unroll 1
      for (int tile = 0; tile < tiles; ++tile, stage.next()) {
        ptx::wait(fixed_.full[stage.index()], stage.parity());
        score_tile(group, to, place, stage.index(), apart);
        place += Config::kTile;
        to += Config::kTile;
      }
      walk.skip(tiles);
    }
  }

 private:
  static constexpr int kBytes = index_keys::data_bytes(kFormat);

  /// A tile of keys, as this lane sees it: lane 0 of a row's four stores the first row's score, lane 1 the
  /// second one's.
  struct Tile {
    std::uint32_t* to;  ///< This lane's score for the group's first query token.
    int place;          ///< Of its key.
    float scale;
    bool exists;
  };

  /// All warpgroups call it; earlier products must be done.
  __device__ __forceinline__ void bring_queries(const Group& group) const {
    ptx::named_sync(1, Config::kConsumers);
    load_queries<Config, kColumns, kFormat, kFp4Query>(arguments_, group, threadIdx.x, shared_, weights_,
                                                       factors_, fixed_);
    ptx::fence_for_async_proxy();
    ptx::named_sync(1, Config::kConsumers);
  }
  /// Does a head of the query token have scales that lie too far apart?
  __device__ __forceinline__ bool is_apart(int token) const {
    if constexpr (!kFp4Query) return false;
    return fixed_.apart[token] != 0;
  }
  __device__ __forceinline__ bool has_apart(const Group& group) const {
    bool apart = false;
    if constexpr (kFp4Query) {
      for (int token = 0; token < group.rows; ++token) apart = apart || is_apart(token);
    }
    return apart;
  }
  /// A part: a query token and a chunk of its heads.
  __device__ __forceinline__ const std::uint8_t* query(int part) const {
    return shared_ + part * kColumns * index_keys::kDim;
  }
  __device__ __forceinline__ const float* weights(int part) const {
    return weights_ + part * kColumns;
  }
  /// Call when this thread has read the stage.
  __device__ __forceinline__ void free_stage(int stage) const {
    __syncwarp();
    if (lane_ == 0) ptx::arrive(fixed_.empty[stage]);
  }
  __device__ __forceinline__ bool exists(int stage, int row) const {
    return (fixed_.exists[stage][row / 32] >> row % 32 & 1) != 0;
  }

  __device__ __forceinline__ void score_tile(const Group& group, std::uint32_t* to, int place, int stage,
                                             bool apart) const {
    const int warp_row = threadIdx.x / 32 * 16;
    const KeyTile<kFormat> key_tile = {keys_ + (stage * Config::kTile + warp_row) * kBytes,
                                       fixed_.scales[stage] + warp_row, lane_};
    const bool there[2] = {exists(stage, row_), exists(stage, row_ + 8)};
    Keys keys;
    const KeyRows rows = key_tile.read(keys, there);
    const Tile tile = {to, place, rows.scale, (lane_ & 1) != 0 ? there[1] : there[0]};
    const bool rare =
        apart || (kFormat == IndexFormat::kMxfp4_68 && __any_sync(0xFFFFFFFF, rows.apart[0] || rows.apart[1]));
    score_parts(group, keys, tile, rare ? -1 : stage);
    if (rare) {
      score_rarely(group, key_tile, tile, rows);
      free_stage(stage);
    }
  }

  __device__ __forceinline__ void multiply(float (&dots)[kColumns / 2], const Keys& keys, int part) const {
    const std::uint64_t descriptor = ptx::descriptor_k_major(ptx::shared_address(query(part)));
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < index_keys::kGroups; ++i) {
      ptx::WgmmaE4m3<kColumns>::rs(dots, keys.fragments[i], descriptor + i * ptx::kStepOfE4m3, i > 0);
    }
    ptx::wgmma_commit();
  }

  /// What parts are added to.
  struct Sum {
    std::uint32_t* to;
    int token = 0, chunk = 0;
    Totals totals = {};
  };

  /// Scores of all query tokens. `stage` is freed when its keys have been read, which products have waited
  /// for; -1: it is still needed.
  __device__ __forceinline__ void score_parts(const Group& group, const Keys& keys, const Tile& tile,
                                              int stage) const {
    const int parts = group.rows * arguments_.shape.head_chunks;
    Sum sum = {.to = tile.to};
    float first[kColumns / 2];
    if constexpr (Config::kPairs) {
      float second[kColumns / 2];
      int part = 0;
#pragma unroll 1
      do {  // there is a part: its products wait for the keys
        multiply(first, keys, part);
        multiply(second, keys, min(part + 1, parts - 1));
        if (part == 0 && stage >= 0) free_stage(stage);
        ptx::wgmma_wait<1>();
        ptx::pin_registers(first);
        add_part(sum, first, part, tile);
        ptx::wgmma_wait<0>();
        ptx::pin_registers(second);
        if (part + 1 < parts) add_part(sum, second, part + 1, tile);
        part += 2;
      } while (part < parts);
    } else {
      int part = 0;
#pragma unroll 1
      do {
        multiply(first, keys, part);
        if (part == 0 && stage >= 0) free_stage(stage);
        ptx::wgmma_wait<0>();
        ptx::pin_registers(first);
        add_part(sum, first, part, tile);
      } while (++part < parts);
    }
  }

  __device__ __forceinline__ void add_part(Sum& sum, const float (&dots)[kColumns / 2], int part,
                                           const Tile& tile) const {
    add_heads<kColumns>(sum.totals, dots, weights(part), lane_);
    if (++sum.chunk < arguments_.shape.head_chunks) return;
    store(sum.to, sum.token, sum.totals, tile, true);
    sum.to += arguments_.score_stride;
    sum.totals = {};
    sum.chunk = 0;
    ++sum.token;
  }

  /// Stores a query token's scores of the two rows that four lanes share. `wanted`: this lane's.
  __device__ __forceinline__ void store(std::uint32_t* to, int token, const Totals& totals,
                                        const Tile& tile, bool wanted) const {
    const float first = totals.first[0] + totals.first[1], second = totals.second[0] + totals.second[1];
    // Each lane gives one row's sum to its neighbour, and goes on with the other row's.
    const bool odd = (lane_ & 1) != 0;
    float mine = (odd ? second : first) + __shfl_xor_sync(0xFFFFFFFF, odd ? first : second, 1);
    mine += __shfl_xor_sync(0xFFFFFFFF, mine, 2);
    if (lane_ % 4 >= 2 || !wanted) return;
    const bool seen =
        tile.exists && (arguments_.call.candidates > 0 || tile.place < fixed_.seen[token]);
    *to = seen ? sortable(mine * tile.scale) : kNoToken;
  }

  /// Scores of rows, and of query tokens, whose scales lie too far apart: products of 32 columns at a time,
  /// which have one scale. They are stored over the scores that were made without regard to that.
  __device__ __forceinline__ void score_rarely(const Group& group, const KeyTile<kFormat>& keys,
                                               const Tile& tile, const KeyRows& rows) const {
    const int chunks = arguments_.shape.head_chunks;
    // A lane knows of 32 columns; a row's four lanes know of all.
    const unsigned first_apart = __ballot_sync(0xFFFFFFFF, rows.apart[0]);
    const unsigned second_apart = __ballot_sync(0xFFFFFFFF, rows.apart[1]);
    const bool row_apart = (((lane_ & 1) != 0 ? second_apart : first_apart) >> lane_ / 4 * 4 & 0xF) != 0;
#pragma unroll 1
    for (int token = 0; token < group.rows; ++token) {
      Totals totals;
#pragma unroll 1
      for (int part = token * chunks; part < (token + 1) * chunks; ++part) {
        const float* factors = is_apart(token) ? factors_ + part * kColumns * index_keys::kGroups : nullptr;
#pragma unroll 1
        for (int head = 0; head < kColumns; head += kRareHeads) {
          float dots[4] = {};
#pragma unroll 1
          for (int i = 0; i < index_keys::kGroups; ++i) {
            float products[4] = {}, row_factors[2];
            keys.multiply_rarely(products, row_factors, i,
                                 query(part) + (head + lane_ / 4) * index_keys::kDim);
            float2 factor = make_float2(1, 1);
            if (factors != nullptr) {
              factor = *reinterpret_cast<const float2*>(factors + i * kColumns + head + lane_ % 4 * 2);
            }
            dots[0] = fmaf(products[0] * row_factors[0], factor.x, dots[0]);
            dots[1] = fmaf(products[1] * row_factors[0], factor.y, dots[1]);
            dots[2] = fmaf(products[2] * row_factors[1], factor.x, dots[2]);
            dots[3] = fmaf(products[3] * row_factors[1], factor.y, dots[3]);
          }
          add_rare_heads(totals, dots, weights(part), head, lane_);
        }
      }
      store(tile.to + token * arguments_.score_stride, token, totals, tile, is_apart(token) || row_apart);
    }
  }

  const ScoreArguments& arguments_;
  std::uint8_t* const shared_;
  std::uint8_t* const keys_;
  float* const weights_;
  float* const factors_;
  Fixed<Config>& fixed_;
  const int lane_ = threadIdx.x % 32;
  const int row_ = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;  ///< Of the tile; and eight further on.
};

}  // namespace flashlatent::cuda::indexer
