#include "core/formats/formats.h"

#include <algorithm>
#include <vector>

#include "core/expect.h"
#include "core/message.h"
#include "flashlatent/kv_cache.h"

namespace flashlatent {

namespace {

/// Do pages of any size lie at multiples of kPageAlignment?
constexpr bool has_aligned_pages(const LatentFormat& f) {
  return f.token_bytes() % kPageAlignment == 0 || f.page_unit % kPageAlignment == 0;
}
static_assert(std::ranges::all_of(kFormats, [](const LatentFormat* f) { return has_aligned_pages(*f); }),
              "a token's bytes are no multiple of 16, and page_unit is none either");

/// Has a token room for what its fields say, and does the next thing begin behind it?
constexpr bool is_consistent(const LatentFormat& f) {
  if (!f.is_record()) return true;
  if (f.group <= 0 || f.scaled_dim() % f.group != 0) return false;
  const int codes = f.elements == Elements::kE2m1 ? f.scaled_dim() / 2 : f.scaled_dim();
  const int with_scales = f.apart() ? codes : f.scale_offset + f.scale_bytes;
  const int rope_end = f.rope_dim == 0 ? 0 : f.rope_offset + f.rope_dim * 2;
  return f.scale_bytes >= f.groups() * f.bytes_a_scale() && (f.apart() || f.scale_offset >= codes) &&
         (f.rope_dim == 0 || f.rope_offset >= with_scales) && f.data_bytes == std::max(with_scales, rope_end);
}
static_assert(std::ranges::all_of(kFormats, [](const LatentFormat* f) { return is_consistent(*f); }),
              "a format's numbers contradict each other");

template <class View>
Result<View> pages_of(const View& bytes, std::int64_t page_size, KvFormat named) {
  const LatentFormat& format = format_of(named, ScalePlace::kAuto);
  if (!format.is_record()) {
    return invalid_argument("format is ", format.name,
                            "; one whose tokens have bytes of their own is accepted");
  }
  if (bytes.rank != 2 || bytes.dtype != Dtype::kU8) {
    return invalid_argument("the cache is ", to_string(bytes), "; expected uint8 (pages, page_bytes)");
  }
  FLASHLATENT_RETURN_IF_ERROR(innermost_contiguous("the cache", bytes));
  if (page_size < 1 || page_size > 1 << 20) {
    return invalid_argument("page_size is ", page_size, "; it must be from 1 to 1048576");
  }
  const std::int64_t token = format.token_bytes();
  if (bytes.shape[1] < page_size * token) {
    return invalid_argument("the cache is ", to_string(bytes), "; a page of ", page_size, " tokens of ",
                            format.name, " has ", page_size * token, " bytes or more");
  }
  View view = bytes;
  view.rank = 4;
  view.shape = {bytes.shape[0], page_size, 1, token};
  view.strides = {bytes.strides[0], token, token, 1};
  return view;
}

/// Is this the last dimension of a cache in the format?
bool fits(const LatentFormat& format, std::int64_t last) {
  if (format.is_record()) return last == format.token_bytes();
  return format.plain() || last == e4m3_latent::kDim || last == e4m3_latent::kLatentDim;
}

/// The formats of bytes with this last dimension, each once.
std::vector<const LatentFormat*> formats_of(std::int64_t last) {
  std::vector<const LatentFormat*> found;
  for (const LatentFormat* format : kFormats) {
    const bool again = !found.empty() && found.back()->format == format->format;
    if (!format->plain() && !again && fits(*format, last)) found.push_back(format);
  }
  return found;
}

/// "(pages, page_size, 1, 656), which is fp8_656, ..."
std::string accepted_bytes() {
  std::string text;
  for (const LatentFormat* format : kFormats) {
    if (!format->is_record() || formats_of(format->token_bytes()).front() != format) continue;
    std::string names;
    for (const LatentFormat* other : formats_of(format->token_bytes())) {
      names += message(names.empty() ? "" : " or ", other->name);
    }
    text += message("(pages, page_size, 1, ", format->token_bytes(), "), which is ", names, ", ");
  }
  return text + "and (pages, page_size, 1, 576 or 512), which is e4m3,";
}

/// "mxfp8_528 with scales token or page, or fp8_528"
std::string choices(const std::vector<const LatentFormat*>& formats) {
  std::string text;
  for (const LatentFormat* format : formats) {
    text += message(text.empty() ? "" : ", or ", format->name,
                    has_places(format->format) ? " with scales 'token' or 'page'" : "");
  }
  return text;
}

/// "plain, fp8_656 and e4m3": each format once.
template <class Wanted>
std::string names_of(Wanted wanted) {
  std::vector<std::string> names;
  for (const LatentFormat* format : kFormats) {
    if (wanted(*format) && (names.empty() || names.back() != format->name)) names.emplace_back(format->name);
  }
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    text += message(i == 0 ? "" : i + 1 == names.size() ? " and " : ", ", names[i]);
  }
  return text;
}

}  // namespace

std::int64_t least_page_stride(KvFormat format, std::int64_t page_size) {
  return format_of(format, ScalePlace::kAuto).least_page_stride(page_size, 0);
}

Result<TensorView> latent_pages(const TensorView& bytes, std::int64_t page_size, KvFormat format) {
  return pages_of(bytes, page_size, format);
}

Result<ConstTensorView> latent_pages(const ConstTensorView& bytes, std::int64_t page_size, KvFormat format) {
  return pages_of(bytes, page_size, format);
}

const LatentFormat& format_of(KvFormat format, ScalePlace place) {
  const LatentFormat* found = &kPlainFormat;
  for (const LatentFormat* f : kFormats) {
    if (f->format == format && (found->format != format || f->place == place)) found = f;
  }
  return *found;
}

