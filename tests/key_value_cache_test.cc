// Operations on separate and packed keys and values, against their definition element by element.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "core/element.h"
#include "core/fp8_656.h"
#include "flashlatent/kv_cache.h"

namespace flashlatent {
namespace {

constexpr int kPages = 5, kPageSize = 4, kHeads = 3, kDim = 32, kValueDim = 24;
constexpr std::uint8_t kUntouched = 0xA5;

/// A cache with its memory; two elements of padding in every row's stride.
class Cache {
 public:
  Cache(KvLayout layout, Dtype dtype, int scales = 0) : layout_(layout), dtype_(dtype) {
    const std::int64_t x = 16 / static_cast<std::int64_t>(size_of(dtype));
    if (layout == KvLayout::kPacked) {
      cache_.keys = make(keys_, {kPages, kHeads, kDim / x, kPageSize, x});
      cache_.values = make(values_, {kPages, kHeads, kValueDim, kPageSize});
    } else {
      cache_.keys = make(keys_, {kPages, kPageSize, kHeads, kDim});
      cache_.values = make(values_, {kPages, kPageSize, kHeads, kValueDim});
    }
    if (scales == 0) return;
    cache_.key_scale = {key_scales_, Dtype::kF32, {scales}};
    cache_.value_scale = {value_scales_, Dtype::kF32, {scales}};
  }
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  const KeyValueCache& view() const { return cache_; }
  float key_scale(int head) const { return scale(cache_.key_scale, head); }
  float value_scale(int head) const { return scale(cache_.value_scale, head); }

  /// Element of a slot, as bits.
  unsigned key(int slot, int head, int d) const {
    const auto& s = cache_.keys.strides;
    const std::int64_t x = 16 / static_cast<std::int64_t>(size_of(dtype_));
    const int page = slot / kPageSize, token = slot % kPageSize;
    return bits(keys_, layout_ == KvLayout::kPacked
                           ? page * s[0] + head * s[1] + d / x * s[2] + token * s[3] + d % x
                           : page * s[0] + token * s[1] + head * s[2] + d);
  }
  unsigned value(int slot, int head, int d) const {
    const auto& s = cache_.values.strides;
    const int page = slot / kPageSize, token = slot % kPageSize;
    return bits(values_, layout_ == KvLayout::kPacked ? page * s[0] + head * s[1] + d * s[2] + token * s[3]
                                                      : page * s[0] + token * s[1] + head * s[2] + d);
  }
  unsigned untouched() const { return dtype_ == Dtype::kU8 ? kUntouched : kUntouched * 0x101U; }

 private:
  TensorView make(std::vector<std::uint8_t>& memory, std::initializer_list<std::int64_t> shape) {
    TensorView view(nullptr, dtype_, shape);
    view.strides[2] += 2;
    for (int i : {1, 0}) view.strides[i] = view.strides[i + 1] * view.shape[i + 1];
    memory.assign(view.shape[0] * view.strides[0] * size_of(dtype_), kUntouched);
    view.data = memory.data();
    return view;
  }
  unsigned bits(const std::vector<std::uint8_t>& memory, std::int64_t offset) const {
    if (dtype_ == Dtype::kU8) return memory[offset];
    return reinterpret_cast<const std::uint16_t*>(memory.data())[offset];
  }
  static float scale(const ConstTensorView& scale, int head) {
    if (!scale.present()) return 1;
    return static_cast<const float*>(scale.data)[scale.shape[0] > 1 ? head : 0];
  }

