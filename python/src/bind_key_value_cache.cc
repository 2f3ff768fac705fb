// Cache operations of separate and packed keys and values: append, gather, convert.
#include <nanobind/stl/optional.h>

#include <string>

#include "core/format_names.h"
#include "flashlatent/kv_cache.h"
#include "python/src/cache_operation.h"

namespace flashlatent::python {

namespace {

/// A Python KeyValueCache, or another tuple of as much, for the time of one call.
class CacheArrays {
 public:
  /// `name` is the argument's. Raises InvalidArgumentError where `cache` is no such tuple.
  static CacheArrays read(const std::string& name, nb::handle cache, std::optional<Dtype> sixteen_bits,
                          bool written, bool fresh = false) {
    if (!nb::isinstance<nb::tuple>(cache) || nb::len(cache) < 2 || nb::len(cache) > 4) {
      refuse(name, " is a ", type_of(cache),
             "; flashlatent.KeyValueCache, or a tuple (keys, values, key_scale, value_scale) whose scales "
             "may be left out, is expected");
    }
    const auto member = [&](std::size_t i) {
      return i < nb::len(cache) ? nb::object(cache[i]) : nb::object(nb::none());
    };
    const auto plane = [&](const char* which, std::size_t i) {
      const std::string whole = name + which;
      return written ? Array::output(whole.c_str(), member(i), sixteen_bits, fresh)
                     : Array::read(whole.c_str(), member(i), sixteen_bits);
    };
    const auto scale = [&](const char* which, std::size_t i) {
      return Array::read((name + which).c_str(), member(i));
    };
    return {member(0), plane(".keys", 0), plane(".values", 1), scale(".key_scale", 2),
            scale(".value_scale", 3)};
  }

  nb::handle like() const { return like_; }
  Device device() const { return keys_.view().device; }
  bool integers() const { return keys_.integers() || values_.integers(); }
  bool integers_of(std::optional<Dtype> dtype) const {
    return keys_.integers_of(dtype) || values_.integers_of(dtype);
  }
  KeyValueCache views() const {
    return {keys_.view(), values_.view(), key_scale_.view(), value_scale_.view()};
  }

 private:
  CacheArrays(nb::object like, Array keys, Array values, Array key_scale, Array value_scale)
      : like_(std::move(like)),
        keys_(std::move(keys)),
        values_(std::move(values)),
        key_scale_(std::move(key_scale)),
        value_scale_(std::move(value_scale)) {}

