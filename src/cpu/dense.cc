// Decode on the CPU: the parts of a plan on threads, blocks of 64 tokens in SIMD.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/element.h"
#include "core/fp8_656.h"
#include "core/message.h"
#include "cpu/block_math.h"
#include "cpu/cpu_backend.h"
#include "cpu/rows.h"
#include "cpu/tokens.h"
#include "plan/host_plan.h"

namespace flashlatent::cpu {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kFixedSplitBlocks = 32;  // batch_invariant: 2,048 tokens a split

/// Room for a dequantised block, if there is something to dequantise.
std::size_t block_floats(KvFormat format) {
  return format == KvFormat::kPlain ? 0
                                    : kBlockTokens * fp8_656::kDim * sizeof(std::uint16_t) / sizeof(float);
}

/// What the schedule calls a request: sparse, a query token, since each has tokens of its own.
int items_of(const DecodeProblem& problem) {
  return problem.sparse.enabled ? problem.query.batch * problem.query.tokens : problem.query.batch;
}

/// The query rows of one item, KV head and tile.
struct RowTile {
  int request;
  int first_token;  // of the item
  int tokens;       // its query tokens
  int kv_head;
  int first;  // of the item's rows for this KV head
  int rows;
};

/// A call's tensors with the index arithmetic on them.
class Call {
 public:
  explicit Call(const DecodeCall& call)
      : problem_(call.problem),
        inputs_(call.inputs),
        outputs_(call.outputs),
        tokens_(problem_, inputs_),
        group_(problem_.query.heads / problem_.cache.heads),
        row_tiles_((problem_.rows_per_kv_head() + kTileRows - 1) / kTileRows) {}

  const std::int32_t* lengths() const {
    const bool sparse = problem_.sparse.enabled;
    return static_cast<const std::int32_t*>((sparse ? inputs_.topk_length : inputs_.cache_seqlens).data);
  }

  RowTile tile(int item, int round) const {
    const int s_q = problem_.query.tokens;
    RowTile tile{item, 0, s_q, round / row_tiles_, round % row_tiles_ * kTileRows, 0};
    if (problem_.sparse.enabled) {
      tile.request = item / s_q;
      tile.first_token = item % s_q;
      tile.tokens = 1;
    }
    if (problem_.query.ragged) tile.tokens = begins()[item + 1] - begins()[item];
    tile.rows = std::clamp(tile.tokens * group_ - tile.first, 0, kTileRows);
    return tile;
  }

  int token(const RowTile& tile, int row) const { return tile.first_token + (tile.first + row) / group_; }
  int head(const RowTile& tile, int row) const { return tile.kv_head * group_ + (tile.first + row) % group_; }

  const std::uint16_t* query_row(const RowTile& tile, int row) const {
    return static_cast<const std::uint16_t*>(inputs_.q.data) + offset(tile, row, inputs_.q);
  }

  /// Block number `index` of the tile's item.
  Tokens tokens(const RowTile& tile, int length, int index) const {
    return tokens_.block(tile.request, tile.first_token, tile.kv_head, length, index);
  }

  /// How many of these tokens each row sees.
  void set_visible(const RowTile& tile, int length, const Tokens& tokens, Block& block) const {
    for (int row = 0; row < tile.rows; ++row) {
      const int limit = problem_.options.causal ? length - tile.tokens + token(tile, row) + 1 : length;
      block.visible[row] = static_cast<int>(
          std::lower_bound(tokens.positions, tokens.positions + tokens.count, limit) - tokens.positions);
    }
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
  const TokenSource tokens_;
  const int group_;
  const int row_tiles_;
};

/// The caller's workspace: a tile's state and a dequantised block for each part, then partial results by
/// slot.
class Workspace {
 public:
  Workspace(const DecodeProblem& problem, const schedule::Geometry& g, Memory memory)
      : state_floats_(tile_floats(problem.cache.qk_dim, problem.cache.v_dim)),
        part_floats_(state_floats_ + block_floats(problem.cache.format)),
        row_floats_(problem.cache.v_dim + 1),
        parts_(static_cast<float*>(memory.data)),
        partials_(parts_ + g.parts * part_floats_) {}

  static std::size_t bytes(const DecodeProblem& problem, const schedule::Geometry& g) {
    const DecodeProblem::Cache& cache = problem.cache;
    const std::size_t part = tile_floats(cache.qk_dim, cache.v_dim) + block_floats(cache.format);
    return (g.parts * part + schedule::max_slots(g) * kTileRows * (cache.v_dim + 1)) * sizeof(float);
  }

