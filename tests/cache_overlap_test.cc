// Operations on caches refuse to read memory that they write, on every backend that is there.
#include <functional>

#include "contracts.h"
#include "device_tensor.h"
#include "flashlatent/kv_cache.h"

namespace flashlatent {
namespace {

class CacheOverlap : public Contracts {
 protected:
  static void expect_refused(const Status& status, const std::string& written, const std::string& read) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message().find(written + " is "), 0U) << status.message();
    EXPECT_NE(status.message().find("overlaps " + read), std::string::npos) << status.message();
  }
  static void expect_ok(const Status& status) { EXPECT_TRUE(status.ok()) << status.message(); }

  /// The view's pages from `first` on.
  static TensorView from_page(TensorView view, std::int64_t first, std::int64_t pages) {
    view.data = static_cast<std::uint8_t*>(view.data) + first * view.strides[0] * size_of(view.dtype);
    view.shape[0] = pages;
    return view;
  }

  Tensor numbers(std::initializer_list<std::int64_t> shape, const std::vector<std::int32_t>& values) {
    Tensor tensor(executor_, Dtype::kI32, shape);
    tensor.set(values);
    return tensor;
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, CacheOverlap, kBackends, backend_name);

TEST_P(CacheOverlap, CopyPagesBetweenViewsOfOneCache) {
  Tensor memory(executor_, Dtype::kBF16, {8, 2, 1, 16});
  Tensor list = numbers({2, 2}, {0, 2, 1, 3});
  const TensorView cache = memory.upload(), pairs = list.upload();
  const std::vector<std::uint8_t> before = memory.bytes();
  expect_refused(copy_pages(from_page(cache, 0, 5), from_page(cache, 1, 5), pairs, executor_), "to", "from");
  TensorView wide = cache;  // pages of four tokens
  wide.shape = {4, 2, 1, 16};
  wide.strides[0] *= 2;
  expect_refused(copy_pages(wide, from_page(cache, 0, 4), pairs, executor_), "to", "from");
  memory.download();
  EXPECT_EQ(memory.bytes(), before);
  expect_ok(copy_pages(cache, cache, pairs, executor_));
  expect_ok(copy_pages(from_page(cache, 0, 5), cache, pairs, executor_));
  expect_ok(copy_pages(from_page(cache, 0, 4), from_page(cache, 4, 4), pairs, executor_));
  // Layers of one tensor, page by page.
  TensorView layer = cache, other = from_page(cache, 1, 4);
  layer.shape[0] = 4;
  layer.strides[0] *= 2;
  other.strides[0] = layer.strides[0];
  expect_ok(copy_pages(layer, other, pairs, executor_));
}

TEST_P(CacheOverlap, ConvertAndGather) {
  Tensor memory(executor_, Dtype::kBF16, {8, 2, 1, 16});
  Tensor table = numbers({1, 2}, {0, 1}), ends = numbers({2}, {0, 4});
  const TensorView cache = memory.upload();
  expect_refused(convert_cache(from_page(cache, 0, 4), from_page(cache, 3, 4), executor_), "to", "from");
  expect_ok(convert_cache(from_page(cache, 0, 4), from_page(cache, 4, 4), executor_));
  TensorView rows = from_page(cache, 3, 4);  // (4, 1, 16) of page 3 and 4
  rows.rank = 3;
  rows.shape = {4, 1, 16};
  rows.strides = {16, 16, 1};
  const TensorView pages = table.upload(), cu = ends.upload();
  expect_refused(gather_cache(from_page(cache, 0, 4), pages, cu, {}, rows, executor_), "out", "kv_cache");
  expect_ok(gather_cache(from_page(cache, 0, 3), pages, cu, {}, rows, executor_));
}

TEST_P(CacheOverlap, AppendLatent) {
  Tensor memory(executor_, Dtype::kBF16, {8, 2, 1, 16});
  Tensor list = numbers({2}, {1, 2});
  const TensorView cache = memory.upload(), slots = list.upload();
  TensorView latent = from_page(cache, 7, 1), rope = latent;
  latent.rank = rope.rank = 2;
  latent.shape = {2, 12};
  rope.shape = {2, 4};
  latent.strides = rope.strides = {16, 1};
  rope.data = static_cast<std::uint16_t*>(rope.data) + 12;
  expect_refused(append_latent(latent, rope, slots, cache, executor_), "kv_cache", "latent");
  expect_ok(append_latent(latent, rope, slots, from_page(cache, 0, 7), executor_));
}

TEST_P(CacheOverlap, KeysAndValues) {
  Tensor key_memory(executor_, Dtype::kBF16, {8, 2, 1, 16}),
      value_memory(executor_, Dtype::kBF16, {8, 2, 1, 16});
  Tensor list = numbers({2}, {1, 2}), table = numbers({1, 1}, {0}), ends = numbers({2}, {0, 2});
  const TensorView keys = key_memory.upload(), values = value_memory.upload(), slots = list.upload();
  const TensorView pages = table.upload(), cu = ends.upload();
  const KeyValueCache first{from_page(keys, 0, 4), from_page(values, 0, 4)};
  const KeyValueCache crossing{from_page(keys, 4, 4), from_page(values, 3, 4)};
  const KeyValueCache last{from_page(keys, 4, 4), from_page(values, 4, 4)};
  expect_refused(convert_kv(first, crossing, executor_), "to.values", "from.values");
  expect_refused(convert_kv(first, {last.keys, first.keys}, executor_), "to.values", "from.keys");
  expect_ok(convert_kv(first, last, executor_));
  auto rows_at = [](TensorView cache, std::int64_t page) {
    TensorView rows = from_page(cache, page, 1);
    rows.rank = 3;
    rows.shape = {2, 1, 16};
    rows.strides = {16, 16, 1};
    return rows;
  };
  expect_refused(append_kv(rows_at(keys, 7), rows_at(values, 2), slots, first, executor_), "cache.values",
                 "values");
  expect_refused(append_kv(rows_at(values, 1), rows_at(values, 7), slots, first, executor_), "cache.values",
                 "keys");
  expect_ok(append_kv(rows_at(keys, 7), rows_at(values, 7), slots, first, executor_));
  expect_refused(gather_kv(first, pages, cu, {}, rows_at(keys, 3), rows_at(values, 7), executor_), "keys",
                 "cache.keys");
  expect_ok(gather_kv(first, pages, cu, {}, rows_at(keys, 7), rows_at(values, 7), executor_));
}

}  // namespace
}  // namespace flashlatent
