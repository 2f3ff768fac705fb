#include "tools/decode_prefill.h"

#include <fmt/core.h>

#include <array>
#include <cstdint>

#include "dispatch/sparse_prefill.h"
#include "runtime/compare.h"
#include "runtime/prefill_run.h"
#include "tools/command.h"

namespace flashlatent::tools {

Status write_results(const std::string& path, std::vector<io::NamedTensor> tensors, const Fp8Output& fp8) {
  std::erase_if(tensors, [](const io::NamedTensor& tensor) { return !tensor.view.present(); });
  std::vector<std::uint8_t> codes;
  if (fp8.present()) {
    const auto [tokens, groups, columns] =
        std::array{fp8.codes.shape[0], fp8.codes.shape[1], fp8.codes.shape[2]};
    for (std::int64_t row = 0; row < tokens * groups; ++row) {
      const auto* from = static_cast<const std::uint8_t*>(fp8.codes.data) +
                         row / groups * fp8.codes.strides[0] + row % groups * fp8.codes.strides[1];
      codes.insert(codes.end(), from, from + columns);
    }
    tensors.push_back({"out_fp8.codes", {codes.data(), Dtype::kU8, {tokens, groups, columns}}});
    tensors.push_back({"out_fp8.scales", fp8.scales});
  }
  return io::write_safetensors(path, tensors, {});
}

int decode_prefill(const io::DecodeCase& prefill_case, const DecodePaths& paths, const Executor& executor) {
  const SparsePrefillInputs inputs = prefill_case.prefill_inputs();
  const SparsePrefillOptions options = prefill_case.prefill_options();
  const Result<SparsePrefillCall> call = as_decode(inputs, options, Device{});
  if (!call.ok()) return fail(call.status());
  Result<runtime::PrefillRun> run =
      runtime::PrefillRun::create(inputs, options, executor, prefill_case.out_fp8);
  if (!run.ok()) return fail(run.status());
  Status status = run->run();
  if (status.ok()) status = run->fetch();
  if (!status.ok()) return fail(status);
  const SparsePrefillOutputs& outputs = run->results();
  if (!paths.output.empty()) {
    status = write_results(paths.output,
                           {{"out", outputs.out}, {"lse", outputs.lse}, {"max_logits", outputs.max_logits}},
                           outputs.out_fp8);
    if (!status.ok()) return fail(status);
  }

  // The shapes of a decode call; absent references stay absent.
  auto of_rows = [](const ConstTensorView& view) { return view.present() ? with_query_token(view) : view; };
  auto of_numbers = [](const ConstTensorView& view) {
    return view.present() ? with_last_query_token(view) : view;
  };
  const ConstTensorView out_ref = prefill_case.out_ref(), lse_ref = prefill_case.lse_ref(),
                        max_ref = prefill_case.max_logits_ref();
  const bool has_reference = out_ref.present() || lse_ref.present() || max_ref.present();
  const runtime::Comparison comparison =
      runtime::compare(call->problem, call->inputs, out_as_decode(outputs),
                       with_last_query_token(outputs.lse), of_rows(out_ref), of_numbers(lse_ref), {},
                       {with_last_query_token(outputs.max_logits), of_numbers(max_ref)}, outputs.out_fp8);
  const std::string problem = fmt::format("sparse prefill as {}", to_string(call->problem));
  fmt::print("{} on {}\n", problem, to_string(executor.backend));
  fmt::print("{}: {}\n",
             has_reference ? "against the file's reference" : "the file has no reference; against the oracle",
             runtime::to_string(comparison));
  const nlohmann::ordered_json document = {{"case", paths.input},
                                           {"backend", to_string(executor.backend)},
                                           {"problem", problem},
                                           {"reference", has_reference ? "file" : "oracle"},
                                           {"rows", comparison.rows},
                                           {"wrong_rows", comparison.wrong_rows},
                                           {"relative_error", comparison.relative_error},
                                           {"plain_relative_error", comparison.plain_relative_error},
                                           {"lse_error", comparison.lse_error},
                                           {"ok", comparison.ok()}};
  status = write_json(paths.json, document);
  if (!status.ok()) return fail(status);
  return comparison.ok() ? kRight : kWrongResult;
}

}  // namespace flashlatent::tools
