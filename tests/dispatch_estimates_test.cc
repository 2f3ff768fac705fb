// What kernels are estimated to take, over a grid of shapes. No device is asked.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <functional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "cached.h"
#include "cost/device.h"
#include "dispatch/select.h"
#include "kernels_that_take.h"
#include "plan/geometries.h"

namespace flashlatent {
namespace {

const Cached kCached[] = {
    {.name = "bf16"},
    {.name = "fp16", .dtype = Dtype::kF16},
    {.name = "pages of 1", .page_size = 1},
    {.name = "pages of 16", .page_size = 16},
    {.name = "512/512", .qk_dim = 512},
    {.name = "320/256", .qk_dim = 320, .v_dim = 256},
    {.name = "sparse", .sparse = true},
    {.name = "fp8_656", .format = KvFormat::kFp8_656},
    {.name = "sparse fp8_656", .format = KvFormat::kFp8_656, .sparse = true},
    {.name = "fp8_584", .format = KvFormat::kFp8_584, .qk_dim = 512},
    {.name = "sparse fp8_584", .format = KvFormat::kFp8_584, .qk_dim = 512, .sparse = true},
    {.name = "separate", .layout = KvLayout::kSeparate, .qk_dim = 128, .v_dim = 128},
    {.name = "separate, 8 KV heads",
     .layout = KvLayout::kSeparate,
     .qk_dim = 128,
     .v_dim = 128,
     .kv_heads = 8},
    {.name = "separate fp16", .layout = KvLayout::kSeparate, .dtype = Dtype::kF16, .qk_dim = 64, .v_dim = 64},
    {.name = "separate e4m3",
     .layout = KvLayout::kSeparate,
     .format = KvFormat::kE4m3,
     .qk_dim = 128,
     .v_dim = 128},
    {.name = "packed", .layout = KvLayout::kPacked, .qk_dim = 128, .v_dim = 128},
    {.name = "packed e4m3",
     .layout = KvLayout::kPacked,
     .format = KvFormat::kE4m3,
     .qk_dim = 256,
     .v_dim = 256},
};
const std::vector<int> kBatches = {1,  2,  3,  4,  6,  8,  12,  15,  16,  17,  24,  32,
                                   33, 40, 48, 64, 80, 96, 112, 128, 132, 133, 200, 256};
const std::vector<int> kTokens = {1,    32,    64,    65,    128,    192,    256,    320,
                                  512,  576,   640,   704,   1024,   2048,   3072,   4096,
                                  8192, 16384, 32768, 65536, 131072, 524288, 1048576};
const std::vector<int> kHeads = {1, 2, 4, 8, 9, 16, 17, 32, 33, 48, 64, 65, 80, 96, 112, 128};

std::vector<Candidate> candidates_of(const DecodeProblem& problem, const schedule::Workers& workers = 132) {
  Executor executor;
  executor.backend = Backend::kCuda;
  Result<std::vector<Candidate>> list = candidates(problem, executor, workers);
  if (!list.ok()) throw std::runtime_error(to_string(problem) + ": " + list.status().message());
  return std::move(*list);
}

class Estimates : public ::testing::TestWithParam<Cached> {
 protected:
  /// Heads that are whole groups.
  static std::vector<int> heads() {
    std::vector<int> heads = kHeads;
    std::erase_if(heads, [](int h) { return h % GetParam().kv_heads != 0; });
    return heads;
  }

