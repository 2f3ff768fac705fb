// Scores of mxfp4_68 keys. Keys become e4m3 in registers, as the A operand of wgmma.
#pragma once

#include "cuda/sm90/kernels/index_topk/scorer_places.cuh"

namespace flashlatent::cuda::indexer {

__device__ __forceinline__ void swap_if(bool condition, std::uint32_t& a, std::uint32_t& b) {
  const std::uint32_t x = condition ? b : a, y = condition ? a : b;
  a = x;
  b = y;
}

/// e2m1 as in memory: four bytes for each 32 columns of each of the two rows, and the rows' scales.
struct Mxfp4Rows {
  std::uint32_t words[2][index_keys::kGroups];
  std::uint32_t scales[2];
};

/// Lane c of row r reads four bytes of each 16. Rows lie 64 bytes apart: neighbouring pairs begin at
/// different 16 bytes, so that all banks are used.
__device__ __forceinline__ void read_mxfp4(Mxfp4Rows& rows, const std::uint8_t* tile, int row, int lane) {
  const int turn = row >> 1 & 3;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    std::uint32_t(&w)[index_keys::kGroups] = rows.words[half];
#pragma unroll
    for (int i = 0; i < index_keys::kGroups; ++i) {
      w[i] = *reinterpret_cast<const std::uint32_t*>(tile + (row + half * 8) * 64 + (i ^ turn) * 16 +
                                                     lane % 4 * 4);
    }
    swap_if(turn & 1, w[0], w[1]);
    swap_if(turn & 1, w[2], w[3]);
    swap_if(turn & 2, w[0], w[2]);
    swap_if(turn & 2, w[1], w[3]);
  }
}

/// Which groups of 32 columns of the two rows must still be multiplied, a bit each, and the scale to which
/// the last product was relative.
struct Pass {
  std::uint32_t left[2];
  int base[2] = {0, 0};
};

/// Makes fragments of the columns that are left and whose scales are near the largest of these; other columns
/// are zeros. Scales become exponents. Rows whose scales are all near have one pass, whatever rows beside
/// them have.
__device__ __forceinline__ void widen(Keys& keys, const Mxfp4Rows& rows, Pass& pass) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const Scales scales(rows.scales[half]);
    int base = 0;
#pragma unroll
    for (int i = 0; i < index_keys::kGroups; ++i) {
      if (pass.left[half] >> i & 1) base = max(base, scales.each[i]);
    }
    pass.base[half] = base;
#pragma unroll
    for (int i = 0; i < index_keys::kGroups; ++i) {
      const int exponent = scales.each[i] - base + kMostExponent;
      const bool now = (pass.left[half] >> i & 1) != 0 && exponent >= kLeastExponent;
      const Expanded expanded = expand_e2m1(rows.words[half][i], exponent);
      keys.fragments[i][half] = now ? expanded.low : 0;
      keys.fragments[i][2 + half] = now ? expanded.high : 0;
      if (now) pass.left[half] &= ~(1U << i);
    }
  }
}

/// q . k of one query token and a chunk of heads.
template <int kColumns>
__device__ __forceinline__ void multiply(float (&dots)[kColumns / 2], const Keys& keys, std::uint64_t query) {
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < index_keys::kGroups; ++i) {
    ptx::WgmmaE4m3<kColumns>::rs(dots, keys.fragments[i], query + i * ptx::kStepOfE4m3, i > 0);
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::pin_registers(dots);
}

template <int kColumns, bool kFp4Query>
class Mxfp4Scorer : ScorerPlaces<kColumns, IndexFormat::kMxfp4_68, kFp4Query> {
  using Places = ScorerPlaces<kColumns, IndexFormat::kMxfp4_68, kFp4Query>;

 public:
  using Places::Places;

  __device__ __forceinline__ void score(const Run& run) const {
    Walk walk(this->arguments_, run);
    typename Places::Stage stage;
    while (!walk.done()) {
      this->bring_queries(walk.group());
      const int tiles = walk.tiles_here();
#pragma unroll 1
      for (int tile = 0; tile < tiles; ++tile) {
        ptx::wait(this->fixed_.full[stage.index()], stage.parity());
        score_tile(walk.group(), walk.first_place() + tile * kTile, stage.index());
        stage.next();
      }
      walk.skip(tiles);
    }
  }

