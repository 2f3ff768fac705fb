#include "dispatch/token_edges.h"

#include "core/edge_check.h"
#include "core/expect.h"
#include "core/message.h"
#include "core/rotation.h"

namespace flashlatent {

namespace {

constexpr std::int64_t kMostRatio = 1 << 30;

Status expect_norm(const TokenNorm& norm, const NamedRows& rows, Device device) {
  FLASHLATENT_RETURN_IF_ERROR(expect_epsilon("norm", norm.epsilon));
  for (const auto& [name, view] : {std::pair{"norm_weight", norm.weight}, {"norm_bias", norm.bias}}) {
    if (!view.present()) continue;
    if (norm.epsilon == 0) {
      return invalid_argument(name, " is given and norm is 0; an epsilon above 0 is expected");
    }
    if (view.dtype != Dtype::kF32 && !is_half(view.dtype)) {
      return invalid_argument(name, " is ", to_string(view), "; fp32, bf16 and fp16 are accepted");
    }
    FLASHLATENT_RETURN_IF_ERROR(expect_strided(name, view, view.dtype, device, {rows.view.shape[1]}));
  }
  return {};
}

}  // namespace

Status expect_rotation(const Rotation& rotate, const std::vector<std::int64_t>& tokens, const NamedRows& rows,
                       std::int64_t columns, Device device) {
  const Dtype integers = rotate.positions.dtype == Dtype::kI64 ? Dtype::kI64 : Dtype::kI32;
  FLASHLATENT_RETURN_IF_ERROR(expect("positions", rotate.positions, integers, device, tokens));
  if (!rotate.table.present()) return {};
  FLASHLATENT_RETURN_IF_ERROR(expect_table("table", rotate.table, device));
  const std::int64_t rotated = rotate.table.shape[1];
  if (rotated >= 16 && rotated % 16 == 0 && rotated <= columns) return {};
  return invalid_argument("table is ", to_string(rotate.table), " and ", rows.name, " is ",
                          to_string(rows.view), "; a multiple of 16 columns, up to ", columns,
                          ", is accepted");
}

Status expect_token_edges(const TokenEdges& edges, const NamedRows& normed, const NamedRows& rotated,
                          Device device) {
  FLASHLATENT_RETURN_IF_ERROR(expect_norm(edges.norm, normed, device));
  if (edges.ratio < 1 || edges.ratio > kMostRatio) {
    return invalid_argument("ratio is ", edges.ratio, "; 1 to ", kMostRatio, " are accepted");
  }
  if (!edges.rotate.positions.present()) {
    if (edges.rotate.table.present()) {
      return invalid_argument("table is given and positions are missing; positions (n) are expected");
    }
    if (edges.ratio == 1) return {};
    return invalid_argument("ratio is ", edges.ratio,
                            " and positions are missing; positions (n) are expected");
  }
  return expect_rotation(edges.rotate, {rotated.view.shape[0]}, rotated, rotated.view.shape[1], device);
}

Status expect_apart_from(std::span<const NamedView> written, const Rotation& rotate,
                         std::initializer_list<NamedView> read) {
  const NamedView of_rotation[] = {{"positions", &rotate.positions}, {"table", &rotate.table}};
  FLASHLATENT_RETURN_IF_ERROR(expect_apart(written, std::span(read.begin(), read.size())));
  return expect_apart(written, of_rotation);
}

Status expect_apart_from(std::span<const NamedView> written, const TokenEdges& edges,
                         std::initializer_list<NamedView> read) {
  const NamedView of_norm[] = {{"norm_weight", &edges.norm.weight}, {"norm_bias", &edges.norm.bias}};
  FLASHLATENT_RETURN_IF_ERROR(expect_apart_from(written, edges.rotate, read));
  return expect_apart(written, of_norm);
}

}  // namespace flashlatent
