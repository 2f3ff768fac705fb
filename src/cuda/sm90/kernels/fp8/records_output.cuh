// The output's warpgroup of the kernel for records: O^T += V^T P^T, both operands from shared memory, and
// results.
#pragma once

#include "cuda/sm90/kernels/fp8/output_part.cuh"
#include "cuda/sm90/kernels/fp8/records_smem.cuh"

namespace flashlatent::fp8::records {

template <class Config>
class Output : protected OutputPart<SharedMemory<Config>, /*kBarrier=*/1> {
  using Base = OutputPart<SharedMemory<Config>, 1>;
  using Base::args_, Base::kRows, Base::shared_;
  using Base::fragment, Base::thread;
  using Columns = typename Base::Columns;

 public:
  __device__ __forceinline__ Output(SharedMemory<Config>& shared, const sm90::DecodeArguments& args)
      : Base(shared, args) {}

  /// All blocks of one segment, and its result.
  __device__ __forceinline__ void attend(const sm90::Work& work) {
    const int blocks = work.blocks();
    if constexpr (Config::kEdges) find_angles(work.tile);
    this->clear(o_);
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) multiply(block % Config::kScorers);
    meet();  // sums are there
    const std::int64_t first_row = this->partial_row(work);
    if (thread() < kRows) finish_row(work, first_row, thread());
    __nv_bfloat16* out[kColumns];  // null: no such row
#pragma unroll
    for (int i = 0; i < kColumns; ++i) out[i] = shared_.row_place[row(i)].out;
    if constexpr (Config::kEdges) {
      if (work.segment.partial < 0) {  // else the merge turns and casts
        turn_back();
        if (args_.edges.codes != nullptr) cast().measure();
      }
    }
    meet();  // once all have synchronised, the next segment's rows take their place
    const Columns factor = Base::columns_of(shared_.row_factor, [] { return fragment().column; });
    if (work.segment.partial >= 0) {
      write(factor, work.tile.rows, args_.partial.out + first_row * Config::kVDim);
    } else if constexpr (Config::kEdges) {
      if (args_.output.out != nullptr) write(factor, out);
      if (args_.edges.codes != nullptr) cast().write(args_, work.tile, shared_.row_factor);
    } else {
      write(factor, out);
    }
  }

 private:
  static constexpr int kColumns = kRows / 4;  // of O^T, a thread's
  static constexpr int kSliceChunks = Config::kChunks / Config::kSlices;

  __device__ __forceinline__ void meet() {
    ptx::arrive(shared_.all_meet);
    ptx::wait(shared_.all_meet, meeting_);
    meeting_ ^= 1;
  }

