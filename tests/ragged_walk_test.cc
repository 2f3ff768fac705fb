// What kernels by lists walk of ragged requests' query tokens: the device's own code (walk/segments.cuh,
// walk/row_tile.cuh), compiled for the host, so that no device is asked.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

// Those of the device's functions that the two headers name.
template <class T>
inline T __ldg(const T* place) {
  return *place;
}
template <class T>
inline T __ldcg(const T* place) {
  return *place;
}
inline void cudaGridDependencySynchronize() {}
inline void cudaTriggerProgrammaticLaunchCompletion() {}
inline const dim3 blockIdx{0, 0, 0};
using std::max;
using std::min;

#include "cuda/sm90/walk/segments.cuh"
#include "flashlatent/decode.h"
#include "plan/host_plan.h"

namespace flashlatent::sm90 {
namespace {

struct Batch {
  DecodeProblem problem;
  std::vector<std::int32_t> counts, begins, lengths, extra;
  int tile_rows, row_tiles;
};

Batch random_batch(std::mt19937& engine) {
  auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine); };
  Batch batch;
  const int requests = draw(1, 12), most = draw(1, 7);
  batch.begins = {0};
  for (int i = 0; i < requests; ++i) {
    batch.counts.push_back(draw(0, most));
    batch.begins.push_back(batch.begins.back() + batch.counts.back());
    batch.lengths.push_back(draw(0, 3) == 0 ? draw(-1, 8) : draw(0, 3000));
    batch.extra.push_back(draw(0, 400));
  }
  batch.problem.query = {.batch = requests, .tokens = most, .heads = draw(1, 200), .ragged = true};
  batch.problem.cache.max_pages = 40;
  batch.problem.options.causal = draw(0, 2) > 0;
  batch.problem.options.window = draw(1, 600);
  if (draw(0, 1) == 0) batch.problem.cache.extra = {.enabled = true, .page_size = 2, .max_pages = 180};
  batch.tile_rows = draw(0, 1) == 0 ? 16 : 64;
  batch.row_tiles = (batch.problem.query.heads + batch.tile_rows - 1) / batch.tile_rows;
  return batch;
}

DecodeArguments arguments_of(const Batch& batch, const schedule::Geometry& g,
                             const schedule::PlanView& plan) {
  DecodeArguments args = {};
  args.geometry = g;
  args.lanes = Divisor(g.lanes);
  args.sharers = Divisor(g.length_sharers);
  args.cuts = plan.cuts;
  args.successors = plan.successors;
  args.query.begins = batch.begins.data();
  args.query.total = batch.begins.back();
  args.query.tokens = 1;
  args.query.group = Divisor(batch.problem.query.heads);
  args.query.row_tiles = Divisor(batch.row_tiles);
  auto view = [](const std::vector<std::int32_t>& values) {
    return ConstTensorView(values.data(), Dtype::kI32, {static_cast<std::int64_t>(values.size())});
  };
  args.cache.list_lengths = schedule::union_lengths(
      {view(batch.lengths), batch.problem.cache.extra.enabled ? view(batch.extra) : ConstTensorView()});
  return args;
}

/// Tokens [begin, end) of the cache that a request's query token sees, by the definition.
TokenSpan seen(const Batch& batch, int request, int token) {
  const auto& [query, cache, sparse, options] = batch.problem;
  const int all = std::clamp(batch.lengths[request], 0, cache.max_pages * cache.page_size);
  const int end = std::max(options.causal ? all - batch.counts[request] + token + 1 : all, 0);
  return {std::max(end - options.window, 0), end};
}

// Each row of each query token that there is meets each block of its lists once, and no other row is met.
TEST(RaggedWalk, RowsMeetTheirTokensOnce) {
  std::mt19937 engine(11);
  for (int i = 0; i < 300; ++i) {
    const Batch batch = random_batch(engine);
    const int heads = batch.problem.query.heads;
    schedule::Geometry g;
    g.parts = 1 + static_cast<int>(engine() % 40);
    g.lanes = 1 + static_cast<int>(engine() % batch.row_tiles);
    while (batch.row_tiles % g.lanes != 0) --g.lanes;
    g.rounds = batch.row_tiles / g.lanes;
    g.tile_rows = batch.tile_rows;
    g.cost = {.per_block = 600, .per_split = 1900};
    schedule::set_lists(g, batch.problem);
    std::vector<std::uint64_t> memory(schedule::plan_bytes(g) / 8 + 1);
    const DecodeArguments args = arguments_of(batch, g, schedule::plan_view(g, memory.data()));
    if (i % 2 == 0) {
      schedule::build_on_host(g, args.cache.list_lengths, memory.data());
    } else {
      schedule::build_on_host(g, schedule::RaggedLengths{args.cache.list_lengths, batch.begins.data()},
                              memory.data());
    }
    std::vector<int> next_block(static_cast<std::size_t>(batch.begins.back()) * heads);
    for (int part = 0; part < g.parts; ++part) {
      for (int lane = 0; lane < g.lanes; ++lane) {
        Segments<1, true, true> segments(args, PartPlace<>(g, part, lane));
        for (schedule::Segment segment; segments.next(segment);) {
          const RowTile tile = segments.tile_of(segment);
          ASSERT_GT(tile.rows, 0);
          const ListedRange range = listed_range(args, segment, tile);
          const TokenSpan expected = seen(batch, tile.request, tile.first_token);
          EXPECT_EQ(range.lists.first, expected.begin);
          EXPECT_EQ(range.lists.tokens[0], expected.count());
          const RowsInLine line = tile.in_line<true>(args.query);
          for (int row = 0; row < tile.rows; ++row) {
            const int token = tile.token(args.query, row), head = tile.head(args.query, row);
            ASSERT_EQ(token, tile.first_token);
            ASSERT_LT(token, batch.counts[tile.request]);
            const int place = (tile.origin + token) * heads + head;
            ASSERT_EQ(tile.origin, batch.begins[tile.request]);
            ASSERT_EQ(line.first + row, place);
            ASSERT_EQ(next_block[place], segment.block_begin);
            next_block[place] = segment.block_end;
          }
        }
      }
    }
    for (int request = 0; request < batch.problem.query.batch; ++request) {
      const int extra = batch.problem.cache.extra.enabled ? std::min(batch.extra[request], 360) : 0;
      for (int token = 0; token < batch.counts[request]; ++token) {
        const int blocks =
            schedule::list_blocks(g, seen(batch, request, token).count()) + schedule::list_blocks(g, extra);
        for (int head = 0; head < heads; ++head) {
          ASSERT_EQ(next_block[(batch.begins[request] + token) * heads + head], blocks);
        }
      }
    }
    if (HasFailure()) FAIL() << "batch " << i;
  }
}

}  // namespace
}  // namespace flashlatent::sm90
