// The formats of latent caches as values: where bytes are, and what numbers mean, against their definition.
#include "core/formats/formats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/e2m1_scaled.h"
#include "flashlatent/kv_cache.h"

namespace flashlatent {
namespace {

TEST(Formats, NamesAreThoseOfTheEnum) {
  for (const LatentFormat* format : kFormats) {
    EXPECT_STREQ(to_string(format->format), format->name);
    EXPECT_EQ(*kv_format_from_name(format->name), format->format);
    EXPECT_EQ(&format_of(said_as(*format)), format);
  }
  EXPECT_EQ(format_names(), "plain, fp8_656, e4m3, fp8_584, mxfp8_528, nvfp4_288 and fp8_528");
  EXPECT_EQ(names_with_places(), "mxfp8_528 and nvfp4_288");  // the last has two arrangements
}

TEST(Formats, ThoseThatStandTogether) {
  EXPECT_EQ(pairs_text(), "nvfp4_288 beside mxfp8_528");
  for (const LatentFormat* first : kFormats) {
    for (const LatentFormat* extra : kFormats) {
      const bool v41 = first->name == std::string("mxfp8_528") && extra->name == std::string("nvfp4_288");
      EXPECT_EQ(stand_together(first->format, extra->format), first->format == extra->format || v41)
          << extra->name << " beside " << first->name;
    }
  }
}

/// Bytes of tokens 0 and 3 of pages of 64, and the least page stride.
TEST(Formats, PlacesInAPage) {
  struct Places {
    const LatentFormat* format;
    int token, data3, scales0, scales3, page, padding = 0;
  };
  const std::vector<Places> all = {{&kFp8_656Format, 656, 3 * 656, 512, 3 * 656 + 512, 64 * 656},
                                   {&kFp8_584Format, 584, 3 * 576, 64 * 576, 64 * 576 + 24, 65 * 576, 1},
                                   {&kMxfp8_528ByToken, 528, 3 * 528, 512, 3 * 528 + 512, 64 * 528},
                                   {&kMxfp8_528ByPage, 528, 3 * 512, 64 * 512, 64 * 512 + 48, 64 * 528},
                                   {&kNvfp4_288ByToken, 288, 3 * 288, 256, 3 * 288 + 256, 64 * 288},
                                   {&kNvfp4_288ByPage, 288, 3 * 256, 64 * 256, 64 * 256 + 96, 64 * 288},
                                   {&kFp8_528Format, 528, 3 * 528, 512, 3 * 528 + 512, 64 * 528}};
  for (const LatentFormat* format : kFormats) {
    EXPECT_EQ(std::ranges::count(all, format, &Places::format), format->is_record() ? 1 : 0)
        << format->name << " by " << to_string(format->place) << " needs its bytes here";
  }
  for (const auto& [format, token, data3, scales0, scales3, page, padding] : all) {
    SCOPED_TRACE(format->name);
    EXPECT_EQ(format->token_bytes(), token);
    EXPECT_EQ(format->data_at(3, token), data3);
    EXPECT_EQ(format->scales_at(64, 0, token), scales0);
    EXPECT_EQ(format->scales_at(64, 3, token), scales3);
    EXPECT_EQ(least_page_stride(format->format, 64), page);
    EXPECT_EQ(format->groups() * format->bytes_a_scale() + padding, format->scale_bytes);
  }
}

TEST(Formats, E2m1) {
  constexpr float kNumbers[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (int code = 0; code < 8; ++code) {
    EXPECT_EQ(e2m1::decode(static_cast<std::uint8_t>(code)), kNumbers[code]);
    EXPECT_EQ(e2m1::decode(static_cast<std::uint8_t>(code + 8)), -kNumbers[code]);
    EXPECT_EQ(e2m1::encode(kNumbers[code]), code);
    EXPECT_EQ(e2m1::encode(-kNumbers[code]), code + 8);
    if (code == 7) continue;
    const float middle = (kNumbers[code] + kNumbers[code + 1]) / 2;
    EXPECT_EQ(e2m1::encode(std::nextafter(middle, 0.0F)), code) << middle;
    EXPECT_EQ(e2m1::encode(middle), code + code % 2) << "ties go to the even code";
    EXPECT_EQ(e2m1::encode(std::nextafter(middle, 9.0F)), code + 1) << middle;
  }
  EXPECT_EQ(e2m1::encode(INFINITY), 7);
  EXPECT_EQ(e2m1::encode(-1e30F), 15);
  EXPECT_EQ(e2m1::encode(NAN), 0);
  EXPECT_EQ(e2m1::scale_byte(0), 1);        // 2^-9
  EXPECT_EQ(e2m1::scale_byte(6), 0x38);     // 1
  EXPECT_EQ(e2m1::scale_byte(1e9F), 0x7E);  // 448
}

/// vLLM's rule bounds amax, SGLang's the scale: they differ where amax is below 0.045.
TEST(Formats, FloorsOfScales) {
  for (float amax :
       {0.0F, 1e-5F, 1e-4F, 1.1e-4F, 0.001F, 0.04F, 0.0448F, 0.05F, 1.0F, 448.0F, 449.0F, 1e30F}) {
    const double by_amax = std::ceil(std::log2(std::max<double>(amax, 1e-4) / 448));
    const double by_scale = std::ceil(std::log2(std::max(amax / 448.0, 1e-4)));
    EXPECT_EQ(e4m3::scale_exponent(amax, least_exponent(kMxfp8_528ByPage, ScaleFloor::kAuto)), by_amax)
        << amax;
    EXPECT_EQ(e4m3::scale_exponent(amax, least_exponent(kMxfp8_528ByPage, ScaleFloor::kScale)), by_scale)
        << amax;
    EXPECT_EQ(e4m3::scale_exponent(amax, least_exponent(kFp8_584Format, ScaleFloor::kAuto)), by_amax) << amax;
    EXPECT_EQ(e4m3::scale_exponent(amax, least_exponent(kFp8_528Format, ScaleFloor::kAuto)), by_scale)
        << amax;
  }
}

TEST(Formats, PagesOfBytes) {
  std::uint8_t memory[16] = {};
  const Result<TensorView> view =
      latent_pages(TensorView(memory, Dtype::kU8, {5, 1152}), 2, KvFormat::kMxfp8_528);
  ASSERT_TRUE(view.ok());
  EXPECT_EQ(to_string(*view), "uint8 (5, 2, 1, 528) strides (1152, 528, 528, 1) on cpu");
  EXPECT_FALSE(latent_pages(TensorView(memory, Dtype::kU8, {5, 575}), 2, KvFormat::kNvfp4_288).ok());
  EXPECT_FALSE(latent_pages(TensorView(memory, Dtype::kU8, {5, 1152}), 2, KvFormat::kE4m3).ok());
}

/// All scales, and numbers around every tie, subnormal and infinite ones among them.
TEST(Formats, CodesWithoutDivisionAreThoseOfTheQuotient) {
  constexpr float kTies[] = {0, 0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5, 6, 1e30F};
  for (int byte = 1; byte < e4m3::kNan; ++byte) {
    const float scale = e4m3::decode(static_cast<std::uint8_t>(byte));
    const e2m1::ScaledCode code(scale);
    for (float tie : kTies) {
      for (int apart = -40; apart <= 40; ++apart) {
        const std::uint32_t bits = e4m3::bits_of(tie * scale) + static_cast<std::uint32_t>(apart);
        for (std::uint32_t sign : {0U, 0x80000000U}) {
          const float x = e4m3::float_of(bits | sign);
          ASSERT_EQ(code(x), e2m1::encode(x / scale)) << x << " / " << scale;
        }
      }
    }
    for (float x : {std::numeric_limits<float>::infinity(), std::nanf(""), 1e-45F, -0.0F}) {
      ASSERT_EQ(code(x), e2m1::encode(x / scale)) << x << " / " << scale;
    }
  }
}

}  // namespace
}  // namespace flashlatent
