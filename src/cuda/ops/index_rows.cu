// Index keys and index queries, normalised, rotated and quantised: 16 threads have a row of 128 columns, each
// a word of 8.
#include "core/e2m1.h"
#include "core/index_call.h"
#include "core/token_steps.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/launch.h"
#include "cuda/index_backend.h"
#include "cuda/ops/places.cuh"
#include "cuda/ops/token_edges.cuh"

namespace flashlatent::cuda {

namespace index_row_kernels {

namespace {

using namespace token_edges;

constexpr int kDim = index_keys::kDim, kLanes = kDim / kWord;
constexpr int kThreads = 128, kRows = kThreads / kLanes;
constexpr int kGroupLanes = index_keys::kGroup / kWord;

/// Where a row's codes and scales go.
struct Place {
  std::uint8_t *codes, *scales;
  bool vectors;  // are codes aligned to 8 bytes?
};

/// Quantises a lane's word. All lanes of a warp call it; `active` ones store. Returns the exponent of the
/// scale of e4m3.
template <IndexFormat kFormat>
__device__ __forceinline__ int store_row(const Place& place, int lane, bool active, bool scale_too,
                                         const float (&x)[kWord]) {
  if constexpr (kFormat == IndexFormat::kFp8_132) {
    const int exponent = e4m3::scale_exponent(group_largest(word_largest(x), kLanes), e4m3::kLeastOfAmax);
    if (active) store_codes(place.codes + lane * kWord, e4m3_word(x, exponent), place.vectors);
    if (active && scale_too && lane == 0)
      *reinterpret_cast<float*>(place.scales) = e4m3::power_of_two(exponent);
    return exponent;
  } else {
    const int exponent = index_keys::mxfp4_exponent(group_largest(word_largest(x), kGroupLanes));
    const float inverse = e4m3::power_of_two(-exponent);
    std::uint32_t codes = 0;
#pragma unroll
    for (int i = 0; i < kWord; ++i) {
      codes |= std::uint32_t{e2m1::encode(e4m3::is_finite(x[i]) ? x[i] * inverse : 0.0F)} << 4 * i;
    }
    const unsigned finite = __ballot_sync(0xFFFFFFFF, word_finite(x));
    if (!active) return exponent;
    std::uint8_t* to = place.codes + lane * kWord / 2;
    if (place.vectors) {
      *reinterpret_cast<std::uint32_t*>(to) = codes;
    } else {
#pragma unroll
      for (int i = 0; i < kWord / 2; ++i) to[i] = static_cast<std::uint8_t>(codes >> 8 * i);
    }
    if (lane % kGroupLanes == 0) {
      constexpr unsigned kAll = (1U << kGroupLanes) - 1;
      const bool all_finite = (finite >> threadIdx.x % 32 & kAll) == kAll;
      place.scales[lane / kGroupLanes] = all_finite ? static_cast<std::uint8_t>(exponent + 127) : 0xFF;
    }
    return exponent;
  }
}

/// The sum over a row's lanes.
__device__ __forceinline__ float sum_of_row(float x) {
#pragma unroll
  for (int apart = kLanes / 2; apart > 0; apart /= 2) {
    x = edges::sum(x, __shfl_xor_sync(0xFFFFFFFF, x, apart));
  }
  return x;
}

struct KeyArguments {
  const void* keys;
  std::int64_t stride, count;
  bool vectors, table_vectors, norm_vectors;
  Integers slots;
  TokenSteps steps;
  std::uint8_t* cache;
  std::int64_t page_stride, cache_slots;
  Divisor page_size;
};

/// kVectors: all is aligned to 16 bytes, which saves half of the code.
template <Dtype kDtype, IndexFormat kFormat, bool kVectors>
__global__ void __launch_bounds__(kThreads) key_kernel(const __grid_constant__ KeyArguments args) {
  constexpr Dtype kRounded = kDtype == Dtype::kF16 ? Dtype::kF16 : Dtype::kBF16;
  cudaTriggerProgrammaticLaunchCompletion();  // the next launch may take its place in the queue
  cudaGridDependencySynchronize();
  const TokenSteps& steps = args.steps;
  const edges::Rotary& rotary = steps.rotary;
  const bool vectors = kVectors || args.vectors, table_vectors = kVectors || args.table_vectors;
  const bool norm_vectors = kVectors || args.norm_vectors;
  const std::int64_t key = std::int64_t{blockIdx.x} * kRows + threadIdx.x / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes, column = lane * kWord;
  const bool exists = key < args.count;
  const int turned = column - steps.first_rotated;  // the column among rotated ones
  const bool rotates = steps.rotates() && turned >= 0 && turned < rotary.columns;
  const int partner = rotates && rotary.halves ? column + rotary.partner_of(turned) - turned : -1;

  std::int64_t slot = -1, position = 0;
  RawWord raw, raw_partner;
  const NormWord norm(steps, column, norm_vectors);
  NormWord partner_norm;
  if (exists) {
    slot = args.slots.at(key);
    if (steps.has_positions()) position = rotary.position(0, key);
    raw = RawWord(args.keys, kDtype, key * args.stride + column, vectors);
    if (partner >= 0) {
      raw_partner = RawWord(args.keys, kDtype, key * args.stride + partner, vectors);
      partner_norm = NormWord(steps, partner, norm_vectors);
    }
  }
  const bool active =
      slot >= 0 && slot < args.cache_slots && (!steps.has_positions() || steps.stores(position));
  if (!__any_sync(0xFFFFFFFF, active)) return;
  AngleWord angles;
  if (active && rotates) angles = AngleWord(rotary, steps.rotated_by(position), turned, table_vectors);

  float x[kWord], partners[kWord];
  raw.unpack(kDtype, x);
  raw_partner.unpack(kDtype, partners);
  if (steps.epsilon > 0) {
    if (steps.bias != nullptr) {
      const float mean = edges::mean_of(sum_of_row(word_sum(x)), kDim);
#pragma unroll
      for (int i = 0; i < kWord; ++i) {
        x[i] = edges::sum(x[i], -mean);
        partners[i] = edges::sum(partners[i], -mean);
      }
    }
    const float factor = edges::norm_factor(sum_of_row(word_squares(x)), kDim, steps.epsilon);
    norm.apply(steps, factor, x);
    partner_norm.apply(steps, factor, partners);
  }
  if (steps.rounds_normed) {
    round_word(kRounded, x);
    round_word(kRounded, partners);
  }
  if (active && rotates) angles.rotate(rotary, turned, partners, x);
  if (steps.rounds_scaled) round_word(kRounded, x);

  Place place{nullptr, nullptr, true};
  if (active) {
    const SlotPlace at(slot, args.page_size);
    std::uint8_t* page = args.cache + at.page * args.page_stride;
    place.codes = page + index_keys::data_offset(kFormat, at.offset);
    place.scales = page + index_keys::scale_offset(kFormat, args.page_size.value, at.offset);
  }
  store_row<kFormat>(place, lane, active, true, x);
}

/// A number for each head, and rows of bytes for each; strides of a request, a token, a head.
struct HeadPlaces {
  std::uint8_t* data;
  std::int64_t strides[3];