  KvLayout layout_;
  Dtype dtype_;
  std::vector<std::uint8_t> keys_, values_;
  float key_scales_[kHeads] = {0.01F, 0.02F, 0.5F}, value_scales_[kHeads] = {0.03F, 1, 1e-3F};
  KeyValueCache cache_;
};

/// New tokens, with NaN, infinities and numbers beyond e4m3 among them.
struct NewTokens {
  explicit NewTokens(int n, Dtype dtype_ = Dtype::kBF16)
      : dtype(dtype_), keys(n * kHeads * kDim), values(n * kHeads * kValueDim) {
    std::mt19937 engine(1);
    std::normal_distribution<float> normal;
    const float rare[] = {std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity(),
                          3e4F,
                          -3e4F,
                          1e-6F};
    for (auto* elements : {&keys, &values}) {
      for (std::uint16_t& element : *elements) {
        element = from_float(engine() % 20 == 0 ? rare[engine() % 6] : normal(engine), dtype);
      }
    }
  }
  ConstTensorView key_view(int n) const { return {keys.data(), dtype, {n, kHeads, kDim}}; }
  ConstTensorView value_view(int n) const { return {values.data(), dtype, {n, kHeads, kValueDim}}; }

  Dtype dtype;
  std::vector<std::uint16_t> keys, values;
};

/// What a cache of `dtype` keeps of an element; NaN as one pattern.
unsigned kept(std::uint16_t element, Dtype from, Dtype dtype, float scale) {
  const float x = to_float(element, from);
  if (dtype != Dtype::kU8) return dtype == from ? element : from_float(x, dtype);
  return std::isfinite(x) ? fp8_656::encode(std::clamp(x / scale, -1e30F, 1e30F)) : fp8_656::kNan;
}

class KeyValue : public ::testing::TestWithParam<std::tuple<KvLayout, Dtype, int>> {
 protected:
  KvLayout layout() const { return std::get<0>(GetParam()); }
  Dtype dtype() const { return std::get<1>(GetParam()); }
  int scales() const { return std::get<2>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Formats, KeyValue,
                         ::testing::Values(std::tuple{KvLayout::kSeparate, Dtype::kBF16, 0},
                                           std::tuple{KvLayout::kSeparate, Dtype::kF16, 0},
                                           std::tuple{KvLayout::kSeparate, Dtype::kU8, 0},
                                           std::tuple{KvLayout::kSeparate, Dtype::kU8, kHeads},
                                           std::tuple{KvLayout::kPacked, Dtype::kBF16, 0},
                                           std::tuple{KvLayout::kPacked, Dtype::kU8, 1}));

TEST_P(KeyValue, AppendWritesItsSlotsAndNoOthers) {
  const std::vector<std::int32_t> slots = {3, -1, 17, 0, 3, -7};  // slot 3 twice: the later one stays
  const int n = static_cast<int>(slots.size());
  const NewTokens tokens(n);
  Cache cache(layout(), dtype(), scales());
  for (int threads : {1, 3}) {
    Executor executor;
    executor.threads = threads;
    const Status status = append_kv(tokens.key_view(n), tokens.value_view(n),
                                    {slots.data(), Dtype::kI32, {n}}, cache.view(), executor);
    ASSERT_TRUE(status.ok()) << status.message();
    for (int slot = 0; slot < kPages * kPageSize; ++slot) {
      const int token = slot == 3 ? 4 : slot == 17 ? 2 : slot == 0 ? 3 : -1;
      for (int head = 0; head < kHeads; ++head) {
        for (int d = 0; d < kDim; ++d) {
          const unsigned expected = token < 0 ? cache.untouched()
                                              : kept(tokens.keys[(token * kHeads + head) * kDim + d],
                                                     Dtype::kBF16, dtype(), cache.key_scale(head));
          ASSERT_EQ(cache.key(slot, head, d), expected) << slot << " " << head << " " << d;
        }
        for (int d = 0; d < kValueDim; ++d) {
          const unsigned expected = token < 0 ? cache.untouched()
                                              : kept(tokens.values[(token * kHeads + head) * kValueDim + d],
                                                     Dtype::kBF16, dtype(), cache.value_scale(head));
          ASSERT_EQ(cache.value(slot, head, d), expected) << slot << " " << head << " " << d;
        }
      }
    }
  }
}

/// Into every layout and dtype and back: what was rounded once stays.
TEST_P(KeyValue, ConvertsToTheOtherLayoutAndBack) {
  const int n = kPages * kPageSize;
  std::vector<std::int64_t> slots(n);
  for (int i = 0; i < n; ++i) slots[i] = i;
  const NewTokens tokens(n);
  Cache cache(layout(), dtype(), scales());
  ASSERT_TRUE(
      append_kv(tokens.key_view(n), tokens.value_view(n), {slots.data(), Dtype::kI64, {n}}, cache.view(), {})
          .ok());
  const KvLayout other_layout = layout() == KvLayout::kPacked ? KvLayout::kSeparate : KvLayout::kPacked;
  Cache other(other_layout, dtype(), scales()), back(layout(), dtype(), scales());
  Cache plain(other_layout, Dtype::kF16);
  ASSERT_TRUE(convert_kv(cache.view(), other.view(), {}).ok());
  ASSERT_TRUE(convert_kv(other.view(), back.view(), {}).ok());
  ASSERT_TRUE(convert_kv(cache.view(), plain.view(), {}).ok());
  for (int slot = 0; slot < n; ++slot) {
    for (int head = 0; head < kHeads; ++head) {
      for (int d = 0; d < kDim; ++d) {
        const unsigned bits = cache.key(slot, head, d);
        ASSERT_EQ(other.key(slot, head, d), bits);
        ASSERT_EQ(back.key(slot, head, d), bits);
        const float x = dtype() == Dtype::kU8
                            ? fp8_656::decode(static_cast<std::uint8_t>(bits)) * cache.key_scale(head)
                            : to_float(static_cast<std::uint16_t>(bits), dtype());
        const float got = fp16_to_float(static_cast<std::uint16_t>(plain.key(slot, head, d)));
        const float expected = fp16_to_float(float_to_fp16(x));
        ASSERT_TRUE(got == expected || (std::isnan(got) && std::isnan(expected))) << x << " " << got;
      }
      for (int d = 0; d < kValueDim; ++d) {
        ASSERT_EQ(other.value(slot, head, d), cache.value(slot, head, d));
        ASSERT_EQ(back.value(slot, head, d), cache.value(slot, head, d));
      }
    }
  }
}

TEST_P(KeyValue, GathersRequests) {
  const int n = kPages * kPageSize;
  std::vector<std::int32_t> slots(n);
  for (int i = 0; i < n; ++i) slots[i] = i;
  const NewTokens tokens(n);
  Cache cache(layout(), dtype(), scales());
  ASSERT_TRUE(
      append_kv(tokens.key_view(n), tokens.value_view(n), {slots.data(), Dtype::kI32, {n}}, cache.view(), {})
          .ok());
  // Request 0 has tokens 3 to 9 of pages 4, 1, 2; request 1 none; request 2 one of a page that is none.
  const std::int32_t table[] = {4, 1, 2, -1, -1, -1, 99, 0, 0}, begins[] = {0, 7, 7, 8}, first[] = {3, 0, 1};
  std::vector<std::uint16_t> keys(8 * kHeads * kDim, 0xFFFF), values(8 * kHeads * kValueDim, 0xFFFF);
  const Status status = gather_kv(cache.view(), {table, Dtype::kI32, {3, 3}}, {begins, Dtype::kI32, {4}},
                                  {first, Dtype::kI32, {3}}, {keys.data(), Dtype::kBF16, {8, kHeads, kDim}},
                                  {values.data(), Dtype::kBF16, {8, kHeads, kValueDim}}, {});
  ASSERT_TRUE(status.ok()) << status.message();
  auto expect_same = [this](std::uint16_t got, unsigned bits, float scale) {
    const float x = dtype() == Dtype::kU8 ? fp8_656::decode(static_cast<std::uint8_t>(bits)) * scale
                                          : to_float(static_cast<std::uint16_t>(bits), dtype());
    const float expected = bf16_to_float(float_to_bf16(x)), value = bf16_to_float(got);
    EXPECT_TRUE(value == expected || (std::isnan(value) && std::isnan(expected))) << value << " " << expected;
  };
  for (int row = 0; row < 7; ++row) {
    const int token = row + 3, slot = table[token / kPageSize] * kPageSize + token % kPageSize;
    for (int head = 0; head < kHeads; ++head) {
      for (int d = 0; d < kDim; ++d) {
        expect_same(keys[(row * kHeads + head) * kDim + d], cache.key(slot, head, d), cache.key_scale(head));
      }
      for (int d = 0; d < kValueDim; ++d) {
        expect_same(values[(row * kHeads + head) * kValueDim + d], cache.value(slot, head, d),
                    cache.value_scale(head));
      }
    }
  }
  for (int i = 7 * kHeads * kDim; i < 8 * kHeads * kDim; ++i) ASSERT_EQ(keys[i], 0);
}

TEST_P(KeyValue, CopiesPagesTensorByTensor) {
  const int n = kPages * kPageSize;
  std::vector<std::int32_t> slots(n);
  for (int i = 0; i < n; ++i) slots[i] = i;
  const NewTokens tokens(n);
  Cache cache(layout(), dtype(), scales()), copy(layout(), dtype(), scales());
  ASSERT_TRUE(
      append_kv(tokens.key_view(n), tokens.value_view(n), {slots.data(), Dtype::kI32, {n}}, cache.view(), {})
          .ok());
  const std::int32_t pairs[] = {1, 3, 4, 0};
  for (bool values : {false, true}) {
    const TensorView& from = values ? cache.view().values : cache.view().keys;
    const TensorView& to = values ? copy.view().values : copy.view().keys;
    const Status status = copy_pages(from, to, {pairs, Dtype::kI32, {2, 2}}, {});
    ASSERT_TRUE(status.ok()) << status.message();
  }
  for (int page = 0; page < kPages; ++page) {
    const int source = page == 3 ? 1 : page == 0 ? 4 : -1;
    for (int token = 0; token < kPageSize; ++token) {
      const int to = page * kPageSize + token, from = source * kPageSize + token;
      for (int head = 0; head < kHeads; ++head) {
        for (int d = 0; d < kValueDim; ++d) {
          ASSERT_EQ(copy.key(to, head, d), source < 0 ? copy.untouched() : cache.key(from, head, d));
          ASSERT_EQ(copy.value(to, head, d), source < 0 ? copy.untouched() : cache.value(from, head, d));
        }
      }
    }
  }
}

TEST(KeyValueErrors, NameWhatDoesNotFit) {
  const NewTokens tokens(1);
  Cache cache(KvLayout::kSeparate, Dtype::kBF16), packed(KvLayout::kPacked, Dtype::kBF16);
  const std::int32_t slot = kPages * kPageSize, good = 0;
  const ConstTensorView keys = tokens.key_view(1), values = tokens.value_view(1);
  auto expect_refused = [](const Status& status, const char* piece) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(piece), std::string::npos) << status.message();
  };
  expect_refused(append_kv(keys, values, {&slot, Dtype::kI32, {1}}, cache.view(), {}),
                 "slot_mapping[0] is 20; the cache has 20 slots");
  EXPECT_EQ(cache.key(0, 0, 0), cache.untouched());
  const ConstTensorView slots(&good, Dtype::kI32, {1});
  expect_refused(append_kv(values, values, slots, cache.view(), {}), "keys is bf16 (1, 3, 24)");
  KeyValueCache mixed = cache.view();
  mixed.values = packed.view().values;
  expect_refused(append_kv(keys, values, slots, mixed, {}), "cache.values is bf16 (5, 3, 24, 4)");
  mixed = cache.view();
  const float scale = 1;
  mixed.key_scale = {&scale, Dtype::kF32, {1}};
  expect_refused(append_kv(keys, values, slots, mixed, {}),
                 "cache.key_scale is given, but the cache is bf16");
  expect_refused(convert_kv(cache.view(), cache.view(), {}), "to is where from is");
}

}  // namespace
}  // namespace flashlatent
