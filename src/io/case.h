// A case: one call's inputs, and optionally its expected outputs, as a safetensors file.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/fp8_request.h"
#include "flashlatent/decode.h"
#include "flashlatent/problem.h"
#include "flashlatent/sparse_prefill.h"
#include "flashlatent/status.h"
#include "flashlatent/tensor.h"
#include "io/index_case.h"
#include "io/safetensors.h"

namespace flashlatent::io {

enum class CaseKind { kDenseDecode, kSparseDecode, kPagedDecode, kSparsePrefill, kIndexTopk };

/// "dense_decode", "sparse_decode", "paged_decode", "sparse_prefill", "index_topk".
const char* to_string(CaseKind kind);

/// A loaded case. Its tensors are on the CPU and fit its kind in dtype, shape and values: lengths are within
/// the page table, cu_seqlens_q counts q's tokens. Page tables and indices may hold any number, as the
/// kernels must skip entries out of range.
struct DecodeCase {
  CaseKind kind = CaseKind::kDenseDecode;
  float softmax_scale = 1.0F;     ///< Finite.
  bool causal = false;            ///< False if the file leaves it out, which is legal with one query token.
  std::optional<int> head_dim_v;  ///< Present in dense_decode and sparse_decode.
  /// What kv_format and scales say of a uint8 kv_cache (e4m3 may also be F8_E4M3), or of key_cache: kE4m3.
  CacheFormat format = {};
  std::optional<KvFormat> extra_format = {};  ///< extra_kv_cache's, if it is another one.
  /// Only of caches that the file has as (pages, page_bytes): formats of a token's bytes whose scales may
  /// follow a page's data.
  int page_size = 0, extra_page_size = 0;
  float soft_cap = 0;                   ///< Only in paged_decode, as in DecodeProblem::Options; 0: none.
  int window = 0;                       ///< Only in dense_decode and paged_decode.
  Products products = Products::kAuto;  ///< Only with an e4m3 kv_cache.
  float q_norm = 0;  ///< This and the next ones: DecodeInputs' edges, but for their tensors.
  RotaryPairs q_pairs = RotaryPairs::kNeighbours, out_pairs = RotaryPairs::kNeighbours;
  RotaryTable q_table = RotaryTable::kHalves, out_table = RotaryTable::kHalves;
  Fp8Request out_fp8 = {};
  IndexCase index;       ///< Only in index_topk, which has nothing of the above but its kind.
  SafetensorsFile file;  ///< Owns the tensors.

  /// Optional expected outputs, fp32: out_ref with q's shape but last dimension d_v, after out_rotate;
  /// lse_ref (batch, h_q, s_q). In lse_ref either infinity marks an empty row.
  ConstTensorView out_ref() const { return file.tensor("out_ref"); }
  ConstTensorView lse_ref() const { return file.tensor("lse_ref"); }
  /// Only in sparse_prefill, where lse_ref is (s_q, h_q), too.
  ConstTensorView max_logits_ref() const { return file.tensor("max_logits_ref"); }

  /// Names of tensors and metadata in the file that no case has. They are ignored, so a misspelt name is
  /// among them.
  std::vector<std::string> unknown_names() const;

  /// The format of kv_cache, or of the extra cache.
  KvFormat kv_format() const { return format.format.value_or(KvFormat::kPlain); }
  KvFormat extra_kv_format() const { return extra_format.value_or(kv_format()); }
  /// What is said of a latent cache.
  CacheFormat latent_format() const;

  /// The inputs of a dense_decode, sparse_decode or paged_decode case; absent tensors stay absent views.
  DecodeInputs inputs() const;
  /// The inputs of a sparse_prefill case.
  SparsePrefillInputs prefill_inputs() const;
  SparsePrefillOptions prefill_options() const;
  /// The inputs of an index_topk case, and the expected scores of all tokens: fp32 (batch, s_q, reach), -inf
  /// where a query token sees none.
  IndexTopkInputs index_inputs() const { return io::index_inputs(file); }
  ConstTensorView scores_ref() const { return file.tensor("scores_ref"); }
  /// The problem of a case of decode; with cu_seqlens_q, query.tokens is that of the longest
  /// request. kUnsupported for the other kinds; kInvalidArgument as infer_problem().
  Result<DecodeProblem> problem() const;
};

/// Reads and checks a case. An error is one line, kInvalidArgument, with the file, the tensor or metadata
/// key, its value and what is expected. Unknown names are no error; see unknown_names().
Result<DecodeCase> load_case(const std::string& path);
/// The same from memory; `name` stands for the path in messages.
Result<DecodeCase> parse_case(std::string_view bytes, std::string_view name);

}  // namespace flashlatent::io