  nb::object like_;
  Array keys_, values_, key_scale_, value_scale_;
};

/// The extents of a cache that new arrays are made for.
struct Extents {
  std::int64_t pages, page_size, heads, qk_dim, v_dim;
};

Extents extents_of(const std::string& name, const KeyValueCache& cache) {
  const auto& [keys, values, key_scale, value_scale] = cache;
  const bool packed = keys.rank == 5;
  if ((!packed && keys.rank != 4) || values.rank != 4) {
    refuse(name, ".keys is ", to_string(keys), " and .values ", to_string(values),
           "; expected (pages, page_size, h_kv, d) both, or (pages, h_kv, d / x, page_size, x) and (pages, "
           "h_kv, d, page_size)");
  }
  if (!packed) return {keys.shape[0], keys.shape[1], keys.shape[2], keys.shape[3], values.shape[3]};
  return {keys.shape[0], keys.shape[3], keys.shape[1], keys.shape[2] * keys.shape[4], values.shape[2]};
}

/// The dtype of new arrays by `format`, or that of `like`; `accepted` ends the message.
Dtype dtype_of_format(std::optional<std::string_view> format, Dtype like, bool e4m3, const char* accepted) {
  if (!format) return like;
  if (*format == "bf16") return Dtype::kBF16;
  if (*format == "fp16") return Dtype::kF16;
  if (e4m3 && *format == "e4m3") return Dtype::kU8;
  refuse("format is '", *format, "'; ", accepted, known_as(*format));
}

/// The name in NumPy's and torch's terms; null (like's own) where the dtype stays.
const char* array_dtype(Dtype dtype, Dtype like) {
  if (dtype == like) return nullptr;
  return dtype == Dtype::kBF16 ? "bfloat16" : dtype == Dtype::kF16 ? "float16" : "uint8";
}

void append_arrays(nb::handle keys, nb::handle values, nb::handle slot_mapping, nb::handle cache,
                   std::optional<std::string_view> dtype, nb::handle stream, int threads) {
  const std::optional<Dtype> bits = sixteen_bits_of(dtype);
  const Array keys_array = Array::read("keys", keys, bits);
  const Array values_array = Array::read("values", values, bits);
  const Array slots_array = Array::read("slot_mapping", slot_mapping);
  const CacheArrays arrays = CacheArrays::read("cache", cache, bits, true);
  refuse_unused_dtype(bits, keys_array.integers() || values_array.integers() || arrays.integers());
  run_operation(arrays.like(), arrays.device(), stream, threads, [&](const Executor& executor) {
    return append_kv(keys_array.view(), values_array.view(), slots_array.view(), arrays.views(), executor);
  });
}

nb::tuple gather_arrays(nb::handle cache, nb::handle block_table, nb::handle cu_seqlens,
                        nb::handle first_token, std::optional<std::int64_t> rows, nb::object keys,
                        nb::object values, std::optional<std::string_view> format,
                        std::optional<std::string_view> dtype, nb::handle stream, int threads) {
  const std::optional<Dtype> said = sixteen_bits_of(dtype);
  std::optional<Dtype> bits = said;
  const CacheArrays arrays = CacheArrays::read("cache", cache, bits, false);
  const Array table_array = Array::read("block_table", block_table);
  const Array begins_array = Array::read("cu_seqlens", cu_seqlens);
  const Array first_array = Array::read("first_token", first_token);
  const bool new_keys = keys.is_none(), new_values = values.is_none();
  if (new_keys || new_values) {
    if (rows && *rows < 0) refuse("rows is ", *rows, "; 0 or more is expected");
    if (!rows) {
      refuse("keys, values and rows are missing; arrays, or how many rows they are to have, are expected");
    }
    const Dtype like = arrays.views().keys.dtype;
    if (!format && like == Dtype::kU8) {
      refuse("format is missing and the cache is e4m3; bf16 or fp16 is expected");
    }
    const Extents e = extents_of("cache", arrays.views());
    const Dtype made = dtype_of_format(format, like, false, "bf16 and fp16 are accepted");
    const char* name = array_dtype(made, like);
    if (new_keys) keys = empty_like(arrays.like(), {*rows, e.heads, e.qk_dim}, name);
    if (new_values) values = empty_like(arrays.like(), {*rows, e.heads, e.v_dim}, name);
    bits = made;
  } else if (rows || format) {
    refuse(rows ? "rows" : "format",
           ", keys and values are given; rows and format are for arrays that are made");
  }
  const Array keys_array = Array::output("keys", keys, bits, new_keys);
  const Array values_array = Array::output("values", values, bits, new_values);
  refuse_unused_dtype(said,
                      arrays.integers() || keys_array.integers_of(said) || values_array.integers_of(said));
  run_operation(arrays.like(), arrays.device(), stream, threads, [&](const Executor& executor) {
    return gather_kv(arrays.views(), table_array.view(), begins_array.view(), first_array.view(),
                     keys_array.view(), values_array.view(), executor);
  });
  return nb::make_tuple(keys, values);
}

/// A new cache of such extents beside `like`.
nb::object make_cache(nb::handle like, const Extents& e, bool packed, Dtype dtype, const char* name,
                      nb::handle key_scale, nb::handle value_scale) {
  const std::int64_t x = 16 / static_cast<std::int64_t>(size_of(dtype));
  if (packed && e.qk_dim % x != 0) {
    refuse("layout is 'packed' and the keys' d is ", e.qk_dim, "; multiples of ", x, " are accepted");
  }
  nb::object keys = packed ? empty_like(like, {e.pages, e.heads, e.qk_dim / x, e.page_size, x}, name)
                           : empty_like(like, {e.pages, e.page_size, e.heads, e.qk_dim}, name);
  nb::object values = packed ? empty_like(like, {e.pages, e.heads, e.v_dim, e.page_size}, name)
                             : empty_like(like, {e.pages, e.page_size, e.heads, e.v_dim}, name);
  const nb::object type = nb::module_::import_("flashlatent._kv_cache").attr("KeyValueCache");
  return type(keys, values, key_scale, value_scale);
}

nb::object convert_arrays(nb::handle from, nb::object to, std::optional<std::string_view> layout,
                          std::optional<std::string_view> format, nb::handle key_scale,
                          nb::handle value_scale, std::optional<std::string_view> dtype, nb::handle stream,
                          int threads) {
  const std::optional<Dtype> said = sixteen_bits_of(dtype);
  std::optional<Dtype> bits = said;
  const CacheArrays source = CacheArrays::read("from", from, bits, false);
  const bool make = to.is_none();
  if (make) {
    if (layout && *layout != "separate" && *layout != "packed") {
      refuse("layout is '", *layout, "'; separate and packed are accepted");
    }
    const TensorView& keys = source.views().keys;
    const Extents extents = extents_of("from", source.views());
    const Dtype made = dtype_of_format(format, keys.dtype, true, "e4m3, bf16 and fp16 are accepted");
    const bool packed = layout ? *layout == "packed" : keys.rank == 5;
    to = make_cache(source.like(), extents, packed, made, array_dtype(made, keys.dtype), key_scale,
                    value_scale);
    bits = made;
  } else if (layout || format || !key_scale.is_none() || !value_scale.is_none()) {
    refuse("to is given beside layout, format, key_scale or value_scale; those are for a cache that is made");
  }
  const CacheArrays target = CacheArrays::read("to", to, bits, true, make);
  refuse_unused_dtype(said, source.integers() || target.integers_of(said));
  run_operation(source.like(), source.device(), stream, threads, [&](const Executor& executor) {
    return convert_kv(source.views(), target.views(), executor);
  });
  return to;
}

}  // namespace

void bind_key_value_cache(nb::module_& module) {
  using namespace nb::literals;
  module.def("append_kv", &append_arrays, "keys"_a, "values"_a, "slot_mapping"_a, "cache"_a, nb::kw_only(),
             "dtype"_a = nb::none(), "stream"_a = nb::none(), "threads"_a = 0,
             R"(Writes n new tokens into a cache of keys and values (MHA, GQA, MQA).

keys          bf16 or fp16 (n, h_kv, d_qk)
values        the same dtype (n, h_kv, d_v)
slot_mapping  int32 or int64 (n): page * page_size + offset in the page; negative: the token is skipped
cache         KeyValueCache, separate or packed, bf16, fp16 or e4m3; elements are rounded to its dtype (e4m3: element /
              scale, to the nearest, ties to even; 448 beyond the largest number; NaN for NaN and infinity)
dtype         'bf16': 16-bit integers hold bf16
stream        CUDA: an integer handle or a stream object; the current one of the cache's package if not given
threads       CPU: 0 means all
A slot past the cache's end is refused on the CPU, before anything is written, and skipped on CUDA. Of two tokens for
one slot the later one stays on the CPU; on CUDA the slot may get elements of both. Raises InvalidArgumentError, which
names the array that does not fit.)");
  module.def("gather_kv", &gather_arrays, "cache"_a, "block_table"_a, "cu_seqlens"_a,
             "first_token"_a = nb::none(), nb::kw_only(), "rows"_a = nb::none(), "keys"_a = nb::none(),
             "values"_a = nb::none(), "format"_a = nb::none(), "dtype"_a = nb::none(),
             "stream"_a = nb::none(), "threads"_a = 0,
             R"(Gathers requests' keys and values into contiguous buffers; returns (keys, values).

Request i's tokens [first_token[i], first_token[i] + n_i), where n_i = cu_seqlens[i + 1] - cu_seqlens[i], become
rows [cu_seqlens[i], cu_seqlens[i + 1]).

cache        KeyValueCache, separate or packed, bf16, fp16 or e4m3
block_table  int32 (batch, max_pages). Where it names no page, or ends, rows are 0
cu_seqlens   int32 (batch + 1), from 0 to the number of rows, never falling
first_token  int32 (batch); 0 if not given
keys         bf16 or fp16 (rows, h_kv, d_qk); made if not given
values       the same dtype (rows, h_kv, d_v); made if not given
rows         if they are not given: how many they have, and `format` which ('bf16', 'fp16'; the cache's, which e4m3
             has none of)
dtype        'bf16': 16-bit integers hold bf16
stream       CUDA: as in append_kv()
threads      CPU: 0 means all
Raises InvalidArgumentError, which names the array that does not fit.)");
  module.def("convert_kv", &convert_arrays, "from_"_a, "to"_a = nb::none(), nb::kw_only(),
             "layout"_a = nb::none(), "format"_a = nb::none(), "key_scale"_a = nb::none(),
             "value_scale"_a = nb::none(), "dtype"_a = nb::none(), "stream"_a = nb::none(), "threads"_a = 0,
             R"(Converts a whole cache of keys and values to another layout, dtype or scale; returns `to`.

from_   KeyValueCache, separate or packed, bf16, fp16 or e4m3
to      another one of the same pages, page size, heads and dimensions, which does not overlap; made if not given:
layout  'separate' or 'packed'; that of `from_` if not given
format  'e4m3', 'bf16' (NumPy and CuPy get its bits as uint16) or 'fp16'; that of `from_` if not given
key_scale, value_scale  fp32 (1) or (h_kv), of an e4m3 cache that is made; 1 if not given
dtype   'bf16': 16-bit integers hold bf16
stream  CUDA: as in append_kv()
threads  CPU: 0 means all
Elements of the same dtype and e4m3 scale are copied, others rounded as by append_kv(). Raises InvalidArgumentError,
which names the array that does not fit.)");
}

}  // namespace flashlatent::python
