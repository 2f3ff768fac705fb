// What the dense decode kernels have in common when one is chosen: what they take, how a call is cut. Needs
// no CUDA; launches are in dense_launch.h.
#pragma once

#include <initializer_list>
#include <span>
#include <string>

#include "cost/table.h"
#include "cuda/common/geometry.h"
#include "cuda/common/instance_key.h"

namespace flashlatent::cuda {

/// One kernel's row tiles and costs.
struct DenseShape {
  int tile_rows;
  cost::Costs cost;
  int team = 1;  ///< CTAs that share the blocks of a segment.
};

/// The schedule on so many SMs.
schedule::Geometry split_geometry(const DecodeProblem& problem, const schedule::Workers& workers,
                                  const DenseShape& shape);
/// The same, but each request and group of row tiles is a part where splits never pay.
schedule::Geometry dense_geometry(const DecodeProblem& problem, const schedule::Workers& workers,
                                  const DenseShape& shape);

/// By two lists: shares of one item a CTA where these are estimated to take less than `otherwise`. Their
/// instances want rows of a tile to attend to the same tokens. `of_shares`: what they take.
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

/// Rows of one TMA box: the largest power of two that divides both a page and a block.
int box_tokens_of(const DecodeProblem& problem);
/// Do tokens come by two lists (plan/token_lists.h)? With an extra cache, a window, or from fp8_584; the
/// second list may be empty. fp8_656 without RoPE, and e4m3 with bf16 products, have no other loaders.
bool goes_by_lists(const DecodeProblem& problem);
/// Is a plan's item a query token, and not a request?
bool has_token_items(const DecodeProblem& problem);
/// Query rows that share a KV head and an item's tokens.
int rows_of_item(const DecodeProblem& problem);

/// What a kernel must be able to do to take the problem, whatever the number of pages.
Loading loading_of(const DecodeProblem& problem);

/// Is there a kernel of this key?
bool is_listed(std::initializer_list<std::span<const InstanceKey>> lists, const InstanceKey& key);

/// Why a kernel of two lists of tokens, for problems that go by them, does not take the cache: it is not
/// latent, or of none of these formats.
std::optional<std::string> declines_lists(const DecodeProblem& problem,
                                          std::initializer_list<KvFormat> formats);
/// The same of a kernel of one list, which takes no extra cache and no window either.
std::optional<std::string> declines_tokens(const DecodeProblem& problem,
                                           std::initializer_list<KvFormat> formats);
/// The same of a kernel with bf16 products.
std::optional<std::string> declines_e4m3_products(const DecodeProblem& problem);

/// The dtype of an instance's key.
Dtype cached_dtype(const DecodeProblem::Cache& cache);

/// Why a kernel does not take so many query rows a KV head; the product is that of rows_of_item().
std::string too_many_rows(const DecodeProblem& problem, int most);
/// Why no kernel of these dimensions is there, where those "are accepted"; null: what one list has of the
/// format.
std::string unknown_dimensions(const DecodeProblem& problem, const char* accepted = nullptr);

/// Is the combine step left to a kernel that can do it? Not where most requests are split: four CTAs of a
/// launch of its own run on a multiprocessor at once. With four row tiles side by side calls took up to 3 %
/// longer so.
bool merges_in_kernel(const schedule::Geometry& geometry);

}  // namespace flashlatent::cuda
