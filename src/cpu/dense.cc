// Decode on the CPU from any cache: each thread does one or more parts of a plan, in blocks of 64 tokens,
// with SIMD.
#include <algorithm>

#include "core/message.h"
#include "cpu/block_math.h"
#include "cpu/dense.h"
#include "cpu/dense_call.h"
#include "cpu/parallel.h"
#include "cpu/workspace.h"
#include "plan/plan_memory.h"
#include "plan/prefix_plan.h"
#include "plan/token_lists.h"
#include "plan/walker.h"

namespace flashlatent::cpu {

namespace {

/// The shared prefixes of a call, if it has any.
struct Prefixes {
  explicit Prefixes(const DecodeCall& call) : call(call), shape(call.prefix) {
    if (shape.requests == 0) return;
    plan = prefix::view(shape, static_cast<std::uint8_t*>(call.plan.data) + prefix::offset(call.geometry));
  }

  bool shared() const { return shape.requests > 0; }
  /// Tokens that a request of this length attends to with its group; 0 if it does not see all of the prefix.
  /// `length` is clamped.
  int tokens(int request, int length) const {
    const int planned = plan.shares[request].tokens;
    return prefix::sees_prefix(planned, length, shape.unseen) ? planned : 0;
  }

  const DecodeCall& call;
  const prefix::Shape& shape;
  prefix::View plan = {};
};

/// Does one unit of a prefix: writes its partial rows.
void run_unit(const DecodeProblem& problem, const DenseCall& call, const Workspace& workspace, int part,
              const Prefixes& prefixes, int index) {
  const prefix::View& plan = prefixes.plan;
  const prefix::Unit unit =
      unit_of(prefixes.shape, plan.tiles[tile_of_unit(*plan.header, plan.tiles, index)], index);
  // The pages of a member that still has the whole prefix. If no member has, the result is never read.
  const std::int32_t* members = plan.members + unit.tile.member_begin;
  const auto* reader = std::find_if(members, members + unit.tile.members, [&](int request) {
    return prefixes.tokens(request, call.length_of(request)) > 0;
  });
  if (reader == members + unit.tile.members) return;
  const PrefixTile tile{members, *reader, unit.kv_head, unit.tile.members * prefixes.shape.request_rows};
  const TileState state = call.start(tile, workspace.state(part), workspace.scratch(part));
  Tokens blocks[2];  // alternately the current block and the next one
  blocks[0] = call.prefix_tokens(tile, unit.block_begin);
  for (int i = unit.block_begin; i < unit.block_end; ++i) {
    const Tokens& tokens = blocks[(i - unit.block_begin) % 2];
    Tokens& next = blocks[(i - unit.block_begin + 1) % 2];
    next = i + 1 < unit.block_end ? call.prefix_tokens(tile, i + 1) : Tokens{};
    if (tokens.count == 0) continue;
    Block block, ahead;
    std::fill_n(block.seen, tile.rows, TokenSpan{0, tokens.count});
    call.fetch(tokens, next, workspace.scratch(part), block, ahead);
    attend_block(state, block, ahead);
  }
  for (int row = 0; row < tile.rows; ++row) {
    const RowScale scale = finish_row(state.max[row], state.sum[row]);
    const float* out = state.out + row * state.out_stride;
    float* partial = Workspace::prefix_row(prefixes.call, unit.row_begin + row);
    for (int d = 0; d < problem.cache.v_dim; ++d) partial[d] = out[d] * scale.factor;
    partial[problem.cache.v_dim] = scale.lse;
  }
}

/// Merges the partial results of a prefix into a row of a request's first segment, in the order of splits.
/// The row's values times scale.factor are normalised before; afterwards that factor is the merged row's.
void add_prefix(const DecodeProblem& problem, const Prefixes& prefixes, const RowTile& tile, int row,
                float* out, RowScale& scale) {
  const prefix::Share& share = prefixes.plan.shares[tile.request];
  auto partial_of = [&](int split) {
    const std::int64_t unit = std::int64_t{tile.kv_head} * share.splits + split;
    return Workspace::prefix_row(prefixes.call, share.row_begin + unit * share.unit_rows + tile.first + row);
  };
  merge_rows(out, scale, share.splits, problem.cache.v_dim, partial_of);
}

void run_segment(const DecodeProblem& problem, const DenseCall& call, const Workspace& workspace, int part,
                 const Prefixes& prefixes, schedule::Segment segment) {
  const RowTile tile = call.tile(segment.request, segment.round);
  call.write_missing_rows(tile);
  if (tile.rows == 0) return;
  const TileState state = call.start(tile, workspace.state(part), workspace.scratch(part));
  call.set_slopes(tile, state);
  int prefix = 0;
  if (prefixes.shared()) {  // the request ends the segment, because a plan with prefixes knows cuts only
    const int length = call.length_of(segment.request);
    prefix = prefixes.tokens(segment.request, length);
    segment.length = length - prefix;
    const int blocks = (segment.length + kBlockTokens - 1) / kBlockTokens;
    segment.block_end = std::min(segment.block_end, blocks);
  }
  const Reach reach = call.reach(tile, segment.length, prefix);
  Tokens blocks[2];  // alternately the current block and the next one
  blocks[0] = call.tokens(tile, reach, segment.block_begin);
  for (int i = 0; i < segment.block_end - segment.block_begin; ++i) {
    const Tokens& tokens = blocks[i % 2];
    Tokens& next = blocks[(i + 1) % 2];
    // After a segment's last block comes the next segment's first; no tokens where the request ends.
    next = call.tokens(tile, reach, segment.block_begin + i + 1);
    if (tokens.count == 0) continue;
    Block block, ahead;
    call.set_visible(tile, reach.length, tokens, block);
    call.fetch(tokens, next, workspace.scratch(part), block, ahead);
    attend_block(state, block, ahead);
  }
  for (int row = 0; row < tile.rows; ++row) {
    RowScale scale = finish_row(state.max[row], state.sum[row]);
    float* out = state.out + row * state.out_stride;
    if (prefix > 0 && segment.block_begin == 0) add_prefix(problem, prefixes, tile, row, out, scale);
    if (segment.partial < 0) {
      call.write_row(tile, row, out, scale.factor, scale.lse, state.max[row]);
      continue;
    }
    float* partial = workspace.partial(segment.partial, row);
    for (int d = 0; d < problem.cache.v_dim; ++d) partial[d] = out[d] * scale.factor;
    partial[problem.cache.v_dim] = scale.lse;
    partial[problem.cache.v_dim + 1] = state.max[row];
  }
}

/// Merges the partial results of one row, in order, and writes the row.
void merge_row(const DecodeProblem& problem, const DenseCall& call, const Workspace& workspace,
               const schedule::Merge& merge, const RowTile& tile, int row) {
  const int v_dim = problem.cache.v_dim;
  float* merged = workspace.partial(merge.partial_begin, row);
  RowScale scale{1, merged[v_dim]};
  merge_rows(merged, scale, merge.partial_end - merge.partial_begin - 1, v_dim,
             [&](int i) { return workspace.partial(merge.partial_begin + 1 + i, row); });
  float max = -kInfinity;
  for (int i = merge.partial_begin; i < merge.partial_end; ++i)
    max = std::max(max, workspace.partial(i, row)[v_dim + 1]);
  call.write_row(tile, row, merged, scale.factor, scale.lse, max);
}

Status other_plan() {
  return invalid_argument("plan was not made for this problem and executor; call plan() with the same ones");
}

}  // namespace

Status launch_dense(const DecodeCall& decode_call) {
  const DecodeProblem& problem = decode_call.problem;
  const schedule::Geometry& g = decode_call.geometry;
  const schedule::PlanView plan = schedule::plan_view(g, decode_call.plan.data);
  if (plan.header->fingerprint != schedule::fingerprint(g)) {
    return other_plan();
  }
  const DenseCall call(decode_call);
  const Workspace workspace(problem, g, decode_call.workspace);
  const Prefixes prefixes(decode_call);
  if (prefixes.shared() && prefixes.plan.header->fingerprint != prefix::fingerprint(prefixes.shape)) {
    return other_plan();
  }
  const std::int32_t* lengths = prefixes.shared() ? nullptr : call.lengths();
  const int units = prefixes.shared() ? prefixes.plan.header->units : 0;
  parallel_for(std::min(units, g.parts), g.parts, [&](std::int64_t i) {
    const int part = static_cast<int>(i);
    for (int unit = part; unit < units; unit += g.parts) {
      run_unit(problem, call, workspace, part, prefixes, unit);
    }
  });
  auto run_part = [&](int part, auto walker) {
    for (schedule::Segment segment; walker.next(segment);)
      run_segment(problem, call, workspace, part, prefixes, segment);
  };
  parallel_for(g.parts, g.parts, [&](std::int64_t i) {
    const int part = static_cast<int>(i);
    const schedule::Cut &begin = plan.cuts[part], &end = plan.cuts[part + 1];
    if (g.lists == 2) {
      using Walker = schedule::Walker<schedule::Walks::kAll, true, schedule::UnionLengths>;
      run_part(part, Walker(g, begin, end, plan.successors, call.union_lengths()));
    } else {
      run_part(part, schedule::PartWalker(g, begin, end, plan.successors, lengths));
    }
  });
  parallel_for(std::int64_t{plan.header->merges} * kTileRows, g.parts, [&](std::int64_t i) {
    const schedule::Merge& merge = plan.merges[i / kTileRows];
    const RowTile tile = call.tile(merge.request, merge.round);
    const int row = static_cast<int>(i % kTileRows);
    if (row < tile.rows) merge_row(problem, call, workspace, merge, tile, row);
  });
  return {};
}

}  // namespace flashlatent::cpu
