// flashlatent.PagePool: which page of a KV cache belongs to whom.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "flashlatent/page_pool.h"
#include "python/src/array.h"
#include "python/src/bindings.h"
#include "python/src/constructor.h"
#include "python/src/errors.h"

namespace flashlatent::python {

namespace {

using Sequence = PagePool::Sequence;
using Contents = std::vector<PagePool::ContentId>;

std::span<std::int32_t> writable(const char* name, const Array& array) {
  const TensorView& view = array.view();
  std::int64_t stride = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    if (view.dtype != Dtype::kI32 || view.device != Device{} ||
        (view.shape[i] > 1 && view.strides[i] != stride)) {
      refuse(name, " is ", to_string(view), "; a contiguous int32 array on the CPU is expected");
    }
    stride *= view.shape[i];
  }
  return {static_cast<std::int32_t*>(view.data), static_cast<std::size_t>(view.elements())};
}

nb::tuple write_page_table(const PagePool& pool, const std::vector<Sequence>& batch, int max_pages,
                           std::optional<int> rows, nb::object block_table, nb::object cache_seqlens) {
  const int row_count = rows.value_or(static_cast<int>(batch.size()));
  if (max_pages < 0) refuse("max_pages is ", max_pages, "; it must be at least 0");
  if (row_count < 0) refuse("rows is ", row_count, "; it must be at least 0");
  const nb::object empty = nb::module_::import_("numpy").attr("empty");
  if (block_table.is_none()) block_table = empty(nb::make_tuple(row_count, max_pages), "int32");
  if (cache_seqlens.is_none()) cache_seqlens = empty(nb::make_tuple(row_count), "int32");
  const Array table_array = Array::output("block_table", block_table);
  const Array lengths_array = Array::output("cache_seqlens", cache_seqlens);
  check(pool.write_page_table(batch, max_pages, writable("block_table", table_array),
                              writable("cache_seqlens", lengths_array)));
  return nb::make_tuple(block_table, cache_seqlens);
}

nb::dict stats_of(const PagePool& pool) {
  const PagePool::Stats stats = pool.stats();
  nb::dict result;
  result["pages"] = stats.pages;
  result["used"] = stats.used;
  result["cached"] = stats.cached;
  result["free"] = stats.free;
  result["sequences"] = stats.sequences;
  result["lookups"] = stats.lookups;
  result["hits"] = stats.hits;
  result["evictions"] = stats.evictions;
  return result;
}

}  // namespace

