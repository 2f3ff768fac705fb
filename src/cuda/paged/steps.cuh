// A warp's steps through a segment: 16 tokens of keys and values from pages into its own ring of stages, by
// cp.async. Warps of a CTA take steps in turn and know nothing of each other until the segment's end.
#pragma once

#include "cuda/paged/arguments.cuh"
#include "cuda/paged/config.h"
#include "cuda/parts/kv_tokens.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/copy.cuh"

namespace flashlatent::paged {

/// What a warp works on: steps of 16 tokens, kWarps steps apart.
struct StepRange {
  parts::BlockRange tokens;  // entries, the request's length, its KV head
  int begin, end;            // tokens of the segment; begin is a multiple of 16
};

template <class Config>
class Loader {
 public:
  __device__ __forceinline__ Loader(const Arguments& args, std::uint8_t* stages)
      : args_(args), stages_(ptx::shared_address(stages)), lane_(threadIdx.x % 32) {}

  /// Asks for the 16 tokens from `token` on, into a stage. Tokens that do not count become zeros. Returns
  /// a bit for each that counts.
  __device__ __forceinline__ std::uint32_t request(const StepRange& range, int token, int stage) const {
    const parts::CacheArguments& cache = args_.decode.cache;
    const int own = token + lane_ % Config::kStepTokens;
    const int entry = own < range.end ? parts::entry_of(cache, range.tokens, own) : -1;
    const parts::TokenPlace place = parts::place_of(cache, entry, own);
    const std::uint32_t live = __ballot_sync(0xffffffff, place.page >= 0) & 0xffff;
    const std::uint32_t to = stages_ + stage * Config::kStageBytes;
    copy_rows(args_.keys, place, range.tokens.kv_head, live, to);
    if constexpr (Config::kPackedValues) {
      copy_packed(args_.values, place, range.tokens.kv_head, live, to + Config::kKeyBytes);
    } else {
      copy_rows(args_.values, place, range.tokens.kv_head, live, to + Config::kKeyBytes);
    }
    return live;
  }

 private:
  static constexpr int kUnits = Config::kDim * Config::kElementBytes / 16;  // of a token

  __device__ __forceinline__ static std::int64_t offset_of(const Plane& plane, parts::TokenPlace place,
                                                           int kv_head) {
    return place.page * plane.page_stride + place.token * plane.token_stride + kv_head * plane.head_stride;
  }

  /// A row a token. Neighbouring lanes copy neighbouring units.
  __device__ __forceinline__ void copy_rows(const Plane& plane, parts::TokenPlace place, int kv_head,
                                            std::uint32_t live, std::uint32_t to) const {
    const std::int64_t own = offset_of(plane, place, kv_head);
    const int units = args_.dim * Config::kElementBytes / 16;
    constexpr int kCopies = Config::kStepTokens * kUnits;
#pragma unroll
    for (int first = 0; first < kCopies; first += 32) {
      const int row = (first + lane_) / kUnits, unit = (first + lane_) % kUnits;
      const std::int64_t offset = __shfl_sync(0xffffffff, own, row);
      if (kCopies % 32 != 0 && first + lane_ >= kCopies) break;
      const bool reads = (live >> row & 1) != 0 && unit < units;
      const std::uint8_t* from = reads ? plane.data + offset + unit * plane.unit_stride : plane.data;
      ptx::copy_16_bytes_or_zeros(to + row * Config::kKeyRow + unit * 16, from, reads);
    }
  }

  /// A row an element: its 16 bytes hold 8 (fp8: 16) tokens, which are neighbours in a page.
  __device__ __forceinline__ void copy_packed(const Plane& plane, parts::TokenPlace place, int kv_head,
                                              std::uint32_t live, std::uint32_t to) const {
    constexpr int kRowUnits = Config::kStepTokens * Config::kElementBytes / 16;
    const std::int64_t own = offset_of(plane, place, kv_head);
    constexpr int kCopies = Config::kDim * kRowUnits;
#pragma unroll
    for (int first = 0; first < kCopies; first += 32) {
      const int row = (first + lane_) / kRowUnits, unit = (first + lane_) % kRowUnits;
      const int token = unit * Config::kUnitElements;
      const std::int64_t offset = __shfl_sync(0xffffffff, own, token);
      if (kCopies % 32 != 0 && first + lane_ >= kCopies) break;
      const bool reads = (live >> token & 1) != 0 && row < args_.dim;
      const std::uint8_t* from = reads ? plane.data + offset + row * plane.unit_stride : plane.data;
      ptx::copy_16_bytes_or_zeros(to + row * Config::kValueRow + unit * 16, from, reads);
    }
  }

  const Arguments& args_;
  const std::uint32_t stages_;
  const int lane_;
};

}  // namespace flashlatent::paged
