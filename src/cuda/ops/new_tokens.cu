// New tokens into a latent cache, normalised, rotated, quantised and stored: a CTA has a token, a thread a
// word of 8 of its columns (64 threads for 512 columns). A group's largest magnitude is found by shuffles,
// since a warp has 256 columns; only a norm's sum crosses warps. docs/kernels/new_tokens.md derives its time.
#include "cuda/ops/new_tokens.h"

#include "core/e2m1_scaled.h"
#include "core/scaled_e4m3.h"
#include "core/token_steps.h"
#include "core/ue8m0.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/launch.h"
#include "cuda/ops/places.cuh"
#include "cuda/ops/token_edges.cuh"

namespace flashlatent::cuda {

namespace new_token_kernels {

namespace {

using namespace token_edges;

constexpr int kMostThreads = edges::kMostColumns / kWord;

/// How elements are stored.
enum class Store { kPlain, kGroups, kOfCache, kE2m1 };

/// The tokens of the cache, in bytes.
struct Target {
  std::uint8_t* data;
  std::int64_t slots, page_stride, token_stride;
  std::int64_t scale_begin, scale_stride;  // from a page to its first token's scales, and to the next token's
  Divisor page_size;
  int scaled_columns, rope_offset, group_lanes, padding;
  int least_exponent;
  bool fp32_scales;
  bool fp16;     // plain
  bool vectors;  // may words be stored whole? Records are aligned, whatever the strides of their view
  const float* cache_scale;

  explicit Target(const RecordCache& cache)
      : data(static_cast<std::uint8_t*>(const_cast<void*>(cache.view.data))),
        slots(cache.view.shape[0] * cache.view.shape[1]),
        page_stride(cache.view.strides[0] * static_cast<std::int64_t>(size_of(cache.view.dtype))),
        token_stride(cache.view.strides[1] * static_cast<std::int64_t>(size_of(cache.view.dtype))),
        scale_begin(cache.format.scale_offset),
        scale_stride(token_stride),
        page_size(static_cast<int>(cache.view.shape[1])),
        scaled_columns(cache.format.scaled_dim()),
        rope_offset(cache.format.rope_offset),
        group_lanes(cache.format.group / kWord),
        padding(0),
        least_exponent(cache.least_exponent),
        fp32_scales(cache.format.scales == ScaleKind::kFp32),
        fp16(cache.view.dtype == Dtype::kF16),
        vectors(cache.format.is_record() || in_vectors(cache.view)),
        cache_scale(static_cast<const float*>(cache.scale.data)) {
    if (!cache.format.apart()) return;
    token_stride = cache.format.data_bytes;
    scale_begin = cache.view.shape[1] * cache.format.data_bytes;
    scale_stride = cache.format.scale_bytes;
    padding = cache.format.scale_bytes - cache.format.groups() * cache.format.bytes_a_scale();
  }
};

struct Arguments {
  const void *latent, *rope;                // `rope` is shifted so that its first column is number
                                            // `latent_columns`
  std::int64_t latent_stride, rope_stride;  // in elements
  int latent_columns, columns;
  bool vectors, table_vectors, norm_vectors;
  Integers slots;
  TokenSteps steps;
  Target target;
};

/// The place where a token is stored.
struct Place {
  std::uint8_t *data, *scales;

  __device__ __forceinline__ Place(const Target& target, std::int64_t slot) {
    const SlotPlace place(slot, target.page_size);
    std::uint8_t* page = target.data + place.page * target.page_stride;
    data = page + place.offset * target.token_stride;
    scales = page + target.scale_begin + place.offset * target.scale_stride;
  }
};

/// The sum over the CTA's threads; `room`: a number for each warp, used once.
__device__ __forceinline__ float sum_of_cta(float x, float* room) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) {
    x = edges::sum(x, __shfl_xor_sync(0xFFFFFFFF, x, apart));
  }
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) sum = edges::sum(sum, room[warp]);
  return sum;
}

template <Dtype kDtype>
__device__ __forceinline__ RawWord load_word_of(const Arguments& args, std::int64_t token, int column,
                                                bool vectors) {
  const bool rope = column >= args.latent_columns;
  const std::int64_t at = token * (rope ? args.rope_stride : args.latent_stride) + column;
  return RawWord(rope ? args.rope : args.latent, kDtype, at, vectors);
}

__device__ __forceinline__ void store_halves(std::uint8_t* to, bool fp16, bool vectors,
                                             const float (&x)[kWord]) {
  std::uint32_t pairs[kWord / 2];
  bool nan = false;
#pragma unroll
  for (int i = 0; i < kWord; i += 2) {
    pairs[i / 2] = halves_of(x[i], x[i + 1], fp16);
    nan = nan || isnan(x[i]) || isnan(x[i + 1]);
  }
  if (nan) {  // the host's
#pragma unroll
    for (int i = 0; i < kWord; ++i) {
      const int shift = 16 * (i % 2);
      if (isnan(x[i])) {
        pairs[i / 2] = (pairs[i / 2] & ~(0xFFFFU << shift)) | (fp16 ? 0x7E00U : 0x7FC0U) << shift;
      }
    }
  }
  store_word(to, 0, vectors, make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]));
}

