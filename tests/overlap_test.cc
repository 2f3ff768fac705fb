// Which views have memory in common, beside a count of their elements' addresses.
#include "core/overlap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <set>

#include "core/apart.h"

namespace flashlatent {
namespace {

std::uint8_t memory[4096];

TensorView view_at(std::int64_t offset, std::initializer_list<std::int64_t> shape,
                   std::initializer_list<std::int64_t> strides, Dtype dtype = Dtype::kBF16) {
  TensorView view(memory + offset, dtype, shape);
  std::copy(strides.begin(), strides.end(), view.strides.begin());
  return view;
}

std::set<std::int64_t> bytes_of(const ConstTensorView& view) {
  std::set<std::int64_t> bytes;
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  for (std::int64_t i = 0; i < view.elements(); ++i) {
    std::int64_t rest = i, offset = 0;
    for (int d = view.rank - 1; d >= 0; rest /= view.shape[d--])
      offset += rest % view.shape[d] * view.strides[d];
    for (std::int64_t b = 0; b < size; ++b) {
      bytes.insert(static_cast<const std::uint8_t*>(view.data) - memory + offset * size + b);
    }
  }
  return bytes;
}

bool share_bytes(const ConstTensorView& a, const ConstTensorView& b) {
  const std::set<std::int64_t> first = bytes_of(a), second = bytes_of(b);
  return std::any_of(first.begin(), first.end(), [&](std::int64_t byte) { return second.contains(byte); });
}

TEST(Overlap, OfPagesThatAreShifted) {
  const TensorView pages = view_at(0, {4, 2, 1, 4}, {8, 4, 4, 1});
  TensorView first = pages, last = pages;
  first.shape[0] = last.shape[0] = 3;
  last.data = memory + 16;
  EXPECT_TRUE(overlap(first, last));
  last.shape[0] = 1;
  last.data = memory + 48;
  EXPECT_FALSE(overlap(first, last));
}

TEST(Overlap, ViewsThatLieBetweenEachOtherDoNot) {
  // Two layers of (pages, layers, page_size, 1, d); keys and values of (pages, page_size, 2, h_kv, d).
  EXPECT_FALSE(overlap(view_at(0, {4, 3, 1, 5}, {30, 5, 5, 1}), view_at(30, {4, 3, 1, 5}, {30, 5, 5, 1})));
  EXPECT_FALSE(overlap(view_at(0, {4, 3, 2, 5}, {60, 20, 5, 1}), view_at(20, {4, 3, 2, 5}, {60, 20, 5, 1})));
  EXPECT_TRUE(overlap(view_at(0, {4, 3, 2, 5}, {60, 20, 5, 1}), view_at(18, {4, 3, 2, 5}, {60, 20, 5, 1})));
}

TEST(Overlap, EmptyAbsentAndElsewhereDoNot) {
  const TensorView view = view_at(0, {4, 4}, {4, 1});
  EXPECT_FALSE(overlap(view, view_at(0, {0, 4}, {4, 1})));
  EXPECT_FALSE(overlap(view, {}));
  TensorView device = view;
  device.device = {DeviceType::kCuda, 0};
  EXPECT_FALSE(overlap(view, device));
  EXPECT_TRUE(overlap(view, view));
}

TEST(Overlap, NeverMissesASharedByte) {
  std::mt19937 engine(5);
  const Dtype dtypes[] = {Dtype::kU8, Dtype::kBF16, Dtype::kF32};
  for (int i = 0; i < 5000; ++i) {
    auto number = [&](int low, int high) {
      return low + static_cast<std::int64_t>(engine() % (high - low + 1));
    };
    auto any = [&] {
      return view_at(1000 + 4 * number(0, 200), {number(1, 4), number(1, 4), number(1, 5)},
                     {number(-20, 20), number(0, 12), number(0, 3)}, dtypes[engine() % 3]);
    };
    const TensorView a = any(), b = any();
    EXPECT_TRUE(overlap(a, b) || !share_bytes(a, b)) << to_string(a) << " and " << to_string(b);
    // Pages of heads of rows, as caches have them.
    const std::int64_t d = number(1, 5), row = number(d, 6), page = row * number(3, 6);
    const TensorView c = view_at(1000, {number(1, 4), number(1, 3), d}, {page, row, 1});
    const TensorView e = view_at(1000 + 2 * number(-60, 60), {number(1, 4), number(1, 3), d}, {page, row, 1});
    EXPECT_TRUE(overlap(c, e) || !share_bytes(c, e)) << to_string(c) << " and " << to_string(e);
  }
}

TEST(Apart, ElementsThatShareBytesAreFound) {
  std::mt19937 engine(6);
  auto number = [&](int low, int high) {
    return low + static_cast<std::int64_t>(engine() % (high - low + 1));
  };
  int apart = 0;
  for (int i = 0; i < 5000; ++i) {
    const TensorView view = view_at(1000, {number(0, 4), number(1, 3), number(1, 4)},
                                    {number(-20, 20), number(-6, 12), number(0, 3)});
    if (!elements_are_apart(view)) continue;
    ++apart;
    EXPECT_EQ(bytes_of(view).size(), 2 * static_cast<std::size_t>(view.elements())) << to_string(view);
  }
  EXPECT_GT(apart, 500);
  // Slices, transposed and reversed views.
  EXPECT_TRUE(elements_are_apart(view_at(0, {3, 4, 5}, {40, 8, 1})));
  EXPECT_TRUE(elements_are_apart(view_at(0, {5, 4, 3}, {1, 8, 40})));
  EXPECT_TRUE(elements_are_apart(view_at(99, {3, 4}, {-12, 3})));
  EXPECT_FALSE(elements_are_apart(view_at(0, {3, 4}, {0, 1})));
  EXPECT_FALSE(elements_are_apart(view_at(0, {3, 4}, {3, 1})));
}

TEST(Apart, OfACallByName) {
  const ConstTensorView out = view_at(0, {2, 4}, {4, 1}), near = view_at(8, {2, 4}, {4, 1}),
                        after = view_at(16, {2, 4}, {4, 1});
  auto refusal = [](const ConstTensorView& a, const ConstTensorView& b, const ConstTensorView& read) {
    const std::array<NamedView, 2> written = {{{"out", &a}, {"lse", &b}}};
    const std::array<NamedView, 1> others = {{{"q", &read}}};
    return expect_apart(written, others).message();
  };
  EXPECT_EQ(refusal(out, after, {}), "");
  EXPECT_EQ(refusal(out, after, view_at(32, {2, 4}, {4, 1})), "");
  EXPECT_NE(refusal(out, near, {}).find("lse is "), std::string::npos) << refusal(out, near, {});
  EXPECT_NE(refusal(out, near, {}).find("overlaps out"), std::string::npos);
  EXPECT_NE(refusal(out, after, near).find("overlaps q"), std::string::npos);
  const ConstTensorView folded = view_at(0, {2, 4}, {0, 1});
  EXPECT_NE(refusal(folded, after, {}).find("out is "), std::string::npos);
  EXPECT_NE(refusal(folded, after, {}).find("elements share memory"), std::string::npos);
  // Outputs and their lse in turns, as messages between ranks have them.
  EXPECT_EQ(refusal(view_at(0, {3, 4}, {6, 1}), view_at(8, {3, 1}, {3, 1}, Dtype::kF32), {}), "");
}

}  // namespace
}  // namespace flashlatent
