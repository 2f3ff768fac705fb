// What ranks that exchange rely on: where words are, which call it is, and that two parities are enough.
#include "core/exchange_memory.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

#include "flashlatent/exchange.h"

namespace flashlatent::exchange {
namespace {

template <class Pack>
class PackTest : public testing::Test {};
using Packs = testing::Types<ResultPack, QueryPack>;
TYPED_TEST_SUITE(PackTest, Packs);

TYPED_TEST(PackTest, WordsAreApartAndInside) {
  for (int world : {2, 3, 16}) {
    const Layout<TypeParam> layout{world, 32, 3 * TypeParam::kWords};
    for (int receiver : {0, 1, world - 1}) {
      std::set<std::size_t> places;
      for (int parity = 0; parity < 2; ++parity) {
        for (int sender = 0; sender < world; ++sender) {
          if (sender == receiver) continue;
          for (int pack = 0; pack < 3 * kGroup; ++pack) {
            for (int i = 0; i < TypeParam::kWords; ++i) {
              const std::size_t place =
                  layout.word(parity, sender, receiver, pack) + std::size_t(i) * kGroup * kWordBytes;
              EXPECT_TRUE(places.insert(place / kWordBytes).second) << parity << " " << sender << " " << pack;
              EXPECT_EQ(place % kWordBytes, 0U);
            }
          }
        }
      }
      EXPECT_GE(*places.begin() * kWordBytes, kCountBytes);
      EXPECT_EQ((*places.rbegin() + 1) * kWordBytes, layout.bytes());
    }
  }
}

TYPED_TEST(PackTest, BytesHaveRoomForTheRowsTheyAreFor) {
  for (int world : {2, 3, 8}) {
    for (int extent : {8, 64, 72, 512, 1152}) {
      for (int rows : {1, 31, 33, 4096}) {
        const std::size_t bytes = layout_for<TypeParam>(rows, extent, world).bytes();
        const auto layout = layout_of<TypeParam>(bytes, extent, world);
        EXPECT_EQ(layout.bytes(), bytes);
        EXPECT_GE(layout.rows(), static_cast<std::size_t>(rows));
        const auto less = layout_of<TypeParam>(bytes - 1, extent, world);
        EXPECT_LT(less.lines, layout.lines);
        EXPECT_LT(less.rows() * layout.packs, layout.lines / TypeParam::kWords * kGroup);
      }
    }
  }
  EXPECT_EQ(layout_of<TypeParam>(0, 512, 2).rows(), 0U);
}

/// Gatherings and exchanges have one memory: what the words of one half are written by, another half's never
/// are.
TEST(ExchangeMemoryTest, AHalfIsAtOnePlaceForAllShapesAndPacks) {
  for (int world : {2, 3, 8}) {
    for (int rows : {1, 3, 33}) {
      const std::size_t bytes = exchange_bytes(rows, 512, world) + 512 * std::size_t(rows);
      std::map<std::size_t, int> owner;
      const auto take = [&](const auto& layout, int words) {
        for (int parity = 0; parity < 2; ++parity) {
          for (int sender = 1; sender < world; ++sender) {
            const int who = parity * world + sender;
            for (std::size_t pack = 0; pack < layout.rows() * layout.packs; ++pack) {
              for (int i = 0; i < words; ++i) {
                const std::size_t place = layout.word(parity, sender, 0, static_cast<int>(pack)) +
                                          std::size_t(i) * kGroup * kWordBytes;
                EXPECT_LE(place + kWordBytes, bytes);
                EXPECT_EQ(owner.try_emplace(place, who).first->second, who) << place;
              }
            }
          }
        }
      };
      take(layout_of<ResultPack>(bytes, 512, world), ResultPack::kWords);
      take(layout_of<ResultPack>(bytes, 72, world), ResultPack::kWords);
      take(layout_of<QueryPack>(bytes, 1152, world), QueryPack::kWords);
      take(layout_of<QueryPack>(bytes, 500, world), QueryPack::kWords);
    }
  }
}

TEST(ExchangeMemoryTest, MemoryOfResultsHasRoomForTheirQueries) {
  for (int rows : {1, 8, 33, 4096}) {  // but for the rounding to whole warps
    EXPECT_LE(exchange_gather_bytes(rows, 576, 2), exchange_bytes(rows, 512, 2) + 2 * 4 * kLineBytes);
  }
}

TEST(ExchangeMemoryTest, AllCtasOfALaunchReadTheSameNumber) {
  for (int ctas : {1, 2, 7, 132, Epoch::kMostCtas}) {
    for (int first : {0, ctas / 2, ctas - 1}) {  // who is the first to arrive
      std::uint64_t count = 41ULL << Epoch::kArrivalBits;
      for (int i = 0; i < ctas; ++i) {
        EXPECT_EQ(Epoch(count).number, 42U) << i << " of " << ctas;
        count += Epoch::arrivals((first + i) % ctas, ctas);
      }
      EXPECT_EQ(count, 42ULL << Epoch::kArrivalBits);
    }
  }
}

TEST(ExchangeMemoryTest, NoTagIsThatOfMemoryNeverWrittenOrOfTheExchangeBeforeInItsPlace) {
  for (std::uint64_t number :
       {1ULL, 2ULL, (1ULL << 32) - 2, (1ULL << 32) - 1, 1ULL << 32, (1ULL << 32) + 1}) {
    const Epoch now((number - 1) << Epoch::kArrivalBits), later((number + 1) << Epoch::kArrivalBits);
    EXPECT_EQ(now.number, number);
    EXPECT_NE(now.tag(), 0U);
    EXPECT_EQ(now.parity(), later.parity());
    EXPECT_NE(now.tag(), later.tag()) << number;
  }
}

/// Ranks that send and read word by word, in any order, each when it likes.
class Ranks {
 public:
  explicit Ranks(int world) : world_(world), ranks_(world) {
    for (Rank& rank : ranks_) {
      rank.words.assign(2, std::vector<int>(world, 0));
      rank.read.assign(2, std::vector<int>(world, 0));
      begin(rank, 1);
    }
  }

