// The two output warpgroups: O^T += factor (V^T P^T), each with half of the output's columns. V comes to
// registers as it is in the cache and is permuted there.
//
// A block's product is made in separate accumulators, 64 columns at a time, and added in fp32: the tensor
// cores' sums of e4m3 keep 13 bits, too few for a long context, and each block has its own scale.
#pragma once

#include "cuda/sm90/kernels/mla_64_e4m3/smem_layout.cuh"
#include "cuda/sm90/kernels/mla_64_e4m3/tiles.cuh"
#include "cuda/sm90/merge/column_output.cuh"
#include "cuda/sm90/merge/epilogue.cuh"

namespace flashlatent::mla_64_e4m3 {

template <class Config>
class Output {
 public:
  __device__ __forceinline__ Output(SharedMemory<Config>& shared, const sm90::DecodeArguments& args)
      : shared_(shared), args_(args), me_(threadIdx.x / 128) {}

  /// One segment.
  __device__ __forceinline__ void attend(const sm90::Work& work) {
    meet_both();  // the previous rows are no longer written
    find_rows(work.tile);
    meet_both();
#pragma unroll
    for (auto& chunk : o_) {
#pragma unroll
      for (float& x : chunk) x = 0;
    }
    int left = work.blocks();
#pragma unroll 1
    while (left > 0) {
      add_block(work, left);
      if (--left == 0) break;
      give_back_p();
    }
    finish(work);
  }

 private:
  static constexpr int kRows = Config::kRows, kSums = kRows / 2;  // of a thread's, of 64 columns
  using Columns = sm90::ColumnValues<kRows>;

  struct Threads {
    __device__ __forceinline__ static int thread() { return threadIdx.x % 128; }
    /// This thread's first query row of each eight.
    __device__ __forceinline__ static int column() { return threadIdx.x % 4 * 2; }
  };

  __device__ __forceinline__ static void meet_both() {
    ptx::named_sync(kOutputsBarrier, Config::kOutputThreads);
  }
  __device__ __forceinline__ void give_back_p() {
    ptx::arrive(shared_.p_free[place_.index()]);
    place_.next();
  }
  __device__ __forceinline__ void meet_alone() const {
    ptx::named_sync(kOutputBarrier + me_, 128);
  }

  __device__ __forceinline__ static int thread() {
    return Threads::thread();
  }
  __device__ __forceinline__ static int column() {
    return Threads::column();
  }
  /// This thread's first column of the output; its columns come in pairs, 64 apart.
  __device__ __forceinline__ int first_column() const {
    return me_ * Config::kPartDim + thread() / 32 * 16 + thread() % 32 / 4 * 2;
  }

  /// Computes what takes many instructions, once a row and segment.
  __device__ __forceinline__ void find_rows(const sm90::RowTile& tile) const {
    const int n = threadIdx.x;
    if (n >= kRows) return;
    shared_.output_rows.find(args_, tile, n);
    shared_.row_place[n] = sm90::RowPlace<__nv_bfloat16>::find(args_, tile, n);
  }

  /// This lane's token of a block's first 32, at the warp's columns.
  __device__ __forceinline__ std::uint32_t value_row(int slot) const {
    return ptx::shared_address(shared_.blocks[slot]) +
           block_offset<Config::kChunks>(thread() % 32, me_ * Config::kPartChunks, thread() / 32);
  }

