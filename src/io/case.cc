#include "io/case.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/decode_inputs.h"
#include "core/edge_check.h"
#include "core/enum_names.h"
#include "core/formats/formats.h"
#include "core/message.h"
#include "flashlatent/kv_cache.h"
#include "io/case_check.h"
#include "io/text.h"

namespace flashlatent::io {

namespace {

constexpr EnumName<CaseKind> kKinds[] = {{CaseKind::kDenseDecode, "dense_decode"},
                                         {CaseKind::kSparseDecode, "sparse_decode"},
                                         {CaseKind::kPagedDecode, "paged_decode"},
                                         {CaseKind::kSparsePrefill, "sparse_prefill"},
                                         {CaseKind::kIndexTopk, "index_topk"}};
constexpr std::array<std::string_view, 20> kMetadata = {"kind",
                                                        "softmax_scale",
                                                        "causal",
                                                        "head_dim_v",
                                                        "kv_format",
                                                        "soft_cap",
                                                        "window",
                                                        "page_size",
                                                        "extra_page_size",
                                                        "products",
                                                        "extra_kv_format",
                                                        "scales",
                                                        "q_norm",
                                                        "q_rotate.pairs",
                                                        "q_rotate.table_layout",
                                                        "out_rotate.pairs",
                                                        "out_rotate.table_layout",
                                                        "out_fp8.scale_columns",
                                                        "out_fp8.groups",
                                                        "out_fp8.keeps_out"};
/// Beside those of DecodeInputs.
constexpr std::array<std::string_view, 4> kTensors = {"kv", "out_ref", "lse_ref", "max_logits_ref"};
constexpr EnumName<RotaryPairs> kPairs[2] = {{RotaryPairs::kNeighbours, "gptj"},
                                             {RotaryPairs::kHalves, "neox"}};
constexpr EnumName<RotaryTable> kTableLayouts[2] = {{RotaryTable::kHalves, "halves"},
                                                    {RotaryTable::kInterleaved, "interleaved"}};
constexpr int kMaxPageSize = 1 << 20;
constexpr int kMostGroups = 1 << 16;
constexpr int kMaxHeadDim = 4096;
constexpr double kLargest = std::numeric_limits<float>::max();

// The metadata of a case as typed values.
class Metadata {
 public:
  explicit Metadata(const SafetensorsFile& file) : file_(file) {}

  Status read(DecodeCase& out) const {
    FLASHLATENT_RETURN_IF_ERROR(read_kind(out.kind));
    if (out.kind == CaseKind::kIndexTopk) {
      FLASHLATENT_ASSIGN_OR_RETURN(out.index, read_index_case(file_));
      return {};
    }
    FLASHLATENT_RETURN_IF_ERROR(read_softmax_scale(out.softmax_scale));
    FLASHLATENT_RETURN_IF_ERROR(read_causal(out.kind, out.causal));
    FLASHLATENT_RETURN_IF_ERROR(read_head_dim_v(out.kind, out.head_dim_v));
    FLASHLATENT_RETURN_IF_ERROR(read_kv_format("kv_format", out.format.format));
    FLASHLATENT_RETURN_IF_ERROR(read_kv_format("extra_kv_format", out.extra_format));
    const bool extra = file_.tensor("extra_kv_cache").present();
    if (out.extra_format && (!extra || !stand_together(out.kv_format(), *out.extra_format))) {
      return refuse("extra_kv_format", extra ? "kv_format, or " + pairs_text() : "an extra_kv_cache");
    }
    FLASHLATENT_RETURN_IF_ERROR(read_scales(out.kv_format(), out.format.scales));
    FLASHLATENT_RETURN_IF_ERROR(read_soft_cap(out.kind, out.soft_cap));
    FLASHLATENT_RETURN_IF_ERROR(read_window(out.kind, out.window));
    FLASHLATENT_RETURN_IF_ERROR(read_products(out.kind, out.kv_format(), out.products));
    FLASHLATENT_RETURN_IF_ERROR(read_page_size("page_size", is_pages(out.kv_format()), out.page_size));
    FLASHLATENT_RETURN_IF_ERROR(
        read_page_size("extra_page_size", is_pages(out.extra_kv_format()) && extra, out.extra_page_size));
    return read_edges(out);
  }

 private:
  Status read_kind(CaseKind& kind) const {
    const std::string* text = find("kind");
    for (const auto& [candidate, name] : kKinds) {
      if (text != nullptr && *text == name) {
        kind = candidate;
        return {};
      }
    }
    return refuse("kind", "dense_decode, sparse_decode, paged_decode, sparse_prefill or index_topk");
  }

