// What kernels for latent caches ask of a problem, and why they decline one. In every build.
#pragma once

#include <algorithm>
#include <array>
#include <initializer_list>
#include <span>
#include <string>

#include "cuda/host/geometry.h"
#include "cuda/host/instance_key.h"

namespace flashlatent::cuda {

/// Do all rows of an item attend to the same tokens, and does each request have all s_q query tokens?
bool has_rows_alike(const DecodeProblem& problem);

/// Tokens of one TMA box: the largest power of two that divides both a page and a block.
int box_tokens_of(const DecodeProblem& problem);
/// Do items have two lists of tokens (plan/token_lists.h)? They do with an extra cache, with a window over a
/// latent cache, and from formats whose row is all value; the second list may be empty. fp8_656 without RoPE,
/// and e4m3 without RoPE with bf16 products, are read by lists because they have no other loaders.
bool goes_by_lists(const DecodeProblem& problem);
/// Is a plan's item a query token, and not a request?
bool has_token_items(const DecodeProblem& problem);
/// Query rows that share a KV head and the tokens of an item.
int rows_of_item(const DecodeProblem& problem);

/// Formats by what reads them. Formats of bytes that loaders of one list read:
inline constexpr std::array kOneListFormats = {KvFormat::kFp8_656, KvFormat::kE4m3};
/// Formats whose row is all value, with a RoPE part in bf16:
inline constexpr std::array kRopeRecordFormats = {KvFormat::kFp8_584};
/// ... without one, by RecordRows (cuda/sm90/load/record_rows.cuh):
inline constexpr std::array kRecordFormats = {KvFormat::kMxfp8_528, KvFormat::kNvfp4_288, KvFormat::kFp8_528};
/// Those of RecordRows whose scales are bytes, which tensor cores get as they are (kernels/fp8):
inline constexpr std::array kByteScaleFormats = {KvFormat::kMxfp8_528, KvFormat::kNvfp4_288};
/// All formats of bytes.
inline constexpr auto kByteFormats = joined(kOneListFormats, kRopeRecordFormats, kRecordFormats);

constexpr bool is_in(std::span<const KvFormat> formats, KvFormat format) {
  return std::find(formats.begin(), formats.end(), format) != formats.end();
}

/// The loading that a kernel must have to take the problem, whatever the number of pages.
Loading loading_of(const DecodeProblem& problem);

/// Is a kernel with this key compiled?
bool is_listed(std::initializer_list<std::span<const InstanceKey>> lists, const InstanceKey& key);

/// For problems by lists: why a kernel does not take the cache (it is not latent, or its format is not in
/// `formats` and `more`).
std::optional<std::string> declines_lists(const DecodeProblem& problem,
                                          std::initializer_list<KvFormat> formats,
                                          std::span<const KvFormat> more = {});
/// The same for a kernel of one list, which takes neither an extra cache nor a window.
std::optional<std::string> declines_tokens(const DecodeProblem& problem,
                                           std::initializer_list<KvFormat> formats,
                                           std::span<const KvFormat> more = {});
/// The same for a kernel with bf16 products only.
std::optional<std::string> declines_e4m3_products(const DecodeProblem& problem);

/// The dtype of an instance's key.
Dtype cached_dtype(const DecodeProblem::Cache& cache);

/// The clause "too many query rows", with the product that rows_of_item() computes.
std::string too_many_rows(const DecodeProblem& problem, int most);
/// Why no kernel takes these dimensions. `accepted`: the dimensions that are taken; null: those that kernels
/// of one list take from the format.
std::string unknown_dimensions(const DecodeProblem& problem, const char* accepted = nullptr);

/// Should the decode kernel run the combine step itself, if it can? Not if few requests are split over all
/// parts, since a separate launch has four CTAs on each multiprocessor: with three tenths of the parts as
/// items, or more, the kernel's own step takes up to 10 % less (docs/log/mla_64_pingpong.md), with 24
/// requests on 132 parts up to 7 % more. From FP8 caches, where this was not measured, five tenths. Nor if it
/// merges shares of all requests. With four row tiles side by side calls took up to 3 % longer with the
/// kernel's step.
bool merges_in_kernel(const DecodeProblem& problem, const schedule::Geometry& geometry);

}  // namespace flashlatent::cuda