  /// Adds the next block; `left` blocks are left, this one included. The caller frees its P.
  __device__ __forceinline__ void add_block(const sm90::Work& work, int left) {
    const int slot = slot_.index(), place = place_.index();
    ptx::wait(shared_.full[slot], slot_.parity());
    const TokenPrefix by_all =
        shared_.output_rows.seen_by_all(work).from((work.segment.block_end - left) * 64);
    const std::uint64_t live = shared_.live[slot];
    if (live != sm90::kAllLive || by_all.end < 64) [[unlikely]] {
      ptx::wait(shared_.has_p[place], place_.parity());  // K has been read
      silence(slot, live, sm90::partial_tokens(live, by_all));
    }
    const std::uint32_t row = value_row(slot);
    ValueOperands a;
    transpose(a, ValueBytes::at<Config::kChunks>(row));
    ptx::wait(shared_.has_p[place], place_.parity());
    const BlockScales<kRows>& scales = shared_.scales[place];
    if (*reinterpret_cast<const std::uint32_t*>(scales.shrinks) != 0) [[unlikely]]
      shrink(scales);
    const std::uint64_t p = ptx::descriptor_k_major_64<kAtomBytes>(
        __shfl_sync(0xffffffff, ptx::shared_address(shared_.p[place]), 0));
    float sums[kSums];
#pragma unroll
    for (int chunk = 0; chunk < Config::kPartChunks; ++chunk) {
      ptx::pin_registers(sums);
      ptx::wgmma_fence();
      ptx::WgmmaE4m3<kRows>::rs(sums, a[0], p, false);
      ptx::WgmmaE4m3<kRows>::rs(sums, a[1], p + ptx::kStepOfE4m3, true);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::pin_registers(sums);
      // Only when these products are done are there registers for the next operands.
      ValueBytes bytes;
      if (chunk + 1 < Config::kPartChunks) {
        bytes = ValueBytes::at<Config::kChunks>(row + (chunk + 1) * kAtomBytes);
      } else {
        ptx::arrive(shared_.empty[slot]);
      }
#pragma unroll
      for (int j = 0; j < kRows / 8; ++j) {
        const float2 factor = *reinterpret_cast<const float2*>(&scales.factor[8 * j + column()]);
#pragma unroll
        for (int i = 4 * j; i < 4 * j + 4; ++i) {
          o_[chunk][i] = fmaf(sums[i], i % 2 == 0 ? factor.x : factor.y, o_[chunk][i]);
        }
      }
      if (chunk + 1 < Config::kPartChunks) transpose(a, bytes);
    }
    slot_.next();
  }

  __device__ __forceinline__ void shrink(const BlockScales<kRows>& scales) {
#pragma unroll
    for (int i = 0; i < Columns::kCount; ++i) {
      const int n = i / 2 * 8 + column() + i % 2;
      const float by = scales.shrinks[n / 16] != 0 ? scales.shrink[n] : 1.0F;
#pragma unroll
      for (auto& chunk : o_) {
        chunk[i / 2 * 4 + i % 2] *= by;
        chunk[i / 2 * 4 + 2 + i % 2] *= by;
      }
    }
  }

  /// A weight of 0 does not silence NaN. So V of dead tokens becomes 0, and so does NaN in tokens that only
  /// some rows see (`partial`): rows that see it have NaN scores, since it is in K, too.
  __device__ __forceinline__ void silence(int slot, std::uint64_t live, std::uint64_t partial) const {
    constexpr int kUnits = Config::kPartDim / 16;  // of a token
    for (int i = thread(); i < 64 * kUnits; i += 128) {
      const int token = i / kUnits, unit = i % kUnits;
      const bool dead = !(live >> token & 1);
      if (!dead && !(partial >> token & 1)) continue;
      auto* at = reinterpret_cast<uint4*>(
          shared_.blocks[slot] +
          block_offset<Config::kChunks>(token, me_ * Config::kPartChunks + unit / 4, unit % 4));
      uint4 value = make_uint4(0, 0, 0, 0);
      if (!dead) {
        value = *at;
        value = make_uint4(without_nan(value.x), without_nan(value.y), without_nan(value.z),
                           without_nan(value.w));
      }
      *at = value;
    }
    ptx::fence_for_async_proxy();  // the block's place is written by copies next
    meet_alone();
  }
  __device__ __forceinline__ static std::uint32_t without_nan(std::uint32_t word) {
    return word & ~__vcmpeq4(word & 0x7F7F7F7FU, 0x7F7F7F7FU);
  }

