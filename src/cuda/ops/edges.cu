// The edges of a layer (flashlatent/edges.h): a warp has a row, a head of a token. A lane has every 32nd word
// of 8 elements, so that 16 lanes have 128 columns and their scale, and 4 lanes have 32.
//
// Memory binds if all rows are in flight at once: so a lane has only as many registers as the row's width
// needs (kWords), and everything that a row needs, its angles included, is loaded before any of it is used.
#include "core/edge_rows.h"
#include "cuda/cuda_backend.h"
#include "cuda/ops/by_warps.h"
#include "cuda/ops/places.cuh"
#include "cuda/ops/token_edges.cuh"

namespace flashlatent::cuda {

namespace edge_kernels {

namespace {

using edges::Rotary;
using edges::Rows;
using token_edges::AngleWord;
using token_edges::kWord;

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kMostWords = edges::kMostColumns / kWord / 32;  // of a lane

/// The places of rows.
struct Places {
  const void* data;
  std::int64_t strides[3];

  explicit Places(const Rows& rows)
      : data(rows.data), strides{rows.strides[0], rows.strides[1], rows.strides[2]} {}
};

/// What a launch does with its rows.
struct EdgeArguments {
  Places from, to;  // `to` without data: rows are not written
  Rotary rotary;
  Divisor heads, tokens;
  int dim;
  bool vectors, table_vectors;  // are all rows aligned to 16 bytes? Those of the table?
  float norm;
  // FP8 output.
  std::uint8_t* codes;  // null: none
  void* scales;
  std::int64_t code_strides[2];  // of a token and of a group
  Divisor group_heads;
  int scale_lines;  // of 128 columns, in a group
  std::int64_t all_tokens, padded_tokens;
  bool fine;   // a scale for 32 columns
  bool tiles;  // columns are in OutputColumns::kTiles
};

struct RowPlace {
  int request, token, head;

  __device__ __forceinline__ RowPlace(const EdgeArguments& args, int row)
      : request(args.tokens.quotient(args.heads.quotient(row))),
        token(args.tokens.remainder(args.heads.quotient(row))),
        head(args.heads.remainder(row)) {}

  __device__ __forceinline__ std::uint8_t* in(const Places& places) const {
    const std::int64_t offset =
        request * places.strides[0] + token * places.strides[1] + head * places.strides[2];
    return const_cast<std::uint8_t*>(static_cast<const std::uint8_t*>(places.data)) + 2 * offset;
  }
};

template <class Element>
__device__ __forceinline__ void unpack(const uint4& word, float (&x)[kWord]) {
  const std::uint32_t pairs[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = to_float<Element>(static_cast<std::uint16_t>(pairs[i]));
    x[2 * i + 1] = to_float<Element>(static_cast<std::uint16_t>(pairs[i] >> 16));
  }
}
template <class Element>
__device__ __forceinline__ uint4 pack(const float (&x)[kWord]) {
  auto pair = [&](int i) {
    return from_float<Element>(x[2 * i]) | std::uint32_t{from_float<Element>(x[2 * i + 1])} << 16;
  };
  return make_uint4(pair(0), pair(1), pair(2), pair(3));
}

/// A lane's words of a row, in fp32: up to kWords. kHalves: rotated pairs lie half of the rotated columns
/// apart, so a word's partners are another lane's.
template <class Element, int kWords, bool kHalves>
class LaneRow {
 public:
  /// Reads the row, and for rotated words also their partners: the row may be written in place.
  __device__ __forceinline__ LaneRow(const EdgeArguments& args, const std::uint8_t* row, int lane)
      : args_(args), rotary_(with_halves(args.rotary)), lane_(lane), words_(args.dim / kWord) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int word = lane + 32 * i;
      if (word < words_) raw_[i] = load_word(row, word, args_.vectors);
      if constexpr (kHalves) {
        if (rotates(word)) raw_partners_[i] = load_word(row, partner(word), args_.vectors);
      }
    }
  }