/// Groups of e4m3 with scales that are powers of two; columns behind them are bf16.
__device__ __forceinline__ void store_groups(const Target& target, const Place& place, int column,
                                             bool active, const float (&x)[kWord]) {
  const bool scaled = active && column < target.scaled_columns;
  const float amax = group_largest(scaled ? word_largest(x) : 0.0F, target.group_lanes);
  if (scaled) {
    const int exponent = e4m3::scale_exponent(amax, target.least_exponent);
    store_codes(place.data + column, e4m3_word(x, exponent), true);
    const int word = column / kWord;
    if (word % target.group_lanes == 0) {
      const int group = word / target.group_lanes;
      if (target.fp32_scales) {
        reinterpret_cast<float*>(place.scales)[group] = e4m3::power_of_two(exponent);
      } else {
        place.scales[group] = ue8m0::scale_byte(exponent);
      }
    }
  } else if (active) {
    store_halves(place.data + target.rope_offset + (column - target.scaled_columns) * 2, false, true, x);
  }
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < target.padding) place.scales[target.scale_stride - 1 - thread] = 0;
}

/// Groups of 16 elements of e2m1 with scales of e4m3.
__device__ __forceinline__ void store_e2m1(const Place& place, int column, bool active,
                                           const float (&x)[kWord]) {
  const float amax = group_largest(word_largest(x), 2);
  if (!active) return;
  const std::uint8_t byte = e2m1::scale_byte(amax);
  const e2m1::ScaledCode code(e4m3::decode(byte));
  std::uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < kWord; ++i) codes |= code(x[i]) << 4 * i;
  *reinterpret_cast<std::uint32_t*>(place.data + column / 2) = codes;
  if (column % 16 == 0) place.scales[column / 16] = byte;
}

/// e4m3 with one scale for the cache.
__device__ __forceinline__ void store_of_cache(const Target& target, std::uint8_t* to, bool vectors,
                                               const float (&x)[kWord]) {
  const float scale = target.cache_scale == nullptr ? 1.0F : *target.cache_scale;
  std::uint32_t codes[2] = {};
#pragma unroll
  for (int i = 0; i < kWord; ++i) {
    codes[i / 4] |= std::uint32_t{fp8_656::encode_scaled(x[i], scale)} << 8 * (i % 4);
  }
  store_codes(to, make_uint2(codes[0], codes[1]), vectors);
}

/// What engines ask for: no mean, neighbours as pairs, everything aligned to 16 bytes. A separate kernel for
/// it has half of the code and registers.
bool is_common(const Arguments& args) {
  return args.vectors && args.table_vectors && args.norm_vectors && args.target.vectors &&
         args.steps.bias == nullptr && !args.steps.rotary.halves;
}

template <Dtype kDtype, Store kStore, bool kCommon>
__global__ void __launch_bounds__(kMostThreads) store_kernel(const __grid_constant__ Arguments args) {
  constexpr Dtype kRounded = kDtype == Dtype::kF16 ? Dtype::kF16 : Dtype::kBF16;
  __shared__ float sums[2][kMostThreads / 32];
  cudaTriggerProgrammaticLaunchCompletion();  // the next launch may take its place in the queue
  cudaGridDependencySynchronize();
  TokenSteps steps = args.steps;
  if constexpr (kCommon) steps.bias = nullptr, steps.rotary.halves = false;
  const edges::Rotary& rotary = steps.rotary;
  const bool vectors = kCommon || args.vectors, table_vectors = kCommon || args.table_vectors;
  const bool norm_vectors = kCommon || args.norm_vectors, target_vectors = kCommon || args.target.vectors;
  const std::int64_t token = blockIdx.x;
  const int column = static_cast<int>(threadIdx.x) * kWord;
  const bool active = column < args.columns;
  const int turned = steps.rotates() ? column - steps.first_rotated : -1;  // the column among rotated ones
  const bool rotates = active && turned >= 0;

  // All loads that depend on no other load.
  const std::int64_t slot = args.slots.at(token);
  const std::int64_t position = steps.has_positions() ? rotary.position(0, token) : 0;
  RawWord raw, raw_partner;
  NormWord norm, partner_norm;
  const int partner = rotates && rotary.halves ? column + rotary.partner_of(turned) - turned : -1;
  if (active) {
    raw = load_word_of<kDtype>(args, token, column, vectors);
    norm = NormWord(steps, column, norm_vectors);
  }
  if (partner >= 0) {
    raw_partner = load_word_of<kDtype>(args, token, partner, vectors);
    partner_norm = NormWord(steps, partner, norm_vectors);
  }
  if (slot < 0 || slot >= args.target.slots || (steps.has_positions() && !steps.stores(position))) return;
  AngleWord angles;
  if (rotates) angles = AngleWord(rotary, steps.rotated_by(position), turned, table_vectors);

  float x[kWord] = {}, partners[kWord] = {};
  raw.unpack(kDtype, x);
  raw_partner.unpack(kDtype, partners);
  if (steps.epsilon > 0) {
    const bool normed = column < steps.norm_columns;
    if (steps.bias != nullptr) {
      const float sum = sum_of_cta(normed ? word_sum(x) : 0.0F, sums[0]);
      const float mean = edges::mean_of(sum, steps.norm_columns);
#pragma unroll
      for (int i = 0; i < kWord; ++i) {
        if (normed) x[i] = edges::sum(x[i], -mean);
        if (partner >= 0 && partner < steps.norm_columns) partners[i] = edges::sum(partners[i], -mean);
      }
    }
    const float squares = sum_of_cta(normed ? word_squares(x) : 0.0F, sums[1]);
    const float factor = edges::norm_factor(squares, steps.norm_columns, steps.epsilon);
    if (normed) norm.apply(steps, factor, x);
    if (partner >= 0 && partner < steps.norm_columns) partner_norm.apply(steps, factor, partners);
  }
  if (kDtype == Dtype::kF32 || steps.epsilon > 0) {
    if (steps.rounds_normed) {
      round_word(kRounded, x);
      round_word(kRounded, partners);
    }
  }
  if (rotates) angles.rotate(rotary, turned, partners, x);

  const Place place(args.target, slot);
  if constexpr (kStore == Store::kPlain) {
    if (active) store_halves(place.data + column * 2, args.target.fp16, target_vectors, x);
  } else {
    if (steps.rounds_scaled && (kStore != Store::kGroups || column < args.target.scaled_columns)) {
      round_word(kRounded, x);
    }
    if constexpr (kStore == Store::kGroups) store_groups(args.target, place, column, active, x);
    if constexpr (kStore == Store::kE2m1) store_e2m1(place, column, active, x);
    if constexpr (kStore == Store::kOfCache) {
      if (active) store_of_cache(args.target, place.data + column, target_vectors, x);
    }
  }
}

