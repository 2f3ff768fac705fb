// Random batches for tests of the plan.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "plan/shares_by_length.h"

namespace flashlatent::schedule {

struct Batch {
  Geometry geometry;
  std::vector<std::int32_t> lengths;
};

/// 1 to 4,096 requests of 0 to 2^20 tokens, uniform or skewed; 1 to 264 parts, 1 to 5 rounds, any costs.
inline Batch random_batch(std::mt19937_64& engine, bool fixed_split) {
  auto uniform = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine); };
  auto log_uniform = [&](int high) {
    return static_cast<int>(std::exp(std::uniform_real_distribution<>(0, std::log(high + 1.0))(engine))) - 1;
  };
  constexpr int kMaxTokens = 1 << 20;
  Batch batch;
  Geometry& g = batch.geometry;
  g.requests = log_uniform(4095) + 1;
  g.parts = uniform(0, 3) == 0 ? log_uniform(5000) + 1 : uniform(1, 264);
  g.rounds = uniform(0, 2) == 0 ? uniform(1, 5) : 1;
  g.max_tokens = kMaxTokens;
  g.cost = {.per_block = uniform(1, 50), .per_split = uniform(1, 200), .per_merge = uniform(0, 100)};
  g.cost.per_block_alone = uniform(0, g.cost.per_block);
  g.cost.per_block_near = uniform(0, g.cost.per_block);
  if (fixed_split) fix_splits(g, uniform(1, 64));
  batch.lengths.resize(g.requests);
  const int kind = uniform(0, 4);
  const int same = uniform(0, 10000);
  for (std::int32_t& length : batch.lengths) {
    switch (kind) {
      case 0:
        length = same;
        break;
      case 1:
        length = uniform(0, 10000);
        break;
      case 2:
        length = log_uniform(kMaxTokens);
        break;
      case 3:
        length = uniform(0, 9) == 0 ? uniform(0, 200) : 0;
        break;
      default:
        length = uniform(-5, 300);  // negative counts as 0
    }
  }
  if (uniform(0, 3) == 0) batch.lengths[uniform(0, g.requests - 1)] = kMaxTokens + uniform(0, 1);
  return batch;
}

/// A batch of which each item is a part by shape.
inline Batch random_whole_batch(std::mt19937_64& engine) {
  Batch batch = random_batch(engine, false);
  batch.geometry.parts = batch.geometry.requests * batch.geometry.rounds;
  batch.geometry.partition = Partition::kWhole;
  return batch;
}

/// A batch of whole items in turn.
inline Batch random_turns_batch(std::mt19937_64& engine) {
  Batch batch = random_batch(engine, false);
  Geometry& g = batch.geometry;
  g.parts = static_cast<int>(std::min<std::int64_t>(g.parts, std::int64_t{g.requests} * g.rounds));
  g.partition = Partition::kTurns;
  return batch;
}

/// A batch of which each part is of one item.
inline Batch random_shared_batch(std::mt19937_64& engine) {
  Batch batch = random_batch(engine, false);
  batch.geometry.rounds = 1;
  batch.geometry.parts = batch.geometry.requests + static_cast<int>(engine() % 200);
  batch.geometry.partition = Partition::kTeamShares;
  return batch;
}

/// A batch of which each item has as many parts.
inline Batch random_even_batch(std::mt19937_64& engine) {
  Batch batch = random_batch(engine, false);
  batch.geometry.rounds = 1;
  batch.geometry.parts = batch.geometry.requests * 2 + static_cast<int>(engine() % 2000);
  batch.geometry.partition = Partition::kEvenShares;
  return batch;
}

/// A batch of which each item has parts by its length.
inline Batch random_batch_by_length(std::mt19937_64& engine) {
  Batch batch = random_batch(engine, false);
  Geometry& g = batch.geometry;
  g.requests = std::min(g.requests, kMostByLength);
  batch.lengths.resize(g.requests);
  g.rounds = 1;
  g.parts = g.requests * 2 + static_cast<int>(engine() % 200);
  g.partition = Partition::kSharesByLength;
  return batch;
}

}  // namespace flashlatent::schedule
