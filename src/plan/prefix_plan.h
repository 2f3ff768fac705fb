// From groups to units, in a plan's memory.
#pragma once

#include <span>

#include "flashlatent/status.h"
#include "plan/prefix_groups.h"

namespace flashlatent::prefix {

/// Do the fields make sense, and do partial rows fit int32? kInternal if not.
Status validate(const Shape& shape);

/// Writes header, tiles and members into `memory`, bytes(shape) long. A group becomes tiles of whole
/// requests, whose prefix is cut so that all workers for prefixes are busy. `geometry` and `lengths` (of
/// whole requests) describe the work that runs side by side. It does not touch what build_shares() writes.
void build_tiles(const Shape& shape, const schedule::Geometry& geometry, std::span<const Group> groups,
                 const std::int32_t* lengths, void* memory);

/// Writes each request's Share and own length, for these lengths.
void build_shares(const Shape& shape, const std::int32_t* lengths, void* memory);

/// schedule::build_on_host() with prefixes: the whole plan, with its section for prefixes at
/// offset(geometry).
void build_on_host(const schedule::Geometry& geometry, const Shape& shape, std::span<const Group> groups,
                   const std::int32_t* lengths, void* memory, bool packs = true);

}  // namespace flashlatent::prefix
