// The warpgroups that score, each 64 keys of a tile. Keys are brought to registers once and multiplied by the
// heads of one query token after the other.
#pragma once

#include "cuda/sm90/kernels/index_topk/key_tile.cuh"
#include "cuda/sm90/kernels/index_topk/sinks.cuh"
#include "cuda/sm90/load/ring_place.cuh"
#include "cuda/sm90/ptx/wgmma_e4m3.cuh"

namespace flashlatent::cuda::indexer {

template <class Config, int kColumns, IndexFormat kFormat, bool kFp4Query, class Sink>
class Scorer {
 public:
  using SharedLayout = Layout<Config, kFormat, kFp4Query>;

  __device__ __forceinline__ Scorer(const ScoreArguments& arguments, std::uint8_t* shared,
                                    const SharedLayout& layout, Fixed<Config>& fixed, const Sink& sink)
      : arguments_(arguments),
        shared_(shared),
        keys_(shared + layout.keys),
        weights_(reinterpret_cast<float*>(shared + layout.weights)),
        factors_(reinterpret_cast<float*>(shared + layout.factors)),
        fixed_(fixed),
        sink_(sink) {}

  __device__ __forceinline__ void score(const Run& run) const {
    Walk<Config> walk(arguments_, run);
    Stage stage;
    while (!walk.done()) {
      const Group& group = walk.group();
      bring_queries(group);
      const bool apart = has_apart(group);
      const int tiles = walk.tiles_here();
      int place = walk.first_place() + row_ + (lane_ & 1) * 8;
      std::uint32_t* to =
          arguments_.scores + (group.row - arguments_.first_row) * arguments_.score_stride + place;
#pragma unroll 1
      for (int tile = 0; tile < tiles; ++tile) {
        Loaded loaded;
        load(loaded, to, place, stage, apart);
        score_parts(group, loaded.keys, loaded.tile, loaded.rare ? -1 : loaded.stage);
        if (!loaded.rare) continue;
        score_rarely(group, key_tile(loaded.stage), loaded.tile);
        free_stage(loaded.stage);
      }
      walk.skip(tiles);
    }
  }

 private:
  static constexpr int kBytes = index_keys::data_bytes(kFormat);
  using Stage = sm90::RingPlace<Config::stages(kFormat)>;

  /// A tile of keys, as this lane sees it: of a row's four lanes, even ones store scores of the first row,
  /// odd ones of the second.
  struct Tile {
    std::uint32_t* to;  ///< This row's score for the group's first query token.
    int place;          ///< Of the row's key; kNowhere if it does not exist.
    float scale;
    bool apart;  ///< Are the row's scales too far apart?
  };
  static constexpr int kNowhere = 0x7FFFFFFF;
  /// A tile whose keys are in registers.
  struct Loaded {
    Keys keys;
    Tile tile;
    KeyRows rows;
    int stage;
    bool rare;  ///< Are there scales that lie too far apart? The stage is still needed then.
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
  /// Are scales of the row whose score this lane stores too far apart? A lane knows of 32 columns; a row's
  /// four lanes know of all.
  __device__ __forceinline__ bool is_row_apart(const KeyRows& rows) const {
    const unsigned first = __ballot_sync(0xFFFFFFFF, rows.apart[0]);
    const unsigned second = __ballot_sync(0xFFFFFFFF, rows.apart[1]);
    return (((lane_ & 1) != 0 ? second : first) >> lane_ / 4 * 4 & 0xF) != 0;
  }
  /// Does score_rarely() store the score?
  __device__ __forceinline__ bool is_rare(int token, const Tile& tile) const {
    return tile.apart || is_apart(token);
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

  /// The tile of the next stage; advances all.
  __device__ __forceinline__ void load(Loaded& loaded, std::uint32_t*& to, int& place, Stage& stage,
                                       bool apart) const {
    loaded.stage = stage.index();
    ptx::wait(fixed_.full[loaded.stage], stage.parity());
    const bool there[2] = {exists(loaded.stage, row_), exists(loaded.stage, row_ + 8)};
    loaded.rows = key_tile(loaded.stage).read(loaded.keys, there);
    loaded.tile = {to, ((lane_ & 1) != 0 ? there[1] : there[0]) ? place : kNowhere, loaded.rows.scale, false};
    loaded.rare = apart;
    if constexpr (kFormat == IndexFormat::kMxfp4_68) {
      const bool any = __any_sync(0xFFFFFFFF, loaded.rows.apart[0] || loaded.rows.apart[1]);
      if (any) loaded.tile.apart = is_row_apart(loaded.rows);
      loaded.rare = apart || any;
    }
    place += Config::kTile;
    to += Config::kTile;
    stage.next();
  }
  __device__ __forceinline__ KeyTile<kFormat> key_tile(int stage) const {
    const int warp_row = threadIdx.x / 32 * 16;
    return {keys_ + (stage * Config::kTile + warp_row) * kBytes, fixed_.scales[stage] + warp_row, lane_};
  }

  /// `query`: the descriptor of a part's heads.
  __device__ __forceinline__ void multiply(float (&dots)[kColumns / 2], const Keys& keys,
                                           std::uint64_t query) const {
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < index_keys::kGroups; ++i) {
      ptx::WgmmaE4m3<kColumns>::rs(dots, keys.fragments[i], query + i * ptx::kStepOfE4m3, i > 0);
    }
    ptx::wgmma_commit();
  }
  static constexpr std::uint64_t kDescriptorStep = kColumns * index_keys::kDim >> 4;

