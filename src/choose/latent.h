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

/// For items with two lists: one share of one item a CTA, if that is estimated to take less than `otherwise`.
/// The instances for shares need the rows of a tile to attend to the same tokens. `of_shares`: the costs of
/// shares.
schedule::Geometry listed_geometry(const DecodeProblem& problem, const schedule::Workers& workers,
                                   const DenseShape& of_shares, const schedule::Geometry& otherwise);

/// `g`, which must not be cut on the line yet, cut into shares of one item each, so that a CTA has one
/// segment, with a combine step: equally many shares if items have mostly equal lengths or few blocks, else
/// by length. Empty where a line suits better.
std::optional<schedule::Geometry> shares_of_items(const DecodeProblem& problem, schedule::Geometry g,
                                                  const schedule::Workers& workers,
                                                  const ShareLimits& limits = kShareLimits);

/// Whole items by kTurns in place of a line, if that is estimated to take no longer and items mostly have
/// equally many tokens, as with indices: then no plan is read, and nothing is merged.
schedule::Geometry in_turn_if_faster(const DecodeProblem& problem, const schedule::Geometry& line);
/// The same if each CTA has at most one item.
schedule::Geometry whole_if_faster(const DecodeProblem& problem, const schedule::Geometry& line);

/// Sparse prefill: kTurns over whole query tokens.
schedule::Geometry turns_geometry(const DecodeProblem& problem, const schedule::Workers& workers,
                                  const DenseShape& shape);

}  // namespace flashlatent::choose
