// What dense decode kernels have in common when one is chosen: what they take, and how a call is cut. Needs
// no CUDA; launches are in dense_launch.h.
#pragma once

#include <initializer_list>
#include <span>
#include <string>

#include "cost/table.h"
#include "cuda/host/geometry.h"
#include "cuda/host/instance_key.h"

namespace flashlatent::cuda {

/// The row tiles and costs of a kernel.
struct DenseShape {
  int tile_rows;
  cost::Costs cost;
  int team = 1;  ///< CTAs that share the blocks of a segment.
};

/// The schedule for these SMs, cut on the line (or in fixed splits).
schedule::Geometry split_geometry(const DecodeProblem& problem, const schedule::Workers& workers,
                                  const DenseShape& shape);
/// split_geometry(), or a part for each request and group of row tiles (kWhole) where splits never pay.
schedule::Geometry dense_geometry(const DecodeProblem& problem, const schedule::Workers& workers,
                                  const DenseShape& shape);

/// For items with two lists: shares of one item a CTA if they are estimated to take less than `otherwise`.
/// The instances for shares need the rows of a tile to attend to the same tokens. `of_shares`: the costs of
/// shares.
schedule::Geometry listed_geometry(const DecodeProblem& problem, const schedule::Workers& workers,
                                   const DenseShape& of_shares, const schedule::Geometry& otherwise);

/// Do all rows of an item attend to the same tokens, and has each request all of its query tokens?
bool has_rows_alike(const DecodeProblem& problem);

/// Whole items in turn in place of a line, where that is estimated to take no longer and items mostly have as
/// many tokens as each other, as those that indices name: nobody reads a plan then, and nothing is merged.
schedule::Geometry in_turn_if_faster(const DecodeProblem& problem, const schedule::Geometry& line);
/// The same where each CTA has one of them at most.
schedule::Geometry whole_if_faster(const DecodeProblem& problem, const schedule::Geometry& line);

/// Sparse prefill: each CTA, and lane, takes whole query tokens in turn.
schedule::Geometry turns_geometry(const DecodeProblem& problem, const schedule::Workers& workers,
                                  const DenseShape& shape);

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

/// The loading that a kernel must have to take the problem, whatever the number of pages.
Loading loading_of(const DecodeProblem& problem);

/// Is a kernel with this key compiled?
bool is_listed(std::initializer_list<std::span<const InstanceKey>> lists, const InstanceKey& key);

/// For problems that go by lists: why a kernel does not take the cache (it is not latent, or has none of
/// `formats`).
std::optional<std::string> declines_lists(const DecodeProblem& problem,
                                          std::initializer_list<KvFormat> formats);
/// The same for a kernel of one list, which takes neither an extra cache nor a window.
std::optional<std::string> declines_tokens(const DecodeProblem& problem,
                                           std::initializer_list<KvFormat> formats);
/// The same for a kernel with bf16 products only.
std::optional<std::string> declines_e4m3_products(const DecodeProblem& problem);

/// The dtype of an instance's key.
Dtype cached_dtype(const DecodeProblem::Cache& cache);

/// "too many query rows": a clause with the product that rows_of_item() computes.
std::string too_many_rows(const DecodeProblem& problem, int most);
/// Why there is no kernel for these dimensions. `accepted`: the dimensions that are; null: those that one
/// list has for the format.
std::string unknown_dimensions(const DecodeProblem& problem, const char* accepted = nullptr);

/// Should the decode kernel do the combine step itself, if it can? Not where most requests are split: a
/// launch of its own has four CTAs on each multiprocessor. With four row tiles side by side calls took up to
/// 3 % longer with the kernel's.
bool merges_in_kernel(const schedule::Geometry& geometry);

}  // namespace flashlatent::cuda
