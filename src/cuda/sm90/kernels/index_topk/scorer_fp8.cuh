// Scores of fp8_132 keys. Keys and queries are both read from shared memory by wgmma; heads are multiplied in
// two halves, so that one half is summed while the other is multiplied. (With products that accumulate from
// step to step ptxas makes each wait for the previous one.)
#pragma once

#include "cuda/sm90/kernels/index_topk/scorer_places.cuh"

namespace flashlatent::cuda::indexer {

template <int kColumns, bool kFp4Query>
class Fp8Scorer : ScorerPlaces<kColumns, IndexFormat::kFp8_132, kFp4Query> {
  using Places = ScorerPlaces<kColumns, IndexFormat::kFp8_132, kFp4Query>;

 public:
  using Places::Places;

  __device__ __forceinline__ void score(const Run& run) {
    Walk walk(this->arguments_, run);
    while (!walk.done()) {
      const Group& group = walk.group();
      this->bring_queries(group);
      const int tiles = walk.tiles_here();
      if (has_apart(group)) {
        score_rarely(group, walk.first_place(), tiles);
      } else {
        score_tiles(group, walk.first_place(), tiles);
      }
      walk.skip(tiles);
    }
  }

 private:
  static constexpr int kHalf = kColumns / 2;

  __device__ __forceinline__ bool has_apart(const Group& group) const {
    bool apart = false;
    if constexpr (kFp4Query) {
      for (int token = 0; token < group.rows; ++token) apart = apart || this->is_apart(token);
    }
    return apart;
  }

  __device__ __forceinline__ void multiply_half(float (&dots)[kHalf / 2], int stage, int part,
                                                int half) const {
    const std::uint8_t* tile = this->tile_of(stage) + threadIdx.x / 128 * 64 * index_keys::kDim;
    const std::uint64_t keys = ptx::descriptor_k_major(ptx::shared_address(tile));
    const std::uint64_t query =
        ptx::descriptor_k_major(ptx::shared_address(this->query(part) + half * kHalf * index_keys::kDim));
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < index_keys::kGroups; ++i) {
      ptx::WgmmaE4m3<kHalf>::ss(dots, keys + i * ptx::kStepOfE4m3, query + i * ptx::kStepOfE4m3, i > 0);
    }
    ptx::wgmma_commit();
  }

  /// Which products are added: a part of the queries times a tile of keys.
  struct Step {
    int part = 0, chunk = 0, token = 0;
    int first_place = 0;
    float scale = 0;  ///< The scale of the row whose score this lane stores.
    bool exists = false;
    Totals totals = {};
  };

  __device__ __forceinline__ void score_tiles(const Group& group, int first_place, int tiles) {
    const int parts = group.rows * this->arguments_.shape.head_chunks;
    float first[kHalf / 2], second[kHalf / 2];
    Step step = {.first_place = first_place};
#pragma unroll 1
    for (int left = tiles * parts; left > 0; --left) {
      if (step.part == 0) begin_tile(step);
      multiply_half(first, stage_.index(), step.part, 0);
      multiply_half(second, stage_.index(), step.part, 1);
      ptx::wgmma_wait<1>();
      ptx::pin_registers(first);
      add_half(step, first, 0);
      ptx::wgmma_wait<0>();
      ptx::pin_registers(second);
      const bool tile_ends = step.part + 1 == parts;
      if (tile_ends) this->free_stage(stage_.index());
      add_half(step, second, 1);
      end_part(group, step);
      if (!tile_ends) continue;
      stage_.next();
      step.part = step.token = 0;
      step.first_place += kTile;
    }
  }

  __device__ __forceinline__ void add_half(Step& step, const float (&dots)[kHalf / 2], int half) const {
    add_heads<kHalf>(step.totals, dots, this->weights(step.part) + half * kHalf, this->lane_);
  }
  __device__ __forceinline__ void begin_tile(Step& step) const {
    ptx::wait(this->fixed_.full[stage_.index()], stage_.parity());
    const int row = this->mine();
    step.scale = __uint_as_float(this->fixed_.scales[stage_.index()][row]);
    step.exists = this->exists(stage_.index(), row);
  }
  __device__ __forceinline__ void end_part(const Group& group, Step& step) const {
    ++step.part;
    if (++step.chunk < this->arguments_.shape.head_chunks) return;
    this->store(group, step.token, step.first_place, step.totals, step.scale, step.exists);
    step.totals = {};
    step.chunk = 0;
    ++step.token;
  }

  /// For a query token whose scales lie far apart.
  __device__ __forceinline__ void score_rarely(const Group& group, int first_place, int tiles) {
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      Step step;
      begin_tile(step);
      Keys keys;
      read_keys(keys);
#pragma unroll 1
      for (int token = 0; token < group.rows; ++token) {
        Totals totals;
#pragma unroll 1
        for (int chunk = 0; chunk < this->arguments_.shape.head_chunks; ++chunk) {
          this->add_rarely(totals, token, chunk, [&](auto multiply) { multiply(keys, {1, 1}); });
        }
        this->store(group, token, first_place, totals, step.scale, step.exists);
      }
      this->free_stage(stage_.index());
      stage_.next();
      first_place += kTile;
    }
  }

  __device__ __forceinline__ void read_keys(Keys& keys) const {
#pragma unroll
    for (int i = 0; i < index_keys::kGroups; ++i) {
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const int row = this->row_ + word % 2 * 8, unit = 2 * i + word / 2;
        keys.fragments[i][word] =
            *reinterpret_cast<const std::uint32_t*>(this->tile_of(stage_.index()) + row * index_keys::kDim +
                                                    (unit ^ (row & 7)) * 16 + this->lane_ % 4 * 4);
      }
    }
  }

  typename Places::Stage stage_;
};

}  // namespace flashlatent::cuda::indexer
