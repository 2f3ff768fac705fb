#include "tools/decode_index.h"

#include <fmt/core.h>

#include "runtime/compare_index.h"
#include "runtime/index_run.h"
#include "tools/command.h"

namespace flashlatent::tools {

int decode_index(const io::DecodeCase& index_case, const DecodePaths& paths, const Executor& executor) {
  const IndexTopkInputs inputs = index_case.index_inputs();
  const io::IndexCase& index = index_case.index;
  Result<runtime::IndexRun> run = runtime::IndexRun::create(
      inputs, index.options, {.topk = index.topk, .best_blocks = index.best_blocks}, executor);
  if (!run.ok()) return fail(run.status());
  Status status = run->run();
  if (status.ok()) status = run->fetch();
  if (!status.ok()) return fail(status);
  const IndexTopkOutputs& outputs = run->results();
  if (!paths.output.empty()) {
    std::vector<io::NamedTensor> tensors = {
        {"indices", outputs.indices}, {"counts", outputs.counts}, {"scores", outputs.scores}};
    if (outputs.best_blocks.present()) tensors.push_back({"best_blocks", outputs.best_blocks});
    status = io::write_safetensors(paths.output, tensors, {});
    if (!status.ok()) return fail(status);
  }
  const ConstTensorView reference = index_case.scores_ref();
  const runtime::IndexComparison comparison =
      runtime::compare_index(inputs, index.options, outputs, reference);
  const bool ragged = inputs.q.rank == 3;
  const std::string problem = fmt::format(
      "index_topk of {} query tokens, {} heads, topk {}, {} in pages of {}", comparison.rows,
      inputs.q.shape[ragged ? 1 : 2], index.topk, to_string(index.options.format), index.options.page_size);
  fmt::print("{} on {}\n", problem, to_string(executor.backend));
  fmt::print(
      "{}: {}\n",
      reference.present() ? "against the file's reference" : "the file has no reference; against the oracle",
      runtime::to_string(comparison));
  const nlohmann::ordered_json document = {{"case", paths.input},
                                           {"backend", to_string(executor.backend)},
                                           {"problem", problem},
                                           {"reference", reference.present() ? "file" : "oracle"},
                                           {"rows", comparison.rows},
                                           {"wrong_rows", comparison.wrong_rows},
                                           {"worst_ratio", comparison.worst_ratio},
                                           {"ok", comparison.ok()}};
  status = write_json(paths.json, document);
  if (!status.ok()) return fail(status);
  return comparison.ok() ? kRight : kWrongResult;
}

}  // namespace flashlatent::tools