  /// One step of a rank, if it can do one.
  void step(int r, std::mt19937& random) {
    Rank& rank = ranks_[r];
    const int peer = static_cast<int>((r + 1 + random() % (world_ - 1)) % world_), parity = rank.number % 2;
    if (rank.to_send > 0) {
      if (rank.sent[peer]) return;
      Rank& other = ranks_[peer];
      // What it overwrites must have been read.
      ASSERT_EQ(other.read[parity][r], other.words[parity][r]) << "exchange " << rank.number;
      other.words[parity][r] = rank.number;
      rank.sent[peer] = true;
      --rank.to_send;
    } else if (rank.read[parity][peer] != rank.number && rank.words[parity][peer] == rank.number) {
      rank.read[parity][peer] = rank.number;
      if (--rank.to_read == 0) begin(rank, rank.number + 1);
    }
  }

  int most_apart() const {
    int least = ranks_[0].number, most = least;
    for (const Rank& rank : ranks_) least = std::min(least, rank.number), most = std::max(most, rank.number);
    return most - least;
  }

 private:
  struct Rank {
    int number, to_send, to_read;
    std::vector<bool> sent;
    std::vector<std::vector<int>> words, read;  // [parity][sender]: the exchange it is of
  };
  void begin(Rank& rank, int number) const {
    rank.number = number;
    rank.to_send = rank.to_read = world_ - 1;
    rank.sent.assign(world_, false);
  }