  Status read_softmax_scale(float& scale) const {
    const std::string* text = find("softmax_scale");
    const auto value = text == nullptr ? std::nullopt : parse_real(*text);
    // A form that is false for NaN, too.
    if (!value || !(std::abs(*value) <= kLargest)) {
      return refuse("softmax_scale", "a finite decimal number");
    }
    scale = static_cast<float>(*value);
    return {};
  }

  // May be absent with one query token, where a mask makes no difference, and in sparse attention, where
  // indices decide.
  Status read_causal(CaseKind kind, bool& causal) const {
    const std::string* text = find("causal");
    const bool sparse = kind == CaseKind::kSparseDecode || kind == CaseKind::kSparsePrefill;
    const ConstTensorView q = file_.tensor("q");
    if (text == nullptr && (sparse || (q.rank == 4 && q.shape[1] <= 1))) return {};
    if (text == nullptr || (*text != "true" && *text != "false")) return refuse("causal", "true or false");
    causal = *text == "true";
    return {};
  }

  Status read_head_dim_v(CaseKind kind, std::optional<int>& head_dim_v) const {
    const std::string* text = find("head_dim_v");
    if (text == nullptr && !needs_head_dim_v(kind)) return {};
    const auto value = text == nullptr ? std::nullopt : parse_integer(*text);
    if (!value || *value < 1 || *value > kMaxHeadDim) {
      return refuse("head_dim_v", fmt::format("a whole number from 1 to {}", kMaxHeadDim));
    }
    head_dim_v = static_cast<int>(*value);
    return {};
  }

  // For the kinds that can be run. paged_decode takes it from value_cache's shape.
  static bool needs_head_dim_v(CaseKind kind) {
    return kind == CaseKind::kDenseDecode || kind == CaseKind::kSparseDecode;
  }

  Status read_kv_format(const char* key, std::optional<KvFormat>& format) const {
    const std::string* text = find(key);
    if (text == nullptr) return {};
    const Result<KvFormat> named = kv_format_from_name(*text);
    if (!named.ok() || *named == KvFormat::kPlain) {
      std::string names;
      KvFormat last = KvFormat::kPlain;  // arrangements of one format stand together
      for (const LatentFormat* f : kFormats) {
        if (f->format != last) names += std::string(f->name) + ", ";
        last = f->format;
      }
      return refuse(key, names + "or absent");
    }
    format = *named;
    return {};
  }

  Status read_scales(KvFormat format, ScalePlace& place) const {
    const std::string* text = find("scales");
    const bool wanted = has_places(format);
    if (!wanted && text == nullptr) return {};
    const Result<ScalePlace> named = scale_place_from_name(text == nullptr ? "" : *text);
    if (!wanted || !named.ok() || *named == ScalePlace::kAuto) {
      return refuse("scales", wanted ? "token or page" : "nothing: it belongs to " + names_with_places());
    }
    place = *named;
    return {};
  }

  Status read_soft_cap(CaseKind kind, float& soft_cap) const {
    const std::string* text = find("soft_cap");
    if (text == nullptr) return {};
    const auto value = parse_real(*text);
    if (kind != CaseKind::kPagedDecode || !value || !(*value >= 0 && *value <= kLargest)) {
      return refuse("soft_cap", "a finite number of at least 0 in a paged_decode case, or absent");
    }
    soft_cap = static_cast<float>(*value);
    return {};
  }

  Status read_window(CaseKind kind, int& window) const {
    const std::string* text = find("window");
    if (text == nullptr) return {};
    const auto value = parse_integer(*text);
    const bool by_pages = kind == CaseKind::kPagedDecode || kind == CaseKind::kDenseDecode;
    if (!by_pages || !value || *value < 0 || *value > std::numeric_limits<int>::max()) {
      return refuse("window",
                    "a whole number from 0 to 2^31 - 1 in a dense_decode or paged_decode case, or absent");
    }
    window = static_cast<int>(*value);
    return {};
  }

  Status read_products(CaseKind kind, KvFormat format, Products& products) const {
    const std::string* text = find("products");
    if (text == nullptr) return {};
    const bool latent = kind != CaseKind::kPagedDecode;
    const auto value = products_from_name(*text);
    if (!latent || format != KvFormat::kE4m3 || !value.ok()) {
      return refuse("products",
                    "auto, bf16 or fp8 in a case of kv_format e4m3 that is no paged_decode, or absent");
    }
    products = *value;
    return {};
  }

