// Dense decode on the CPU: the parts of a plan on threads, blocks of 64 tokens in SIMD.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/element.h"
#include "cpu/block_math.h"
#include "cpu/cpu_backend.h"
#include "plan/host_plan.h"

namespace flashlatent::cpu {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kFixedSplitBlocks = 32;  // batch_invariant: 2,048 tokens a split

/// The query rows of one request, KV head and tile.
struct RowTile {
  int request;
  int kv_head;
  int first;  // of the request's rows for this KV head
  int rows;
  int tokens;  // the request's query tokens
};

/// A call's tensors with the index arithmetic on them.
class Call {
 public:
  explicit Call(const DecodeCall& call)
      : problem_(call.problem),
        inputs_(call.inputs),
        outputs_(call.outputs),
        group_(problem_.query.heads / problem_.cache.heads),
        row_tiles_((problem_.rows_per_kv_head() + kTileRows - 1) / kTileRows) {}

  const std::int32_t* lengths() const { return static_cast<const std::int32_t*>(inputs_.cache_seqlens.data); }

  RowTile tile(int request, int round) const {
    RowTile tile{request, round / row_tiles_, round % row_tiles_ * kTileRows, 0, problem_.query.tokens};
    if (problem_.query.ragged) tile.tokens = begins()[request + 1] - begins()[request];
    tile.rows = std::clamp(tile.tokens * group_ - tile.first, 0, kTileRows);
    return tile;
  }

  int token(const RowTile& tile, int row) const { return (tile.first + row) / group_; }
  int head(const RowTile& tile, int row) const { return tile.kv_head * group_ + (tile.first + row) % group_; }

  const std::uint16_t* query_row(const RowTile& tile, int row) const {
    return static_cast<const std::uint16_t*>(inputs_.q.data) + offset(tile, row, inputs_.q);
  }

  /// Block number `index` of the tile's request: the tokens before `length` whose page exists.
  Block block(const RowTile& tile, int length, int index) const {
    const auto& cache = problem_.cache;
    const ConstTensorView& kv = inputs_.kv_cache;
    const auto* pages = static_cast<const std::int32_t*>(inputs_.block_table.data) +
                        tile.request * inputs_.block_table.strides[0];
    const auto* head =
        static_cast<const std::uint16_t*>(kv.data) + static_cast<std::int64_t>(tile.kv_head) * kv.strides[2];
    Block block;
    block.tokens = 0;
    int positions[kBlockTokens];
    const int end = std::min((index + 1) * kBlockTokens, length);
    for (int t = index * kBlockTokens; t < end;) {
      const int first = t % cache.page_size;
      const int stop = std::min(end, t - first + cache.page_size);
      const std::int64_t page = pages[t / cache.page_size];
      if (page < 0 || page >= kv.shape[0]) {
        t = stop;
        continue;
      }
      const std::uint16_t* row = head + page * kv.strides[0] + first * kv.strides[1];
      for (; t < stop; ++t, row += kv.strides[1]) {
        block.rows[block.tokens] = row;
        positions[block.tokens++] = t;
      }
    }
    for (int row = 0; row < tile.rows; ++row) {
      const int limit = problem_.options.causal ? length - tile.tokens + token(tile, row) + 1 : length;
      block.visible[row] =
          static_cast<int>(std::lower_bound(positions, positions + block.tokens, limit) - positions);
    }
    return block;
  }

  void write_lse(const RowTile& tile, int row, float value) const {
    const auto& s = outputs_.lse.strides;
    static_cast<float*>(
        outputs_.lse.data)[tile.request * s[0] + head(tile, row) * s[1] + token(tile, row) * s[2]] = value;
  }

  /// out = factor * values with the sink applied, and lse.
  void write_row(const RowTile& tile, int row, const float* values, float factor, float lse) const {
    write_lse(tile, row, lse);
    if (problem_.options.attn_sink && lse != -kInfinity) {
      factor /= 1 + std::exp(static_cast<const float*>(inputs_.attn_sink.data)[head(tile, row)] - lse);
    }
    auto* out = static_cast<std::uint16_t*>(outputs_.out.data) + offset(tile, row, outputs_.out);
    for (int d = 0; d < problem_.cache.v_dim; ++d)
      out[d] = from_float(values[d] * factor, problem_.cache.dtype);
  }