  /// Writes a segment's result, when all its blocks are added. The last block's P is still to be freed.
  __device__ __forceinline__ void finish(const sm90::Work& work) {
    const bool any = work.blocks() > 0;
    if (threadIdx.x < kRows) finish_row(work, threadIdx.x, any);
    if (any) give_back_p();
    meet_both();
    if (work.segment.partial < 0) {
      write();
    } else if constexpr (kRows == 64) {
      write_fp16(work);
    } else {
      write_fp32(work);
    }
  }

  /// The first row of a segment's partial result, counted among the rows of all.
  __device__ __forceinline__ std::int64_t partial_row(const sm90::Work& work) const {
    return sm90::first_partial_row<kRows>(args_, work);
  }

  /// Row n's lse, the final factor of its sums, and in sparse prefill its largest score.
  __device__ __forceinline__ void finish_row(const sm90::Work& work, int n, bool any) const {
    const BlockScales<kRows>& of = shared_.scales[place_.index()];
    const sm90::RowScale scale = any ? sm90::finish_row(of.base[n], of.sum[n]) : sm90::finish_row(0, 0);
    float factor = scale.factor * (args_.cache.scale == nullptr ? 1.0F : __ldg(args_.cache.scale));
    if (n < work.tile.rows) {
      if (work.segment.partial >= 0) {
        args_.partial.lse[partial_row(work) + n] = scale.lse;
      } else {
        const sm90::RowPlace<__nv_bfloat16>& to = shared_.row_place[n];
        *to.lse = sm90::final_lse(args_.output.empty_lse, scale.lse);
        if (args_.output.sink != nullptr) {
          factor *= sm90::sink_factor(scale.lse, __ldg(args_.output.sink + to.head));
        }
      }
    }
    shared_.factor[n] = factor;
    if constexpr (Config::kTurns) {
      if (n >= work.tile.rows) return;
      const float largest = any ? shared_.largest.of_row[place_.index()][n] : -INFINITY;
      sm90::write_max_logit(args_.max_logits, work.tile, shared_.row_place[n].head, largest, scale.lse);
    }
  }

  /// The final output.
  __device__ __forceinline__ void write() const {
    const int first = first_column();
    sm90::put_rows<Threads>(
        o_, [&](int n) { return shared_.row_place[n].out; }, [&](int n) { return shared_.factor[n]; },
        [&](__nv_bfloat16* out, int chunk, float a, float b) {
          *reinterpret_cast<std::uint32_t*>(out + first + chunk * 64) = sm90::pack<__nv_bfloat16>(a, b);
        });
  }

  /// A partial result (merge/partial.cuh).
  __device__ __forceinline__ void write_fp32(const sm90::Work& work) const {
    float* first = args_.partial.out + partial_row(work) * Config::kVDim + first_column();
    sm90::put_rows<Threads>(
        o_, [&](int n) { return n < work.tile.rows ? first + n * Config::kVDim : nullptr; },
        [&](int n) { return shared_.factor[n]; },
        [&](float* out, int chunk, float a, float b) {
          *reinterpret_cast<float2*>(out + chunk * 64) = make_float2(a, b);
        });
  }
  /// The same as fp16.
  __device__ __forceinline__ void write_fp16(const sm90::Work& work) const {
    const sm90::HalvesOfColumns<Threads, kOutputBarrier, Config::kPartChunks, kSums> halves(
        o_, me_, shared_.bounds, shared_.fp16_scale);
    halves.write(args_.partial, partial_row(work), work, shared_.factor);
  }

  SharedMemory<Config>& shared_;
  const sm90::DecodeArguments& args_;
  const int me_;
  RingPlace<Config::kSlots> slot_;    // of the next block
  RingPlace<Config::kPlaces> place_;  // of its P
  float o_[Config::kPartChunks][kSums];
};

}  // namespace flashlatent::mla_64_e4m3
