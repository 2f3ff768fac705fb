// What query tokens see, and which rows see a token, against the definition token by token.
#include "core/visible.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "core/index_call.h"
#include "plan/held_tokens.h"

namespace flashlatent {
namespace {

constexpr int kMost = std::numeric_limits<std::int32_t>::max();

/// Does query token `token`, of the `tokens` that end a context of `length` tokens, see the token at
/// `position`?
bool sees(const Visibility& v, int length, int tokens, int token, int position) {
  if (position < 0 || position >= length) return false;
  const int last = v.causal ? length - tokens + token : length - 1;
  return position <= last && (v.window == 0 || last - position < v.window);
}

std::vector<Visibility> rules() {
  std::vector<Visibility> all;
  for (bool causal : {false, true}) {
    for (int window : {0, 1, 2, 63, 64, 65, 1000, kMost}) all.push_back({window, causal});
  }
  return all;
}

/// Requests, some with more query tokens than tokens, as ragged ones may have.
struct Request {
  int length, tokens;
};
std::vector<Request> requests() {
  std::vector<Request> all;
  for (int length : {0, 1, 2, 3, 63, 64, 65, 127, 128, 129, 200}) {
    for (int tokens : {1, 2, 3, 5, 70}) all.push_back({length, tokens});
  }
  return all;
}

template <class Check>
void for_each(Check check) {
  for (const Visibility& v : rules()) {
    for (const Request& r : requests()) {
      for (int token = 0; token < r.tokens; ++token) {
        SCOPED_TRACE(testing::Message() << "causal " << v.causal << " window " << v.window << " length "
                                        << r.length << " token " << token << " of " << r.tokens);
        check(v, r, token);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(Visible, QueryTokensSeeWhatTheDefinitionSays) {
  for_each([](const Visibility& v, const Request& r, int token) {
    const TokenSpan seen = v.seen(r.length, v.later(r.tokens, token));
    int count = 0;
    for (int position = -3; position < r.length + 3; ++position) {
      const bool expected = sees(v, r.length, r.tokens, token, position);
      ASSERT_EQ(seen.contains(position), expected) << position;
      count += expected;
    }
    ASSERT_EQ(seen.count(), count);
    for (int start = 0; start < r.length + 64; start += 64) {
      for (int bit = 0; bit < 64; ++bit) {
        ASSERT_EQ(seen.bits(start) >> bit & 1, sees(v, r.length, r.tokens, token, start + bit))
            << start << " + " << bit;
      }
    }
  });
}

TEST(Visible, PrefixesAreWhatIsSeenWithoutAWindow) {
  for_each([](const Visibility& v, const Request& r, int token) {
    if (v.window != 0) return;
    const TokenPrefix seen{v.end(r.length, r.tokens, token)};
    for (int position = 0; position < r.length + 3; ++position) {
      ASSERT_EQ(seen.contains(position), sees(v, r.length, r.tokens, token, position)) << position;
    }
    EXPECT_EQ(seen.from(7).bits(), seen.bits(7));
    const TokenSpan span = v.seen(r.length, v.later(r.tokens, token));
    for (int start = 0; start < r.length + 64; start += 64) {
      ASSERT_EQ(seen.bits(start), span.bits(start)) << start;
    }
  });
}

/// A tile has `group` rows a query token, from row `first` of the request's on.
TEST(Visible, RowSetsHaveTheRowsThatSeeAToken) {
  const Visibility v{.causal = true};
  for (const Request& r : requests()) {
    for (int group : {1, 3, 8}) {
      const int all = r.tokens * group, rows = std::min(all, 64);
      for (int first = 0; first < all; first += 64) {
        const auto prefix = [&](int row) {
          return TokenPrefix{v.end(r.length, r.tokens, (first + row) / group)};
        };
        for (int token = 0; token < r.length; ++token) {
          const RowSet found = RowSet::that_see(token, rows, prefix);
          const RowSet computed{Visibility::first_to_see(r.length, r.tokens, token) * group - first};
          for (int row = 0; row < std::min(rows, all - first); ++row) {
            const bool expected = sees(v, r.length, r.tokens, (first + row) / group, token);
            ASSERT_EQ(found.contains(row), expected) << token << " row " << row;
            ASSERT_EQ(computed.contains(row), expected) << token << " row " << row;
          }
        }
      }
    }
  }
}

/// Where ranks share a context, a query token sees of a rank's tokens those that it sees of the context.
TEST(Visible, SpansOfARankHaveWhatIsSeenOfTheContext) {
  for (const Visibility& v : rules()) {
    for (const Request& r : requests()) {
      for (int world : {1, 2, 3}) {
        for (int run : {1, 16, 64}) {
          for (int rank = 0; rank < world; ++rank) {
            const schedule::HeldShape shape{TokenShard(rank, world, run), 1, r.tokens, v.window};
            for (int token = 0; token < r.tokens; ++token) {
              const TokenSpan span = schedule::held_span(shape, r.length, v.later(r.tokens, token));
              for (int slot = 0; slot < shape.shard.held(r.length); ++slot) {
                const int position = static_cast<int>(shape.shard.position(slot));
                ASSERT_EQ(span.contains(slot), sees(v, r.length, r.tokens, token, position))
                    << "rank " << rank << " of " << world << " run " << run << " causal " << v.causal
                    << " window " << v.window << " length " << r.length << " token " << token << " slot "
                    << slot;
              }
            }
          }
        }
      }
    }
  }
}

TEST(Visible, QueryTokensOfTheIndexerSeeTheSame) {
  for_each([](const Visibility& v, const Request& r, int token) {
    if (v.window != 0) return;
    IndexCall call;
    call.causal = v.causal;
    call.lengths.data = &r.length;
    for (int reach : {100, 1000}) {
      call.max_pages = reach;
      const int end = v.seen(r.length, v.later(r.tokens, token)).end;
      ASSERT_EQ(call.visible(0, 0, token, r.tokens), std::min(end, reach));
    }
  });
}

TEST(Visible, TheLongestContextsDoNotOverflow) {
  for (int window : {0, 1, kMost}) {
    const TokenSpan seen = Visibility{window, true}.seen(kMost, 3);
    EXPECT_EQ(seen.end, kMost - 3);
    EXPECT_EQ(seen.begin, window == 1 ? kMost - 4 : 0);
  }
  EXPECT_EQ((TokenSpan{kMost - 70, kMost}.bits(kMost - 64)), kAllLive);
}

}  // namespace
}  // namespace flashlatent
