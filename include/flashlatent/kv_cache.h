// Operations on paged KV caches: append, convert (quantise, dequantise), gather, copy pages. They are
// enqueued on the executor's stream and allocate no device memory.
//
// A cache has one of these forms, which its dtype and last dimension tell apart:
//   bf16, fp16  (pages, page_size, h_kv, d)
//   fp8_656     uint8 (pages, page_size, 1, 656)
//   fp8_584     uint8 (pages, page_size, 1, 584), a view of whole pages (fp8_584_pages())
//   e4m3        uint8 (pages, page_size, 1, 576 or 512); its scale, fp32 (1), is an argument, 1 where absent
// Tensors are on the executor's device. The innermost stride is 1; other strides are free. What is read and
// what is written do not overlap: views are compared by the addresses that they cover, and views with the
// same strides may be interleaved (layers of one tensor, keys beside values).
// Errors: kInvalidArgument (a tensor that does not fit, by name, with what would), kUnavailable, kInternal (a
// launch failed).
//
// All backends round to the same bits. fp8_656: a group of 128 elements has the scale 2^ceil(log2(max(amax /
// 448, 1e-4))), where amax is the largest magnitude of its finite elements. Elements are rounded to the
// nearest e4m3, ties to even. NaN and infinity become NaN (0x7F), since e4m3 has no infinity. fp8_584: the
// same for groups of 64; the byte behind a token's scales becomes 0, and bytes between pages are left alone.
// e4m3: an element is x / scale, rounded in the same way; magnitudes beyond 448 become 448, NaN and infinity
// become NaN.
#pragma once

#include "flashlatent/backend.h"
#include "flashlatent/status.h"
#include "flashlatent/tensor.h"