  /// Rows of query tokens that a ragged request does not have: only their lse exists.
  void write_missing_rows(const RowTile& tile) const {
    const int all = std::min(problem_.rows_per_kv_head() - tile.first, kTileRows);
    for (int row = tile.rows; row < all; ++row) write_lse(tile, row, -kInfinity);
  }

 private:
  const std::int32_t* begins() const { return static_cast<const std::int32_t*>(inputs_.cu_seqlens_q.data); }

  std::int64_t offset(const RowTile& tile, int row, const ConstTensorView& view) const {
    const auto& s = view.strides;
    if (problem_.query.ragged)
      return (begins()[tile.request] + token(tile, row)) * s[0] + head(tile, row) * s[1];
    return tile.request * s[0] + token(tile, row) * s[1] + head(tile, row) * s[2];
  }

  const DecodeProblem& problem_;
  const DecodeInputs& inputs_;
  const DecodeOutputs& outputs_;
  const int group_;
  const int row_tiles_;
};

/// The caller's workspace: a tile's state for each part, then partial results by slot.
class Workspace {
 public:
  Workspace(const DecodeProblem& problem, const schedule::Geometry& g, Memory memory)
      : state_floats_(tile_floats(problem.cache.qk_dim, problem.cache.v_dim)),
        row_floats_(problem.cache.v_dim + 1),
        states_(static_cast<float*>(memory.data)),
        partials_(states_ + g.parts * state_floats_) {}

  static std::size_t bytes(const DecodeProblem& problem, const schedule::Geometry& g) {
    const std::size_t state = tile_floats(problem.cache.qk_dim, problem.cache.v_dim);
    return (g.parts * state + schedule::max_slots(g) * kTileRows * (problem.cache.v_dim + 1)) * sizeof(float);
  }

  float* state(int part) const { return states_ + part * state_floats_; }
  /// v_dim values and the lse.
  float* partial(int slot, int row) const {
    return partials_ + (std::size_t{static_cast<unsigned>(slot)} * kTileRows + row) * row_floats_;
  }

