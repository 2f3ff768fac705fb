// What a step's layers read besides their caches: prepare_step_into.
#include <vector>

#include "flashlatent/prepare_step.h"
#include "python/src/cache_operation.h"

namespace flashlatent::python {

namespace {

/// The view with one dimension of rows, `rank` dimensions in all, in place of (batch, query tokens).
TensorView in_rows(const char* name, TensorView view, int rank) {
  if (!view.present() || view.rank != rank + 1) return view;
  const std::int64_t requests = view.shape[0], tokens = view.shape[1];
  if (requests > 1 && tokens > 0 && view.strides[0] != tokens * view.strides[1]) {
    refuse(name, " is ", to_string(view), "; rows that lie one behind the other are expected");
  }
  view.shape[0] = requests * tokens;
  view.strides[0] = view.strides[1];
  for (int i = 1; i < rank; ++i) {
    view.shape[i] = view.shape[i + 1];
    view.strides[i] = view.strides[i + 1];
  }
  view.rank = rank;
  return view;
}

/// The arrays of a StepCache, and the StepCache.
struct CacheArrays {
  Array block_table, slots, lengths, request_lengths, indices;
  StepCache cache;

  /// `name`: "caches[0]."
  CacheArrays(const std::string& name, const nb::tuple& given)
      : block_table(Array::read((name + "block_table").c_str(), given[0])),
        slots(Array::output((name + "slots").c_str(), given[3])),
        lengths(Array::output((name + "lengths").c_str(), given[4])),
        request_lengths(Array::output((name + "request_lengths").c_str(), given[5])),
        indices(Array::output((name + "indices").c_str(), given[6])),
        cache{.block_table = block_table.view(),
              .page_size = nb::cast<std::int64_t>(given[1]),
              .ratio = nb::cast<int>(given[2]),
              .slots = slots.view(),
              .lengths = in_rows((name + "lengths").c_str(), lengths.view(), 1),
              .request_lengths = request_lengths.view(),
              .indices = in_rows((name + "indices").c_str(), indices.view(), 2)} {}
};

void prepare(nb::handle cache_seqlens, const nb::list& caches, std::int64_t tokens, nb::handle cu_seqlens_q,
             nb::handle positions, nb::handle stream, int threads) {
  const Array lengths = Array::read("cache_seqlens", cache_seqlens);
  const Array begins = Array::read("cu_seqlens_q", cu_seqlens_q);
  const Array positions_array = Array::output("positions", positions);
  std::vector<CacheArrays> arrays;
  arrays.reserve(nb::len(caches));
  std::vector<StepCache> views;
  for (const nb::handle cache : caches) {
    const std::string name = message("caches[", arrays.size(), "].");
    views.push_back(arrays.emplace_back(name, nb::cast<nb::tuple>(cache)).cache);
  }
  const TensorView position_rows = in_rows("positions", positions_array.view(), 1);
  run_operation(cache_seqlens, lengths.view().device, stream, threads, [&](const Executor& executor) {
    return prepare_step({.cache_seqlens = lengths.view(), .tokens = tokens, .cu_seqlens_q = begins.view()},
                        views, position_rows, executor);
  });
}

}  // namespace

void bind_prepare_step(nb::module_& module) {
  using namespace nb::literals;
  module.def("prepare_step_into", &prepare, "cache_seqlens"_a, "caches"_a, nb::kw_only(), "tokens"_a = 1,
             "cu_seqlens_q"_a = nb::none(), "positions"_a = nb::none(), "stream"_a = nb::none(),
             "threads"_a = 0,
             R"(prepare_step() into the caller's arrays.

caches     tuples (block_table, page_size, ratio, slots, lengths, request_lengths, indices), outputs None if not wanted
tokens     query tokens a request; with cu_seqlens_q rows in all
positions  int32 (rows), None: not wanted
Outputs of rows may be (batch, s_q) and (batch, s_q, n).)");
}

}  // namespace flashlatent::python
