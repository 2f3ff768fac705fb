// Operations on separate and packed keys and values, on every backend that is there, against their definition
// element by element, and the CPU's bytes.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <random>

#include "contracts.h"
#include "core/element.h"
#include "core/formats/fp8_656.h"
#include "device_tensor.h"
#include "flashlatent/kv_cache.h"

namespace flashlatent {
namespace {

struct Format {
  KvLayout layout;
  Dtype dtype;
  int scales = 0;
  int padding = 2;  // elements between rows
};

constexpr int kHeads = 3;
struct Dimensions {
  int pages = 5, page_size = 4, qk_dim = 32, v_dim = 24;

  int slots() const { return pages * page_size; }
};

constexpr Format kFormats[] = {
    {KvLayout::kSeparate, Dtype::kBF16},      {KvLayout::kSeparate, Dtype::kF16, 0, 0},
    {KvLayout::kSeparate, Dtype::kU8, 0, 16}, {KvLayout::kSeparate, Dtype::kU8, kHeads},
    {KvLayout::kPacked, Dtype::kBF16, 0, 0},  {KvLayout::kPacked, Dtype::kF16, 0, 16},
    {KvLayout::kPacked, Dtype::kU8, 1},       {KvLayout::kPacked, Dtype::kU8, kHeads, 0},
};

std::string name_of(const Format& format) {
  return std::string(format.layout == KvLayout::kPacked ? "packed " : "separate ") + to_string(format.dtype) +
         ", " + std::to_string(format.scales) + " scales, padding " + std::to_string(format.padding);
}

void randomise(Tensor& tensor, unsigned seed) {
  std::mt19937 engine(seed);
  std::vector<std::uint32_t> words(tensor.bytes().size() / sizeof(std::uint32_t) + 1);
  for (std::uint32_t& word : words) word = static_cast<std::uint32_t>(engine());
  std::vector<std::uint8_t> bytes(tensor.bytes().size());
  std::memcpy(bytes.data(), words.data(), bytes.size());
  tensor.set(bytes);
}

/// A cache with its memory.
class Cache {
 public:
  Cache(const Executor& executor, const Format& format, const Dimensions& dimensions = {})
      : format_(format),
        page_size_(dimensions.page_size),
        keys_(executor, key_layout(format, dimensions)),
        values_(executor, value_layout(format, dimensions)) {
    if (format.scales == 0) return;
    key_scales_.emplace(executor, Dtype::kF32, std::initializer_list<std::int64_t>{format.scales});
    value_scales_.emplace(executor, Dtype::kF32, std::initializer_list<std::int64_t>{format.scales});
    std::vector<float> scales = {0.01F, 0.02F, 0.5F};
    scales.resize(format.scales);
    key_scales_->set(scales);
    scales = {0.03F, 1, 1e-3F};
    scales.resize(format.scales);
    value_scales_->set(scales);
  }

  KeyValueCache upload() {
    KeyValueCache cache = {keys_.upload(), values_.upload()};
    if (key_scales_) cache.key_scale = key_scales_->upload();
    if (value_scales_) cache.value_scale = value_scales_->upload();
    return cache;
  }
  void download() {
    keys_.download();
    values_.download();
  }
  Tensor& keys() { return keys_; }
  Tensor& values() { return values_; }

  float key_scale(int head) { return key_scales_ ? scale(*key_scales_, head) : 1; }
  float value_scale(int head) { return value_scales_ ? scale(*value_scales_, head) : 1; }

  /// Element of a slot, as bits.
  unsigned key(int slot, int head, int d) const {
    const auto& s = keys_.view().strides;
    const std::int64_t x = 16 / static_cast<std::int64_t>(size_of(format_.dtype));
    const int page = slot / page_size_, token = slot % page_size_;
    return bits(keys_, format_.layout == KvLayout::kPacked
                           ? page * s[0] + head * s[1] + d / x * s[2] + token * s[3] + d % x
                           : page * s[0] + token * s[1] + head * s[2] + d);
  }
  unsigned value(int slot, int head, int d) const {
    const auto& s = values_.view().strides;
    const int page = slot / page_size_, token = slot % page_size_;
    return bits(values_, format_.layout == KvLayout::kPacked
                             ? page * s[0] + head * s[1] + d * s[2] + token * s[3]
                             : page * s[0] + token * s[1] + head * s[2] + d);
  }
  unsigned untouched() const { return format_.dtype == Dtype::kU8 ? kUntouched : kUntouched * 0x101U; }

