// The fp8_584 format's numbers against their definition.
#include "core/formats/fp8_584.h"

#include <gtest/gtest.h>

#include <cmath>

#include "flashlatent/kv_cache.h"

namespace flashlatent {
namespace {

TEST(Fp8_584, ScaleBytes) {
  for (int byte = 0; byte < 255; ++byte) {
    EXPECT_EQ(fp8_584::scale_value(static_cast<std::uint8_t>(byte)), std::ldexp(1.0F, byte - 127)) << byte;
  }
  EXPECT_TRUE(std::isnan(fp8_584::scale_value(255)));
  for (int exponent = -22; exponent <= 120; ++exponent) {
    EXPECT_EQ(fp8_584::scale_value(fp8_584::scale_byte(exponent)), std::ldexp(1.0F, exponent));
  }
}

TEST(Fp8_584, PlacesInAPage) {
  EXPECT_EQ(fp8_584::data_offset(3), 3 * 576);
  EXPECT_EQ(fp8_584::scale_offset(64, 3), 64 * 576 + 3 * 8);
  for (auto [tokens, bytes] : {std::pair{1, 1152}, {2, 1728}, {3, 2304}, {64, 37440}, {256, 149760}}) {
    EXPECT_EQ(least_page_stride(KvFormat::kFp8_584, tokens), bytes);
  }
}

TEST(Fp8_584, PagesOfBytes) {
  std::uint8_t memory[16] = {};
  const Result<TensorView> view =
      latent_pages(TensorView(memory, Dtype::kU8, {5, 1728}), 2, KvFormat::kFp8_584);
  ASSERT_TRUE(view.ok());
  EXPECT_EQ(to_string(*view), "uint8 (5, 2, 1, 584) strides (1728, 584, 584, 1) on cpu");
  EXPECT_NE(latent_pages(TensorView(memory, Dtype::kU8, {5, 1167}), 2, KvFormat::kFp8_584)
                .status()
                .message()
                .find("a page of 2 tokens of fp8_584 has 1168 bytes or more"),
            std::string::npos);
  EXPECT_FALSE(latent_pages(TensorView(memory, Dtype::kU8, {5, 2, 584}), 2, KvFormat::kFp8_584).ok());
  EXPECT_FALSE(latent_pages(TensorView(memory, Dtype::kU8, {5, 1728}), 0, KvFormat::kFp8_584).ok());
}

}  // namespace
}  // namespace flashlatent