  /// Calls `f` with the candidates of each line of the grid: problems whose requests, tokens or heads grow.
  static void for_each_line(const std::function<void(const std::vector<std::vector<Candidate>>&)>& f) {
    const auto& cached = GetParam();
    const std::vector<int> all_heads = heads();
    std::vector<std::vector<Candidate>> grid;
    const auto at = [&](std::size_t b, std::size_t t, std::size_t h) {
      return (b * kTokens.size() + t) * all_heads.size() + h;
    };
    for (int batch : kBatches) {
      for (int tokens : kTokens) {
        for (int h : all_heads) grid.push_back(candidates_of(problem_of(cached, batch, tokens, h)));
      }
    }
    std::vector<std::vector<Candidate>> line;
    const auto walk = [&](std::size_t n, std::size_t others, std::size_t more, auto place) {
      for (std::size_t i = 0; i < others; ++i) {
        for (std::size_t j = 0; j < more; ++j) {
          line.clear();
          for (std::size_t k = 0; k < n; ++k) line.push_back(grid[place(k, i, j)]);
          f(line);
        }
      }
    };
    const std::size_t nb = kBatches.size(), nt = kTokens.size(), nh = all_heads.size();
    walk(nb, nt, nh, [&](auto k, auto i, auto j) { return at(k, i, j); });
    walk(nt, nb, nh, [&](auto k, auto i, auto j) { return at(i, k, j); });
    walk(nh, nb, nt, [&](auto k, auto i, auto j) { return at(i, j, k); });
  }
};

INSTANTIATE_TEST_SUITE_P(Caches, Estimates, ::testing::ValuesIn(kCached), [](const auto& info) {
  std::string name = info.param.name;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
});

/// Nanoseconds. The fastest call that was ever measured took 4.6 us.
constexpr std::int64_t kLeast = 4000;

// Callers ask at their largest batch.
TEST_P(Estimates, SizesOfALargerBatchDoForASmallerOne) {
  for (const char* gpu : {"NVIDIA H200", "NVIDIA H100 80GB HBM3"}) {
    const schedule::Workers workers = cost::workers_of(*cost::find_gpu(gpu));
    for (int tokens : kTokens) {
      for (int h : heads()) {
        Sizes smaller;
        for (int batch : kBatches) {
          if (batch == 0) continue;
          const DecodeProblem problem = problem_of(GetParam(), batch, tokens, h);
          const std::vector<Candidate> list = candidates_of(problem, workers);
          const Candidate* best = cheapest(list);
          if (best == nullptr) continue;
          const Sizes sizes = sizes_of(problem, list, *best);
          ASSERT_GE(sizes.plan, smaller.plan) << gpu << ": " << to_string(problem);
          ASSERT_GE(sizes.workspace, smaller.workspace) << gpu << ": " << to_string(problem);
          smaller = sizes;
        }
      }
    }
  }
}

TEST_P(Estimates, ArePositive) {
  for (int workers : {8, 66, 114, 132}) {
    for (int batch : kBatches) {
      for (int tokens : kTokens) {
        for (int h : heads()) {
          const DecodeProblem problem = problem_of(GetParam(), batch, tokens, h);
          for (const Candidate& candidate : candidates_of(problem, workers)) {
            if (!candidate.reason.empty()) continue;
            ASSERT_GE(candidate.times.equal, kLeast)
                << candidate.kernel->name << " on " << workers << ": " << to_string(problem);
          }
        }
      }
    }
  }
  // No request takes no time.
  for (const Candidate& candidate : candidates_of(problem_of(GetParam(), 0, 64, heads().back()))) {
    EXPECT_GE(candidate.times.equal, 0) << candidate.kernel->name;
  }
}

/// Who shares a call out in the same way: for these the estimate is one formula.
auto way_of(const schedule::Geometry& g) {
  const bool line = schedule::cuts_line(g.partition);
  return std::tuple(g.partition, g.team, g.lanes, g.rounds,
                    g.partition == schedule::Partition::kWhole ? 0 : g.parts,
                    line && schedule::stays_whole(g), line && 2 * g.requests * g.rounds <= g.parts);
}

// More work never takes less as long as it is shared out in the same way. A few costs have steps:
// mla_64_pingpong's shares are counted 0.55 us more up to 16 rows, where mla_16 is beside them; fp8_64's
// calls 2.3 us more up to two requests; prefill's last wave of tiles is counted evenly among requests.
TEST_P(Estimates, GrowWithTheWorkInOneWay) {
  constexpr double kSteps = 0.86;
  std::int64_t compared = 0;
  for_each_line([&](const std::vector<std::vector<Candidate>>& line) {
    for (std::size_t i = 1; i < line.size(); ++i) {
      for (std::size_t k = 0; k < line[i].size(); ++k) {
        const Candidate &less = line[i - 1][k], &more = line[i][k];
        if (!less.reason.empty() || !more.reason.empty()) continue;
        if (way_of(less.geometry) != way_of(more.geometry)) continue;
        ++compared;
        ASSERT_GE(more.times.equal, kSteps * static_cast<double>(less.times.equal)) << more.kernel->name;
      }
    }
  });
  EXPECT_GT(compared, 10000);
}

// What the picked kernel takes may fall where a call goes over to another way, which the workspace of larger
// batches must have room for, or where rounds of row tiles become fewer since they fill the device better:
// that can halve it. Below half of what less work takes it is an error in the costs.
TEST_P(Estimates, OfThePickedKernelNeverHalve) {
  for_each_line([&](const std::vector<std::vector<Candidate>>& line) {
    std::int64_t most = 0;
    for (const std::vector<Candidate>& list : line) {
      const Candidate* picked = cheapest(list);
      ASSERT_NE(picked, nullptr);
      ASSERT_GE(2 * picked->times.equal, most) << picked->kernel->name;
      most = std::max(most, picked->times.equal);
    }
  });
}

// One request that is short: what 320 tokens get, by teams of 8.
TEST(LoneRequests, GetOneKernelWhileTheyAreShort) {
  for (int page_size : {1, 16, 64}) {
    for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
      for (int heads : {16, 40, 65, 80, 96, 128}) {
        for (int tokens : {1, 16, 32, 64, 100, 128, 192, 256, 320}) {
          const Cached cached{.name = "", .dtype = dtype, .page_size = page_size};
          const DecodeProblem problem = problem_of(cached, 1, tokens, heads);
          EXPECT_STREQ(cheapest(candidates_of(problem))->kernel->name, "mla_16_team8") << to_string(problem);
        }
      }
    }
  }
}

/// The problem in all variations of what decides who takes it.
std::vector<DecodeProblem> variations_of(const Cached& cached) {
  std::vector<DecodeProblem> list = {problem_of(cached, 3, 1000, 8)};
  const auto vary = [&](auto values, auto set) {
    std::vector<DecodeProblem> varied;
    for (const DecodeProblem& problem : list) {
      for (auto value : values) set(varied.emplace_back(problem), value);
    }
    list = std::move(varied);
  };
  vary(std::array{8, 16, 24, 32, 40, 64, 128, 200}, [](auto& p, int heads) { p.query.heads = heads; });
  vary(std::array{1, 3, 40}, [](auto& p, int tokens) { p.query.tokens = tokens; });
  vary(std::array{false, true}, [](auto& p, bool invariant) { p.options.batch_invariant = invariant; });
  vary(std::array{1, 8, 16, 61, 64}, [](auto& p, int page_size) { p.cache.page_size = page_size; });
  vary(std::array{PrefixSharing::kOff, PrefixSharing::kAuto, PrefixSharing::kAlways},
       [](auto& p, PrefixSharing sharing) { p.options.prefix_sharing = sharing; });
  vary(std::array{0, 16, 60}, [](auto& p, int less) {
    if (p.cache.format != KvFormat::kFp8_656) p.cache.v_dim -= less;
    if (less == 16 && p.cache.layout != KvLayout::kLatent) p.cache.qk_dim -= less;
  });
  return list;
}

// The tests of contracts on a GPU go by should_take(): a kernel that declines more is a failure there.
TEST_P(Estimates, AreOfTheKernelsThatShouldTakeAProblem) {
  for (const DecodeProblem& problem : variations_of(GetParam())) {
    if (!validate(problem).ok()) continue;
    for (const Candidate& candidate : candidates_of(problem)) {
      EXPECT_EQ(candidate.reason.empty(), should_take(candidate.kernel->name, problem))
          << candidate.kernel->name << " " << to_string(problem) << ": " << candidate.reason;
    }
  }
}

}  // namespace
}  // namespace flashlatent
