// How far P of e4m3 products has one maximum, for host and device.
#pragma once

#include "core/e4m3_latent.h"

namespace flashlatent::e4m3_latent {

/// Blocks of 64 tokens whose P is relative to one maximum of the row, and whose product with V is one sum of
/// tensor cores, of 13 bits as a score's (score_chains()). With tiles of up to kFewRows query rows memory
/// binds, and P of a block need not wait for the next block.
constexpr int blocks_of_sum(int query_rows) {
  return query_rows <= kFewRows ? 1 : 2;
}

}  // namespace flashlatent::e4m3_latent
