// How calls of kernels for latent caches are cut.
#pragma once

#include <optional>

#include "choose/thresholds.h"
#include "cost/table.h"
#include "kernel/decode_kernel.h"

namespace flashlatent::choose {

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

/// `g`, which must not be cut on the line yet, in shares of one item each, so that a CTA has one segment, and
/// a combine step: equally many where the items have mostly equal lengths or few blocks, else by length.
/// Empty where a line suits better.
std::optional<schedule::Geometry> shares_of_items(const DecodeProblem& problem, schedule::Geometry g,
                                                  const schedule::Workers& workers,
                                                  const ShareLimits& limits = kShareLimits);

/// Whole items in turn in place of a line, where that is estimated to take no longer and items mostly have as
/// many tokens as each other, as those that indices name: nobody reads a plan then, and nothing is merged.
schedule::Geometry in_turn_if_faster(const DecodeProblem& problem, const schedule::Geometry& line);
/// The same where each CTA has one of them at most.
schedule::Geometry whole_if_faster(const DecodeProblem& problem, const schedule::Geometry& line);

/// Sparse prefill: each CTA, and lane, takes whole query tokens in turn.
schedule::Geometry turns_geometry(const DecodeProblem& problem, const schedule::Workers& workers,
                                  const DenseShape& shape);

}  // namespace flashlatent::choose