  // For caches whose shape does not give it.
  Status read_page_size(const char* key, bool wanted, int& page_size) const {
    const std::string* text = find(key);
    if (!wanted)
      return text == nullptr ? Status() : refuse(key, "nothing: it belongs to a cache in pages of bytes");
    const auto value = text == nullptr ? std::nullopt : parse_integer(*text);
    if (!value || *value < 1 || *value > kMaxPageSize) {
      return refuse(key, fmt::format("a whole number from 1 to {}", kMaxPageSize));
    }
    page_size = static_cast<int>(*value);
    return {};
  }

  Status read_edges(DecodeCase& out) const {
    if (const std::string* text = find("q_norm"); text != nullptr) {
      const auto value = parse_real(*text);
      out.q_norm = value && std::abs(*value) <= kLargest ? static_cast<float>(*value) : -1;
      if (!expect_epsilon("q_norm", out.q_norm).ok()) {
        return refuse("q_norm", "0 (no norm), or a finite number of 1.2e-38 or more, or absent");
      }
    }
    FLASHLATENT_RETURN_IF_ERROR(read_choice("q_rotate.pairs", "q_rotate.table", kPairs, out.q_pairs));
    FLASHLATENT_RETURN_IF_ERROR(
        read_choice("q_rotate.table_layout", "q_rotate.table", kTableLayouts, out.q_table));
    FLASHLATENT_RETURN_IF_ERROR(read_choice("out_rotate.pairs", "out_rotate.table", kPairs, out.out_pairs));
    FLASHLATENT_RETURN_IF_ERROR(
        read_choice("out_rotate.table_layout", "out_rotate.table", kTableLayouts, out.out_table));
    return read_fp8(out.out_fp8);
  }

  // One of two names, which belongs to a tensor; the first if it is left out.
  template <class Enum>
  Status read_choice(const char* key, const char* tensor, const EnumName<Enum> (&names)[2],
                     Enum& value) const {
    const std::string* text = find(key);
    if (text == nullptr) return {};
    // A tensor that no view shows is refused with what it is, by check_tensors().
    const bool there = file_.tensor(tensor).present() || file_.without_view().contains(tensor);
    for (const auto& [candidate, name] : names) {
      if (*text == name && there) {
        value = candidate;
        return {};
      }
    }
    return refuse(key, fmt::format("{} or {} beside {}, or absent", names[0].name, names[1].name, tensor));
  }

  Status read_fp8(Fp8Request& fp8) const {
    const char *columns = "out_fp8.scale_columns", *groups = "out_fp8.groups", *keeps = "out_fp8.keeps_out";
    const std::string* text = find(columns);
    if (text == nullptr) {
      for (const char* key : {groups, keeps}) {
        if (find(key) != nullptr) return refuse(key, fmt::format("nothing without {}", columns));
      }
      return {};
    }
    if (*text != "128" && *text != "32") return refuse(columns, "128 or 32, or absent");
    fp8.columns = *text == "32" ? 32 : 128;
    if (const std::string* number = find(groups); number != nullptr) {
      const auto value = parse_integer(*number);
      if (!value || *value < 1 || *value > kMostGroups) {
        return refuse(groups, fmt::format("a whole number from 1 to {}", kMostGroups));
      }
      fp8.groups = static_cast<int>(*value);
    }
    const std::string* kept = find(keeps);
    if (kept != nullptr && *kept != "true" && *kept != "false")
      return refuse(keeps, "true or false, or absent");
    fp8.keeps_out = kept == nullptr || *kept == "true";
    return {};
  }

  const std::string* find(const char* key) const {
    const auto found = file_.metadata().find(key);
    return found == file_.metadata().end() ? nullptr : &found->second;
  }

  Status refuse(const char* key, std::string_view expected) const {
    const std::string* text = find(key);
    return {StatusCode::kInvalidArgument,
            fmt::format("{}: metadata \"{}\" is {}; expected {}", file_.name(), key,
                        text == nullptr ? "missing" : in_quotes(*text), expected)};
  }