 private:
  std::size_t state_floats_;
  std::size_t row_floats_;
  float* states_;
  float* partials_;
};

/// An empty row has factor 0 and lse -inf.
struct RowScale {
  float factor, lse;
};
RowScale finish_row(float max, float sum) {
  if (sum == 0) return {0, -kInfinity};
  return {1 / sum, max + std::log(sum)};
}

void run_segment(const DecodeProblem& problem, const Call& call, const Workspace& workspace, int part,
                 const schedule::Segment& segment, int length) {
  const RowTile tile = call.tile(segment.request, segment.round);
  call.write_missing_rows(tile);
  if (tile.rows == 0) return;
  const std::uint16_t* query_rows[kTileRows];
  for (int row = 0; row < tile.rows; ++row) query_rows[row] = call.query_row(tile, row);
  const TileState state =
      start_tile(workspace.state(part), problem.cache.dtype, problem.cache.qk_dim, problem.cache.v_dim,
                 problem.options.softmax_scale, query_rows, tile.rows);
  Block blocks[2];  // in turns the one at work and the next
  blocks[0] = call.block(tile, length, segment.block_begin);
  for (int i = 0; i < segment.block_end - segment.block_begin; ++i) {
    Block& next = blocks[(i + 1) % 2];
    // Past the segment's last block comes the next segment's; no tokens where the request ends.
    next = call.block(tile, length, segment.block_begin + i + 1);
    if (blocks[i % 2].tokens > 0) attend_block(state, blocks[i % 2], next);
  }
  for (int row = 0; row < tile.rows; ++row) {
    const RowScale scale = finish_row(state.max[row], state.sum[row]);
    const float* out = state.out + row * state.out_stride;
    if (segment.slot < 0) {
      call.write_row(tile, row, out, scale.factor, scale.lse);
      continue;
    }
    float* partial = workspace.partial(segment.slot, row);
    for (int d = 0; d < problem.cache.v_dim; ++d) partial[d] = out[d] * scale.factor;
    partial[problem.cache.v_dim] = scale.lse;
  }
}

/// Merges the partial results of one row into the first slot's, in order, and writes it.
void merge_row(const DecodeProblem& problem, const Call& call, const Workspace& workspace,
               const schedule::Merge& merge, const RowTile& tile, int row) {
  const int v_dim = problem.cache.v_dim;
  float max = -kInfinity;
  for (int slot = merge.slot_begin; slot < merge.slot_end; ++slot) {
    max = std::max(max, workspace.partial(slot, row)[v_dim]);
  }
  const float base = max == -kInfinity ? 0 : max;
  float* merged = workspace.partial(merge.slot_begin, row);
  float sum = 0;
  for (int slot = merge.slot_begin; slot < merge.slot_end; ++slot) {
    const float* partial = workspace.partial(slot, row);
    const float weight = std::exp(partial[v_dim] - base);
    const bool first = slot == merge.slot_begin;
    sum += weight;
    for (int d = 0; d < v_dim; ++d) {
      const float value = weight == 0 ? 0 : weight * partial[d];
      merged[d] = first ? value : merged[d] + value;
    }
  }
  const RowScale scale = finish_row(base, sum);
  call.write_row(tile, row, merged, scale.factor, scale.lse);
}

Status launch(const DecodeCall& decode_call) {
  const DecodeProblem& problem = decode_call.problem;
  const schedule::Geometry& g = decode_call.geometry;
  const schedule::PlanView plan = schedule::plan_view(g, decode_call.plan.data);
  if (plan.header->fingerprint != schedule::fingerprint(g)) {
    return {StatusCode::kInvalidArgument,
            "plan was not made for this problem and executor; call plan() with the same ones"};
  }
  const Call call(decode_call);
  const Workspace workspace(problem, g, decode_call.workspace);
#pragma omp parallel for schedule(static, 1) num_threads(g.parts)
  for (int part = 0; part < g.parts; ++part) {
    schedule::PartWalker walker(g, plan.cuts[part], plan.cuts[part + 1], call.lengths());
    for (schedule::Segment segment; walker.next(segment);) {
      const int length = std::clamp(call.lengths()[segment.request], 0, g.max_tokens);
      run_segment(problem, call, workspace, part, segment, length);
    }
  }
  const int merge_rows = plan.header->merges * kTileRows;
#pragma omp parallel for schedule(static) num_threads(g.parts) if (merge_rows > 0)
  for (int i = 0; i < merge_rows; ++i) {
    const schedule::Merge& merge = plan.merges[i / kTileRows];
    const RowTile tile = call.tile(merge.request, merge.round);
    if (i % kTileRows < tile.rows) merge_row(problem, call, workspace, merge, tile, i % kTileRows);
  }
  return {};
}

std::optional<std::string> declines(const DecodeProblem& problem) {
  if (problem.sparse.enabled) return "sparse decode is not accepted";
  if (problem.cache.format != KvFormat::kPlain) return "an fp8_656 cache is not accepted";
  return std::nullopt;
}

schedule::Geometry geometry(const DecodeProblem& problem, int workers) {
  schedule::Geometry g;
  g.requests = problem.query.batch;
  g.tile_rows = kTileRows;
  g.block_tokens = kBlockTokens;
  const std::int64_t reach = static_cast<std::int64_t>(problem.cache.max_pages) * problem.cache.page_size;
  g.max_tokens = static_cast<std::int32_t>(std::min<std::int64_t>(reach, (1LL << 31) - (1 << 14)));
  g.fixed_split = problem.options.batch_invariant ? kFixedSplitBlocks : 0;
  // Converting queries and writing a tile cost about as much as a block.
  g.cost = {.per_block = 4, .per_split = 4};
  // One thread a part: threads share no cache below the last level that lanes would help.
  g.rounds = (problem.rows_per_kv_head() + kTileRows - 1) / kTileRows * problem.cache.heads;
  g.parts = workers;
  return g;
}

}  // namespace

int hardware_threads() {
  return omp_get_max_threads();
}

const DecodeKernel kDenseKernel = {
    .name = "cpu_dense",
    .backend = Backend::kCpu,
    .takes = "bf16 and fp16 caches, any dimensions, heads, query tokens (also ragged) and page size",
    .declines = declines,
    .geometry = geometry,
    .workspace_bytes = Workspace::bytes,
    .launch = launch,
};

}  // namespace flashlatent::cpu
