// All formats of latent caches, and how a call's cache gets one.
#pragma once

#include "core/formats/e4m3_latent.h"
#include "core/formats/format.h"
#include "core/formats/fp8_528.h"
#include "core/formats/fp8_584.h"
#include "core/formats/fp8_656.h"
#include "core/formats/mxfp8_528.h"
#include "core/formats/nvfp4_288.h"
#include "core/formats/plain.h"
#include "flashlatent/tensor.h"

namespace flashlatent {

/// Formats of one KvFormat in two arrangements stand together.
inline constexpr const LatentFormat* kFormats[] = {&kPlainFormat,      &kFp8_656Format,    &kE4m3Format,
                                                   &kFp8_584Format,    &kMxfp8_528ByToken, &kMxfp8_528ByPage,
                                                   &kNvfp4_288ByToken, &kNvfp4_288ByPage,  &kFp8_528Format};

/// Do arrangements of this format differ in where scales lie?
constexpr bool has_places(KvFormat format) {
  int count = 0;
  for (const LatentFormat* f : kFormats) count += f->format == format ? 1 : 0;
  return count > 1;
}

/// The description of a format. Where `place` must be given and is kAuto: the one with scales by token.
const LatentFormat& format_of(KvFormat format, ScalePlace place);
/// The formats of the first and of the extra cache.
const LatentFormat& format_of(const DecodeProblem::Cache& cache);
const LatentFormat& extra_format_of(const DecodeProblem::Cache& cache);

/// Pairs of different formats that the first and the extra cache may have. Every format may stand beside
/// itself.
struct FormatPair {
  KvFormat first, extra;
};
inline constexpr FormatPair kFormatPairs[] = {{KvFormat::kMxfp8_528, KvFormat::kNvfp4_288}};

/// May an extra cache of `extra` stand beside a cache of `first`?
constexpr bool stand_together(KvFormat first, KvFormat extra) {
  bool may = first == extra;
  for (const FormatPair& pair : kFormatPairs) may = may || (pair.first == first && pair.extra == extra);
  return may;
}

/// The format of this latent cache: what `said` says, else what its dtype and last dimension do. Refuses a
/// cache of bytes whose last dimension is that of no format, or of several formats or arrangements if `said`
/// leaves them open, and what `said` says if the cache has another last dimension.
Result<const LatentFormat*> resolve_format(const char* name, const ConstTensorView& cache,
                                           const CacheFormat& said);
/// The same for an extra cache beside a cache of format `first`. It has that format too, unless `said` or its
/// last dimension asks for another one that may stand beside `first`.
Result<const LatentFormat*> resolve_extra_format(const char* name, const ConstTensorView& cache,
                                                 const LatentFormat& first, std::optional<KvFormat> said);

/// `format` as a CacheFormat with nothing left open.
CacheFormat said_as(const LatentFormat& format, ScaleFloor floor = ScaleFloor::kAuto);
/// The format's value, where resolve_format() has filled in what was left open.
const LatentFormat& format_of(const CacheFormat& resolved);

/// What bounds the writer's scales: `said`, or what the format's engines do. kInvalidArgument if `said` says
/// something, and the format's scales are no powers of two.
Status expect_floor(const char* name, const LatentFormat& format, ScaleFloor said);
/// The least exponent of the writer's scales.
int least_exponent(const LatentFormat& format, ScaleFloor said);

/// Gives a cache this format, and the dimensions where all of a row is value. Without a place scales are with
/// their tokens.
void set_format(DecodeProblem::Cache& cache, KvFormat format, ScalePlace place = ScalePlace::kAuto);

/// Names of formats for messages: "plain, fp8_656 and e4m3".
std::string format_names();
/// Names of the formats that has_places().
std::string names_with_places();
/// kFormatPairs: "nvfp4_288 beside mxfp8_528".
std::string pairs_text();

}  // namespace flashlatent
