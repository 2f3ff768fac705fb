// Operations on separate keys and values: checks arguments, then calls the backend.
#include "core/apart.h"
#include "core/expect.h"
#include "core/message.h"
#include "dispatch/on_backend.h"
#include "dispatch/select.h"
#include "flashlatent/kv_cache.h"

namespace flashlatent {

namespace {

/// Extents that the tensors of a cache have in common.
struct Shape {
  std::int64_t pages, page_size, heads, qk_dim, v_dim;
};

Status check_scale(const std::string& name, const ConstTensorView& scale, Dtype dtype, std::int64_t heads,
                   Device device) {
  if (!scale.present()) return {};
  if (dtype != Dtype::kU8) {
    return invalid_argument(name, " is given, but the cache is ", to_string(dtype),
                            "; e4m3 (uint8) has scales");
  }
  FLASHLATENT_RETURN_IF_ERROR(expect_scale(name.c_str(), scale, heads, device));
  return device.type == DeviceType::kCpu ? expect_positive(name.c_str(), scale) : Status{};
}

/// `prefix` is put before the tensors' names in messages: "cache.".
Result<Shape> check_cache(const std::string& prefix, const ConstKeyValueCache& cache, Device device) {
  const ConstTensorView& keys = cache.keys;
  const std::string key_name = prefix + "keys", value_name = prefix + "values";
  const bool packed = keys.rank == 5;
  if ((keys.rank != 4 && !packed) || (!is_half(keys.dtype) && keys.dtype != Dtype::kU8)) {
    return invalid_argument(key_name, " is ", keys.present() ? to_string(keys) : "missing",
                            "; expected bf16, fp16 or uint8 (pages, page_size, h_kv, d) or (pages, h_kv, d / "
                            "x, page_size, x) on ",
                            to_string(device));
  }
  const std::int64_t x = 16 / static_cast<std::int64_t>(size_of(keys.dtype));
  const std::vector<std::int64_t> any =
      packed ? std::vector<std::int64_t>{-1, -1, -1, -1, x} : std::vector<std::int64_t>(4, -1);
  FLASHLATENT_RETURN_IF_ERROR(expect_strided(key_name.c_str(), keys, keys.dtype, device, any));
  Shape shape = {keys.shape[0], keys.shape[1], keys.shape[2], keys.shape[3], 0};
  if (packed) shape = {keys.shape[0], keys.shape[3], keys.shape[1], keys.shape[2] * x, 0};
  if (shape.page_size < 1 || shape.heads < 1 || shape.qk_dim < 1) {
    return invalid_argument(key_name, " is ", to_string(keys), "; page_size, h_kv and d must be at least 1");
  }
  FLASHLATENT_RETURN_IF_ERROR(packed ? expect_strided(value_name.c_str(), cache.values, keys.dtype, device,
                                                      {shape.pages, shape.heads, -1, shape.page_size})
                                     : expect_strided(value_name.c_str(), cache.values, keys.dtype, device,
                                                      {shape.pages, shape.page_size, shape.heads, -1}));
  shape.v_dim = cache.values.shape[packed ? 2 : 3];
  FLASHLATENT_RETURN_IF_ERROR(
      check_scale(prefix + "key_scale", cache.key_scale, keys.dtype, shape.heads, device));
  FLASHLATENT_RETURN_IF_ERROR(
      check_scale(prefix + "value_scale", cache.value_scale, keys.dtype, shape.heads, device));
  return shape;
}

/// Expects contiguous keys and values, (n, h_kv, d) of bf16 or fp16.
Status check_rows(const ConstTensorView& keys, const ConstTensorView& values, std::int64_t n,
                  const Shape& shape, Device device) {
  if (keys.present() && !is_half(keys.dtype)) {
    return invalid_argument("keys is ", to_string(keys), "; bf16 and fp16 are accepted");
  }
  const Dtype dtype = keys.present() ? keys.dtype : Dtype::kBF16;
  FLASHLATENT_RETURN_IF_ERROR(expect_strided("keys", keys, dtype, device, {n, shape.heads, shape.qk_dim}));
  return expect_strided("values", values, dtype, device, {keys.shape[0], shape.heads, shape.v_dim});
}

/// What is written has memory of its own, apart from what is read.
Status expect_each_apart(std::initializer_list<NamedView> written, std::initializer_list<NamedView> read) {
  for (const NamedView& view : written) {
    FLASHLATENT_RETURN_IF_ERROR(expect_apart({&view, 1}, {read.begin(), read.size()}));
  }
  return {};
}

}  // namespace

Status append_kv(const ConstTensorView& keys, const ConstTensorView& values,
                 const ConstTensorView& slot_mapping, const KeyValueCache& cache, const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(validate(executor));
  const Device device = device_of(executor);
  FLASHLATENT_ASSIGN_OR_RETURN(const Shape shape, check_cache("cache.", cache, device));
  FLASHLATENT_RETURN_IF_ERROR(expect_integers("slot_mapping", slot_mapping, device, {-1}));
  FLASHLATENT_RETURN_IF_ERROR(check_rows(keys, values, slot_mapping.shape[0], shape, device));
  const ConstTensorView to_keys = cache.keys, to_values = cache.values;
  FLASHLATENT_RETURN_IF_ERROR(
      expect_each_apart({{"cache.keys", &to_keys}, {"cache.values", &to_values}},
                        {{"keys", &keys}, {"values", &values}, {"slot_mapping", &slot_mapping}}));
  return FLASHLATENT_ON_BACKEND(executor, append_kv)(keys, values, slot_mapping, cache, executor);
}

Status gather_kv(const ConstKeyValueCache& cache, const ConstTensorView& block_table,
                 const ConstTensorView& cu_seqlens, const ConstTensorView& first_token,
                 const TensorView& keys, const TensorView& values, const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(validate(executor));
  const Device device = device_of(executor);
  FLASHLATENT_ASSIGN_OR_RETURN(const Shape shape, check_cache("cache.", cache, device));
  FLASHLATENT_RETURN_IF_ERROR(expect_gathered(block_table, cu_seqlens, first_token, device));
  FLASHLATENT_RETURN_IF_ERROR(check_rows(keys, values, -1, shape, device));
  const ConstTensorView to_keys = keys, to_values = values;
  FLASHLATENT_RETURN_IF_ERROR(
      expect_each_apart({{"keys", &to_keys}, {"values", &to_values}}, {{"cache.keys", &cache.keys},
                                                                       {"cache.values", &cache.values},
                                                                       {"block_table", &block_table},
                                                                       {"cu_seqlens", &cu_seqlens},
                                                                       {"first_token", &first_token}}));
  return FLASHLATENT_ON_BACKEND(executor, gather_kv)(cache, block_table, cu_seqlens, first_token, keys,
                                                     values, executor);
}

Status convert_kv(const ConstKeyValueCache& from, const KeyValueCache& to, const Executor& executor) {
  FLASHLATENT_RETURN_IF_ERROR(validate(executor));
  const Device device = device_of(executor);
  FLASHLATENT_ASSIGN_OR_RETURN(const Shape a, check_cache("from.", from, device));
  FLASHLATENT_ASSIGN_OR_RETURN(const Shape b, check_cache("to.", to, device));
  if (a.pages != b.pages || a.page_size != b.page_size || a.heads != b.heads || a.qk_dim != b.qk_dim ||
      a.v_dim != b.v_dim) {
    return invalid_argument("to.keys is ", to_string(to.keys), " and to.values ", to_string(to.values),
                            "; pages, page size, heads and dimensions must be those of from.keys ",
                            to_string(from.keys), " and from.values ", to_string(from.values));
  }
  const ConstTensorView to_keys = to.keys, to_values = to.values;
  FLASHLATENT_RETURN_IF_ERROR(expect_each_apart({{"to.keys", &to_keys}, {"to.values", &to_values}},
                                                {{"from.keys", &from.keys}, {"from.values", &from.values}}));
  return FLASHLATENT_ON_BACKEND(executor, convert_kv)(from, to, executor);
}

}  // namespace flashlatent
