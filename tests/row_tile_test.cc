// What rows of a tile see, and which of them see a token, by the device's own code (walk/row_tile.cuh),
// compiled for the host, so that no device is asked; against core/visible.h.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

// Those of the device's functions that the header names.
template <class T>
inline T __ldg(const T* place) {
  return *place;
}
using std::max;
using std::min;

#include "cuda/sm90/walk/row_tile.cuh"
#include "plan/held_tokens.h"

namespace flashlatent::sm90 {
namespace {

/// One request, of whose context a rank holds some tokens.
struct Case {
  Visibility visibility;
  TokenShard shard;
  int length, tokens, group;

  int held() const { return shard.held(length); }
  /// Does query token `token` see the rank's token number `slot`?
  bool sees(int token, int slot) const {
    return visibility.seen(length, visibility.later(tokens, token))
        .contains(static_cast<std::int32_t>(shard.position(slot)));
  }
};

void check(const Case& c, const DecodeArguments& args, const RowTile& tile) {
  const int held = c.held(), window = c.visibility.window;
  const auto sees = [&](int row, int slot) { return c.sees(tile.token(args.query, row), slot); };
  int some_begin = held, some_end = 0;
  for (int slot = 0; slot < held; ++slot) {
    for (int row = 0; row < tile.rows; ++row) {
      const bool expected = sees(row, slot);
      ASSERT_EQ(tile.seen_in_window(args, window, held, row).contains(slot), expected)
          << slot << " row " << row;
      if (expected) some_begin = std::min(some_begin, slot), some_end = slot + 1;
      if (window > 0) continue;
      ASSERT_EQ(tile.seen(args, held, row).contains(slot), expected) << slot << " row " << row;
      ASSERT_EQ(TokenPrefix{held - tile.behind(args, row)}.contains(slot), expected)
          << slot << " row " << row;
      const bool whole = args.spans == nullptr, causal = c.visibility.causal;
      ASSERT_EQ(!whole || tile.seen_in_context(args, held, row).contains(slot), !whole || expected);
      ASSERT_EQ(!causal || tile.rows_that_see(args, held, slot).contains(row), !causal || expected);
      ASSERT_EQ(!(whole && causal) || tile.rows_that_see_in_context(args.query, held, slot).contains(row),
                !(whole && causal) || expected);
    }
  }
  const TokenSpan some = tile.seen_by_some(args, window, held);
  ASSERT_LE(some.begin, some_begin);
  if (some_end > 0) {
    ASSERT_EQ(some.begin, some_begin);
    ASSERT_EQ(some.end, some_end);
  } else {
    ASSERT_LE(some.end, some.begin);
  }
}

TEST(RowTile, RowsSeeWhatTheirQueryTokensSee) {
  for (bool causal : {false, true}) {
    for (int window : {0, 1, 64, 100}) {
      for (int world : {1, 3}) {
        for (int length : {0, 1, 3, 64, 130}) {
          for (int tokens : {1, 2, 5}) {
            for (int group : {1, 3, 16}) {
              for (int rank = 0; rank < world; ++rank) {
                const Case c{{window, causal}, TokenShard(rank, world, 16), length, tokens, group};
                const schedule::HeldShape shape{c.shard, 1, tokens, window};
                std::vector<std::uint64_t> memory(schedule::held_bytes(shape) / 8 + 1);
                DecodeArguments args = {};
                args.causal = causal;
                args.query.group = Divisor(group);
                args.query.tokens = tokens;
                args.geometry.max_tokens = 1000;
                if (world > 1) {
                  schedule::hold_tokens(shape, &length, 1, memory.data());
                  args.spans = schedule::held_tokens(shape, memory.data()).spans;
                  args.spans_stride = tokens;
                }
                for (int first = 0; first < tokens * group; first += 16) {
                  RowTile tile = {};
                  tile.tokens = tokens;
                  tile.first = first;
                  tile.rows = std::min(tokens * group - first, 16);
                  check(c, args, tile);
                  if (HasFailure()) {
                    FAIL() << "causal " << causal << " window " << window << " rank " << rank << " of "
                           << world << " length " << length << " tokens " << tokens << " group " << group
                           << " first " << first;
                  }
                }
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace flashlatent::sm90
