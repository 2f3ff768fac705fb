// The fast kernel's row.
#include "core/message.h"
#include "cpu/block_math.h"
#include "cpu/dense.h"
#include "cpu/workspace.h"

namespace flashlatent::cpu {

namespace {

std::optional<std::string> declines_prefixes(const DecodeProblem& problem) {
  const int rows = problem.rows_per_kv_head();
  if (2 * rows <= kTileRows) return std::nullopt;
  return message("a request has ", rows, " query rows a KV head; at most ", kTileRows / 2, " are accepted");
}

}  // namespace

const DecodeKernel kDenseKernel = {
    .name = "cpu_dense",
    .architecture = Architecture::kHost,
    .takes =
        "everything: latent, separate and packed caches in every format, dense and sparse; any "
        "dimensions, heads, query tokens (also ragged), page size and topk",
    .declines = [](const DecodeProblem&) -> std::optional<std::string> { return std::nullopt; },
    .workspace_bytes = Workspace::bytes,
    .launch = launch_dense,
    .declines_prefixes = declines_prefixes,
};

}  // namespace flashlatent::cpu
