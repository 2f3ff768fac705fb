// Cache operations: append, convert, gather, copy pages.
#include <nanobind/stl/optional.h>

#include "core/format_names.h"
#include "core/formats/formats.h"
#include "flashlatent/kv_cache.h"
#include "python/src/cache_operation.h"
#include "python/src/decode_arguments.h"
#include "python/src/token_edges.h"

namespace flashlatent::python {

namespace {

/// How arrays are made that hold tokens in a format, and the last extent of one.
struct Format {
  Dtype dtype;
  const char* array_dtype;
  std::int64_t extent;
};

/// `said`: of `like`.
Format format_from_name(std::string_view name, const char* like_name, const TensorView& like,
                        const CacheFormat& said) {
  const LatentFormat& of_like = *take(resolve_format(like_name, like, said));
  const std::int64_t elements = of_like.elements_of(like.shape[like.rank - 1]);
  if (name == "bf16") return {Dtype::kBF16, "bfloat16", elements};
  if (name == "fp16") return {Dtype::kF16, "float16", elements};
  const bool fits_e4m3 = elements == e4m3_latent::kDim || elements == e4m3_latent::kLatentDim;
  for (const LatentFormat* format : kFormats) {
    if (format->plain() || name != format->name) continue;
    if (!format->is_record() && !(fits_e4m3 && like.shape[2] == 1)) {
      refuse("format is 'e4m3' and ", like_name, " is ", to_string(like),
             "; one KV head of 576 or 512 elements fits");
    }
    return {Dtype::kU8, "uint8", format->last_extent(elements)};
  }
  refuse("format is '", name, "'; bf16, fp16, ", format_names().substr(std::string_view("plain, ").size()),
         " are accepted", known_as(name));
}

/// An array of pages, (pages, page_size, 1, bytes of a token), of like's package: a view of (pages,
/// page_bytes).
nb::object pages_like(nb::handle like, const LatentFormat& format, std::int64_t pages,
                      std::int64_t page_size) {
  const std::int64_t bytes = format.least_page_stride(page_size, 0);
  const nb::object memory = empty_like(like, {pages, bytes}, "uint8");
  const nb::tuple shape = nb::make_tuple(pages, page_size, 1, format.token_bytes());
  const nb::tuple strides = nb::make_tuple(bytes, format.token_bytes(), format.token_bytes(), 1);
  if (nb::hasattr(memory, "as_strided")) return memory.attr("as_strided")(shape, strides);  // torch's
  const char* tricks = array_type(memory).cupy ? "cupy.lib.stride_tricks" : "numpy.lib.stride_tricks";
  return nb::module_::import_(tricks).attr("as_strided")(memory, shape, strides);
}

/// The errors of convert_cache() and copy_pages() by the names that their arguments have here.
Status of_python(const Status& status) {
  std::string text = status.message();
  for (const std::string_view there : {"overlaps from,", "; from has"}) {
    const std::size_t at = text.find(there);
    if (at != text.npos) text.insert(text.find("from", at) + std::string_view("from").size(), "_");
  }
  const bool of_to = text.find(" to is ") != std::string::npos;
  constexpr std::string_view kLeave = "leave scales out";
  if (of_to && text.ends_with(kLeave))
    text.replace(text.size() - kLeave.size(), kLeave.size(), "leave new_scales out");
  for (const auto& [there, here] : {std::pair<std::string_view, std::string>{"from_scale", "kv_scale"},
                                    {"to_scale", "new_kv_scale"},
                                    {"from ", "from_ "},
                                    {"scales is", of_to ? "new_scales is" : "scales is"}}) {
    if (text.starts_with(there)) return {status.code(), here + text.substr(there.size())};
  }
  return {status.code(), std::move(text)};
}

void append_arrays(nb::handle latent, nb::handle rope, nb::handle slot_mapping, nb::handle kv_cache,
                   nb::handle kv_scale, std::optional<std::string_view> dtype, nb::handle stream, int threads,
                   std::optional<std::string_view> kv_format, std::optional<std::string_view> scales,
                   std::string_view scale_floor, float norm, nb::handle norm_weight, nb::handle norm_bias,
                   nb::handle positions, nb::handle table, std::string_view pairs,
                   std::string_view table_layout, std::int64_t ratio, std::string_view rounding) {
  CacheFormat format = cache_format(kv_format, scales);
  format.floor = take(scale_floor_from_name(scale_floor));
  const std::optional<Dtype> bits = sixteen_bits_of(dtype);
  const Array scale_array = Array::read("kv_scale", kv_scale);
  const Array latent_array = Array::read("latent", latent, bits);
  const Array rope_array = Array::read("rope", rope, bits);
  const Array slots_array = Array::read("slot_mapping", slot_mapping);
  const Array cache_array = Array::output("kv_cache", kv_cache, bits);
  const TokenEdgeArrays edges({norm, norm_weight, norm_bias}, {positions, table, pairs, table_layout}, ratio,
                              rounding, "last", bits);
  refuse_unused_dtype(
      bits, latent_array.integers() || rope_array.integers() || cache_array.integers() || edges.integers());
  run_operation(kv_cache, cache_array.view().device, stream, threads, [&](const Executor& executor) {
    return append_latent(latent_array.view(), rope_array.view(), slots_array.view(), cache_array.view(),
                         executor, scale_array.view(), format, edges.view());
  });
}

nb::object convert_arrays(nb::handle from, nb::object to, std::optional<std::string_view> format,
                          nb::handle kv_scale, nb::handle new_kv_scale, std::optional<std::string_view> dtype,
                          nb::handle stream, int threads, std::optional<std::string_view> kv_format,
                          std::optional<std::string_view> scales, std::optional<std::string_view> new_scales,
                          std::string_view scale_floor) {
  const CacheFormat from_format = cache_format(kv_format, scales);
  CacheFormat to_format;
  if (new_scales) {
    const Result<ScalePlace> place = scale_place_from_name(*new_scales);
    if (!place.ok()) refuse("new_", place.status().message());
    to_format.scales = *place;
  }
  to_format.floor = take(scale_floor_from_name(scale_floor));
  const std::optional<Dtype> said = sixteen_bits_of(dtype);
  std::optional<Dtype> bits = said;
  const Array scale_array = Array::read("kv_scale", kv_scale);
  const Array new_scale_array = Array::read("new_kv_scale", new_kv_scale);
  const Array from_array = Array::read("from_", from, bits);
  const TensorView& view = from_array.view();
  const bool make = to.is_none();
  if (make) {
    if (!format)
      refuse("to and format are missing; an array, or one of bf16, fp16, ",
             format_names().substr(std::string_view("plain, ").size()), ", is expected");
    if (view.rank != 4) refuse("from_ is ", to_string(view), "; expected (pages, page_size, h_kv, d)");
    const Format made = format_from_name(*format, "from_", view, from_format);
    if (made.dtype == Dtype::kU8) to_format.format = optional_format(format, "format");
    const LatentFormat* of = made.dtype == Dtype::kU8 ? &format_of(to_format) : nullptr;
    to = of != nullptr && (of->apart() || of->page_unit > 1)
             ? pages_like(from, *of, view.shape[0], view.shape[1])
             : empty_like(from, {view.shape[0], view.shape[1], view.shape[2], made.extent}, made.array_dtype);
    bits = made.dtype;
  }
  const Array to_array = Array::output("to", to, bits, make);
  if (!make && format) {
    if (to_array.view().dtype != Dtype::kU8) {
      refuse("format is '", *format, "' and to is ", to_string(to_array.view()),
             "; format is for a cache that is made, or of bytes");
    }
    to_format.format = optional_format(format, "format");
  }
  refuse_unused_dtype(said, from_array.integers() || to_array.integers_of(said));
  run_operation(from, view.device, stream, threads, [&](const Executor& executor) {
    return of_python(convert_cache(view, to_array.view(), executor, scale_array.view(),
                                   new_scale_array.view(), from_format, to_format));
  });
  return to;
}

nb::object gather_arrays(nb::handle kv_cache, nb::handle block_table, nb::handle cu_seqlens,
                         nb::handle first_token, std::optional<std::int64_t> rows, nb::object out,
                         std::optional<std::string_view> format, nb::handle kv_scale,
                         std::optional<std::string_view> dtype, nb::handle stream, int threads,
                         std::optional<std::string_view> kv_format, std::optional<std::string_view> scales) {
  const CacheFormat said_format = cache_format(kv_format, scales);
  const std::optional<Dtype> said = sixteen_bits_of(dtype);
  std::optional<Dtype> bits = said;
  const Array cache_array = Array::read("kv_cache", kv_cache, bits);
  const Array scale_array = Array::read("kv_scale", kv_scale);
  const Array table_array = Array::read("block_table", block_table);
  const Array begins_array = Array::read("cu_seqlens", cu_seqlens);
  const Array first_array = Array::read("first_token", first_token);
  const TensorView& view = cache_array.view();
  const bool make = out.is_none();
  if (make) {
    if (rows && *rows < 0) refuse("rows is ", *rows, "; 0 or more is expected");
    if (!rows) refuse("out and rows are missing; an array, or how many rows it is to have, is expected");
    if (view.rank != 4) refuse("kv_cache is ", to_string(view), "; expected (pages, page_size, h_kv, d)");
    if (format) {
      const Format made = format_from_name(*format, "kv_cache", view, said_format);
      const LatentFormat& own = *take(resolve_format("kv_cache", view, said_format));
      if (made.dtype == Dtype::kU8 && *format != own.name) {
        refuse("format is '", *format, "' and kv_cache is ", own.plain() ? to_string(view.dtype) : own.name,
               "; the cache's format, bf16 and fp16 are accepted");
      }
      out = empty_like(kv_cache, {*rows, view.shape[2], made.extent}, made.array_dtype);
      bits = made.dtype;
    } else {
      out = empty_like(kv_cache, {*rows, view.shape[2], view.shape[3]});
    }
  } else if (rows || format) {
    refuse(rows ? "rows" : "format", " and out are given; rows and format are for an array that is made");
  }
  const Array out_array = Array::output("out", out, bits, make);
  refuse_unused_dtype(said, cache_array.integers() || out_array.integers_of(said));
  run_operation(kv_cache, view.device, stream, threads, [&](const Executor& executor) {
    return gather_cache(view, table_array.view(), begins_array.view(), first_array.view(), out_array.view(),
                        executor, scale_array.view(), said_format);
  });
  return out;
}

void copy_page_arrays(nb::handle from, nb::handle to, nb::handle pairs, nb::handle stream, int threads) {
  // Pages are copied as bytes: any 16-bit type will do.
  const Array from_array = Array::read("from_", from, Dtype::kBF16);
  const Array to_array = Array::output("to", to, Dtype::kBF16);
  const Array pairs_array = Array::read("pairs", pairs);
  run_operation(to, to_array.view().device, stream, threads, [&](const Executor& executor) {
    return of_python(copy_pages(from_array.view(), to_array.view(), pairs_array.view(), executor));
  });
}

/// kFormats, for Python code that needs a format's numbers.
nb::list formats() {
  constexpr const char* kElements[] = {"half", "e4m3", "e2m1"};
  constexpr const char* kScales[] = {"none", "of the cache", "fp32", "ue8m0", "e4m3"};
  nb::list all;
  for (const LatentFormat* f : kFormats) {
    nb::dict one;
    one["name"] = f->name;
    one["scales"] = has_places(f->format) ? nb::cast(to_string(f->place)) : nb::none();
    one["elements"] = kElements[static_cast<int>(f->elements)];
    one["scale_kind"] = kScales[static_cast<int>(f->scales)];
    one["apart"] = f->apart();
    one["dim"] = f->dim;
    one["rope_dim"] = f->rope_dim;
    one["group"] = f->group;
    one["groups"] = f->groups();
    one["rope_offset"] = f->rope_offset;
    one["data_bytes"] = f->data_bytes;
    one["scale_offset"] = f->scale_offset;
    one["scale_bytes"] = f->scale_bytes;
    one["token_bytes"] = f->token_bytes();
    one["page_unit"] = f->page_unit;
    all.append(one);
  }
  return all;
}

}  // namespace

void bind_kv_cache(nb::module_& module) {
  using namespace nb::literals;
  module.def("_formats", &formats, "Formats of latent caches, an arrangement a dict.");
  module.def("append_latent", &append_arrays, "latent"_a, "rope"_a.none(), "slot_mapping"_a, "kv_cache"_a,
             nb::kw_only(), "kv_scale"_a = nb::none(), "dtype"_a = nb::none(), "stream"_a = nb::none(),
             "threads"_a = 0, "kv_format"_a = nb::none(), "scales"_a = nb::none(), "scale_floor"_a = "auto",
             "norm"_a = 0.0F, "norm_weight"_a = nb::none(), "norm_bias"_a = nb::none(),
             "positions"_a = nb::none(), "table"_a = nb::none(), "pairs"_a = "gptj",
             "table_layout"_a = "halves", "ratio"_a = 1, "rounding"_a = "engine",
             R"(Writes n new tokens into an MLA cache; before that normalises and rotates them if asked to.

latent        bf16, fp16 or fp32 (n, d - d_rope): the latent (NoPE) part; fp8_656: (n, 512), fp8_584: (n, 448)
rope          the same dtype (n, d_rope), rotated already or by positions and table; fp8_656, fp8_584: (n, 64). None:
              the last columns of latent, (n, d)
slot_mapping  int32 or int64 (n): page * page_size + offset in the page; negative: the token is skipped
kv_cache      bf16 or fp16 (pages, page_size, 1, d); uint8 (pages, page_size, 1, bytes of a token): fp8_656, fp8_584, and
              others as kv_format and scales say; or e4m3: uint8 or float8_e4m3fn (pages, page_size, 1, 576 or 512).
              Where a page's scales follow its data it is a view of whole pages
kv_scale      fp32 (1), e4m3: what is written is x / scale; 1 if not given. On the CPU a scale that is not
              positive and finite is refused
dtype         'bf16': 16-bit integers hold bf16
kv_format, scales  of a kv_cache whose last dimension leaves them open, as in flashlatent.decode()
scale_floor   what 1e-4 bounds where a scale is a power of two: 'amax', 'scale', or 'auto', as the format's engine does
norm          epsilon of an RMS norm over the columns of latent, in fp32; 0: no norm
norm_weight, norm_bias  fp32, bf16 or fp16 (columns of latent); with norm_bias it is a LayerNorm
positions     int32 or int64 (n); None: no rotation
table, pairs, table_layout  as in prepare_queries(): the last columns are rotated, as many as the table has, of rope or,
              where that is None, of latent. With positions and without table nothing is rotated
ratio         above 1: a token is stored where (position + 1) % ratio is 0, rotated by position + 1 - ratio; others are
              skipped
rounding      where tokens are rounded to 16 bits before they are quantised: 'engine', as vLLM does, or 'once', nowhere
A position outside of the table is refused on the CPU; on CUDA the rotated columns become NaN. A slot past the cache's end is refused on the CPU, before anything is written, and skipped on CUDA.)");
  module.def("convert_cache", &convert_arrays, "from_"_a, "to"_a = nb::none(), nb::kw_only(),
             "format"_a = nb::none(), "kv_scale"_a = nb::none(), "new_kv_scale"_a = nb::none(),
             "dtype"_a = nb::none(), "stream"_a = nb::none(), "threads"_a = 0, "kv_format"_a = nb::none(),
             "scales"_a = nb::none(), "new_scales"_a = nb::none(), "scale_floor"_a = "auto",
             R"(Converts a whole cache: quantises, dequantises or changes the dtype; returns `to`.

from_   bf16 or fp16 (pages, page_size, h_kv, d), or a cache of bytes as append_latent() has it
to      another cache of the same pages, page size and heads, which does not overlap
format  if `to` is not given, or is of bytes: 'bf16' (NumPy and CuPy get its bits as uint16), 'fp16', or a format of bytes,
        for which from_ has the elements
kv_format, scales, new_scales  of a from_ whose last dimension leaves them open, and where scales of `to` lie, as in
        flashlatent.decode()
scale_floor  as in append_latent(), of `to`
kv_scale, new_kv_scale  fp32 (1), of an e4m3 from_ and to; 1 if not given
dtype   'bf16': 16-bit integers hold bf16)");
  module.def("gather_cache", &gather_arrays, "kv_cache"_a, "block_table"_a, "cu_seqlens"_a,
             "first_token"_a = nb::none(), nb::kw_only(), "rows"_a = nb::none(), "out"_a = nb::none(),
             "format"_a = nb::none(), "kv_scale"_a = nb::none(), "dtype"_a = nb::none(),
             "stream"_a = nb::none(), "threads"_a = 0, "kv_format"_a = nb::none(), "scales"_a = nb::none(),
             R"(Gathers requests into a contiguous buffer; returns it.

Request i's tokens [first_token[i], first_token[i] + n_i), where n_i = cu_seqlens[i + 1] - cu_seqlens[i], become
rows [cu_seqlens[i], cu_seqlens[i + 1]).

kv_cache     bf16 or fp16 (pages, page_size, h_kv, d), or of bytes, as append_latent() has them
block_table  int32 (batch, max_pages). Where it names no page, or ends, rows are 0
cu_seqlens   int32 (batch + 1), from 0 to the number of rows, never falling
first_token  int32 (batch); 0 if not given
out          (rows, h_kv, d): the cache's dtype (tokens of bytes are copied, with their scales behind their data), or
             bf16 or fp16
rows         if `out` is not given: how many it has, and `format` which (the cache's format, 'bf16' or 'fp16')
kv_scale     fp32 (1), of an e4m3 cache; 1 if not given
kv_format, scales  of a kv_cache whose last dimension leaves them open, as in flashlatent.decode()
dtype        'bf16': 16-bit integers hold bf16)");
  module.def("copy_pages", &copy_page_arrays, "from_"_a, "to"_a, "pairs"_a, nb::kw_only(),
             "stream"_a = nb::none(), "threads"_a = 0,
             R"(Copies pages: page pairs[i][0] of `from_` to page pairs[i][1] of `to`.

pairs      int32 or int64 (n, 2). A pair with a page that does not exist is refused on the CPU, before anything is
           written, and skipped on CUDA
from_, to  caches of one dtype and page shape: latent ones, keys or values of any layout (a call for each), index keys.
           They may be the same array, then no page is a destination twice, or both source and destination; other
           arrays that have memory in common are refused)");
}

}  // namespace flashlatent::python
