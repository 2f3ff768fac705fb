// flashlatent.Problem: shapes and options.
#include <nanobind/stl/optional.h>

#include "python/src/bindings.h"
#include "python/src/constructor.h"
#include "python/src/decode_arguments.h"
#include "python/src/errors.h"

namespace flashlatent::python {

Dtype dtype_from_name(std::string_view name) {
  for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    if (name == to_string(dtype)) return dtype;
  }
  refuse("dtype is '", name, "'; bf16 and fp16 are accepted");
}

namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

KvLayout layout_from_name(std::string_view name) {
  for (KvLayout layout : {KvLayout::kLatent, KvLayout::kSeparate, KvLayout::kPacked}) {
    if (name == to_string(layout)) return layout;
  }
  refuse("layout is '", name, "'; latent, separate and packed are accepted");
}

DecodeProblem make_problem(int batch, int heads, float softmax_scale, int max_pages, int tokens, int kv_heads,
                           int qk_dim, int v_dim, int page_size, const std::string& dtype,
                           const std::string& kv_format, const std::string& layout, std::optional<int> topk,
                           bool causal, bool ragged, bool attn_sink, bool batch_invariant, float soft_cap,
                           bool alibi, int window, const std::string& prefix_sharing, float empty_lse,
                           std::optional<int> extra_page_size, std::optional<int> extra_topk,
                           std::optional<int> extra_max_pages, std::optional<std::string_view> q_dtype,
                           const std::string& products, const std::optional<std::tuple<int, int, int>>& shard,
                           int calls_per_plan, int typical_tokens, std::optional<std::string_view> scales,
                           std::optional<std::string_view> extra_kv_format, bool q_edge, bool out_edge) {
  DecodeProblem problem;
  problem.query = {.batch = batch, .tokens = tokens, .heads = heads, .ragged = ragged};
  if (q_dtype && *q_dtype != "e4m3" && *q_dtype != dtype) {
    refuse("q_dtype is '", *q_dtype, "' and dtype '", dtype, "'; e4m3 and the same as dtype are accepted");
  }
  problem.query.e4m3 = q_dtype == "e4m3";
  problem.cache = {.format = *optional_format(kv_format),
                   .dtype = dtype_from_name(dtype),
                   .heads = kv_heads,
                   .qk_dim = qk_dim,
                   .v_dim = v_dim,
                   .page_size = page_size,
                   .max_pages = max_pages,
                   .layout = layout_from_name(layout),
                   .scales = cache_format({}, scales).scales};
  if (extra_kv_format && !extra_page_size) {
    refuse("extra_kv_format is '", *extra_kv_format,
           "', and extra_page_size is missing; the tokens of a page of the extra cache are expected");
  }
  if (extra_page_size) {
    if (extra_topk.has_value() == extra_max_pages.has_value()) {
      refuse("extra_topk and extra_max_pages are ", extra_topk ? "both given" : "missing",
             ", and extra_page_size is ", *extra_page_size, "; one of them is expected");
    }
    problem.cache.extra = {.enabled = true,
                           .indexed = extra_topk.has_value(),
                           .page_size = *extra_page_size,
                           .topk = extra_topk.value_or(0),
                           .max_pages = extra_max_pages.value_or(0)};
    const std::optional<KvFormat> format = optional_format(extra_kv_format, "extra_kv_format");
    if (format != problem.cache.format) problem.cache.extra.format = format;
  } else if (extra_topk || extra_max_pages) {
    refuse(extra_topk ? "extra_topk" : "extra_max_pages",
           " is given, and extra_page_size is missing; the tokens of a page of the extra cache are expected");
  }
  problem.sparse = {.enabled = topk.has_value(), .topk = topk.value_or(0)};
  problem.options = {.softmax_scale = softmax_scale,
                     .causal = causal,
                     .attn_sink = attn_sink,
                     .batch_invariant = batch_invariant,
                     .prefix_sharing = take(prefix_sharing_from_name(prefix_sharing)),
                     .empty_lse = empty_lse,
                     .window = window,
                     .products = take(products_from_name(products)),
                     .separate = {.soft_cap = soft_cap, .alibi = alibi},
                     .calls_per_plan = calls_per_plan,
                     .typical_tokens = typical_tokens,
                     .shard = shard_of(shard),
                     .q_edge = q_edge,
                     .out_edge = out_edge};
  check(validate(problem));
  return problem;
}