template <Dtype kDtype, bool kCommon>
auto kernel_of(const LatentFormat& format) {
  if (format.plain()) return store_kernel<kDtype, Store::kPlain, kCommon>;
  if (format.scales == ScaleKind::kOfCache) return store_kernel<kDtype, Store::kOfCache, kCommon>;
  if (format.elements == Elements::kE2m1) return store_kernel<kDtype, Store::kE2m1, kCommon>;
  return store_kernel<kDtype, Store::kGroups, kCommon>;
}
template <Dtype kDtype>
auto kernel_of(const LatentFormat& format, bool common) {
  return common ? kernel_of<kDtype, true>(format) : kernel_of<kDtype, false>(format);
}

}  // namespace

}  // namespace new_token_kernels

Status append_new_tokens(const ConstTensorView& latent, const ConstTensorView& rope,
                         const ConstTensorView& slot_mapping, const RecordCache& cache,
                         const TokenEdges& edges, const Executor& executor) {
  using namespace new_token_kernels;
  if (cache.format.is_record()) FLASHLATENT_RETURN_IF_ERROR(check_record_aligned("kv_cache", cache));
  const bool has_rope = rope.present() && rope.shape[1] > 0;
  const std::int64_t columns = latent.shape[1] + (has_rope ? rope.shape[1] : 0);
  const edges::TokenSteps steps = edges::steps_of(
      edges, columns, latent.shape[1], edges::roundings_of(edges.rounding, latent.dtype, cache.format));
  const auto bytes = static_cast<std::int64_t>(size_of(latent.dtype));
  Arguments args{.latent = latent.data,
                 .rope = nullptr,
                 .latent_stride = latent.strides[0],
                 .rope_stride = 0,
                 .latent_columns = static_cast<int>(latent.shape[1]),
                 .columns = static_cast<int>(columns),
                 .vectors = in_vectors(latent) && (!has_rope || in_vectors(rope)),
                 .table_vectors = in_table_vectors(steps.rotary),
                 .norm_vectors = in_norm_vectors(steps),
                 .slots = Integers(slot_mapping),
                 .steps = steps,
                 .target = Target(cache)};
  if (has_rope) {
    args.rope = static_cast<const std::uint8_t*>(rope.data) - latent.shape[1] * bytes;
    args.rope_stride = rope.strides[0];
  }
  const std::int64_t tokens = slot_mapping.shape[0];
  if (tokens > kMostBlocks) return too_many_blocks(tokens);
  DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  const int words = static_cast<int>(columns) / kWord;
  const LaunchShape shape{
      .blocks = static_cast<int>(tokens), .threads = (words + 31) / 32 * 32, .overlaps_previous = true};
  const bool common = is_common(args);
  const auto kernel = latent.dtype == Dtype::kF32   ? kernel_of<Dtype::kF32>(cache.format, common)
                      : latent.dtype == Dtype::kF16 ? kernel_of<Dtype::kF16>(cache.format, common)
                                                    : kernel_of<Dtype::kBF16>(cache.format, common);
  return launch(kernel, shape, executor, args);
}

}  // namespace flashlatent::cuda
