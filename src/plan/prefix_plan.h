// From groups to units of work, in a plan's memory.
#pragma once

#include <span>

#include "flashlatent/status.h"
#include "plan/prefix_groups.h"

namespace flashlatent::prefix {

/// Do the fields make sense, and do partial rows fit int32?
Status validate(const Shape& shape);

/// Writes header, tiles and members into `memory`, bytes(shape) long: each group in tiles of whole requests,
/// their prefix cut so that all workers are busy that it has. `geometry` and `lengths` (of the requests, with
/// their prefix) say what else there is to do, side by side. What build_shares() writes is left alone.
void build_tiles(const Shape& shape, const schedule::Geometry& geometry, std::span<const Group> groups,
                 const std::int32_t* lengths, void* memory);

/// Writes what requests have to know, for these lengths.
void build_shares(const Shape& shape, const std::int32_t* lengths, void* memory);

/// schedule::build_on_host() with prefixes: the whole plan, these being at offset(geometry).
void build_on_host(const schedule::Geometry& geometry, const Shape& shape, std::span<const Group> groups,
                   const std::int32_t* lengths, void* memory, bool packs = true);

}  // namespace flashlatent::prefix