 private:
  static TensorView padded(TensorView view, int padding) {
    view.strides[2] += padding;
    for (int i : {1, 0}) view.strides[i] = view.strides[i + 1] * view.shape[i + 1];
    return view;
  }
  static TensorView key_layout(const Format& format, const Dimensions& n) {
    const std::int64_t x = 16 / static_cast<std::int64_t>(size_of(format.dtype));
    if (format.layout == KvLayout::kPacked) {
      return padded({nullptr, format.dtype, {n.pages, kHeads, n.qk_dim / x, n.page_size, x}}, format.padding);
    }
    return padded({nullptr, format.dtype, {n.pages, n.page_size, kHeads, n.qk_dim}}, format.padding);
  }
  static TensorView value_layout(const Format& format, const Dimensions& n) {
    if (format.layout == KvLayout::kPacked) {
      return padded({nullptr, format.dtype, {n.pages, kHeads, n.v_dim, n.page_size}}, format.padding);
    }
    return padded({nullptr, format.dtype, {n.pages, n.page_size, kHeads, n.v_dim}}, format.padding);
  }
  unsigned bits(const Tensor& tensor, std::int64_t offset) const {
    if (format_.dtype == Dtype::kU8) return tensor.bytes()[offset];
    return reinterpret_cast<const std::uint16_t*>(tensor.bytes().data())[offset];
  }
  static float scale(Tensor& scales, int head) {
    return scales.row<float>(0)[scales.view().shape[0] > 1 ? head : 0];
  }

  Format format_;
  int page_size_;
  Tensor keys_, values_;
  std::optional<Tensor> key_scales_, value_scales_;
};

/// New tokens, with NaN, infinities and numbers beyond e4m3 among them.
class NewTokens {
 public:
  NewTokens(const Executor& executor, int n, Dtype dtype = Dtype::kBF16, const Dimensions& dimensions = {})
      : keys_(executor, dtype, {n, kHeads, dimensions.qk_dim}),
        values_(executor, dtype, {n, kHeads, dimensions.v_dim}) {
    std::mt19937 engine(1);
    std::normal_distribution<float> normal;
    const float rare[] = {std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity(),
                          3e4F,
                          -3e4F,
                          1e-6F};
    for (Tensor* tensor : {&keys_, &values_}) {
      for (std::int64_t i = 0; i < tensor->view().elements(); ++i) {
        tensor->row<std::uint16_t>(0)[i] =
            from_float(engine() % 20 == 0 ? rare[engine() % 6] : normal(engine), dtype);
      }
    }
  }
  TensorView keys() { return keys_.upload(); }
  TensorView values() { return values_.upload(); }
  std::uint16_t key(int token, int head, int d) { return element(keys_, token, head, d); }
  std::uint16_t value(int token, int head, int d) { return element(values_, token, head, d); }

 private:
  static std::uint16_t element(Tensor& tensor, int token, int head, int d) {
    return tensor.row<std::uint16_t>(token, head)[d];
  }

  Tensor keys_, values_;
};

/// What a cache of `dtype` keeps of an element; NaN as one pattern.
unsigned kept(std::uint16_t element, Dtype from, Dtype dtype, float scale) {
  const float x = to_float(element, from);
  if (dtype != Dtype::kU8) return dtype == from ? element : from_float(x, dtype);
  return std::isfinite(x) ? fp8_656::encode(std::clamp(x / scale, -1e30F, 1e30F)) : fp8_656::kNan;
}

template <class T>
Tensor numbers(const Executor& executor, Dtype dtype, const std::vector<T>& values) {
  Tensor tensor(executor, dtype, {static_cast<std::int64_t>(values.size())});
  tensor.set(values);
  return tensor;
}

class KeyValue : public Contracts {
 protected:
  void SetUp() override {
    Contracts::SetUp();
    if (!on_gpu()) executor_.threads = 3;
  }

