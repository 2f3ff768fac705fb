// flashlatent.index_topk and its relatives: the indexer of sparse attention.
#include "flashlatent/index_topk.h"

#include <nanobind/stl/optional.h>

#include "python/src/bindings.h"
#include "python/src/cache_operation.h"
#include "python/src/memory.h"
#include "python/src/token_edges.h"

namespace flashlatent::python {

namespace {

/// Places of a query token, as index_topk() takes them.
constexpr std::int64_t kMostSpan = 1 << 30;

struct Keys {
  TensorView pages;
  IndexFormat format = IndexFormat::kFp8_132;
  int page_size = 0;
};

/// A cache of index keys, (pages, page_bytes) with a page size, or (pages, page_size, 132 or 68), perhaps
/// with a 1 before the last extent.
Keys keys_of(const TensorView& view, std::string_view format_name, std::optional<int> page_size) {
  Keys keys{view, take(index_format_from_name(format_name)), page_size.value_or(0)};
  if (view.rank == 2) {
    if (!page_size) refuse("page_size is missing; index_cache of (pages, page_bytes) needs it");
    return keys;
  }
  const std::int64_t bytes = index_key_bytes(keys.format), last = view.rank - 1;
  const bool fits = (view.rank == 3 || (view.rank == 4 && view.shape[2] == 1)) && view.shape[last] == bytes &&
                    view.strides[last] == 1 && (view.shape[1] <= 1 || view.strides[1] == bytes);
  if (!fits || (page_size && *page_size != view.shape[1])) {
    refuse("index_cache is ", to_string(ConstTensorView(view)),
           "; expected uint8 (pages, page_bytes) with page_size, or whole ", "pages as (pages, page_size, ",
           bytes, ") of ", to_string(keys.format));
  }
  keys.page_size = static_cast<int>(view.shape[1]);
  keys.pages.rank = 2;
  keys.pages.shape = {view.shape[0], view.shape[1] * bytes};
  keys.pages.strides = {view.strides[0], 1};
  return keys;
}

/// A new array over q's query tokens, each of them with so many columns, or with one number.
nb::object like_tokens(nb::handle q, const TensorView& view, std::optional<std::int64_t> columns,
                       const char* dtype) {
  if (view.rank == 3) {
    return columns ? empty_like(q, {view.shape[0], *columns}, dtype) : empty_like(q, {view.shape[0]}, dtype);
  }
  return columns ? empty_like(q, {view.shape[0], view.shape[1], *columns}, dtype)
                 : empty_like(q, {view.shape[0], view.shape[1]}, dtype);
}

/// Expects an `out` of the caller's as like_tokens() makes it.
void expect_out(const TensorView& out, const TensorView& q, std::int64_t topk) {
  bool fits = out.dtype == Dtype::kI32 && out.rank == q.rank - 1 && out.shape[out.rank - 1] == topk;
  for (int i = 0; fits && i + 1 < out.rank; ++i) fits = out.shape[i] == q.shape[i];
  fits = fits && (topk == 1 || out.strides[out.rank - 1] == 1);
  if (fits) return;
  const std::string tokens = q.rank == 3 ? message(q.shape[0]) : message(q.shape[0], ", ", q.shape[1]);
  refuse("out is ", to_string(ConstTensorView(out)), "; int32 (", tokens, ", topk = ", topk,
         ") with an innermost stride of 1 is expected");
}

nb::tuple index_topk_arrays(nb::handle q, nb::handle weights, nb::handle index_cache, nb::handle block_table,
                            nb::handle cache_seqlens, int topk, std::string_view index_format,
                            std::optional<int> page_size, bool causal, nb::handle q_scale,
                            nb::handle cu_seqlens_q, nb::handle candidates, int candidate_block,
                            int best_blocks, nb::handle slot_table, int slot_page_size, bool want_scores,
                            bool want_all_scores, nb::object out, nb::object counts, nb::handle workspace,
                            nb::handle stream, int threads, const std::string& kernel) {
  const Array q_array = Array::read("q", q);
  const Array weights_array = Array::read("weights", weights);
  const Array cache_array = Array::read("index_cache", index_cache);
  const Array table_array = Array::read("block_table", block_table);
  const Array lengths_array = Array::read("cache_seqlens", cache_seqlens);
  const Array scale_array = Array::read("q_scale", q_scale);
  const Array begins_array = Array::read("cu_seqlens_q", cu_seqlens_q);
  const Array candidates_array = Array::read("candidates", candidates);
  const Array slots_array = Array::read("slot_table", slot_table);
  const Keys keys = keys_of(cache_array.view(), index_format, page_size);
  const TensorView& q_view = q_array.view();
  if (q_view.rank != 3 && q_view.rank != 4) {
    refuse("q is ", to_string(ConstTensorView(q_view)),
           "; expected uint8 (batch, s_q, heads, 128 or 64), or (tokens, heads, "
           "128 or 64) with cu_seqlens_q");
  }
  if (topk < 1 || topk > kMaxIndexTopk) {
    refuse("topk is ", topk, "; 1 to ", kMaxIndexTopk, " are accepted");
  }
  if (best_blocks < 0 || best_blocks > kMaxIndexTopk) {
    refuse("best_blocks is ", best_blocks, "; 0 to ", kMaxIndexTopk, " are accepted");
  }
  if (candidate_block < 1) refuse("candidate_block is ", candidate_block, "; 1 to 1024 are accepted");
  IndexTopkInputs inputs;
  inputs.q = q_view;
  inputs.q_scale = scale_array.view();
  inputs.weights = weights_array.view();
  inputs.index_cache = keys.pages;
  inputs.block_table = table_array.view();
  inputs.cache_seqlens = lengths_array.view();
  inputs.cu_seqlens_q = begins_array.view();
  inputs.candidates = candidates_array.view();
  inputs.slot_table = slots_array.view();
  const IndexTopkOptions options{.format = keys.format,
                                 .page_size = keys.page_size,
                                 .causal = causal,
                                 .candidate_block = candidate_block,
                                 .slot_page_size = slot_page_size};

  const Device device = q_view.device;
  Executor executor = executor_on(device, threads, kernel);
  const WorkStream work(q, device, stream);
  executor.stream = work.handle();
  const bool new_out = out.is_none(), new_counts = counts.is_none();
  nb::object scores = nb::none(), all_scores = nb::none(), best = nb::none();
  if (new_out) out = like_tokens(q, q_view, topk, "int32");
  if (new_counts) counts = like_tokens(q, q_view, std::nullopt, "int32");
  if (want_scores) scores = like_tokens(q, q_view, topk, "float32");
  const std::int64_t span = inputs.candidates.present() && inputs.candidates.rank > 0
                                ? inputs.candidates.shape[inputs.candidates.rank - 1] * candidate_block
                                : inputs.block_table.shape[1] * keys.page_size;
  if (want_all_scores) {
    if (span < 0 || span > kMostSpan) {
      refuse("all_scores of ", span, " tokens a query token are asked for; 0 to ", kMostSpan,
             " are accepted");
    }
    all_scores = like_tokens(q, q_view, span, "float32");
  }
  if (best_blocks > 0) best = like_tokens(q, q_view, best_blocks, "int32");
  const Array out_array = Array::output("out", out, {}, new_out);
  const Array counts_array = Array::output("counts", counts, {}, new_counts);
  const Array scores_array = Array::output("scores", scores, {}, true);
  const Array all_array = Array::output("all_scores", all_scores, {}, true);
  const Array best_array = Array::output("best_blocks", best, {}, true);
  const TensorView& out_view = out_array.view();
  if (!new_out) expect_out(out_view, q_view, topk);
  IndexTopkOutputs outputs;
  outputs.indices = out_view;
  outputs.counts = counts_array.view();
  outputs.scores = scores_array.view();
  outputs.all_scores = all_array.view();
  outputs.best_blocks = best_array.view();

  const std::size_t bytes = take(index_topk_workspace_bytes(inputs, outputs, options, executor));
  Buffer own;
  std::optional<Array> given;
  if (!workspace.is_none()) given.emplace(Array::output("workspace", workspace));
  const Memory memory = given ? workspace_inside(*given, bytes) : own.at_least(bytes, device, q);
  Status status;
  {
    nb::gil_scoped_release release;
    status = index_topk(inputs, outputs, options, memory, executor);
  }
  check(status);
  work.finish();
  return want_all_scores ? nb::make_tuple(out, counts, scores, best, all_scores)
                         : nb::make_tuple(out, counts, scores, best);
}

nb::tuple merge_topk_arrays(nb::handle scores, nb::handle counts, nb::handle indices, int rank,
                            nb::object out, nb::object out_counts, nb::handle stream, int threads) {
  const Array scores_array = Array::read("scores", scores);
  const Array counts_array = Array::read("counts", counts);
  const Array indices_array = Array::read("indices", indices);
  const TensorView& view = indices_array.view();
  if (view.rank != 3)
    refuse("indices is ", to_string(ConstTensorView(view)), "; expected int32 (batch, s_q, topk)");
  const bool new_out = out.is_none(), new_counts = out_counts.is_none();
  if (new_out) out = empty_like(indices, {view.shape[0], view.shape[1], view.shape[2]}, "int32");
  if (new_counts) out_counts = empty_like(indices, {view.shape[0], view.shape[1]}, "int32");
  const Array out_array = Array::output("out", out, {}, new_out);
  const Array out_counts_array = Array::output("out_counts", out_counts, {}, new_counts);
  run_operation(indices, view.device, stream, threads, [&](const Executor& executor) {
    return merge_topk(scores_array.view(), counts_array.view(), view, rank, out_array.view(),
                      out_counts_array.view(), executor);
  });
  return nb::make_tuple(out, out_counts);
}

void append_index_arrays(nb::handle keys, nb::handle slot_mapping, nb::handle index_cache,
                         std::string_view index_format, std::optional<int> page_size,
                         std::optional<std::string_view> dtype, nb::handle stream, int threads, float norm,
                         nb::handle norm_weight, nb::handle norm_bias, nb::handle positions, nb::handle table,
                         std::string_view pairs, std::string_view table_layout,
                         std::string_view rotary_columns, std::int64_t ratio, std::string_view rounding) {
  const std::optional<Dtype> bits = sixteen_bits_of(dtype);
  const Array keys_array = Array::read("keys", keys, bits);
  const Array slots_array = Array::read("slot_mapping", slot_mapping);
  const Array cache_array = Array::output("index_cache", index_cache);
  const TokenEdgeArrays edges({norm, norm_weight, norm_bias}, {positions, table, pairs, table_layout}, ratio,
                              rounding, rotary_columns, bits);
  refuse_unused_dtype(bits, keys_array.integers() || edges.integers());
  const Keys cache = keys_of(cache_array.view(), index_format, page_size);
  run_operation(index_cache, cache.pages.device, stream, threads, [&](const Executor& executor) {
    return append_index_keys(keys_array.view(), slots_array.view(), cache.pages, cache.format,
                             cache.page_size, executor, edges.view());
  });
}

nb::tuple quantize_index_query_arrays(nb::handle q, nb::handle weights, nb::handle positions,
                                      nb::handle table, std::string_view pairs, std::string_view table_layout,
                                      std::string_view rotary_columns, std::string_view index_format,
                                      nb::object codes, nb::object scales, nb::object out_weights,
                                      std::optional<std::string_view> dtype, nb::handle stream, int threads) {
  const std::optional<Dtype> bits = sixteen_bits_of(dtype);
  const Array q_array = Array::read("q", q, bits), weights_array = Array::read("weights", weights, bits);
  const RotationArrays rotate({positions, table, pairs, table_layout});
  const RotaryColumns columns = rotary_columns_from_name(rotary_columns);
  refuse_unused_dtype(bits, q_array.integers() || weights_array.integers());
  const IndexFormat format = take(index_format_from_name(index_format));
  const TensorView& view = q_array.view();
  const bool fp8 = format == IndexFormat::kFp8_132;
  if (view.rank != 3 && view.rank != 4) {
    refuse("q is ", to_string(ConstTensorView(view)),
           "; expected bf16 or fp16 (tokens, heads, 128) or (batch, s_q, heads, 128)");
  }
  const auto like = [&](std::int64_t last, const char* array_dtype) {
    if (view.rank == 4) {
      return last == 0 ? empty_like(q, {view.shape[0], view.shape[1], view.shape[2]}, array_dtype)
                       : empty_like(q, {view.shape[0], view.shape[1], view.shape[2], last}, array_dtype);
    }
    return last == 0 ? empty_like(q, {view.shape[0], view.shape[1]}, array_dtype)
                     : empty_like(q, {view.shape[0], view.shape[1], last}, array_dtype);
  };
  const bool new_codes = codes.is_none(), new_scales = scales.is_none() && !fp8;
  const bool new_weights = out_weights.is_none();
  if (new_codes) codes = like(fp8 ? kIndexDim : kIndexDim / 2, "uint8");
  if (new_scales) scales = like(kIndexDim / 32, "uint8");
  if (new_weights) out_weights = like(0, "float32");
  const Array codes_array = Array::output("codes", codes, {}, new_codes);
  const Array scales_array = Array::output("scales", scales, {}, new_scales);
  const Array out_array = Array::output("out_weights", out_weights, {}, new_weights);
  run_operation(q, view.device, stream, threads, [&](const Executor& executor) {
    return quantize_index_queries(view, weights_array.view(), rotate.rotation, columns, format,
                                  {codes_array.view(), scales_array.view(), out_array.view()}, executor);
  });
  return nb::make_tuple(codes, scales, out_weights);
}

nb::object gather_index_arrays(nb::handle index_cache, nb::handle block_table, nb::handle cu_seqlens,
                               std::optional<std::int64_t> rows, nb::object out,
                               std::string_view index_format, std::optional<int> page_size,
                               std::optional<std::string_view> dtype, nb::handle stream, int threads) {
  const std::optional<Dtype> bits = sixteen_bits_of(dtype);
  const Array cache_array = Array::read("index_cache", index_cache);
  const Array table_array = Array::read("block_table", block_table);
  const Array begins_array = Array::read("cu_seqlens", cu_seqlens);
  const bool make = out.is_none();
  if (!make && rows) refuse("rows and out are given; rows is for an array that is made");
  if (make && !rows)
    refuse("out and rows are missing; an array, or how many rows it is to have, is expected");
  if (make && *rows < 0) refuse("rows is ", *rows, "; 0 or more is expected");
  if (make) out = empty_like(index_cache, {*rows, kIndexDim}, "float32");
  const Array out_array = Array::output("out", out, bits, make);
  refuse_unused_dtype(bits, out_array.integers());
  const Keys cache = keys_of(cache_array.view(), index_format, page_size);
  run_operation(index_cache, cache.pages.device, stream, threads, [&](const Executor& executor) {
    return gather_index_keys(cache.pages, table_array.view(), begins_array.view(), out_array.view(),
                             cache.format, cache.page_size, executor);
  });
  return out;
}

}  // namespace

void bind_index_topk(nb::module_& module) {
  using namespace nb::literals;
  module.def("index_topk", &index_topk_arrays, "q"_a, "weights"_a, "index_cache"_a, "block_table"_a,
             "cache_seqlens"_a, nb::kw_only(), "topk"_a, "index_format"_a = "fp8_132",
             "page_size"_a = nb::none(), "causal"_a = false, "q_scale"_a = nb::none(),
             "cu_seqlens_q"_a = nb::none(), "candidates"_a = nb::none(), "candidate_block"_a = 8,
             "best_blocks"_a = 0, "slot_table"_a = nb::none(), "slot_page_size"_a = 0, "scores"_a = false,
             "all_scores"_a = false, "out"_a = nb::none(), "counts"_a = nb::none(),
             "workspace"_a = nb::none(), "stream"_a = nb::none(), "threads"_a = 0, "kernel"_a = "",
             R"(The indexer of sparse attention; returns (indices, counts, scores, best_blocks).

For each query token and each key t that it sees, score(t) = scale(t) * sum over heads of w_h * relu(q_h . k_t);
chosen are the topk tokens of the highest scores, or all if there are no more. NaN counts as -inf. Of equal scores
the first are chosen. The chosen come in the order of their positions (with candidates, of these).

q              uint8 or float8_e4m3fn (batch, s_q, heads, 128); or e2m1, uint8 (batch, s_q, heads, 64) with q_scale.
               8 to 128 heads, a multiple of 8
weights        fp32 (batch, s_q, heads), of any sign; an e4m3 query's scales are part of them
index_cache    uint8 (pages, page_bytes) with page_size=, or whole pages as (pages, page_size, 132 or 68)
block_table    int32 (batch, max_pages); pages that do not exist have no tokens
cache_seqlens  int32 (batch); not causal also (batch, s_q): what each query token sees
topk           1 to 2,048
index_format   'fp8_132': 128 x e4m3 a key, scales fp32 behind a page's data; 'mxfp4_68': 128 x e2m1, 4 x ue8m0
causal         query token t of s_q sees the tokens below cache_seqlens - s_q + t + 1
cu_seqlens_q   int32 (batch + 1): query tokens are ragged, (tokens, ...) in place of (batch, s_q, ...); not causal,
               cache_seqlens then is (tokens)
q_scale        uint8 (batch, s_q, heads, 4), of an e2m1 query alone: ue8m0, one for 32 elements
page_size      tokens a page of a cache given as (pages, page_bytes)
candidates     int32 (batch, s_q, n): only the tokens of these blocks of candidate_block tokens are looked at; -1: none
candidate_block  tokens of a block of `candidates` and of best_blocks
best_blocks    how many blocks of candidate_block tokens to choose as well, by their best token; the newest block is
               always among them
slot_table, slot_page_size  int32 (batch, columns): results are slot_table[p // slot_page_size] * slot_page_size +
               p % slot_page_size
scores         return the scores of the chosen, too
all_scores     return a fifth array, the scores of all tokens, for tests
out, counts    int32 (batch, s_q, topk) and (batch, s_q); made if not given
workspace, stream, threads, kernel  as in flashlatent.decode()

indices are int32 (batch, s_q, topk), -1 behind the chosen; counts int32 (batch, s_q) how many those are; scores fp32
(batch, s_q, topk), -inf behind, or None; best_blocks int32 (batch, s_q, best_blocks), -1 behind, or None.)");
  module.def("merge_topk", &merge_topk_arrays, "scores"_a, "counts"_a, "indices"_a, nb::kw_only(), "rank"_a,
             "out"_a = nb::none(), "out_counts"_a = nb::none(), "stream"_a = nb::none(), "threads"_a = 0,
             R"(The best of what ranks that share a context have chosen; returns (out, out_counts).

scores   fp32 (ranks, batch, s_q, topk): index_topk()'s, of each rank
counts   int32 (ranks, batch, s_q): the same
indices  int32 (batch, s_q, topk): those of rank `rank`
out      int32 (batch, s_q, topk): the ones among `indices` that are among the topk best of all ranks, then -1; made if
         not given
out_counts  int32 (batch, s_q): how many those are; made if not given
Of equal scores those of lower ranks come first, then the earlier ones.)");
  module.def("append_index_keys", &append_index_arrays, "keys"_a, "slot_mapping"_a, "index_cache"_a,
             nb::kw_only(), "index_format"_a = "fp8_132", "page_size"_a = nb::none(), "dtype"_a = nb::none(),
             "stream"_a = nb::none(), "threads"_a = 0, "norm"_a = 0.0F, "norm_weight"_a = nb::none(),
             "norm_bias"_a = nb::none(), "positions"_a = nb::none(), "table"_a = nb::none(),
             "pairs"_a = "gptj", "table_layout"_a = "halves", "rotary_columns"_a = "last", "ratio"_a = 1,
             "rounding"_a = "engine",
             R"(Writes n new index keys; before that normalises and rotates them if asked to.

keys          bf16, fp16 or fp32 (n, 128)
slot_mapping  int32 or int64 (n): page * page_size + offset in the page; negative: the key is skipped
index_cache, index_format, page_size  as in index_topk()
norm, norm_weight, norm_bias, positions, table, pairs, table_layout, ratio, rounding  as in append_latent(). DeepSeek
              V3.2: norm_bias, rotary_columns='first', pairs='neox'; V4 and V4.1: as by default
rotary_columns  'last' or 'first': which ones are rotated, as many as the table has
dtype         'bf16': 16-bit integers hold bf16
A slot past the cache's end is refused on the CPU, before anything is written, and skipped on CUDA.)");
  module.def(
      "quantize_index_queries", &quantize_index_query_arrays, "q"_a, "weights"_a, nb::kw_only(),
      "positions"_a = nb::none(), "table"_a = nb::none(), "pairs"_a = "gptj", "table_layout"_a = "halves",
      "rotary_columns"_a = "last", "index_format"_a = "fp8_132", "codes"_a = nb::none(),
      "scales"_a = nb::none(), "out_weights"_a = nb::none(), "dtype"_a = nb::none(), "stream"_a = nb::none(),
      "threads"_a = 0,
      R"(Rotates and quantises index queries as index_topk() takes them; returns (codes, scales, out_weights).

q             bf16 or fp16 (tokens, heads, 128) or (batch, s_q, heads, 128)
weights       bf16, fp16 or fp32 (tokens, heads) or (batch, s_q, heads)
positions     int32 or int64 (tokens) or (batch, s_q); None: no rotation
table, pairs, table_layout  as in prepare_queries(); rotated columns are rounded to q's dtype
rotary_columns  'last' (V4, V4.1) or 'first' (V3.2): which of the 128 columns are rotated, as many as the table has
index_format  'fp8_132': e4m3 with a scale for a head, which goes to its weight; 'mxfp4_68': e2m1 with `scales`
codes         uint8, q's shape; of e2m1 with 64 columns; made if not given
scales        uint8, q's shape with 4 columns, ue8m0, of e2m1 alone, else None; made if not given
out_weights   fp32, as weights: weight * scale * 128^-1/2 * heads^-1/2, of e2m1 without scale; may be weights itself;
              made if not given
dtype         'bf16': 16-bit integers hold bf16
A position outside of the table is refused on the CPU; on CUDA the rotated columns become NaN.)");
  module.def("gather_index_keys", &gather_index_arrays, "index_cache"_a, "block_table"_a, "cu_seqlens"_a,
             nb::kw_only(), "rows"_a = nb::none(), "out"_a = nb::none(), "index_format"_a = "fp8_132",
             "page_size"_a = nb::none(), "dtype"_a = nb::none(), "stream"_a = nb::none(), "threads"_a = 0,
             R"(Gathers requests' index keys, dequantised, into a contiguous array; returns it.

block_table  int32 (batch, max_pages). Where it names no page, or ends, rows are 0
cu_seqlens   int32 (batch + 1): request i's keys become rows cu_seqlens[i] to cu_seqlens[i + 1] - 1
out          bf16, fp16 or fp32 (rows, 128); fp32 if made, of `rows` rows
index_cache, index_format, page_size  as in index_topk()
dtype        'bf16': 16-bit integers hold bf16)");
}

}  // namespace flashlatent::python