namespace flashlatent {

/// The least bytes from one fp8_584 page of `page_size` tokens to the next: 584 bytes a token, rounded up to
/// a multiple of 576.
std::int64_t least_page_stride_584(std::int64_t page_size);

/// A view (pages, page_size, 1, 584) of an fp8_584 cache's bytes, uint8 (pages, page_bytes). It stands for
/// whole pages; its rows are not tokens (docs/kv-cache-formats.md). kInvalidArgument: another rank or dtype,
/// or too few bytes a page.
Result<TensorView> fp8_584_pages(const TensorView& bytes, std::int64_t page_size);
Result<ConstTensorView> fp8_584_pages(const ConstTensorView& bytes, std::int64_t page_size);

/// Writes n new tokens of an MLA cache.
///   latent        bf16 or fp16 (n, d - d_rope), the NoPE part; fp8_656: (n, 512), fp8_584: (n, 448)
///   rope          the same dtype (n, d_rope), already rotated; FP8 formats: (n, 64); d_rope may be 0
///   slot_mapping  int32 or int64 (n): page * page_size + offset; tokens of negative slots are skipped
///   kv_cache      one KV head; elements are rounded to its dtype where that is another
///   kv_scale      of an e4m3 cache
/// A slot past the cache's end is refused on the CPU, before anything is written, and skipped on CUDA, where
/// slots are not read by the host. Two tokens for one slot: the cache gets one of them on CUDA, the later one
/// on the CPU.
Status append_latent(const ConstTensorView& latent, const ConstTensorView& rope,
                     const ConstTensorView& slot_mapping, const TensorView& kv_cache,
                     const Executor& executor, const ConstTensorView& kv_scale = {});

/// Converts a whole cache into another with the same pages, page size and heads. It quantises (bf16 or fp16
/// of 576 elements to fp8_656, of 512 to fp8_584, of either to e4m3), dequantises (e4m3 * scale, rounded to
/// the dtype) or changes the dtype. Between caches of one format (and one e4m3 scale) tokens are copied.
/// There is no direct way from one FP8 format to another: convert to bf16 or fp16 first.
Status convert_cache(const ConstTensorView& from, const TensorView& to, const Executor& executor,
                     const ConstTensorView& from_scale = {}, const ConstTensorView& to_scale = {});

/// Gathers requests into a contiguous buffer: request i's tokens [first_token_i, first_token_i + n_i), where
/// n_i = cu_seqlens[i + 1] - cu_seqlens[i], become rows [cu_seqlens[i], cu_seqlens[i + 1]) of `out`.
///   block_table  int32 (batch, max_pages). Where it names no page, or ends, rows are 0.
///   cu_seqlens   int32 (batch + 1), from 0 to out's rows, never falling; on the CPU anything else is
///                refused, on CUDA rows past out's end are left out.
///   first_token  int32 (batch) or absent (0); not negative
///   out          (rows, h_kv, d): the cache's dtype (copied; uint8 (rows, 1, 656), or (rows, 1, 584): the
///                token's 576 bytes of data, then its 8 of scales, or e4m3's codes), or bf16 or fp16
Status gather_cache(const ConstTensorView& kv_cache, const ConstTensorView& block_table,
                    const ConstTensorView& cu_seqlens, const ConstTensorView& first_token,
                    const TensorView& out, const Executor& executor, const ConstTensorView& kv_scale = {});

/// Copies pages, for copy-on-write and defragmentation: page pairs[i][0] of `from` to page pairs[i][1] of
/// `to`. Also of keys or of values in any layout and dtype, which is a call for each.
///   pairs  int32 or int64 (n, 2). A pair with a page that does not exist is refused on the CPU, before
///          anything is written, and skipped on CUDA.
/// `from` and `to` have the same dtype and page shape. They may be the same cache (one address and strides);
/// other views that have memory in common are refused. No page is a destination twice, or within one cache
/// both a source and a destination: the CPU refuses that, CUDA leaves such pages with bytes of either.
Status copy_pages(const ConstTensorView& from, const TensorView& to, const ConstTensorView& pairs,
                  const Executor& executor);

/// The cache of MHA, GQA or MQA, with keys and values apart. Separate: (pages, page_size, h_kv, d) each.
/// Packed, where x elements are 16 bytes: keys (pages, h_kv, d / x, page_size, x), values (pages, h_kv, d,
/// page_size). bf16, fp16, or uint8: e4m3 times a scale, fp32 (1) or (h_kv), 1 where absent.
struct ConstKeyValueCache {
  ConstTensorView keys, values;
  ConstTensorView key_scale = {}, value_scale = {};
};
struct KeyValueCache {
  TensorView keys, values;
  ConstTensorView key_scale = {}, value_scale = {};

  operator ConstKeyValueCache() const {  // NOLINT(google-explicit-constructor): adds const
    return {keys, values, key_scale, value_scale};
  }
};

// Elements are rounded to a cache's dtype. e4m3 elements are x / scale, rounded to the nearest, ties to even;
// magnitudes beyond 448 become 448, NaN and infinity become NaN. Between tensors of one dtype (and one e4m3
// scale) elements are copied. Scales are on the executor's device, as all tensors are.

/// Writes n new tokens: keys (n, h_kv, d_qk) and values (n, h_kv, d_v), both bf16 or both fp16. slot_mapping
/// as in append_latent(). Two tokens for one slot: the CPU keeps the later one; on CUDA the slot may get
/// elements of both.
Status append_kv(const ConstTensorView& keys, const ConstTensorView& values,
                 const ConstTensorView& slot_mapping, const KeyValueCache& cache, const Executor& executor);

/// gather_cache() into keys (rows, h_kv, d_qk) and values (rows, h_kv, d_v), both bf16 or both fp16.
Status gather_kv(const ConstKeyValueCache& cache, const ConstTensorView& block_table,
                 const ConstTensorView& cu_seqlens, const ConstTensorView& first_token,
                 const TensorView& keys, const TensorView& values, const Executor& executor);

/// Converts a whole cache into another with the same pages, page size, heads and dimensions, but another
/// layout, dtype or scale.
Status convert_kv(const ConstKeyValueCache& from, const KeyValueCache& to, const Executor& executor);

}  // namespace flashlatent