DecodeProblem of_arrays(DecodeArguments&& given) {
  const std::optional<Dtype> sixteen_bits = sixteen_bits_of(given);
  const InputArrays arrays(given, sixteen_bits);
  arrays.check_dtype(sixteen_bits);
  DecodeProblem problem = problem_of(arrays.inputs(), given);
  problem.options.attn_sink = given.has_attn_sink;
  problem.options.separate.alibi = given.has_alibi;
  problem.options.q_edge = given.has_q_edge;
  problem.options.out_edge = given.has_out_edge;
  check(validate(problem));
  return problem;
}

}  // namespace

void bind_problem(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<DecodeProblem> problem(
      module, "Problem",
      R"(What one decode call computes, as shapes and options; no arrays. Compares by value, and may be a dictionary's key.

batch            requests; one of length 0 is legal padding
heads            query heads h_q, a multiple of kv_heads
kv_heads         heads of the cache, h_kv
softmax_scale    for MLA that of the head before absorption, 192**-0.5 for DeepSeek-V3
max_pages        columns of the page table: the most pages that a request has; sparse: 0
tokens           query tokens a request, s_q; ragged: the most that any request has
qk_dim, v_dim    elements of a cached row, and how many of its first are the value; of other layouts those of
                 keys and of values
page_size        tokens a page
dtype            of q, out and a plain cache: 'bf16' or 'fp16'
q_dtype          of q if not dtype: 'e4m3', with a latent cache of kv_format 'e4m3'
kv_format        'plain'; 'e4m3': uint8 (pages, page_size, 1, 576 or 512), or uint8 keys and values; or 'fp8_656' and
                 others of flashlatent.decode(): uint8 (pages, page_size, 1, bytes of a token)
scales           of formats with two arrangements: 'token' or 'page', see flashlatent.decode()
extra_kv_format  of the extra cache, if it is not kv_format, see flashlatent.decode()
products         of a latent e4m3 cache, see flashlatent.decode(): 'auto', 'bf16' or 'fp8'
layout           'latent' (MLA), 'separate' or 'packed' keys and values (MHA, GQA, MQA), see flashlatent.decode_kv()
topk             sparse decode: indices of a query token; None: dense
causal           query token t of s_q sees tokens < L - s_q + t + 1
ragged           q is (total tokens, h_q, qk_dim) and cu_seqlens_q says where requests begin
attn_sink        one extra fp32 logit a head
batch_invariant  a request's bits do not depend on its batch-mates
prefix_sharing   'auto': requests that share their first pages may attend to those together, see Plan.schedule();
                 'always': wherever they share a block; 'off'
window           by page table: a query token sees the last `window` of the tokens that it would see; 0: all of them
soft_cap, alibi  of keys and values apart: options of flashlatent.decode_kv()
empty_lse        lse of rows that attend to nothing: -inf, which merges as nothing, or +inf
extra_page_size, extra_topk, extra_max_pages  there is an extra cache of such pages, see flashlatent.decode(): by
                 indices, extra_topk a query token, or by a page table of extra_max_pages columns
shard            (rank, world, run): the cache holds a rank's tokens of contexts that ranks share, see
                 flashlatent.decode()
calls_per_plan   how many decode() calls read one plan: a model's layers; 1 for a draft model or a multi-token
                 prediction module of one layer; 0: many. On a GPU a plan of few calls is made faster and balances less
typical_tokens   how long contexts are expected to be, see flashlatent.decode()
q_edge           calls have q_norm or q_rotate, see flashlatent.decode()
out_edge         calls have out_rotate or out_fp8
Raises InvalidArgumentError, which names the field, its value and the range.)");
  module.def("_Problem", &make_problem, nb::kw_only(), "batch"_a, "heads"_a, "softmax_scale"_a,
             "max_pages"_a = 0, "tokens"_a = 1, "kv_heads"_a = 1, "qk_dim"_a = 576, "v_dim"_a = 512,
             "page_size"_a = 64, "dtype"_a = "bf16", "kv_format"_a = "plain", "layout"_a = "latent",
             "topk"_a = nb::none(), "causal"_a = false, "ragged"_a = false, "attn_sink"_a = false,
             "batch_invariant"_a = false, "soft_cap"_a = 0.0F, "alibi"_a = false, "window"_a = 0,
             "prefix_sharing"_a = "off", "empty_lse"_a = kMinusInfinity, "extra_page_size"_a = nb::none(),
             "extra_topk"_a = nb::none(), "extra_max_pages"_a = nb::none(), "q_dtype"_a = nb::none(),
             "products"_a = "auto", "shard"_a = nb::none(), "calls_per_plan"_a = 0, "typical_tokens"_a = 0,
             "scales"_a = nb::none(), "extra_kv_format"_a = nb::none(), "q_edge"_a = false,
             "out_edge"_a = false);
  define_constructor(problem, module, "_Problem");
  using namespace arguments;
  def_static_method(
      problem, "of_arrays", &of_arrays, kLatent, std::tuple_cat(kProblem, kLatentProblem, kHasSink),
      R"(The Problem that these arrays pose, which are not read; shapes as in flashlatent.decode().

tokens  the most query tokens that a request of a ragged batch has; their total if not given
dtype   'bf16': 16-bit integers hold bf16
v_dim   elements of a value, the first ones of a row)");
  def_static_method(
      problem, "of_kv_arrays", &of_arrays, kKeyValue,
      std::tuple_cat(kProblem, kKeyValueProblem, kHasSink, kHasMore),
      R"(The Problem that these arrays pose, which are not read; shapes as in flashlatent.decode_kv().

tokens  the most query tokens that a request of a ragged batch has; their total if not given
dtype   'bf16': 16-bit integers hold bf16)");
  problem
      .def(
          "__eq__", [](const DecodeProblem& a, const DecodeProblem& b) { return a == b; }, nb::is_operator(),
          nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def(
          "__hash__",  // by some of the fields; equal problems have equal ones
          [](const DecodeProblem& p) {
            const auto& [query, cache, sparse, options] = p;
            const nb::tuple fields = nb::make_tuple(
                query.batch, query.tokens, query.heads, cache.heads, cache.qk_dim, cache.v_dim,
                cache.page_size, cache.max_pages, sparse.topk, cache.extra.topk, cache.extra.max_pages,
                options.window, options.softmax_scale, options.typical_tokens);
            const Py_hash_t hash = PyObject_Hash(fields.ptr());
            if (hash == -1) throw nb::python_error();
            return hash;
          },
          nb::sig("def __hash__(self) -> int"))
      .def("__repr__", [](const DecodeProblem& p) { return "<flashlatent.Problem " + to_string(p) + ">"; })
      .def("__str__", [](const DecodeProblem& p) { return to_string(p); })
      .def_prop_ro("batch", [](const DecodeProblem& p) { return p.query.batch; })
      .def_prop_ro("tokens", [](const DecodeProblem& p) { return p.query.tokens; })
      .def_prop_ro("heads", [](const DecodeProblem& p) { return p.query.heads; })
      .def_prop_ro("ragged", [](const DecodeProblem& p) { return p.query.ragged; })
      .def_prop_ro("dtype", [](const DecodeProblem& p) { return to_string(p.cache.dtype); })
      .def_prop_ro("q_dtype",
                   [](const DecodeProblem& p) { return p.query.e4m3 ? "e4m3" : to_string(p.cache.dtype); })
      .def_prop_ro("products", [](const DecodeProblem& p) { return to_string(p.options.products); })
      .def_prop_ro("kv_heads", [](const DecodeProblem& p) { return p.cache.heads; })
      .def_prop_ro("qk_dim", [](const DecodeProblem& p) { return p.cache.qk_dim; })
      .def_prop_ro("v_dim", [](const DecodeProblem& p) { return p.cache.v_dim; })
      .def_prop_ro("page_size", [](const DecodeProblem& p) { return p.cache.page_size; })
      .def_prop_ro("max_pages", [](const DecodeProblem& p) { return p.cache.max_pages; })
      .def_prop_ro("kv_format", [](const DecodeProblem& p) { return to_string(p.cache.format); })
      .def_prop_ro("scales",
                   [](const DecodeProblem& p) -> std::optional<const char*> {
                     if (p.cache.scales == ScalePlace::kAuto) return {};
                     return to_string(p.cache.scales);
                   })
      .def_prop_ro("extra_kv_format",
                   [](const DecodeProblem& p) -> std::optional<const char*> {
                     if (!p.cache.extra.enabled) return {};
                     return to_string(p.cache.extra_format());
                   })
      .def_prop_ro("layout", [](const DecodeProblem& p) { return to_string(p.cache.layout); })
      .def_prop_ro("topk",
                   [](const DecodeProblem& p) -> std::optional<int> {
                     if (!p.sparse.enabled) return {};
                     return p.sparse.topk;
                   })
      .def_prop_ro("extra_page_size",
                   [](const DecodeProblem& p) -> std::optional<int> {
                     if (!p.cache.extra.enabled) return {};
                     return p.cache.extra.page_size;
                   })
      .def_prop_ro("extra_topk",
                   [](const DecodeProblem& p) -> std::optional<int> {
                     if (!p.cache.extra.indexed) return {};
                     return p.cache.extra.topk;
                   })
      .def_prop_ro("extra_max_pages",
                   [](const DecodeProblem& p) -> std::optional<int> {
                     if (!p.cache.extra.enabled || p.cache.extra.indexed) return {};
                     return p.cache.extra.max_pages;
                   })
      .def_prop_ro("softmax_scale", [](const DecodeProblem& p) { return p.options.softmax_scale; })
      .def_prop_ro("causal", [](const DecodeProblem& p) { return p.options.causal; })
      .def_prop_ro("attn_sink", [](const DecodeProblem& p) { return p.options.attn_sink; })
      .def_prop_ro("batch_invariant", [](const DecodeProblem& p) { return p.options.batch_invariant; })
      .def_prop_ro("soft_cap", [](const DecodeProblem& p) { return p.options.separate.soft_cap; })
      .def_prop_ro("alibi", [](const DecodeProblem& p) { return p.options.separate.alibi; })
      .def_prop_ro("window", [](const DecodeProblem& p) { return p.options.window; })
      .def_prop_ro("prefix_sharing",
                   [](const DecodeProblem& p) { return to_string(p.options.prefix_sharing); })
      .def_prop_ro("shard",
                   [](const DecodeProblem& p) {
                     const auto& [rank, world, run] = p.options.shard;
                     return std::tuple(rank, world, run);
                   })
      .def_prop_ro("q_edge", [](const DecodeProblem& p) { return p.options.q_edge; })
      .def_prop_ro("out_edge", [](const DecodeProblem& p) { return p.options.out_edge; })
      .def_prop_ro("calls_per_plan", [](const DecodeProblem& p) { return p.options.calls_per_plan; })
      .def_prop_ro("typical_tokens", [](const DecodeProblem& p) { return p.options.typical_tokens; })
      .def_prop_ro("empty_lse", [](const DecodeProblem& p) { return p.options.empty_lse; });
}

}  // namespace flashlatent::python
