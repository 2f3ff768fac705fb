// Which tokens of a context a rank holds: arithmetic for host and device.
//
// Runs of `run` tokens are dealt round-robin to the ranks. With 3 ranks and runs of 2, by position in the
// context:
//
//   position   0 1 | 2 3 | 4 5 | 6 7 | 8 9 | ...
//   rank       0 0   1 1   2 2   0 0   1 1
//   slot       0 1   0 1   0 1   2 3   2 3      the token's place among those of its rank
#pragma once

#include <cstdint>

#include "core/divisor.h"

namespace flashlatent {

struct TokenShard {
  std::int32_t rank = 0;
  std::int32_t world = 1;
  Divisor run;    ///< Tokens of one run.
  Divisor round;  ///< Tokens of one run of each rank: world * run.

  FLASHLATENT_HOST_DEVICE TokenShard() {}
  FLASHLATENT_HOST_DEVICE TokenShard(std::int32_t rank_, std::int32_t world_, std::int32_t run_)
      : rank(rank_), world(world_), run(run_), round(world_ * run_) {}

  FLASHLATENT_HOST_DEVICE bool is_all() const { return world == 1; }

  /// How many of the first `tokens` tokens of a context the rank holds.
  FLASHLATENT_HOST_DEVICE std::int32_t held(std::int32_t tokens) const {
    if (tokens <= 0) return 0;
    const std::int32_t rounds = round.quotient(tokens);
    const std::int32_t rest = tokens - rounds * round.value - rank * run.value;
    return rounds * run.value + (rest < 0 ? 0 : rest < run.value ? rest : run.value);
  }

  /// The position in the context of the rank's token number `slot`.
  FLASHLATENT_HOST_DEVICE std::int64_t position(std::int32_t slot) const {
    const std::int64_t rounds = run.quotient(slot);
    return rounds * (round.value - run.value) + rank * run.value + slot;
  }
};

}  // namespace flashlatent