  float* state(int part) const { return parts_ + part * part_floats_; }
  std::uint16_t* block(int part) const {
    return reinterpret_cast<std::uint16_t*>(state(part) + state_floats_);
  }
  /// v_dim values and the lse.
  float* partial(int slot, int row) const {
    return partials_ + (std::size_t{static_cast<unsigned>(slot)} * kTileRows + row) * row_floats_;
  }

 private:
  std::size_t state_floats_, part_floats_, row_floats_;
  float* parts_;
  float* partials_;
};

/// Rows of a plain cache, where they lie.
void set_rows(const Tokens& tokens, Block& block) {
  block.tokens = tokens.count;
  for (int t = 0; t < tokens.count; ++t)
    block.rows[t] = reinterpret_cast<const std::uint16_t*>(tokens.rows[t]);
}

/// Rows of an fp8_656 cache as bf16 in `memory`; fetches what comes next.
void dequantise(const Tokens& tokens, const Tokens& next, std::uint16_t* memory, Block& block) {
  block.tokens = tokens.count;
  for (int t = 0; t < tokens.count; ++t) {
    for (int i = 0; t < next.count && i < fp8_656::kTokenBytes; i += 64) fetch_ahead(next.rows[t] + i);
    std::uint16_t* row = memory + t * fp8_656::kDim;
    dequantise_row(tokens.rows[t], Dtype::kBF16, row);
    block.rows[t] = row;
  }
}

/// An empty row has factor 0 and lse -inf.
struct RowScale {
  float factor, lse;
};
RowScale finish_row(float max, float sum) {
  if (sum == 0) return {0, -kInfinity};
  return {1 / sum, max + std::log(sum)};
}

void run_segment(const DecodeProblem& problem, const Call& call, const Workspace& workspace, int part,
                 const schedule::Segment& segment) {
  const RowTile tile = call.tile(segment.request, segment.round);
  call.write_missing_rows(tile);
  if (tile.rows == 0) return;
  const std::uint16_t* query_rows[kTileRows];
  for (int row = 0; row < tile.rows; ++row) query_rows[row] = call.query_row(tile, row);
  const TileState state =
      start_tile(workspace.state(part), problem.cache.dtype, problem.cache.qk_dim, problem.cache.v_dim,
                 problem.options.softmax_scale, query_rows, tile.rows);
  Tokens blocks[2];  // in turns the one at work and the next
  blocks[0] = call.tokens(tile, segment.length, segment.block_begin);
  for (int i = 0; i < segment.block_end - segment.block_begin; ++i) {
    const Tokens& tokens = blocks[i % 2];
    Tokens& next = blocks[(i + 1) % 2];
    // Past the segment's last block comes the next segment's; no tokens where the request ends.
    next = call.tokens(tile, segment.length, segment.block_begin + i + 1);
    if (tokens.count == 0) continue;
    Block block, ahead;
    call.set_visible(tile, segment.length, tokens, block);
    if (problem.cache.format == KvFormat::kPlain) {
      set_rows(tokens, block);
      set_rows(next, ahead);
    } else {
      dequantise(tokens, next, workspace.block(part), block);
      ahead.tokens = 0;
    }
    attend_block(state, block, ahead);
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
    for (schedule::Segment segment; walker.next(segment);)
      run_segment(problem, call, workspace, part, segment);
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
  if (problem.cache.layout == KvLayout::kLatent) return std::nullopt;
  return message("the cache is ", to_string(problem.cache.layout), "; a latent one is accepted");
}

schedule::Geometry geometry(const DecodeProblem& problem, int workers) {
  schedule::Geometry g;
  g.requests = items_of(problem);
  g.length_sharers = problem.sparse.enabled ? problem.query.tokens : 1;
  g.tile_rows = kTileRows;
  g.block_tokens = kBlockTokens;
  const std::int64_t reach = problem.sparse.enabled
                                 ? problem.sparse.topk
                                 : std::int64_t{problem.cache.max_pages} * problem.cache.page_size;
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
    .takes =
        "bf16, fp16 and fp8_656 caches, dense and sparse; any dimensions, heads, query tokens (also ragged), "
        "page "
        "size and topk",
    .declines = declines,
    .geometry = geometry,
    .workspace_bytes = Workspace::bytes,
    .launch = launch,
};

}  // namespace flashlatent::cpu