  /// Loads the angles of `position`.
  __device__ __forceinline__ void find_angles(std::int64_t position) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int word = lane_ + 32 * i;
      if (rotates(word)) angles_[i] = AngleWord(rotary_, position, rotated(word), args_.table_vectors);
    }
  }

  /// Call after the loads that do not depend on the row have begun.
  __device__ __forceinline__ void unpack_words() {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      unpack<Element>(raw_[i], x_[i]);
      if constexpr (kHalves) unpack<Element>(raw_partners_[i], partners_[i]);
    }
  }

  __device__ __forceinline__ void normalise() {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if (lane_ + 32 * i >= words_) continue;
#pragma unroll
      for (float x : x_[i]) squares = edges::sum(squares, edges::product(x, x));
    }
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) {
      squares = edges::sum(squares, __shfl_xor_sync(0xffffffff, squares, apart));
    }
    const float factor = edges::norm_factor(squares, args_.dim, args_.norm);
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
#pragma unroll
      for (int j = 0; j < kWord; ++j) {
        x_[i][j] = edges::product(x_[i][j], factor);
        if constexpr (kHalves) partners_[i][j] = edges::product(partners_[i][j], factor);
      }
    }
  }

  __device__ __forceinline__ void rotate() {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int word = lane_ + 32 * i;
      if (rotates(word)) angles_[i].rotate(rotary_, rotated(word), partners_[kHalves ? i : 0], x_[i]);
    }
  }

  __device__ __forceinline__ void write(std::uint8_t* row) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int word = lane_ + 32 * i;
      if (word < words_) store_word(row, word, args_.vectors, pack<Element>(x_[i]));
    }
  }

  /// The row's codes and scales. `token` counts those of all requests.
  __device__ __forceinline__ void cast(int token, int head) const {
    const int group = args_.group_heads.quotient(head), in_group = args_.group_heads.remainder(head);
    std::uint8_t* codes = args_.codes + token * args_.code_strides[0] + group * args_.code_strides[1];
    const int lanes = args_.fine ? edges::kFineColumns / kWord : edges::kScaleColumns / kWord;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int word = lane_ + 32 * i;
      if (32 * i >= words_) break;
      const float amax =
          token_edges::group_largest(word < words_ ? token_edges::word_largest(x_[i]) : 0.0F, lanes);
      if (word >= words_) continue;
      const int exponent = edges::output_exponent(amax);
      const int column = args_.tiles ? tiled_column(word, in_group) : in_group * args_.dim + word * kWord;
      std::uint8_t* to = codes + column;
      token_edges::store_codes(to, token_edges::e4m3_word(x_[i], exponent),
                               reinterpret_cast<std::uintptr_t>(to) % kWord == 0);
      if (lane_ % lanes != 0) continue;
      const int line = column / edges::kScaleColumns;
      const std::int64_t at = (std::int64_t{group} * args_.scale_lines + line) * args_.padded_tokens + token;
      if (args_.fine) {
        static_cast<std::uint8_t*>(args_.scales)[4 * at + column / edges::kFineColumns % 4] =
            static_cast<std::uint8_t>(exponent + 127);
      } else {
        static_cast<float*>(args_.scales)[at] = e4m3::power_of_two(exponent);
      }
    }
  }

 private:
  __device__ __forceinline__ static Rotary with_halves(Rotary rotary) {
    rotary.halves = kHalves;
    return rotary;
  }
  /// Where the word of the group's head `in_group` begins, in OutputColumns::kTiles.
  __device__ __forceinline__ int tiled_column(int word, int in_group) const {
    constexpr int kTileWords = edges::kFineColumns / kWord;
    const int tile = word / kTileWords * args_.group_heads.value + in_group;
    return tile * edges::kFineColumns + word % kTileWords * kWord;
  }
  /// The word's first column among the rotated ones; negative: it has none.
  __device__ __forceinline__ int rotated(int word) const {
    return word * kWord - (args_.dim - args_.rotary.columns);
  }
  __device__ __forceinline__ bool rotates(int word) const {
    return args_.rotary.positions != nullptr && word < words_ && rotated(word) >= 0;
  }
  __device__ __forceinline__ int partner(int word) const {
    return word + (args_.rotary.partner_of(rotated(word)) - rotated(word)) / kWord;
  }
  const EdgeArguments& args_;
  const Rotary rotary_;  // args_.rotary, with kHalves
  const int lane_, words_;
  uint4 raw_[kWords] = {};
  uint4 raw_partners_[kHalves ? kWords : 1] = {};
  AngleWord angles_[kWords];
  float x_[kWords][kWord];
  float partners_[kHalves ? kWords : 1][kWord] = {};
};

/// Scales behind the last token become 0: one warp for each line of 128 columns.
__device__ __forceinline__ void clear_padding(const EdgeArguments& args, std::int64_t line, int lane) {
  const std::int64_t token = args.all_tokens + lane;
  if (token < args.padded_tokens) {
    static_cast<std::uint32_t*>(args.scales)[line * args.padded_tokens + token] = 0;
  }
}

