// Checks of what is done to new tokens before they are stored.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "core/apart.h"
#include "flashlatent/edges.h"
#include "flashlatent/status.h"

namespace flashlatent {

/// `normed`: the tokens (n, columns) whose columns the norm covers, by its name; `rotated`: those whose last
/// or first columns are rotated.
struct NamedRows {
  const char* name;
  const ConstTensorView& view;
};
Status expect_token_edges(const TokenEdges& edges, const NamedRows& normed, const NamedRows& rotated,
                          Device device);

/// What a call writes has memory of its own (core/apart.h), apart from these tensors and those of the
/// rotation or the edges.
Status expect_apart_from(std::span<const NamedView> written, const Rotation& rotate,
                         std::initializer_list<NamedView> read);
Status expect_apart_from(std::span<const NamedView> written, const TokenEdges& edges,
                         std::initializer_list<NamedView> read);

/// A rotation's positions, of this shape, and its table, of a multiple of 16 columns up to `columns`, which
/// `rows` have.
Status expect_rotation(const Rotation& rotate, const std::vector<std::int64_t>& tokens, const NamedRows& rows,
                       std::int64_t columns, Device device);

}  // namespace flashlatent