  /// Scores of all query tokens. `stage` is freed when its keys have been read, which products have waited
  /// for; -1: it is still needed.
  __device__ __forceinline__ void score_parts(const Group& group, const Keys& keys, const Tile& tile,
                                              int stage) const {
    const std::uint64_t descriptor = ptx::descriptor_k_major(ptx::shared_address(query(0)));
    if (Config::kPairs && group.rows * arguments_.shape.head_chunks > 1) {
      score_pairs(group, keys, tile, stage, descriptor);
    } else {
      score_singly(group, keys, tile, stage, descriptor);
    }
  }

  __device__ __forceinline__ void score_singly(const Group& group, const Keys& keys, const Tile& tile,
                                               int stage, std::uint64_t query) const {
    const int chunks = arguments_.shape.head_chunks;
    std::uint32_t* to = tile.to;
    const float* weights = weights_;
    int token = 0, chunk = 0;
    Totals totals;
#pragma unroll 1
    do {  // there is a part: its products wait for the keys
      float dots[kColumns / 2];
      multiply(dots, keys, query);
      if (stage >= 0) free_stage(stage);
      stage = -1;
      ptx::wgmma_wait<0>();
      ptx::pin_registers(dots);
      add_heads<kColumns>(totals, dots, weights, lane_);
      query += kDescriptorStep;
      weights += kColumns;
      if (++chunk < chunks) continue;
      store(to, token, totals, tile, !is_rare(token, tile));
      totals = {};
      to += arguments_.score_stride;
      chunk = 0;
      ++token;
    } while (token < group.rows);
  }

  /// Two parts at a time, of two query tokens or of one: the second's products run while the first's are
  /// added. The part behind the last one is whatever lies there, and is not used.
  __device__ __forceinline__ void score_pairs(const Group& group, const Keys& keys, const Tile& tile,
                                              int stage, std::uint64_t query) const {
    const bool one_token = arguments_.shape.head_chunks == 2;
    std::uint32_t* to = tile.to;
    if (!one_token && (lane_ & 2) != 0) to += arguments_.score_stride;
    const std::int64_t step = one_token ? arguments_.score_stride : 2 * arguments_.score_stride;
    const float* weights = weights_;
    int token = one_token ? 0 : lane_ >> 1 & 1;  // whose scores this lane stores
    int left = group.rows;
#pragma unroll 1
    do {
      float first[kColumns / 2], second[kColumns / 2];
      multiply(first, keys, query);
      multiply(second, keys, query + kDescriptorStep);
      if (stage >= 0) free_stage(stage);
      stage = -1;
      ptx::wgmma_wait<1>();
      ptx::pin_registers(first);
      Totals totals;
      add_heads<kColumns>(totals, first, weights, lane_);
      float of_first = 0;
      if (!one_token) {  // and a place before which ptxas does not wait for the second products
        of_first = sum_of_row(totals);
        totals = {};
      }
      ptx::wgmma_wait<0>();
      ptx::pin_registers(second);
      add_heads<kColumns>(totals, second, weights + kColumns, lane_);
      const float of_second = sum_of_row(totals);
      store_pair(to, token, one_token ? of_second : of_first, of_second, tile,
                 ((lane_ & 2) == 0 || (!one_token && left > 1)) && !is_rare(token, tile));
      to += step;
      query += 2 * kDescriptorStep;
      weights += 2 * kColumns;
      token += one_token ? 1 : 2;
      left -= one_token ? 1 : 2;
    } while (left > 0);
  }

  __device__ __forceinline__ void store_score(std::uint32_t* to, int token, float score,
                                              const Tile& tile) const {
    sink_.put(to, tile.place < fixed_.seen[token] ? sortable(score * tile.scale) : kNoToken);
  }
  /// Of the sums of two rows, which four lanes share, each lane gives one to its neighbour, and goes on with
  /// the other one.
  __device__ __forceinline__ float sum_of_row(const Totals& totals) const {
    const float first = totals.first[0] + totals.first[1], second = totals.second[0] + totals.second[1];
    const bool odd = (lane_ & 1) != 0;
    return (odd ? second : first) + __shfl_xor_sync(0xFFFFFFFF, odd ? first : second, 1);
  }

  /// Stores a query token's scores of the two rows that four lanes share. `wanted`: this lane's.
  __device__ __forceinline__ void store(std::uint32_t* to, int token, const Totals& totals, const Tile& tile,
                                        bool wanted) const {
    float sum = sum_of_row(totals);
    sum += __shfl_xor_sync(0xFFFFFFFF, sum, 2);
    if (lane_ % 4 < 2 && wanted) store_score(to, token, sum, tile);
  }
  /// Stores those of two query tokens: lanes 0 and 1 of a row's four the first one's.
  __device__ __forceinline__ void store_pair(std::uint32_t* to, int token, float of_first, float of_second,
                                             const Tile& tile, bool wanted) const {
    const bool high = (lane_ & 2) != 0;
    const float sum =
        (high ? of_second : of_first) + __shfl_xor_sync(0xFFFFFFFF, high ? of_first : of_second, 2);
    if (wanted) store_score(to, token, sum, tile);
  }

  /// Scores of rows, and of query tokens, whose scales lie too far apart: products of 32 columns at a time,
  /// which have one scale.
  __device__ __forceinline__ void score_rarely(const Group& group, const KeyTile<kFormat>& keys,
                                               const Tile& tile) const {
    const int chunks = arguments_.shape.head_chunks;
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
      store(tile.to + token * arguments_.score_stride, token, totals, tile, is_rare(token, tile));
    }
  }

  const ScoreArguments& arguments_;
  std::uint8_t* const shared_;
  std::uint8_t* const keys_;
  float* const weights_;
  float* const factors_;
  Fixed<Config>& fixed_;
  const Sink sink_;
  const int lane_ = threadIdx.x % 32;
  const int row_ = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;  ///< Of the tile; and eight further on.
};

}  // namespace flashlatent::cuda::indexer