  /// Writes a token to every slot.
  void fill(Cache& cache, const Dimensions& dimensions = {}) {
    const int n = dimensions.slots();
    std::vector<std::int64_t> slots(n);
    std::iota(slots.begin(), slots.end(), 0);
    Tensor mapping = numbers(executor_, Dtype::kI64, slots);
    NewTokens tokens(executor_, n, Dtype::kBF16, dimensions);
    const Status status =
        append_kv(tokens.keys(), tokens.values(), mapping.upload(), cache.upload(), executor_);
    ASSERT_TRUE(status.ok()) << status.message();
    cache.download();
  }

  static void expect_refused(const Status& status, const std::string& piece) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(piece), std::string::npos) << status.message();
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, KeyValue, kBackends, backend_name);

TEST_P(KeyValue, AppendWritesItsSlotsAndNoOthers) {
  const Dimensions n;
  // On the CPU slot 3 comes twice, and the later one stays; on the GPU a slot past the end is skipped.
  const std::vector<std::int32_t> slots = on_gpu() ? std::vector<std::int32_t>{-1, 20, 17, 0, 3, -7}
                                                   : std::vector<std::int32_t>{3, -1, 17, 0, 3, -7};
  for (const Format& format : kFormats) {
    SCOPED_TRACE(name_of(format));
    Tensor mapping = numbers(executor_, Dtype::kI32, slots);
    NewTokens tokens(executor_, static_cast<int>(slots.size()));
    Cache cache(executor_, format);
    const Status status =
        append_kv(tokens.keys(), tokens.values(), mapping.upload(), cache.upload(), executor_);
    ASSERT_TRUE(status.ok()) << status.message();
    cache.download();
    for (int slot = 0; slot < n.slots(); ++slot) {
      const int token = slot == 3 ? 4 : slot == 17 ? 2 : slot == 0 ? 3 : -1;
      for (int head = 0; head < kHeads; ++head) {
        for (int d = 0; d < n.qk_dim; ++d) {
          const unsigned expected =
              token < 0 ? cache.untouched()
                        : kept(tokens.key(token, head, d), Dtype::kBF16, format.dtype, cache.key_scale(head));
          ASSERT_EQ(cache.key(slot, head, d), expected) << slot << " " << head << " " << d;
        }
        for (int d = 0; d < n.v_dim; ++d) {
          const unsigned expected = token < 0 ? cache.untouched()
                                              : kept(tokens.value(token, head, d), Dtype::kBF16, format.dtype,
                                                     cache.value_scale(head));
          ASSERT_EQ(cache.value(slot, head, d), expected) << slot << " " << head << " " << d;
        }
      }
    }
  }
}

/// Into every layout and dtype and back: what was rounded once stays.
TEST_P(KeyValue, ConvertsToTheOtherLayoutAndBack) {
  const Dimensions n;
  for (const Format& format : kFormats) {
    SCOPED_TRACE(name_of(format));
    Cache cache(executor_, format);
    fill(cache);
    Format other_format = format;
    other_format.layout = format.layout == KvLayout::kPacked ? KvLayout::kSeparate : KvLayout::kPacked;
    Cache other(executor_, other_format), back(executor_, format);
    Cache plain(executor_, {other_format.layout, Dtype::kF16});
    const KeyValueCache views[] = {cache.upload(), other.upload(), back.upload(), plain.upload()};
    for (auto [from, to] : {std::pair{0, 1}, {1, 2}, {0, 3}}) {
      const Status status = convert_kv(views[from], views[to], executor_);
      ASSERT_TRUE(status.ok()) << status.message();
    }
    for (Cache* written : {&other, &back, &plain}) written->download();
    for (int slot = 0; slot < n.slots(); ++slot) {
      for (int head = 0; head < kHeads; ++head) {
        for (int d = 0; d < n.qk_dim; ++d) {
          const unsigned bits = cache.key(slot, head, d);
          ASSERT_EQ(other.key(slot, head, d), bits);
          ASSERT_EQ(back.key(slot, head, d), bits);
          const float x = format.dtype == Dtype::kU8
                              ? fp8_656::decode(static_cast<std::uint8_t>(bits)) * cache.key_scale(head)
                              : to_float(static_cast<std::uint16_t>(bits), format.dtype);
          const float got = fp16_to_float(static_cast<std::uint16_t>(plain.key(slot, head, d)));
          const float expected = fp16_to_float(float_to_fp16(x));
          ASSERT_TRUE(got == expected || (std::isnan(got) && std::isnan(expected))) << x << " " << got;
        }
        for (int d = 0; d < n.v_dim; ++d) {
          ASSERT_EQ(other.value(slot, head, d), cache.value(slot, head, d));
          ASSERT_EQ(back.value(slot, head, d), cache.value(slot, head, d));
        }
      }
    }
  }
}

TEST_P(KeyValue, GathersRequests) {
  const Dimensions n;
  // Request 0 has tokens 3 to 9 of pages 4, 1, 2; request 1 none; request 2 one of a page that is none.
  const std::int32_t pages[] = {4, 1, 2, -1, -1, -1, 99, 0, 0};
  for (const Format& format : kFormats) {
    SCOPED_TRACE(name_of(format));
    Cache cache(executor_, format);
    fill(cache);
    Tensor table(executor_, Dtype::kI32, {3, 3});
    table.set(std::vector<std::int32_t>(std::begin(pages), std::end(pages)));
    Tensor begins = numbers<std::int32_t>(executor_, Dtype::kI32, {0, 7, 7, 8}),
           first = numbers<std::int32_t>(executor_, Dtype::kI32, {3, 0, 1});
    Tensor keys(executor_, Dtype::kBF16, {8, kHeads, n.qk_dim}),
        values(executor_, Dtype::kBF16, {8, kHeads, n.v_dim});
    const Status status = gather_kv(cache.upload(), table.upload(), begins.upload(), first.upload(),
                                    keys.upload(), values.upload(), executor_);
    ASSERT_TRUE(status.ok()) << status.message();
    keys.download();
    values.download();
    auto expect_same = [&](std::uint16_t got, unsigned bits, float scale) {
      const float x = format.dtype == Dtype::kU8 ? fp8_656::decode(static_cast<std::uint8_t>(bits)) * scale
                                                 : to_float(static_cast<std::uint16_t>(bits), format.dtype);
      const float expected = bf16_to_float(float_to_bf16(x)), value = bf16_to_float(got);
      EXPECT_TRUE(value == expected || (std::isnan(value) && std::isnan(expected)))
          << value << " " << expected;
    };
    for (int row = 0; row < 7; ++row) {
      const int token = row + 3, slot = pages[token / n.page_size] * n.page_size + token % n.page_size;
      for (int head = 0; head < kHeads; ++head) {
        for (int d = 0; d < n.qk_dim; ++d) {
          expect_same(keys.row<std::uint16_t>(row, head)[d], cache.key(slot, head, d), cache.key_scale(head));
        }
        for (int d = 0; d < n.v_dim; ++d) {
          expect_same(values.row<std::uint16_t>(row, head)[d], cache.value(slot, head, d),
                      cache.value_scale(head));
        }
      }
    }
    for (int i = 0; i < kHeads * n.qk_dim; ++i) ASSERT_EQ(keys.row<std::uint16_t>(7)[i], 0);
    for (int i = 0; i < kHeads * n.v_dim; ++i) ASSERT_EQ(values.row<std::uint16_t>(7)[i], 0);
  }
}

TEST_P(KeyValue, CopiesPagesTensorByTensor) {
  const Dimensions n;
  for (const Format& format : kFormats) {
    SCOPED_TRACE(name_of(format));
    Cache cache(executor_, format), copy(executor_, format);
    fill(cache);
    Tensor pairs(executor_, Dtype::kI32, {2, 2});
    pairs.set<std::int32_t>({1, 3, 4, 0});
    const KeyValueCache from = cache.upload(), to = copy.upload();
    for (auto [source, target] : {std::pair{from.keys, to.keys}, {from.values, to.values}}) {
      const Status status = copy_pages(source, target, pairs.upload(), executor_);
      ASSERT_TRUE(status.ok()) << status.message();
    }
    copy.download();
    for (int slot = 0; slot < n.slots(); ++slot) {
      const int page = slot / n.page_size, source_page = page == 3 ? 1 : page == 0 ? 4 : -1;
      const int source = source_page * n.page_size + slot % n.page_size;
      for (int head = 0; head < kHeads; ++head) {
        for (int d = 0; d < n.qk_dim; ++d) {
          ASSERT_EQ(copy.key(slot, head, d), source_page < 0 ? copy.untouched() : cache.key(source, head, d));
        }
        for (int d = 0; d < n.v_dim; ++d) {
          ASSERT_EQ(copy.value(slot, head, d),
                    source_page < 0 ? copy.untouched() : cache.value(source, head, d));
        }
      }
    }
  }
}

/// Large caches of any bits, NaN of all kinds among them: every backend and number of threads writes the
/// bytes that one thread of the CPU writes, and nothing between rows.
class KeyValueBytes : public KeyValue {
 protected:
  // More tokens than a GPU's multiprocessors take one by one; rows that do and do not end with a chunk; more
  // than there are warps for keys and values apart.
  static constexpr Dimensions kLarge[] = {{150, 16, 48, 40}, {90, 29, 32, 37}, {1250, 29, 16, 9}};

