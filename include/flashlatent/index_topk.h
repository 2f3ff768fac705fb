// The indexer of sparse attention (DeepSeek V3.2, V4, V4.1): scores of index keys, the best tokens of each
// query token, and their slots in another cache, in one call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "flashlatent/backend.h"
#include "flashlatent/edges.h"
#include "flashlatent/status.h"
#include "flashlatent/tensor.h"

namespace flashlatent {

/// How a page of B index keys of 128 elements lies in memory.
enum class IndexFormat : std::uint8_t {
  kFp8_132,   ///< B x 128 e4m3, then B fp32 scales.
  kMxfp4_68,  ///< B x 64 bytes of e2m1 (low nibble first), then B x 4 ue8m0 scales, one for 32 elements.
};

/// The name: "fp8_132", "mxfp4_68".
const char* to_string(IndexFormat format);
/// The format of that name. kInvalidArgument if there is none.
Result<IndexFormat> index_format_from_name(std::string_view name);
/// Bytes of a key with its scales: 132, 68.
std::int64_t index_key_bytes(IndexFormat format);

/// Elements of an index key and of a head's index query.
inline constexpr int kIndexDim = 128;
/// The largest topk, and the largest number of best blocks.
inline constexpr int kMaxIndexTopk = 2048;

/// Views of the caller's tensors, all on the executor's device. A tensor that a call does not use is absent.
/// The innermost stride is 1; other strides are free.
///
/// Query tokens are (batch, s_q); with cu_seqlens_q they are ragged: (batch, s_q) is then one extent, all
/// query tokens of all requests, one request after the other.
struct IndexTopkInputs {
  ConstTensorView q;        ///< uint8 (batch, s_q, heads, 128): e4m3; or (batch, s_q, heads, 64): e2m1.
  ConstTensorView q_scale;  ///< uint8 (batch, s_q, heads, 4): ue8m0, one for 32 elements; only with e2m1.
  ConstTensorView weights;  ///< fp32 (batch, s_q, heads), of any sign. Other scales of q are part of them.
  /// uint8 (pages, page_bytes): page_bytes holds a page of keys. The page stride is a multiple of 16 bytes.
  ConstTensorView index_cache;
  ConstTensorView block_table;  ///< int32 (batch, max_pages). A page that does not exist has no tokens.
  /// int32 (batch): cached tokens of a request; with causal these include its query tokens' own. Or, not
  /// causal, (batch, s_q): how many tokens each query token sees. Ragged and not causal: one number for each
  /// query token. What a query token sees is clamped to the page table's reach.
  ConstTensorView cache_seqlens;
  ConstTensorView cu_seqlens_q;  ///< int32 (batch + 1), optional: where each request's query tokens begin.
  /// int32 (batch, s_q, n), optional: only the tokens of these blocks of candidate_block tokens are scored.
  /// Blocks that are negative or past the end have no tokens. A block that is named twice counts twice.
  ConstTensorView candidates;
  /// int32 (batch, columns), optional: token p becomes slot_table[p / slot_page_size] * slot_page_size + p %
  /// slot_page_size; -1 if that entry does not exist or is negative.
  ConstTensorView slot_table;
};

/// The chosen tokens of a query token are in the order of their positions, or with candidates in the order of
/// the candidates. Among tokens with equal scores the first ones are chosen.
struct IndexTopkOutputs {
  TensorView indices;  ///< int32 (batch, s_q, topk): positions or slots, then -1.
  TensorView counts;   ///< int32 (batch, s_q), optional: how many are chosen.
  TensorView scores;   ///< fp32 (batch, s_q, topk), optional: the scores of the chosen, then -inf.
  /// fp32 (batch, s_q, max_pages * page_size, or n * candidate_block), optional, for tests: the score of
  /// every token; -inf for tokens that a query token does not see.
  TensorView all_scores;
  /// int32 (batch, s_q, n), optional, not with candidates: the n best blocks of candidate_block tokens in the
  /// order of their positions, then -1. A block's score is that of its best token; the newest block is always
  /// among them.
  TensorView best_blocks;
};

struct IndexTopkOptions {
  IndexFormat format = IndexFormat::kFp8_132;
  int page_size = 64;       ///< Index keys a page, 1 to 2^20.
  bool causal = false;      ///< Query token t of s_q sees the tokens below cache_seqlens - s_q + t + 1.
  int candidate_block = 8;  ///< Tokens a block of candidates and of best_blocks, 1 to 1,024.
  int slot_page_size = 0;   ///< Tokens a page of the cache that slot_table belongs to.
};

/// Bytes of the workspace that index_topk() needs. They depend on shapes and options; no element is read.
/// Errors: those of index_topk() about inputs.
Result<std::size_t> index_topk_workspace_bytes(const IndexTopkInputs& inputs, const IndexTopkOutputs& outputs,
                                               const IndexTopkOptions& options, const Executor& executor);

/// For each query token and each key t that it sees:
///   score(t) = scale(t) * sum over heads of weights_h * relu(q_h . k_t)
/// Chosen are the topk tokens of the highest scores, or all if there are no more than topk. A NaN score
/// counts as -inf. The set is exact for the scores that the call computes. A score depends only on the query
/// token and the key: it is the same in every run and in every batch. `workspace` is aligned to 256 bytes and
/// holds nothing from one call to the next. On CUDA the call only enqueues launches, which a graph can
/// capture; lengths are read on the device. Errors: kInvalidArgument (a tensor or option that does not fit,
/// by name), kUnsupported (the backend does not take it; says why), kUnavailable, kExhausted (`workspace` is
/// too small); after any of them nothing was written.
Status index_topk(const IndexTopkInputs& inputs, const IndexTopkOutputs& outputs,
                  const IndexTopkOptions& options, Memory workspace, const Executor& executor);

/// Where ranks share a context: the best of all ranks' best tokens. For each query token:
///   scores   fp32 (ranks, batch, s_q, topk), each rank's IndexTopkOutputs::scores, -inf behind
///   counts   int32 (ranks, batch, s_q): how many of them each rank has
///   indices  int32 (batch, s_q, topk), those of rank `rank`
///   out      int32 (batch, s_q, topk): the ones among `indices` that belong to the topk best of all ranks,
///            in their order, then -1
///   out_counts  int32 (batch, s_q), optional: how many
/// Among equal scores lower ranks come first, then earlier tokens. NaN counts as -inf.
Status merge_topk(const ConstTensorView& scores, const ConstTensorView& counts,
                  const ConstTensorView& indices, int rank, const TensorView& out,
                  const TensorView& out_counts, const Executor& executor);

/// Writes n new index keys.
///   keys          bf16, fp16 or fp32 (n, 128)
///   slot_mapping  int32 or int64 (n): page * page_size + offset; keys of negative slots are skipped
///   index_cache   uint8 (pages, page_bytes), as in IndexTopkInputs
///   edges         norm, rotation, only the keys that end a group of positions. V3.2: a LayerNorm, the first
///                 64 columns by halves; V4 and V4.1: an RMS norm, the last 64 by neighbours
/// Scales: fp8_132 2^ceil(log2(max(amax, 1e-4) / 448)) over the key, mxfp4_68 2^ceil(log2(max(amax, 6 *
/// 2^-126) / 6)) over 32 elements, where amax is the largest magnitude of the finite elements. Elements are
/// rounded to the nearest, ties to even. e4m3: NaN and infinity become NaN. e2m1 has neither: the scale of
/// their 32 elements becomes NaN. All backends write the same bytes. A slot past the cache's end is refused
/// on the CPU, before anything is written, and skipped on CUDA. If two keys have one slot, the CPU keeps the
/// later one, CUDA either. Errors as in kv_cache.h.
Status append_index_keys(const ConstTensorView& keys, const ConstTensorView& slot_mapping,
                         const TensorView& index_cache, IndexFormat format, int page_size,
                         const Executor& executor, const TokenEdges& edges = {});

/// Index queries as index_topk() takes them.
struct IndexQueries {
  TensorView codes;    ///< uint8, q's shape: e4m3; or with 64 columns: e2m1.
  TensorView scales;   ///< uint8, q's shape with 4 columns: ue8m0. Absent with e4m3.
  TensorView weights;  ///< fp32, as `weights`, and may be `weights` itself.
};

/// Rotates and quantises index queries, and scales their weights.
///   q        bf16 or fp16 (tokens, heads, 128) or (batch, s_q, heads, 128)
///   weights  bf16, fp16 or fp32 (tokens, heads) or (batch, s_q, heads)
///   rotate   positions (tokens) or (batch, s_q); absent: nothing is rotated
///   columns  which of the 128 columns are rotated, as many as the table has
///   format   kFp8_132: e4m3 with one scale for a head, 2^ceil(log2(max(amax, 1e-4) / 448)), which goes to
///   the
///            weight; kMxfp4_68: e2m1 with a scale for 32 columns, as append_index_keys() has them
/// Rotated columns are rounded to q's dtype before they are quantised. A weight becomes weight * scale *
/// 128^-1/2 * heads^-1/2, from the left, each product rounded; with e2m1 without `scale`. Elements that are
/// not finite: as in append_index_keys(). All backends write the same bits. All strides but the innermost are
/// free. A position outside of the table: the CPU refuses it, on CUDA the rotated columns become NaN.
/// Errors: kInvalidArgument (by name), kUnavailable, kInternal (a launch failed).
Status quantize_index_queries(const ConstTensorView& q, const ConstTensorView& weights,
                              const Rotation& rotate, RotaryColumns columns, IndexFormat format,
                              const IndexQueries& out, const Executor& executor);

/// Gathers the keys of requests, dequantised:
///   block_table, cu_seqlens  int32 (batch, max_pages) and (batch + 1): request i has the tokens 0 to
///                            cu_seqlens[i + 1] - cu_seqlens[i] - 1, in rows from cu_seqlens[i] on
///   out                      bf16, fp16 or fp32 (rows, 128); rows of tokens without a page become 0
Status gather_index_keys(const ConstTensorView& index_cache, const ConstTensorView& block_table,
                         const ConstTensorView& cu_seqlens, const TensorView& out, IndexFormat format,
                         int page_size, const Executor& executor);

}  // namespace flashlatent
