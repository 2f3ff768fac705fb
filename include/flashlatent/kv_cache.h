// Operations on paged KV caches: append, convert (quantise, dequantise), gather, copy pages. They are
// enqueued on the executor's stream and allocate no device memory.
//
// A cache has one of these forms (docs/kv-cache-formats.md):
//   bf16, fp16  (pages, page_size, h_kv, d)
//   e4m3        uint8 (pages, page_size, 1, 576 or 512); its scale, fp32 (1), is an argument, 1 where absent
//   fp8_656     uint8 (pages, page_size, 1, 656): 576 elements
//   fp8_584     uint8 (pages, page_size, 1, 584), whole pages (latent_pages()): 512 elements, as all below
//   mxfp8_528, nvfp4_288, fp8_528   uint8 (pages, page_size, 1, 528 or 288)
// dtype and last dimension tell the first ones apart. For a last dimension of 528 or 288 the CacheFormat says
// the format and, of mxfp8_528 and nvfp4_288, where scales lie. With ScalePlace::kPage the view stands for
// whole pages, as latent_pages() makes it. Tensors are on the executor's device. The innermost stride is 1;
// other strides are free. A view that is written may not overlap one that is read: views are compared by the
// addresses that they cover, but views with the same strides may be interleaved (layers of one tensor, keys
// beside values). Errors: kInvalidArgument (a tensor that does not fit, by name, with what would),
// kUnavailable, kInternal (a launch failed).
//
// All backends round to the same bits. amax is the largest magnitude of a group's finite elements.
//   fp8_656, fp8_528     a group of 128 has the scale 2^ceil(log2(max(amax / 448, 1e-4)))
//   fp8_584, mxfp8_528   a group of 64 or 32 has the scale 2^ceil(log2(max(amax, 1e-4) / 448))
//   nvfp4_288            a group of 16 has the scale e4m3(clamp(amax / 6, 2^-9, 448))
// CacheFormat::floor changes what 1e-4 bounds. An element is x / scale rounded to the nearest e4m3 or e2m1,
// ties to even; magnitudes beyond 448 (e2m1: 6) become 448 (6). In e4m3 NaN and infinity become NaN (0x7F).
// e2m1 has neither: infinity becomes 6 of its sign, and NaN 0. In an e4m3 cache an element is x / scale with
// the cache's scale. The byte behind a token's scales in fp8_584 becomes 0, and bytes between pages are left
// alone.
#pragma once

#include "flashlatent/backend.h"
#include "flashlatent/edges.h"
#include "flashlatent/problem.h"
#include "flashlatent/status.h"
#include "flashlatent/tensor.h"

namespace flashlatent {

/// The least number of bytes from one page of `page_size` tokens to the next, in a format whose tokens are
/// bytes. fp8_584: 584 bytes a token, rounded up to a multiple of 576. 0 for kPlain and kE4m3.
std::int64_t least_page_stride(KvFormat format, std::int64_t page_size);

/// A view (pages, page_size, 1, bytes of a token) of a cache's bytes, uint8 (pages, page_bytes), in a format
/// whose tokens are bytes. Where scales follow a page's data the view's rows are not tokens
/// (docs/kv-cache-formats.md). kInvalidArgument: another rank or dtype, too few bytes a page, kPlain or
/// kE4m3.
Result<TensorView> latent_pages(const TensorView& bytes, std::int64_t page_size, KvFormat format);
Result<ConstTensorView> latent_pages(const ConstTensorView& bytes, std::int64_t page_size, KvFormat format);

/// Writes n new tokens of an MLA cache.
///   latent        bf16, fp16 or fp32 (n, d - d_rope), the NoPE part; fp8_656: (n, 512), fp8_584: (n, 448)
///   rope          the same dtype (n, d_rope), rotated already or by `edges`; fp8_656 and fp8_584: (n, 64);
///                 absent: the last columns of `latent`, (n, d)
///   slot_mapping  int32 or int64 (n): page * page_size + offset; tokens of negative slots are skipped
///   kv_cache      one KV head; elements are rounded to its dtype where that is another
///   kv_scale      of an e4m3 cache
///   edges         norm (over the columns of `latent`), rotation (of the last columns, all of `latent`, or if
///                 it is given of `rope`), only the tokens that end a group of positions; with fp32 too
///                 columns are multiples of 8, at most 1,024 in all. A position outside of the table: the CPU
///                 refuses it, on CUDA the rotated columns are stored as NaN is.
/// A slot past the cache's end is refused on the CPU, before anything is written, and skipped on CUDA, where
/// the host does not read slots. If two tokens have one slot, the CPU keeps the later one; on CUDA the slot
/// may get elements of both.
Status append_latent(const ConstTensorView& latent, const ConstTensorView& rope,
                     const ConstTensorView& slot_mapping, const TensorView& kv_cache,
                     const Executor& executor, const ConstTensorView& kv_scale = {},
                     const CacheFormat& format = {}, const TokenEdges& edges = {});

/// Converts a whole cache into another with the same pages, page size, heads and number of elements, from any
/// format to any other. Elements become fp32 (element * scale, rounded) and are written from there; fp8_656
/// has 576 elements. Between caches of one format (and one e4m3 scale) tokens are copied, and their scales to
/// their places in `to`.
Status convert_cache(const ConstTensorView& from, const TensorView& to, const Executor& executor,
                     const ConstTensorView& from_scale = {}, const ConstTensorView& to_scale = {},
                     const CacheFormat& from_format = {}, const CacheFormat& to_format = {});

/// Gathers requests into a contiguous buffer: request i's tokens [first_token_i, first_token_i + n_i), where
/// n_i = cu_seqlens[i + 1] - cu_seqlens[i], become rows [cu_seqlens[i], cu_seqlens[i + 1]) of `out`.
///   block_table  int32 (batch, max_pages). Where it names no page, or ends, rows are 0.
///   cu_seqlens   int32 (batch + 1), from 0 to out's rows, never falling; on the CPU anything else is
///                refused, on CUDA rows past out's end are left out.
///   first_token  int32 (batch) or absent (0); not negative
///   out          (rows, h_kv, d): the cache's dtype (copied; e4m3's codes, or uint8 (rows, 1, bytes of a
///                token): its data, then its scales), or bf16 or fp16
Status gather_cache(const ConstTensorView& kv_cache, const ConstTensorView& block_table,
                    const ConstTensorView& cu_seqlens, const ConstTensorView& first_token,
                    const TensorView& out, const Executor& executor, const ConstTensorView& kv_scale = {},
                    const CacheFormat& format = {});

/// Copies pages, for copy-on-write and defragmentation: page pairs[i][0] of `from` to page pairs[i][1] of
/// `to`. Keys and values in any layout and dtype are copied by a call for each.
///   pairs  int32 or int64 (n, 2). A pair with a page that does not exist is refused on the CPU, before
///          anything is written, and skipped on CUDA.
/// `from` and `to` have two dimensions or more (index keys: (pages, page_bytes)), the same dtype and page
/// shape. They may be the same cache (one address and strides); other views that overlap are refused. No page
/// may be a destination twice, or within one cache both a source and a destination: the CPU refuses such
/// pairs, CUDA leaves such pages with bytes of either.
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
/// as in append_latent(). If two tokens have one slot, the CPU keeps the later one; on CUDA the slot may get
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
