// A case: one call's inputs, and optionally its expected outputs, as a safetensors file.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flashlatent/decode.h"
#include "flashlatent/problem.h"
#include "flashlatent/sparse_prefill.h"
#include "flashlatent/status.h"
#include "flashlatent/tensor.h"
#include "io/safetensors.h"

namespace flashlatent::io {

enum class CaseKind { kDenseDecode, kSparseDecode, kPagedDecode, kSparsePrefill };

/// "dense_decode", "sparse_decode", "paged_decode", "sparse_prefill".
const char* to_string(CaseKind kind);

/// A loaded case. Its tensors are on the CPU and fit its kind in dtype, shape and values: lengths are within
/// the page table, cu_seqlens_q counts q's tokens. Page tables and indices may hold any number, as the
/// kernels must skip entries out of range.
struct DecodeCase {
  CaseKind kind = CaseKind::kDenseDecode;
  float softmax_scale = 1.0F;     ///< Finite.
  bool causal = false;            ///< False where the file leaves it out, which it may with one query token.
  std::optional<int> head_dim_v;  ///< Always there in dense_decode and sparse_decode.
  std::string kv_format;  ///< "fp8_656", "fp8_584" or "e4m3" when kv_cache is uint8, "e4m3" when key_cache
                          ///< is (of e4m3 also F8_E4M3), else empty.
  int page_size = 0;      ///< Only of fp8_584, and that of its extra cache, if it has one.
  int extra_page_size = 0;
  float soft_cap = 0;                   ///< Only in paged_decode, as in DecodeProblem::Options; 0: none.
  int window = 0;                       ///< Only in dense_decode and paged_decode.
  Products products = Products::kAuto;  ///< Only of an e4m3 kv_cache.
  SafetensorsFile file;                 ///< Owns the tensors.

  /// Optional expected outputs, fp32: out_ref of q's shape but last dimension d_v, lse_ref (batch, h_q, s_q),
  /// where either infinity marks an empty row.
  ConstTensorView out_ref() const { return file.tensor("out_ref"); }
  ConstTensorView lse_ref() const { return file.tensor("lse_ref"); }
  /// Only in sparse_prefill, where lse_ref is (s_q, h_q), too.
  ConstTensorView max_logits_ref() const { return file.tensor("max_logits_ref"); }

  /// Names of tensors and metadata that the file has and cases do not know, which are left out: a misspelt
  /// one is among them.
  std::vector<std::string> unknown_names() const;

  /// Of a dense_decode, sparse_decode or paged_decode case; absent tensors stay absent views.
  DecodeInputs inputs() const;
  /// Of a sparse_prefill case.
  SparsePrefillInputs prefill_inputs() const;
  /// The problem that a case poses which is not sparse_prefill; with cu_seqlens_q, query.tokens is the
  /// longest request's. kUnsupported for sparse_prefill, kInvalidArgument as infer_problem().
  Result<DecodeProblem> problem() const;
};

/// Reads and checks a case. Every error is one line, kInvalidArgument, naming the file, the tensor or
/// metadata key, what it holds and what is expected. What cases do not know is no error; see
/// unknown_names().
Result<DecodeCase> load_case(const std::string& path);
/// The same from memory; `name` stands for the path in messages.
Result<DecodeCase> parse_case(std::string_view bytes, std::string_view name);

}  // namespace flashlatent::io