  HeadPlaces(const void* begin, const std::int64_t (&of)[3])
      : data(static_cast<std::uint8_t*>(const_cast<void*>(begin))), strides{of[0], of[1], of[2]} {}
  __device__ __forceinline__ std::int64_t offset(int request, int token, int head) const {
    return request * strides[0] + token * strides[1] + head * strides[2];
  }
};

struct QueryArguments {
  HeadPlaces q, weights, codes, scales, out_weights;
  Dtype weight_dtype;
  bool vectors, table_vectors, code_vectors;
  Divisor heads, tokens;
  int rows, first_rotated;
  edges::Rotary rotary;
  edges::IndexFactors factors;
};

__device__ __forceinline__ float weight_at(const QueryArguments& args, std::int64_t at) {
  if (args.weight_dtype == Dtype::kF32) return reinterpret_cast<const float*>(args.weights.data)[at];
  return half_number(reinterpret_cast<const std::uint16_t*>(args.weights.data)[at],
                     args.weight_dtype == Dtype::kBF16);
}

template <Dtype kDtype, IndexFormat kFormat>
__global__ void __launch_bounds__(kThreads) query_kernel(const __grid_constant__ QueryArguments args) {
  cudaTriggerProgrammaticLaunchCompletion();  // the next launch may take its place in the queue
  cudaGridDependencySynchronize();
  const edges::Rotary& rotary = args.rotary;
  const std::int64_t item = std::int64_t{blockIdx.x} * kRows + threadIdx.x / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes, column = lane * kWord;
  const bool active = item < args.rows;
  const int row = active ? static_cast<int>(item) : 0;
  const int head = args.heads.remainder(row), all_tokens = args.heads.quotient(row);
  const int request = args.tokens.quotient(all_tokens), token = args.tokens.remainder(all_tokens);
  const int turned = column - args.first_rotated;
  const bool rotates = rotary.table != nullptr && turned >= 0 && turned < rotary.columns;

  const std::int64_t begin = args.q.offset(request, token, head);
  const std::int64_t position = rotates ? rotary.position(request, token) : 0;
  const RawWord raw(args.q.data, kDtype, begin + column, args.vectors);
  RawWord raw_partner;
  if (rotates && rotary.halves) {
    raw_partner =
        RawWord(args.q.data, kDtype, begin + column + rotary.partner_of(turned) - turned, args.vectors);
  }
  const float weight = lane == 0 ? weight_at(args, args.weights.offset(request, token, head)) : 0.0F;
  float x[kWord];
  raw.unpack(kDtype, x);
  if (rotates) {
    const AngleWord angles(rotary, position, turned, args.table_vectors);
    float partners[kWord];
    raw_partner.unpack(kDtype, partners);
    angles.rotate(rotary, turned, partners, x);
    round_word(kDtype, x);
  }
  const Place place{args.codes.data + args.codes.offset(request, token, head),
                    args.scales.data + args.scales.offset(request, token, head), args.code_vectors};
  const int exponent = store_row<kFormat>(place, lane, active, false, x);
  if (!active || lane != 0) return;
  const float scale = kFormat == IndexFormat::kFp8_132 ? e4m3::power_of_two(exponent) : 1.0F;
  reinterpret_cast<float*>(args.out_weights.data)[args.out_weights.offset(request, token, head)] =
      edges::scaled_weight(weight, scale, args.factors.dim, args.factors.heads);
}

template <Dtype kDtype, bool kVectors>
auto key_kernel_of(IndexFormat format) {
  return format == IndexFormat::kFp8_132 ? key_kernel<kDtype, IndexFormat::kFp8_132, kVectors>
                                         : key_kernel<kDtype, IndexFormat::kMxfp4_68, kVectors>;
}
template <Dtype kDtype>
auto key_kernel_of(IndexFormat format, const KeyArguments& args) {
  return args.vectors && args.table_vectors && args.norm_vectors ? key_kernel_of<kDtype, true>(format)
                                                                 : key_kernel_of<kDtype, false>(format);
}
template <Dtype kDtype>
auto query_kernel_of(IndexFormat format) {
  return format == IndexFormat::kFp8_132 ? query_kernel<kDtype, IndexFormat::kFp8_132>
                                         : query_kernel<kDtype, IndexFormat::kMxfp4_68>;
}

template <class Kernel, class Arguments>
Status launch_rows(Kernel kernel, std::int64_t rows, const Executor& executor, const Arguments& args) {
  const std::int64_t blocks = (rows - 1) / kRows + 1;
  if (blocks > kMostBlocks || rows > kMostBlocks) return too_many_blocks(blocks);
  DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  const LaunchShape shape{.blocks = static_cast<int>(blocks), .threads = kThreads, .overlaps_previous = true};
  return launch(kernel, shape, executor, args);
}

}  // namespace

}  // namespace index_row_kernels

Status append_index_keys(const ConstTensorView& keys, const ConstTensorView& slot_mapping,
                         const TensorView& index_cache, IndexFormat format, int page_size,
                         const Executor& executor, const TokenEdges& edges) {
  using namespace index_row_kernels;
  const edges::TokenSteps steps =
      edges::steps_of(edges, kDim, kDim, edges::roundings_of(edges.rounding, keys.dtype));
  const KeyArguments args{.keys = keys.data,
                          .stride = keys.strides[0],
                          .count = slot_mapping.shape[0],
                          .vectors = in_vectors(keys),
                          .table_vectors = in_table_vectors(steps.rotary),
                          .norm_vectors = in_norm_vectors(steps),
                          .slots = Integers(slot_mapping),
                          .steps = steps,
                          .cache = static_cast<std::uint8_t*>(index_cache.data),
                          .page_stride = index_cache.strides[0],
                          .cache_slots = index_cache.shape[0] * page_size,
                          .page_size = Divisor(page_size)};
  const auto kernel = keys.dtype == Dtype::kF32   ? key_kernel_of<Dtype::kF32>(format, args)
                      : keys.dtype == Dtype::kF16 ? key_kernel_of<Dtype::kF16>(format, args)
                                                  : key_kernel_of<Dtype::kBF16>(format, args);
  return launch_rows(kernel, args.count, executor, args);
}

Status quantize_index_queries(const ConstTensorView& q, const ConstTensorView& weights,
                              const Rotation& rotate, RotaryColumns columns, IndexFormat format,
                              const IndexQueries& out, const Executor& executor) {
  using namespace index_row_kernels;
  const edges::Rows rows(q), codes{ConstTensorView(out.codes)}, scales{ConstTensorView(out.scales)};
  const edges::HeadNumbers given(weights), scaled{ConstTensorView(out.weights)};
  const edges::Rotary rotary = edges::rotary_of(rotate, /*back=*/false);
  const QueryArguments args{.q = {q.data, rows.strides},
                            .weights = {weights.data, given.strides},
                            .codes = {out.codes.data, codes.strides},
                            .scales = {out.scales.data, scales.strides},
                            .out_weights = {out.weights.data, scaled.strides},
                            .weight_dtype = weights.dtype,
                            .vectors = in_vectors(q),
                            .table_vectors = in_table_vectors(rotary),
                            .code_vectors = in_vectors(out.codes, kWord),
                            .heads = Divisor(static_cast<int>(rows.heads)),
                            .tokens = Divisor(static_cast<int>(rows.tokens)),
                            .rows = static_cast<int>(rows.count()),
                            .first_rotated = columns == RotaryColumns::kLast ? kDim - rotary.columns : 0,
                            .rotary = rotary,
                            .factors = edges::IndexFactors(rows.heads)};
  const auto kernel =
      q.dtype == Dtype::kF16 ? query_kernel_of<Dtype::kF16>(format) : query_kernel_of<Dtype::kBF16>(format);
  return launch_rows(kernel, rows.count(), executor, args);
}

}  // namespace flashlatent::cuda
