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

  /// Announces the 16 tokens from `token` on: their entries come from memory by the time of request().
  __device__ __forceinline__ void look_up(const StepRange& range, int token) {
    const int own = token + lane_ % Config::kStepTokens;
    entry_ = own < range.end ? parts::entry_of(args_.decode.cache, range.tokens, own) : -1;
  }

  /// Asks for the 16 tokens from `token` on, which look_up() has announced, into a stage. Tokens that do not
  /// count become zeros. Returns a bit for each that counts.
  __device__ __forceinline__ std::uint32_t request(const StepRange& range, int token, int stage) const {
    const parts::CacheArguments& cache = args_.decode.cache;
    const parts::TokenPlace place = parts::place_of(cache, entry_, token + lane_ % Config::kStepTokens);
    const std::uint32_t live = __ballot_sync(0xffffffff, place.page >= 0) & 0xffff;
    const std::uint32_t keys = stages_ + stage * Config::kStageBytes;
    const std::uint32_t values = keys + Config::kKeyBytes;
    const std::int64_t key = offset_of(args_.keys, place, range.tokens.kv_head);
    const std::int64_t value = offset_of(args_.values, place, range.tokens.kv_head);
    if (live == 0xffff && args_.runs) {
      copy_runs(key, value, keys, values);
    } else {
      copy_rows(args_.keys, key, live, keys);
      if constexpr (Config::kPackedValues) {
        copy_packed(args_.values, value, live, values);
      } else {
        copy_rows(args_.values, value, live, values);
      }
    }
    return live;
  }

 private:
  static constexpr int kUnits = Config::kDim * Config::kElementBytes / 16;            // of a token
  static constexpr int kRowUnits = Config::kStepTokens * Config::kElementBytes / 16;  // packed: of an element
  static constexpr int kRun = 8;

  __device__ __forceinline__ static std::int64_t offset_of(const Plane& plane, parts::TokenPlace place,
                                                           int kv_head) {
    return place.page * plane.page_stride + place.token * plane.token_stride + kv_head * plane.head_stride;
  }

  /// Units of 16 bytes that a token has; the rest of kUnits is padding.
  __device__ __forceinline__ int units() const { return args_.dim * Config::kElementBytes / 16; }

  /// All 16 tokens count, and each eight lie one after another: addresses are sums (25 instructions a copy
  /// otherwise, which kept memory waiting).
  __device__ __forceinline__ void copy_runs(std::int64_t key, std::int64_t value, std::uint32_t keys,
                                            std::uint32_t values) const {
    const std::int64_t key_runs[2] = {__shfl_sync(0xffffffff, key, 0), __shfl_sync(0xffffffff, key, kRun)};
    const std::int64_t value_runs[2] = {__shfl_sync(0xffffffff, value, 0),
                                        __shfl_sync(0xffffffff, value, kRun)};
    if constexpr (Config::kPackedValues) {
      copy_packed_keys(args_.keys, key_runs, keys);
      copy_packed_values(args_.values, value_runs, values);
    } else {
      copy_run_rows(args_.keys, key_runs, keys);
      copy_run_rows(args_.values, value_runs, values);
    }
  }

  /// A row a token. Neighbouring lanes copy neighbouring units.
  __device__ __forceinline__ void copy_run_rows(const Plane& plane, const std::int64_t (&runs)[2],
                                                std::uint32_t to) const {
    constexpr int kRows = 32 / kUnits;  // a copy
    const int row = lane_ / kUnits, unit = lane_ % kUnits;
    to += row * Config::kKeyRow + unit * 16;
    const std::uint8_t* from = plane.data + row * plane.token_stride + unit * plane.unit_stride;
#pragma unroll
    for (int run = 0; run < 2; ++run) {
      const std::uint8_t* at = from + runs[run];
#pragma unroll
      for (int i = run * kRun; i < (run + 1) * kRun; i += kRows) {
        ptx::copy_16_bytes_or_zeros(to + i * Config::kKeyRow, at, unit < units());
        at += kRows * plane.token_stride;
      }
    }
  }

  /// The same from packed keys, where neighbours are the tokens of a unit.
  __device__ __forceinline__ void copy_packed_keys(const Plane& plane, const std::int64_t (&runs)[2],
                                                   std::uint32_t to) const {
    const int token = lane_ % Config::kStepTokens, unit = lane_ / Config::kStepTokens;
    const std::uint8_t* from = plane.data + (token < kRun ? runs[0] : runs[1]) +
                               token % kRun * plane.token_stride + unit * plane.unit_stride;
    to += token * Config::kKeyRow + unit * 16;
#pragma unroll
    for (int i = 0; i < kUnits / 2; ++i) {
      ptx::copy_16_bytes_or_zeros(to + i * 32, from, 2 * i + unit < units());
      from += 2 * plane.unit_stride;
    }
  }

  /// A row an element: its 16 bytes hold 8 (fp8: 16) tokens.
  __device__ __forceinline__ void copy_packed_values(const Plane& plane, const std::int64_t (&runs)[2],
                                                     std::uint32_t to) const {
    constexpr int kRows = 32 / kRowUnits;  // a copy
    const int row = lane_ / kRowUnits, unit = lane_ % kRowUnits;
    const std::uint8_t* from = plane.data + (unit == 0 ? runs[0] : runs[1]) + row * plane.unit_stride;
    // A copy's rows are a multiple of 8: where a unit lies does not change from one copy to the next.
    to += row * Config::kValueRow + Config::packed_unit(row, unit) * 16;
#pragma unroll
    for (int i = 0; i < Config::kDim / kRows; ++i) {
      ptx::copy_16_bytes_or_zeros(to + i * kRows * Config::kValueRow, from, i * kRows + row < args_.dim);
      from += kRows * plane.unit_stride;
    }
  }

  /// Any tokens: a row each. Neighbouring lanes copy neighbouring units.
  __device__ __forceinline__ void copy_rows(const Plane& plane, std::int64_t own, std::uint32_t live,
                                            std::uint32_t to) const {
    constexpr int kCopies = Config::kStepTokens * kUnits;
#pragma unroll
    for (int first = 0; first < kCopies; first += 32) {
      const int row = (first + lane_) / kUnits, unit = (first + lane_) % kUnits;
      const std::int64_t offset = __shfl_sync(0xffffffff, own, row);
      const bool reads = (live >> row & 1) != 0 && unit < units();
      const std::uint8_t* from = reads ? plane.data + offset + unit * plane.unit_stride : plane.data;
      ptx::copy_16_bytes_or_zeros(to + row * Config::kKeyRow + unit * 16, from, reads);
    }
  }

  /// Any tokens, a row an element; those of a row's 16 bytes are neighbours in a page.
  __device__ __forceinline__ void copy_packed(const Plane& plane, std::int64_t own, std::uint32_t live,
                                              std::uint32_t to) const {
    constexpr int kCopies = Config::kDim * kRowUnits;
#pragma unroll
    for (int first = 0; first < kCopies; first += 32) {
      const int row = (first + lane_) / kRowUnits, unit = (first + lane_) % kRowUnits;
      const int token = unit * Config::kUnitElements;
      const std::int64_t offset = __shfl_sync(0xffffffff, own, token);
      const bool reads = (live >> token & 1) != 0 && row < args_.dim;
      const std::uint8_t* from = reads ? plane.data + offset + row * plane.unit_stride : plane.data;
      ptx::copy_16_bytes_or_zeros(to + row * Config::kValueRow + Config::packed_unit(row, unit) * 16, from,
                                  reads);
    }
  }

  const Arguments& args_;
  const std::uint32_t stages_;
  const int lane_;
  int entry_ = -1;  // of this lane's token of the step that comes next
};

}  // namespace flashlatent::paged