const LatentFormat& format_of(const DecodeProblem::Cache& cache) {
  return format_of(cache.format, cache.scales);
}

const LatentFormat& extra_format_of(const DecodeProblem::Cache& cache) {
  return format_of(cache.extra_format(), cache.scales);
}

const LatentFormat& format_of(const CacheFormat& resolved) {
  return format_of(*resolved.format, resolved.scales);
}

CacheFormat said_as(const LatentFormat& format, ScaleFloor floor) {
  return {.format = format.format,
          .scales = has_places(format.format) ? format.place : ScalePlace::kAuto,
          .floor = floor};
}

Result<const LatentFormat*> resolve_format(const char* name, const ConstTensorView& cache,
                                           const CacheFormat& said) {
  const std::int64_t last = cache.rank > 0 ? cache.shape[cache.rank - 1] : 0;
  if (cache.dtype != Dtype::kU8) {
    if (said.format.value_or(KvFormat::kPlain) == KvFormat::kPlain && said.scales == ScalePlace::kAuto) {
      return &kPlainFormat;
    }
    return invalid_argument(name, " is ", to_string(cache), ", but kv_format is ",
                            said.format ? to_string(*said.format) : "not given", " and scales is ",
                            to_string(said.scales), "; these are for caches of bytes");
  }
  const std::vector<const LatentFormat*> found = formats_of(last);
  if (said.format) {
    const LatentFormat& format = format_of(*said.format, said.scales);
    if (format.plain() || !fits(format, last)) {
      return invalid_argument(name, " is ", to_string(cache), ", but kv_format is ", format.name, "; ",
                              format.plain()       ? message("that is for bf16 and fp16")
                              : format.is_record() ? message("its last dimension is ", format.token_bytes())
                                                   : message("its last dimension is 576 or 512"));
    }
    if (!has_places(format.format) && said.scales != ScalePlace::kAuto) {
      return invalid_argument("scales is ", to_string(said.scales), ", but ", name, " is ", format.name,
                              ", whose scales have one place; leave scales out");
    }
    if (has_places(format.format) && said.scales == ScalePlace::kAuto) {
      return invalid_argument(
          "scales is missing, and ", name, " is ", format.name,
          "; 'token' (each token's scales follow its data) or 'page' (a page's scales follow "
          "its data) is expected");
    }
    return &format;
  }
  if (found.empty()) {
    return invalid_argument(name, " is ", to_string(cache), "; of bytes ", accepted_bytes(), " are accepted");
  }
  if (found.size() == 1 && said.scales == ScalePlace::kAuto && !has_places(found[0]->format)) return found[0];
  if (found.size() == 1 && has_places(found[0]->format) && said.scales != ScalePlace::kAuto) {
    return &format_of(found[0]->format, said.scales);
  }
  if (found.size() == 1 && !has_places(found[0]->format)) {
    return invalid_argument("scales is ", to_string(said.scales), ", but ", name, " is ", found[0]->name,
                            ", whose scales have one place; leave scales out");
  }
  return invalid_argument(name, " is ", to_string(cache), ", which does not say its format; kv_format ",
                          choices(found), " is expected");
}

Result<const LatentFormat*> resolve_extra_format(const char* name, const ConstTensorView& cache,
                                                 const LatentFormat& first, std::optional<KvFormat> said) {
  const std::int64_t last = cache.rank > 0 ? cache.shape[cache.rank - 1] : 0;
  KvFormat named = said.value_or(first.format);
  if (!said && cache.dtype == Dtype::kU8 && !first.plain() && !fits(first, last)) {
    for (const LatentFormat* other : formats_of(last)) {
      if (stand_together(first.format, other->format)) named = other->format;
    }
  }
  if (!stand_together(first.format, named)) {
    return invalid_argument(name, " is ", to_string(named), ", but the first cache is ", first.name,
                            "; of the same format, or ", pairs_text(), ", is accepted");
  }
  const LatentFormat& format = format_of(named, first.place);
  if (!format.plain() && cache.dtype == Dtype::kU8 && !fits(format, last)) {
    return invalid_argument(name, " is ", to_string(cache), "; in ", format.name,
                            ", as the first cache's format ", first.name, " asks, its last dimension is ",
                            format.is_record() ? message(format.token_bytes()) : "576 or 512");
  }
  return &format;
}

Status expect_floor(const char* name, const LatentFormat& format, ScaleFloor said) {
  if (said == ScaleFloor::kAuto || format.rule != ScaleFloor::kAuto) return {};
  return invalid_argument("scale_floor is ", to_string(said), ", but ", name, " is ", format.name,
                          "; that is for formats whose scales are powers of two");
}

int least_exponent(const LatentFormat& format, ScaleFloor said) {
  const ScaleFloor floor = said == ScaleFloor::kAuto ? format.rule : said;
  return floor == ScaleFloor::kAmax ? e4m3::kLeastOfAmax : e4m3::kLeastOfScale;
}

void set_format(DecodeProblem::Cache& cache, KvFormat named, ScalePlace place) {
  const LatentFormat& format = format_of(named, place);
  cache.format = named;
  cache.scales = has_places(named) ? format.place : ScalePlace::kAuto;
  if (format.all_value) cache.qk_dim = cache.v_dim = format.dim;
}

std::string format_names() {
  return names_of([](const LatentFormat&) { return true; });
}

std::string names_with_places() {
  return names_of([](const LatentFormat& format) { return has_places(format.format); });
}

std::string pairs_text() {
  std::string text;
  for (const FormatPair& pair : kFormatPairs) {
    text += message(text.empty() ? "" : ", ", to_string(pair.extra), " beside ", to_string(pair.first));
  }
  return text;
}

}  // namespace flashlatent
