// The edge of the layer at the output of records: casts O^T at an item's end, of which one warpgroup has all
// columns, in the order of record_keys.cuh. Codes go to memory through shared memory, 16 columns of a row
// together: alone a thread's two columns would be a sector's sixteenth.
#pragma once

#include "cuda/sm90/merge/cast_columns.cuh"

namespace flashlatent::fp8::records {

/// `Threads`, kBarrier: as for sm90::CastColumns.
template <class Config, class Threads, int kBarrier>
class Cast : sm90::ScaledColumns<Threads, kBarrier, Config::kChunks, Config::kRows, 1> {
  using Base = sm90::ScaledColumns<Threads, kBarrier, Config::kChunks, Config::kRows, 1>;
  using Base::kParts, Base::kVDim, Base::meet, Base::o_, Base::factors_;
  static constexpr int kRows = Config::kRows;
  /// Parts of 128 columns whose codes have a place: as many as there is room for.
  static constexpr int kStaged = kRows < 16 ? kParts : kParts / 2;

 public:
  /// In shared memory, for nothing else: scorers begin the next item meanwhile.
  struct Memory {
    typename Base::Factors factors;
    union {
      typename Base::Largest largest;
      alignas(16) std::uint8_t codes[kRows][kStaged * edges::kScaleColumns + 16];  // no bank conflicts
    };
  };

  __device__ __forceinline__ Cast(typename Base::Accumulators& o, Memory& memory)
      : Base(o, 0, memory.largest, memory.factors), codes_(memory.codes) {}

  using Base::measure;

  /// Writes scales and codes, once all have met after measure(). `factor`: the final factor of each row's
  /// sums.
  __device__ __forceinline__ void write(const sm90::DecodeArguments& args, const sm90::RowTile& tile,
                                        const float (&factor)[kRows]) {
    const int lane = Threads::thread() % 32;
    std::uint8_t* const of_lane =
        lane < tile.rows ? sm90::codes_of_row<kVDim>(args, tile, lane) : nullptr;  // of row `lane`
    this->scale(args, tile, factor);
#pragma unroll
    for (int first = 0; first < kParts; first += kStaged) {
      if (first > 0) meet();
      stage(first);
      meet();
      copy(of_lane, first);
    }
  }

 private:
  /// The place of 16 codes in a row: columns 32 i + 16 `half` + 4 `warp` + {0 ... 3} of a part, i from 0
  /// to 3.
  __device__ __forceinline__ static int place(int part, int half, int warp) {
    return part * edges::kScaleColumns + half * 64 + (warp ^ part % 4) * 16;
  }

  /// Stores codes of some parts, from part `first` on.
  __device__ __forceinline__ void stage(int first) const {
    const int lane = Threads::thread() % 32, warp = Threads::thread() / 32;
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const std::uint32_t row = ptx::shared_address(codes_[8 * j + lane % 8]);
#pragma unroll
      for (int part = 0; part < kStaged; part += 2) {
        std::uint32_t words[4];  // of a chunk: two rows' pairs
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float2 factor =
              *reinterpret_cast<const float2*>(&factors_[first + part + k / 2][8 * j + Threads::column()]);
          const float* x = &o_[2 * (first + part) + k][4 * j];
          words[k] = sm90::code_pair(x[0] * factor.x, x[2] * factor.x) |
                     sm90::code_pair(x[1] * factor.y, x[3] * factor.y) << 16;
        }
        ptx::store_matrices_transposed(row + place(part + lane / 16, lane / 8 % 2, warp), words);
      }
    }
  }

  /// From there to memory. `of_lane`: the address of the codes of row `lane`; null: no such row.
  __device__ __forceinline__ void copy(std::uint8_t* of_lane, int first) const {
    constexpr int kPieces = kStaged * edges::kScaleColumns / 16;  // of a row
#pragma unroll
    for (int i = 0; i < kRows * kPieces / 128; ++i) {
      const int at = i * 128 + Threads::thread(), row = at / kPieces, piece = at % kPieces;
      std::uint32_t words[4];
#pragma unroll
      for (int warp = 0; warp < 4; ++warp) {
        words[warp] = *reinterpret_cast<const std::uint32_t*>(
            codes_[row] + place(piece / 8, piece % 2, warp) + piece / 2 % 4 * 4);
      }
      auto* to = reinterpret_cast<std::uint8_t*>(
          __shfl_sync(0xffffffff, reinterpret_cast<unsigned long long>(of_lane), row));
      if (to == nullptr) continue;
      *reinterpret_cast<uint4*>(to + first * edges::kScaleColumns + piece * 16) =
          make_uint4(words[0], words[1], words[2], words[3]);
    }
  }

  decltype(Memory::codes)& codes_;
};

}  // namespace flashlatent::fp8::records