  int world_;
  std::vector<Rank> ranks_;
};

TEST(ExchangeMemoryTest, NobodyWritesWhatIsStillToBeRead) {
  std::mt19937 random(3);
  int apart = 0;
  for (int world : {2, 3, 5}) {
    Ranks ranks(world);
    for (int i = 0; i < 200000 && !HasFatalFailure(); ++i) {
      // Now and then one of them runs ahead as far as it can.
      const int r = static_cast<int>(random() % world);
      for (int steps = random() % 50 == 0 ? 100 : 1; steps > 0; --steps) ranks.step(r, random);
      apart = std::max(apart, ranks.most_apart());
      ASSERT_LE(ranks.most_apart(), 1);
    }
  }
  EXPECT_EQ(apart, 1);
}

TEST(ExchangeTest, GatheringRefusesWhatDoesNotFitByName) {
  alignas(16) static std::uint16_t values[8192];
  static std::uint64_t memory[2];
  void* const addresses[2] = {&memory[0], &memory[1]};
  const Peers peers{.rank = 0, .memory = addresses, .bytes = exchange_gather_bytes(4, 576, 2)};
  const auto expect_refusal = [&](const char* words, const Peers& of, const ConstTensorView& q,
                                  const TensorView& gathered) {
    const std::string message = exchange_gather(of, q, gathered, {}).message();
    EXPECT_NE(message.find(words), std::string::npos) << message;
  };
  const TensorView q(values, Dtype::kBF16, {1, 1, 4, 576}), gathered(values, Dtype::kBF16, {1, 1, 8, 576});
  expect_refusal("q is on the CPU", peers, q, gathered);
  expect_refusal("q is fp32 (1, 1, 4, 576)", peers, TensorView(values, Dtype::kF32, {1, 1, 4, 576}),
                 gathered);
  expect_refusal("q is missing", peers, {}, gathered);
  expect_refusal("wrong shape: expected bf16 (1, 1, 8, 576)", peers, q, q);
  expect_refusal("on cpu; wrong dtype: expected fp16 (1, 1, 8, 576)", peers,
                 TensorView(values, Dtype::kF16, {1, 1, 4, 576}), gathered);
  expect_refusal("q has 8 rows of 1152 bytes; memory of 12544 bytes has room for 4", peers,
                 TensorView(values, Dtype::kBF16, {2, 1, 4, 576}),
                 TensorView(values, Dtype::kBF16, {2, 1, 8, 576}));
  TensorView turned = q;
  turned.strides[3] = 4;
  expect_refusal("q is bf16 (1, 1, 4, 576) strides (2304, 2304, 576, 4) on cpu; its innermost stride", peers,
                 turned, gathered);
  expect_refusal("rank is -1", {.rank = -1, .memory = addresses, .bytes = 1 << 20}, q, gathered);
  expect_refusal("there are 1 memories", {.rank = 0, .memory = {addresses, 1}, .bytes = 1 << 20}, q,
                 gathered);
}

TEST(ExchangeTest, RefusesWhatDoesNotFitByName) {
  alignas(16) static std::uint16_t values[4096];
  static float lses[64];
  static std::uint64_t memory[2];
  void* const addresses[2] = {&memory[0], &memory[1]};
  const auto refusal = [&](const Peers& peers, int heads, int d_v) {
    const TensorView partial_out(values, Dtype::kBF16, {1, 1, heads, d_v});
    const TensorView out(values, Dtype::kBF16, {1, 1, heads / 2, d_v});
    const Status status = exchange_combine(peers, partial_out, TensorView(lses, Dtype::kF32, {1, heads, 1}),
                                           {}, out, TensorView(lses, Dtype::kF32, {1, heads / 2, 1}), {});
    return status.message();
  };
  const auto expect_in = [](const char* words, const std::string& message) {
    EXPECT_NE(message.find(words), std::string::npos) << message;
  };
  const Peers peers{.rank = 0, .memory = addresses, .bytes = exchange_bytes(2, 512, 2)};
  expect_in("is on the CPU", refusal(peers, 4, 512));
  expect_in("has 3 rows of a rank; memory of 6400 bytes has room for 2", refusal(peers, 6, 512));
  expect_in("partial_out has 3 heads; a multiple of the 2 ranks", refusal(peers, 3, 512));
  expect_in("d_v, the address and the strides must be", refusal(peers, 4, 0));
  expect_in("d_v, the address and the strides must be", refusal(peers, 4, 12));
  expect_in("rank is 2", refusal({.rank = 2, .memory = addresses, .bytes = 6400}, 4, 512));
  expect_in("there are 1 memories of peers",
            refusal({.rank = 0, .memory = {addresses, 1}, .bytes = 6400}, 4, 512));
}

}  // namespace
}  // namespace flashlatent::exchange