void bind_page_pool(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<Sequence>(module, "Sequence", "A handle of a PagePool's sequence.")
      .def(
          "__eq__", [](Sequence a, Sequence b) { return a == b; }, nb::is_operator(),
          nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__hash__",
           [](Sequence s) { return (std::size_t{s.generation} << 32) ^ static_cast<unsigned>(s.slot); })
      .def("__repr__", [](Sequence s) { return message("<Sequence ", s.slot, ":", s.generation, ">"); });
  nb::class_<PagePool> page_pool(
      module, "PagePool",
      R"(Manages the page numbers of one KV cache; never touches its bytes. One pool serves all layers.

pages      how many there are, 1 to 2^28; grow() adds some
page_size  tokens a page

Pages are shared by prefix (commit() registers full pages under the chain of their contents, create() finds them)
and by fork(). A call that fails changes nothing. Not thread-safe. Raises ExhaustedError where pages run out,
InvalidArgumentError for a handle that is not a live sequence's.)");
  module.def(
      "_PagePool", [](int pages, int page_size) { return take(PagePool::create_pool(pages, page_size)); },
      "pages"_a, "page_size"_a);
  define_constructor(page_pool, module, "_PagePool");
  page_pool
      .def(
          "create",
          [](PagePool& pool, const Contents& contents, int length, int spare) {
            const PagePool::Created created = take(pool.create(contents, length, spare));
            return nb::make_tuple(created.sequence, created.cached_pages);
          },
          "contents"_a, "length"_a, "spare"_a = 0,
          R"(A new sequence; returns it, and how many of its pages hold their tokens already (the first ones).

contents  a sequence of integers of 64 bits, from 0: an id of each of its first full pages, equal ids for equal tokens
length    tokens, from 0; contents are of at most length // page_size pages
spare     so many pages stay free for others, from 0
Raises ExhaustedError where pages run out.)")
      .def(
          "find", [](const PagePool& pool, const Contents& contents) { return pool.find(contents); },
          "contents"_a,
          "How many of these `contents` (64-bit ids, one a page), from the first on, create() would find. "
          "Changes "
          "nothing.")
      .def(
          "append",
          [](PagePool& pool, Sequence sequence, int tokens) -> nb::object {
            const PagePool::Copy copy = take(pool.append(sequence, tokens));
            if (copy.tokens == 0) return nb::none();
            return nb::make_tuple(copy.from, copy.to, copy.tokens);
          },
          "sequence"_a, "tokens"_a = 1,
          R"(Makes room for so many more `tokens` (from 0) of a `sequence`.

Returns (from_page, to_page, tokens): copy so many tokens of one page to the other in every layer before writing;
or None: nothing to copy. Raises ExhaustedError where pages run out, InvalidArgumentError for a handle that is not
live.)")
      .def(
          "fork", [](PagePool& pool, Sequence sequence) { return take(pool.fork(sequence)); }, "sequence"_a,
          "A second sequence of the pages of this `sequence`; the first to append to a partly filled one "
          "gets its "
          "own copy. Takes no page.")
      .def(
          "commit",
          [](PagePool& pool, Sequence sequence, const Contents& contents) {
            return take(pool.commit(sequence, contents));
          },
          "sequence"_a, "contents"_a,
          R"(Registers the first pages of a `sequence`, which are full, for create() to find; returns how many are registered.

contents  their ids, as in create()
pages() may change: a page that is registered already replaces the sequence's own.)")
      .def(
          "release", [](PagePool& pool, Sequence sequence) { check(pool.release(sequence)); }, "sequence"_a,
          "Gives up the pages of this `sequence` and ends the handle. Registered pages stay cached until "
          "needed.")
      .def(
          "grow", [](PagePool& pool, int pages) { check(pool.grow(pages)); }, "pages"_a,
          R"(Adds free pages, so that there are `pages` (int, as many as now to 2^28).

Sequences, their page numbers and what is registered stay. Before it, make caches of so many pages whose first ones
hold what the old caches held. Raises InvalidArgumentError for fewer or too many pages.)")
      .def(
          "length", [](const PagePool& pool, Sequence sequence) { return take(pool.length(sequence)); },
          "sequence"_a, "Tokens of this `sequence`, an int.")
      .def(
          "pages",
          [](const PagePool& pool, Sequence sequence) {
            const auto pages = take(pool.pages(sequence));
            return std::vector<std::int32_t>(pages.begin(), pages.end());
          },
          "sequence"_a, "Page numbers of this `sequence`, a list in order of its tokens.")
      .def("write_page_table", &write_page_table, "batch"_a, "max_pages"_a, nb::kw_only(),
           "rows"_a = nb::none(), "block_table"_a = nb::none(), "cache_seqlens"_a = nb::none(),
           R"(The page table of a batch; returns (block_table, cache_seqlens), on the CPU.

batch          a sequence of live Sequences, one a row
max_pages      columns, at least the most pages of a sequence
rows           len(batch) if not given; rows past the batch have length 0
block_table    int32 (rows, max_pages), contiguous; a NumPy array is made if it is not given. Behind a row's pages are -1
cache_seqlens  int32 (rows), contiguous; a NumPy array is made if it is not given
Raises InvalidArgumentError for a sequence that is not live or has more pages.)")
      .def(
          "check_invariants", [](const PagePool& pool) { check(pool.check_invariants()); },
          "Checks every count and list against the others; raises InternalError.")
      .def_prop_ro(
          "stats", &stats_of,
          R"(A dict of counts: 'pages' = 'used' + 'cached' + 'free', 'sequences', 'lookups' (contents that create()
got), 'hits' (those that were found), 'evictions' (cached pages taken for other tokens).)")
      .def_prop_ro("page_size", &PagePool::page_size, "Tokens a page.");
}

}  // namespace flashlatent::python
