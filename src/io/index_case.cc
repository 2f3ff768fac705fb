#include "io/index_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "core/index_check.h"
#include "core/return_if_error.h"
#include "io/text.h"

namespace flashlatent::io {

namespace {

struct IndexInput {
  const char* name;
  ConstTensorView IndexTopkInputs::*view;
};
constexpr IndexInput kInputs[] = {{"q", &IndexTopkInputs::q},
                                  {"q_scale", &IndexTopkInputs::q_scale},
                                  {"weights", &IndexTopkInputs::weights},
                                  {"index_cache", &IndexTopkInputs::index_cache},
                                  {"block_table", &IndexTopkInputs::block_table},
                                  {"cache_seqlens", &IndexTopkInputs::cache_seqlens},
                                  {"cu_seqlens_q", &IndexTopkInputs::cu_seqlens_q},
                                  {"candidates", &IndexTopkInputs::candidates},
                                  {"slot_table", &IndexTopkInputs::slot_table}};
static_assert(sizeof(IndexTopkInputs) == sizeof(kInputs) / sizeof(IndexInput) * sizeof(ConstTensorView),
              "all of them");
constexpr std::array<std::string_view, 8> kMetadata = {"kind",           "topk",       "causal",
                                                       "index_format",   "page_size",  "candidate_block",
                                                       "slot_page_size", "best_blocks"};

class Reader {
 public:
  explicit Reader(const SafetensorsFile& file) : file_(file) {}

  Result<IndexCase> read() const {
    IndexCase result;
    IndexTopkOptions& options = result.options;
    const std::string* format = find("index_format");
    const auto known = index_format_from_name(format == nullptr ? "" : *format);
    if (!known.ok()) return refuse("index_format", "fp8_132 or mxfp4_68");
    options.format = *known;
    FLASHLATENT_RETURN_IF_ERROR(read_causal(options.causal));
    FLASHLATENT_RETURN_IF_ERROR(number("topk", 1, kMaxIndexTopk, true, result.topk));
    FLASHLATENT_RETURN_IF_ERROR(number("page_size", 1, 1 << 20, true, options.page_size));
    FLASHLATENT_RETURN_IF_ERROR(number("candidate_block", 1, 1024, false, options.candidate_block));
    FLASHLATENT_RETURN_IF_ERROR(
        number("slot_page_size", 1, 1 << 20, file_.tensor("slot_table").present(), options.slot_page_size));
    FLASHLATENT_RETURN_IF_ERROR(number("best_blocks", 1, kMaxIndexTopk, false, result.best_blocks));
    FLASHLATENT_RETURN_IF_ERROR(check(result));
    return result;
  }

 private:
  Status read_causal(bool& causal) const {
    const std::string* text = find("causal");
    if (text == nullptr || (*text != "true" && *text != "false")) return refuse("causal", "true or false");
    causal = *text == "true";
    return {};
  }

  Status number(const char* key, int least, int most, bool needed, int& value) const {
    const std::string* text = find(key);
    if (text == nullptr && !needed) return {};
    const auto parsed = text == nullptr ? std::nullopt : parse_integer(*text);
    if (!parsed || *parsed < least || *parsed > most) {
      return refuse(key, fmt::format("a whole number from {} to {}", least, most));
    }
    value = static_cast<int>(*parsed);
    return {};
  }

  /// By the checks of a call, whose outputs nobody reads.
  Status check(const IndexCase& index_case) const {
    for (const auto& [name, what] : file_.without_view()) {
      if (is_index_tensor(name)) {
        return error(
            fmt::format("tensor \"{}\" is {}; F32, I32, U8 and F8_E4M3 of 1 to {} dimensions are accepted",
                        name, what, kMaxRank));
      }
    }
    const IndexTopkInputs inputs = index_inputs(file_);
    if (!inputs.q.present()) return error("tensor \"q\" is missing");
    void* somewhere = reinterpret_cast<void*>(std::uintptr_t{256});  // NOLINT(performance-no-int-to-ptr)
    const bool ragged = inputs.cu_seqlens_q.present();
    if (inputs.q.rank != (ragged ? 3 : 4)) {
      return error(
          fmt::format("tensor \"q\" is {}; expected (batch, s_q, heads, 128 or 64), or (tokens, heads, "
                      "128 or 64) with cu_seqlens_q",
                      to_string(inputs.q)));
    }
    const auto& shape = inputs.q.shape;
    IndexTopkOutputs outputs;
    auto made = [&](int columns) {
      return ragged ? TensorView(somewhere, Dtype::kI32, {shape[0], columns})
                    : TensorView(somewhere, Dtype::kI32, {shape[0], shape[1], columns});
    };
    outputs.indices = made(index_case.topk);
    if (index_case.best_blocks > 0) outputs.best_blocks = made(index_case.best_blocks);
    const Result<IndexCall> call = index_call(inputs, outputs, index_case.options, Device{});
    if (!call.ok()) return error(call.status().message());
    const auto* lengths = static_cast<const std::int32_t*>(inputs.cache_seqlens.data);
    for (std::int64_t i = 0; i < inputs.cache_seqlens.elements(); ++i) {
      if (lengths[i] >= 0 && lengths[i] <= call->reach()) continue;
      return error(
          fmt::format("tensor \"cache_seqlens\" has {} at {}; 0 to {}, which the page table reaches, "
                      "is expected",
                      lengths[i], i, call->reach()));
    }
    const ConstTensorView scores = file_.tensor("scores_ref");
    if (!scores.present()) return {};
    if (scores.dtype == Dtype::kF32 && scores.rank == (ragged ? 2 : 3) &&
        scores.elements() == call->rows() * call->span && scores.shape[scores.rank - 1] == call->span) {
      return {};
    }
    return error(fmt::format("tensor \"scores_ref\" is {}; expected fp32, {} for each query token",
                             to_string(scores), call->span));
  }

  const std::string* find(const char* key) const {
    const auto found = file_.metadata().find(key);
    return found == file_.metadata().end() ? nullptr : &found->second;
  }
  Status refuse(const char* key, std::string_view expected) const {
    const std::string* text = find(key);
    return error(fmt::format("metadata \"{}\" is {}; expected {}", key,
                             text == nullptr ? "missing" : in_quotes(*text), expected));
  }
  Status error(const std::string& what) const {
    return {StatusCode::kInvalidArgument, fmt::format("{}: {}", file_.name(), what)};
  }

  const SafetensorsFile& file_;
};

}  // namespace

Result<IndexCase> read_index_case(const SafetensorsFile& file) {
  return Reader(file).read();
}

IndexTopkInputs index_inputs(const SafetensorsFile& file) {
  IndexTopkInputs inputs;
  for (const auto& [name, view] : kInputs) inputs.*view = file.tensor(name);
  return inputs;
}

bool is_index_tensor(std::string_view name) {
  return name == "scores_ref" || std::any_of(std::begin(kInputs), std::end(kInputs),
                                             [&](const IndexInput& input) { return input.name == name; });
}

bool is_index_metadata(std::string_view name) {
  return std::find(kMetadata.begin(), kMetadata.end(), name) != kMetadata.end();
}

}  // namespace flashlatent::io