  /// `written` makes the bytes with an executor.
  template <class Written>
  void expect_same_bytes(const Written& written) {
    Executor one;
    one.threads = 1;
    const std::vector<std::uint8_t> got = written(executor_), expected = written(one);
    ASSERT_EQ(got.size(), expected.size());
    const auto [at, other] = std::mismatch(got.begin(), got.end(), expected.begin());
    EXPECT_TRUE(at == got.end()) << "byte " << at - got.begin() << " of " << got.size() << " is " << int{*at}
                                 << ", not " << int{*other};
  }

  static std::vector<std::uint8_t> bytes_of(Tensor& keys, Tensor& values) {
    keys.download();
    values.download();
    std::vector<std::uint8_t> bytes = keys.bytes();
    bytes.insert(bytes.end(), values.bytes().begin(), values.bytes().end());
    return bytes;
  }
  static std::vector<std::uint8_t> bytes_of(Cache& cache) { return bytes_of(cache.keys(), cache.values()); }
  static void randomise(Cache& cache) {
    flashlatent::randomise(cache.keys(), 1);
    flashlatent::randomise(cache.values(), 2);
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, KeyValueBytes, kBackends, backend_name);

TEST_P(KeyValueBytes, OfConversionsBetweenAllFormats) {
  for (const Dimensions& n : kLarge) {
    for (const Format& from_format : kFormats) {
      for (const Format& to_format : kFormats) {
        SCOPED_TRACE(name_of(from_format) + " to " + name_of(to_format));
        expect_same_bytes([&](const Executor& executor) {
          Cache from(executor, from_format, n), to(executor, to_format, n);
          randomise(from);
          const Status status = convert_kv(from.upload(), to.upload(), executor);
          EXPECT_TRUE(status.ok()) << status.message();
          return bytes_of(to);
        });
      }
    }
  }
}

TEST_P(KeyValueBytes, OfAppendedTokens) {
  for (const Dimensions& n : kLarge) {
    std::vector<std::int32_t> slots(n.slots());
    std::iota(slots.begin(), slots.end(), 0);
    std::shuffle(slots.begin() + n.slots() / 2, slots.end(), std::mt19937(3));
    for (int i = 0; i < n.slots(); i += 41) slots[i] = -1 - i;
    for (const Format& format : kFormats) {
      for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
        SCOPED_TRACE(name_of(format) + " from " + to_string(dtype));
        expect_same_bytes([&](const Executor& executor) {
          // Values begin an element behind an aligned address.
          Tensor keys(executor, dtype, {n.slots(), kHeads, n.qk_dim}, 8),
              values(executor, {nullptr, dtype, {n.slots(), kHeads, n.v_dim}}, 1);
          flashlatent::randomise(keys, 3);
          flashlatent::randomise(values, 4);
          Cache cache(executor, format, n);
          Tensor mapping = numbers(executor, Dtype::kI32, slots);
          const Status status =
              append_kv(keys.upload(), values.upload(), mapping.upload(), cache.upload(), executor);
          EXPECT_TRUE(status.ok()) << status.message();
          return bytes_of(cache);
        });
      }
    }
  }
}

TEST_P(KeyValueBytes, OfGatheredRows) {
  for (const Dimensions& n : kLarge) {
    // Pages in random order; one that does not exist, and one request that goes on behind its pages.
    std::vector<std::int32_t> pages(n.pages);
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), std::mt19937(5));
    pages[7] = n.pages;
    const int columns = n.pages / 3, last = columns * n.page_size + 5;
    const std::vector<std::int32_t> begins = {0, last - 100, last - 100, 2 * last - 100};
    const std::int64_t rows = begins.back();
    for (const Format& format : kFormats) {
      for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
        SCOPED_TRACE(name_of(format) + " to " + to_string(dtype));
        expect_same_bytes([&](const Executor& executor) {
          Cache cache(executor, format, n);
          randomise(cache);
          Tensor table(executor, Dtype::kI32, {3, columns}),
              sums = numbers(executor, Dtype::kI32, begins),
              first = numbers<std::int32_t>(executor, Dtype::kI32, {11, 0, 0});
          table.set(std::vector<std::int32_t>(pages.begin(), pages.begin() + 3 * columns));
          Tensor keys(executor, dtype, {rows, kHeads, n.qk_dim}, 8),
              values(executor, dtype, {rows, kHeads, n.v_dim}, 1);
          const Status status = gather_kv(cache.upload(), table.upload(), sums.upload(), first.upload(),
                                          keys.upload(), values.upload(), executor);
          EXPECT_TRUE(status.ok()) << status.message();
          return bytes_of(keys, values);
        });
      }
    }
  }
}