  const SafetensorsFile& file_;
};

Result<DecodeCase> make_case(Result<SafetensorsFile> file) {
  if (!file.ok()) return file.status();
  DecodeCase result;
  result.file = std::move(*file);
  FLASHLATENT_RETURN_IF_ERROR(Metadata(result.file).read(result));
  if (result.kind != CaseKind::kIndexTopk) FLASHLATENT_RETURN_IF_ERROR(check_tensors(result));
  return result;
}

}  // namespace

const char* to_string(CaseKind kind) {
  return name_of(kKinds, kind);
}

std::vector<std::string> DecodeCase::unknown_names() const {
  std::vector<std::string> names;
  const bool index = kind == CaseKind::kIndexTopk;
  const auto is_tensor = [index](std::string_view name) {
    if (index) return is_index_tensor(name);
    return std::find(kTensors.begin(), kTensors.end(), name) != kTensors.end() ||
           std::ranges::any_of(kDecodeInputs, [&](const DecodeInput& input) { return input.name == name; }) ||
           std::ranges::any_of(kRotationInputs<DecodeInputs>, [&](const RotationInput<DecodeInputs>& input) {
             return input.positions == name || input.table == name;
           });
  };
  const auto is_metadata = [index](std::string_view name) {
    if (index) return is_index_metadata(name);
    return std::find(kMetadata.begin(), kMetadata.end(), name) != kMetadata.end();
  };
  auto add = [&](const auto& map, auto is_known) {
    for (const auto& [name, value] : map) {
      if (!is_known(name)) names.push_back(name);
    }
  };
  add(file.metadata(), is_metadata);
  add(file.tensors(), is_tensor);
  add(file.without_view(), is_tensor);
  return names;
}

DecodeInputs DecodeCase::inputs() const {
  DecodeInputs inputs;
  for (const auto& [name, view] : kDecodeInputs) inputs.*view = file.tensor(name);
  for (const auto& [positions, table, rotation] : kRotationInputs<DecodeInputs>) {
    (inputs.*rotation).positions = file.tensor(positions);
    (inputs.*rotation).table = file.tensor(table);
  }
  inputs.q_norm = q_norm;
  inputs.q_rotate.pairs = q_pairs;
  inputs.q_rotate.layout = q_table;
  inputs.out_rotate.pairs = out_pairs;
  inputs.out_rotate.layout = out_table;
  // check_tensors() has seen that they fit
  if (is_pages(kv_format())) inputs.kv_cache = *latent_pages(inputs.kv_cache, page_size, kv_format());
  if (is_pages(extra_kv_format()) && inputs.extra_kv_cache.present()) {
    inputs.extra_kv_cache = *latent_pages(inputs.extra_kv_cache, extra_page_size, extra_kv_format());
  }
  return inputs;
}

SparsePrefillOptions DecodeCase::prefill_options() const {
  return {.softmax_scale = softmax_scale,
          .v_dim = head_dim_v.value_or(SparsePrefillOptions{}.v_dim),
          .format = latent_format(),
          .extra_format = extra_format,
          .out_edge = out_fp8.columns > 0,
          .products = products};
}

CacheFormat DecodeCase::latent_format() const {
  return kind == CaseKind::kPagedDecode ? CacheFormat{} : format;
}

SparsePrefillInputs DecodeCase::prefill_inputs() const {
  const DecodeInputs tensors = inputs();
  const ConstTensorView rows = file.tensor("kv");
  return {.q = tensors.q,
          .q_rope = tensors.q_rope,
          .kv = rows.present() ? rows : tensors.kv_cache,
          .indices = tensors.indices,
          .topk_length = tensors.topk_length,
          .attn_sink = tensors.attn_sink,
          .extra_kv_cache = tensors.extra_kv_cache,
          .extra_indices = tensors.extra_indices,
          .extra_topk_length = tensors.extra_topk_length,
          .kv_scale = tensors.kv_scale,
          .q_scale = tensors.q_scale,
          .q_norm = tensors.q_norm,
          .q_rotate = tensors.q_rotate,
          .out_rotate = tensors.out_rotate};
}

Result<DecodeProblem> DecodeCase::problem() const {
  auto refuse = [&](StatusCode code, std::string_view why) {
    return Status(code, fmt::format("{}: {}", file.name(), why));
  };
  if (kind == CaseKind::kSparsePrefill || kind == CaseKind::kIndexTopk) {
    return refuse(
        StatusCode::kUnsupported,
        fmt::format("kind is {}; dense_decode, sparse_decode and paged_decode are decode", to_string(kind)));
  }
  const DecodeInputs tensors = inputs();
  DecodeProblem::Options options;
  options.softmax_scale = softmax_scale;
  options.causal = causal;
  options.separate.soft_cap = soft_cap;
  options.window = window;
  options.products = products;
  options.out_edge = out_fp8.columns > 0;
  auto problem = infer_problem(tensors, head_dim_v.value_or(0), options, latent_format(), extra_format);
  if (!problem.ok()) return refuse(problem.status().code(), problem.status().message());
  if (problem->query.ragged) problem->query.tokens = longest_query(tensors.cu_seqlens_q);
  return problem;
}

Result<DecodeCase> load_case(const std::string& path) {
  return make_case(SafetensorsFile::read(path));
}

Result<DecodeCase> parse_case(std::string_view bytes, std::string_view name) {
  return make_case(SafetensorsFile::parse(bytes, name));
}

}  // namespace flashlatent::io