 private:
  struct Tile {
    int stage, first_place;
    bool there[2];  ///< Do the two rows exist?
    int base[2];    ///< Scales to which the first products are relative.
    float scale;    ///< The scale of the row whose score this lane stores.
  };

  __device__ __forceinline__ void read(Mxfp4Rows& rows, int stage) const {
    read_mxfp4(rows, this->tile_of(stage), this->row_, this->lane_);
    rows.scales[0] = this->fixed_.scales[stage][this->row_];
    rows.scales[1] = this->fixed_.scales[stage][this->row_ + 8];
  }
  /// Keys that do not exist have no columns to multiply.
  __device__ __forceinline__ static Pass all_columns(const bool (&there)[2]) {
    return {{there[0] ? 0xFU : 0, there[1] ? 0xFU : 0}};
  }

  __device__ __forceinline__ void score_tile(const Group& group, int first_place, int stage) const {
    Tile tile = {
        stage, first_place, {this->exists(stage, this->row_), this->exists(stage, this->row_ + 8)}, {}, 0};
    Keys keys;
    Pass pass = all_columns(tile.there);
    {
      Mxfp4Rows rows;
      read(rows, stage);
      widen(keys, rows, pass);
    }
    tile.base[0] = pass.base[0];
    tile.base[1] = pass.base[1];
    const int base = tile.base[this->lane_ & 1];
    tile.scale = base == 0xFF ? ue8m0(0xFF) : scale_of_base(base);
    const int warpgroup = threadIdx.x / 128;
    if (ptx::named_any(2 + warpgroup, 128, (pass.left[0] | pass.left[1]) != 0)) {
      score_in_passes(group, tile);
      this->free_stage(stage);
    } else {
      this->free_stage(stage);
      score_keys(group, keys, tile);
    }
  }

  __device__ __forceinline__ void store(const Group& group, int token, const Totals& totals,
                                        const Tile& tile) const {
    Places::store(group, token, tile.first_place, totals, tile.scale, tile.there[this->lane_ & 1]);
  }

  /// Scores of keys for which one product suffices.
  __device__ __forceinline__ void score_keys(const Group& group, const Keys& keys, const Tile& tile) const {
#pragma unroll 1
    for (int token = 0; token < group.rows; ++token) {
      Totals totals;
#pragma unroll 1
      for (int chunk = 0; chunk < this->arguments_.shape.head_chunks; ++chunk) {
        if (this->is_apart(token)) {
          this->add_rarely(totals, token, chunk, [&](auto multiply) { multiply(keys, {1, 1}); });
        } else {
          const int part = this->part_of(token, chunk);
          float dots[kColumns / 2];
          multiply<kColumns>(dots, keys, ptx::descriptor_k_major(ptx::shared_address(this->query(part))));
          add_heads<kColumns>(totals, dots, this->weights(part), this->lane_);
        }
      }
      store(group, token, totals, tile);
    }
  }

  /// If scales of a key lie far apart: a product for columns whose scales are near the largest, then for
  /// those near the largest of the rest, and so on; four products suffice. Other keys' later products are 0.
  /// Keys are read again for each product, so that registers need not hold them.
  __device__ __forceinline__ void score_in_passes(const Group& group, const Tile& tile) const {
#pragma unroll 1
    for (int token = 0; token < group.rows; ++token) {
      Totals totals;
#pragma unroll 1
      for (int chunk = 0; chunk < this->arguments_.shape.head_chunks; ++chunk) {
        this->add_rarely(totals, token, chunk, [&](auto multiply) {
          Pass pass = all_columns(tile.there);
#pragma unroll 1
          for (int i = 0; i < index_keys::kGroups; ++i) {
            const bool done[2] = {pass.left[0] == 0, pass.left[1] == 0};
            Keys keys;
            Mxfp4Rows rows;
            read(rows, tile.stage);
            widen(keys, rows, pass);
            float factors[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              factors[half] = done[half] ? 0 : exp2f(static_cast<float>(pass.base[half] - tile.base[half]));
            }
            multiply(keys, factors);
          }
        });
      }
      store(group, token, totals, tile);
    }
  }
};

}  // namespace flashlatent::cuda::indexer