  /// Finds by which angles the item's output is turned, when all have met.
  __device__ __forceinline__ void find_angles(const sm90::RowTile& tile) const {
    const edges::Rotary& rotary = args_.edges.output;
    if (thread() < sm90::kRotatedPairs && rotary.positions != nullptr)
      shared_.edges.output[thread()] = sm90::angle_of(rotary, tile, thread());
  }
  /// Turns the last columns, which are the last two chunks of half of the lanes.
  __device__ __forceinline__ void turn_back() {
    constexpr int kFirst = Config::kVDim - sm90::kRotatedColumns;
    if (args_.edges.output.positions == nullptr || column(Config::kChunks - 2) < kFirst) return;
#pragma unroll
    for (int chunk = Config::kChunks - 2; chunk < Config::kChunks; ++chunk) {
      const edges::Angle angle = shared_.edges.output[(column(chunk) - kFirst) / 2];
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        float* x = &o_[chunk][i / 2 * 4 + i % 2];
        const float2 pair = sm90::turned(x[0], x[2], angle);
        x[0] = pair.x;
        x[2] = pair.y;
      }
    }
  }
  __device__ __forceinline__ auto cast() {
    return OutputCast<Config>(o_, shared_.edges.cast);
  }

  /// The next block, of that scorer. The last half of its columns comes first; a slice is free before the
  /// next one.
  __device__ __forceinline__ void multiply(int scorer) {
    constexpr std::uint64_t kTileStep = sizeof(sm90::Tile) >> 4;
    int places[Config::kSlices];
#pragma unroll
    for (int n = 0; n < Config::kSlices; ++n) places[n] = (slice_ + n) % Config::kSlicePlaces;
    slice_ += Config::kSlices;
    const std::uint64_t p =
        ptx::descriptor_k_major(__shfl_sync(0xffffffff, ptx::shared_address(shared_.p[scorer]), 0));
    ptx::wait(shared_.has_p[scorer], parities_ >> scorer & 1);
    parities_ ^= 1U << scorer;
    if (shared_.shrinks[scorer] != 0) [[unlikely]] {
      this->rescale(o_, Base::columns_of(shared_.factor[scorer], [] { return fragment().column; }));
    }
    this->pin(o_);
    ptx::wgmma_fence();
#pragma unroll
    for (int n = 0; n < Config::kSlices; ++n) {
      const std::uint64_t values = ptx::descriptor_n_major(
          __shfl_sync(0xffffffff, ptx::shared_address(&shared_.values[places[n]]), 0), sizeof(sm90::Tile));
#pragma unroll
      for (int i = 0; i < kSliceChunks; ++i) {
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          ptx::Wgmma<__half, kRows>::template ss<false, true>(
              o_[(n * kSliceChunks + i + Config::kChunks / 2) % Config::kChunks],
              values + i * kTileStep + step * ptx::kStepAlongRows, p + step * ptx::kStepAlongRow, true);
        }
      }
      ptx::wgmma_commit();
    }
    free<Config::kSlices - 1>(places);
  }
  /// Frees the places of products, when they are done: all but the last `kLeft` are.
  template <int kLeft>
  __device__ __forceinline__ void free(const int (&places)[Config::kSlices]) {
    ptx::wgmma_wait<kLeft>();
    if constexpr (kLeft == 0) this->pin(o_);
    ptx::arrive(shared_.free[places[Config::kSlices - 1 - kLeft]]);
    if constexpr (kLeft > 0) free<kLeft - 1>(places);
  }

  /// Row n's factor, and its lse.
  __device__ __forceinline__ void finish_row(const sm90::Work& work, std::int64_t first_row, int n) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < Config::kScorers * 4; ++i) sum += shared_.warp_sum[i / 4][i % 4][n];
    shared_.row_factor[n] = Base::template finish_row<Config::kLargestP>(
        work, [=] { return first_row; }, n, shared_.base[n], sum / (1 << Config::kLargestP));
  }

  /// The i-th of this thread's query rows.
  __device__ __forceinline__ static int row(int i) {
    return i / 2 * 8 + fragment().column + i % 2;
  }
  /// The first of this thread's two columns of a chunk, whose rows are in the order of record_keys.cuh.
  __device__ __forceinline__ static int column(int chunk) {
    const int lane = thread() % 32;
    return chunk / 2 * 128 + lane / 8 * 32 + chunk % 2 * 16 + thread() / 32 * 4 + lane / 4 % 2 * 2;
  }

  /// The final output.
  __device__ __forceinline__ void write(const Columns& factor, __nv_bfloat16* const (&out)[kColumns]) const {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      if (out[i] == nullptr) continue;
#pragma unroll
      for (int chunk = 0; chunk < Config::kChunks; ++chunk) {
        const float* x = &o_[chunk][i / 2 * 4 + i % 2];
        *reinterpret_cast<std::uint32_t*>(out[i] + column(chunk)) =
            sm90::pack<__nv_bfloat16>(x[0] * factor[i], x[2] * factor[i]);
      }
    }
  }
  /// A partial result of a tile with so many live rows.
  __device__ __forceinline__ void write(const Columns& factor, int live_rows, float* partial) const {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      if (row(i) >= live_rows) continue;
      float* to = partial + row(i) * Config::kVDim;
#pragma unroll
      for (int chunk = 0; chunk < Config::kChunks; ++chunk) {
        const float* x = &o_[chunk][i / 2 * 4 + i % 2];
        *reinterpret_cast<float2*>(to + column(chunk)) = make_float2(x[0] * factor[i], x[2] * factor[i]);
      }
    }
  }

  std::uint32_t slice_ = 0;     // slices of values so far
  std::uint32_t parities_ = 0;  // of the barriers of the scorers' next P
  std::uint32_t meeting_ = 0;   // of the next one
  typename Base::Accumulators o_;
};

}  // namespace flashlatent::fp8::records