template <class Element, int kWords, bool kHalves>
__global__ void __launch_bounds__(kThreads)
    edge_kernel(const __grid_constant__ EdgeArguments args, int rows, int items) {
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();  // the next launch may take its place in the queue
  const std::int64_t item = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (item >= items) return;
  if (item >= rows) return clear_padding(args, item - rows, lane);
  const RowPlace place(args, static_cast<int>(item));
  LaneRow<Element, kWords, kHalves> row(args, place.in(args.from), lane);
  const bool rotates = args.rotary.positions != nullptr;
  if (rotates) row.find_angles(args.rotary.position(place.request, place.token));
  row.unpack_words();
  __syncwarp();  // the whole row is read before it is written in place
  if (args.norm > 0) row.normalise();
  if (rotates) row.rotate();
  if (args.codes != nullptr) row.cast(place.request * args.tokens.value + place.token, place.head);
  if (args.to.data != nullptr) row.write(place.in(args.to));
}

EdgeArguments arguments_of(const ConstTensorView& from, const ConstTensorView& to, const Rotary& rotary,
                           float norm) {
  const Rows rows(from);
  return {.from = Places(rows),
          .to = Places(Rows(to)),
          .rotary = rotary,
          .heads = Divisor(static_cast<int>(rows.heads)),
          .tokens = Divisor(static_cast<int>(rows.tokens)),
          .dim = rows.dim,
          .vectors = in_vectors(from) && in_vectors(to),
          .table_vectors = token_edges::in_table_vectors(rotary),
          .norm = norm,
          .codes = nullptr,
          .scales = nullptr,
          .code_strides = {},
          .group_heads = Divisor(1),
          .scale_lines = 0,
          .all_tokens = 0,
          .padded_tokens = 0,
          .fine = false,
          .tiles = false};
}

Status launch_rows(const EdgeArguments& args, Dtype dtype, std::int64_t rows, std::int64_t lines,
                   const Executor& executor) {
  if (rows + lines > kMostBlocks) return too_many_blocks(rows + lines);
  DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  const int items = static_cast<int>(rows + lines);
  const LaunchShape shape{.blocks = (items - 1) / kWarps + 1, .threads = kThreads, .overlaps_previous = true};
  const bool bf16 = dtype == Dtype::kBF16, halves = args.rotary.positions != nullptr && args.rotary.halves;
  auto launch_words = [&](auto words) {
    constexpr int kWords = decltype(words)::value;
    using Bf16 = __nv_bfloat16;
    auto* kernel = bf16 ? (halves ? edge_kernel<Bf16, kWords, true> : edge_kernel<Bf16, kWords, false>)
                        : (halves ? edge_kernel<__half, kWords, true> : edge_kernel<__half, kWords, false>);
    return launch(kernel, shape, executor, args, static_cast<int>(rows), items);
  };
  const int words = (args.dim - 1) / (kWord * 32) + 1;
  if (words == 1) return launch_words(std::integral_constant<int, 1>{});
  if (words == 2) return launch_words(std::integral_constant<int, 2>{});
  return launch_words(std::integral_constant<int, kMostWords>{});
}

}  // namespace

}  // namespace edge_kernels

Status prepare_queries(const ConstTensorView& q, float norm, const Rotation& rotate, const TensorView& out,
                       const Executor& executor) {
  using namespace edge_kernels;
  const EdgeArguments args = arguments_of(q, out, edges::rotary_of(rotate, /*back=*/false), norm);
  return launch_rows(args, q.dtype, edges::Rows(q).count(), 0, executor);
}

Status finish_outputs(const ConstTensorView& out, const Rotation& rotate, const TensorView& rotated,
                      const Fp8Output& fp8, const Executor& executor) {
  using namespace edge_kernels;
  EdgeArguments args = arguments_of(out, rotated, edges::rotary_of(rotate, /*back=*/true), 0);
  std::int64_t lines = 0;
  if (fp8.present()) {
    const std::int64_t groups = fp8.codes.shape[1];
    args.codes = static_cast<std::uint8_t*>(fp8.codes.data);
    args.scales = fp8.scales.data;
    args.code_strides[0] = fp8.codes.strides[0];
    args.code_strides[1] = fp8.codes.strides[1];
    args.group_heads = Divisor(static_cast<int>(edges::Rows(out).heads / groups));
    args.scale_lines = static_cast<int>(fp8.scales.shape[1]);
    args.all_tokens = fp8.codes.shape[0];
    args.padded_tokens = fp8.scales.shape[2];
    args.fine = fp8.scales.dtype == Dtype::kI32;
    args.tiles = fp8.columns == OutputColumns::kTiles;
    lines = args.padded_tokens > args.all_tokens ? groups * args.scale_lines : 0;
  }
  return launch_rows(args, out.dtype, edges::Rows(out).count(), lines, executor);
}

}  // namespace flashlatent::cuda