TEST_P(KeyValueBytes, OfCopiedPages) {
  for (const Dimensions& n : kLarge) {
    std::vector<std::int64_t> list;
    for (std::int64_t page = 0; page < n.pages; page += 2)
      list.insert(list.end(), {page, n.pages - 1 - page});
    for (const Format& format : kFormats) {
      SCOPED_TRACE(name_of(format));
      expect_same_bytes([&](const Executor& executor) {
        // The copy has other strides.
        Cache from(executor, format, n),
            to(executor, {format.layout, format.dtype, format.scales, format.padding + 16}, n);
        randomise(from);
        Tensor pairs(executor, Dtype::kI64, {static_cast<std::int64_t>(list.size()) / 2, 2});
        pairs.set(list);
        const KeyValueCache source = from.upload(), target = to.upload();
        for (auto [a, b] : {std::pair{source.keys, target.keys}, {source.values, target.values}}) {
          const Status status = copy_pages(a, b, pairs.upload(), executor);
          EXPECT_TRUE(status.ok()) << status.message();
        }
        return bytes_of(to);
      });
    }
  }
}

TEST_P(KeyValue, TensorsThatDoNotFitAreNamed) {
  NewTokens tokens(executor_, 1);
  Cache cache(executor_, {KvLayout::kSeparate, Dtype::kBF16}),
      packed(executor_, {KvLayout::kPacked, Dtype::kBF16});
  Tensor slot = numbers<std::int32_t>(executor_, Dtype::kI32, {0}),
         scale = numbers<float>(executor_, Dtype::kF32, {1});
  const TensorView keys = tokens.keys(), values = tokens.values(), slots = slot.upload();
  const KeyValueCache good = cache.upload();
  expect_refused(append_kv(values, values, slots, good, executor_), "keys is bf16 (1, 3, 24)");
  KeyValueCache mixed = good;
  mixed.values = packed.upload().values;
  expect_refused(append_kv(keys, values, slots, mixed, executor_), "cache.values is bf16 (5, 3, 24, 4)");
  mixed = good;
  mixed.key_scale = scale.upload();
  expect_refused(append_kv(keys, values, slots, mixed, executor_),
                 "cache.key_scale is given, but the cache is bf16");
  expect_refused(convert_kv(good, good, executor_), "to.keys is bf16 (5");
}

// What only a host that reads slots can see.
TEST_P(KeyValue, CpuRefusesWrongSlotsBeforeItWrites) {
  if (on_gpu()) GTEST_SKIP() << "slots are not read by the host";
  NewTokens tokens(executor_, 2);
  Cache cache(executor_, {KvLayout::kSeparate, Dtype::kBF16});
  Tensor slots = numbers<std::int32_t>(executor_, Dtype::kI32, {0, 20});
  expect_refused(append_kv(tokens.keys(), tokens.values(), slots.upload(), cache.upload(), executor_),
                 "slot_mapping[1] is 20; the cache has 20 slots");
  cache.download();
  EXPECT_EQ(cache.key(0, 0, 0), cache.untouched());
}

}  // namespace
}  // namespace flashlatent
