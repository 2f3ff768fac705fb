#include "core/message.h"
#include "cuda/cuda_backend.h"
#include "cuda/etap/instances.h"

namespace flashlatent::cuda {

namespace {

constexpr int kMostRows = 32;  // above it the 64-row kernel wastes less than half of a tile
// Nanoseconds; a block at the speed of memory. Of costs of a split from
// 0.8 to 4 blocks the smaller ones gave the fastest plans, by 1 to 3 %. 128 requests of 64 blocks take 6.5 us
// longer on 132 parts than on 128.
constexpr schedule::CostModel kCost = {.per_block = 2100, .per_split = 3000, .per_merge = 7500};
// With 32 rows arithmetic shows; the 64-row kernel is 8 to 16 % faster.
constexpr schedule::CostModel kCost32 = {.per_block = 2500, .per_split = 10500, .per_merge = 10000};

/// 8 rows cost the tensor cores as much as 16 (wgmma with N = 8 is limited by reading K), and memory nothing.
int tile_rows_of(const DecodeProblem& problem) {
  return problem.rows_per_kv_head() <= 16 ? 16 : 32;
}

const DenseInstance* find_instance(const DecodeProblem& problem, bool by_token) {
  for (const auto* shape : {&etap::kInstances576x512, &etap::kInstances512x512, &etap::kInstances320x256}) {
    for (const DenseInstance& instance : *shape) {
      if (instance.dtype == problem.cache.dtype && instance.qk_dim == problem.cache.qk_dim &&
          instance.v_dim == problem.cache.v_dim && instance.tile_rows == tile_rows_of(problem) &&
          instance.by_token == by_token) {
        return &instance;
      }
    }
  }
  return nullptr;
}

std::optional<std::string> declines(const DecodeProblem& problem) {
  if (problem.sparse.enabled) return "sparse decode is not accepted";
  if (problem.cache.format != KvFormat::kPlain) return "an fp8_656 cache is not accepted";
  if (find_instance(problem, false) == nullptr) {
    return message("qk_dim/v_dim is ", problem.cache.qk_dim, "/", problem.cache.v_dim,
                   "; 576/512, 512/512 and 320/256 are accepted");
  }
  if (problem.rows_per_kv_head() > kMostRows) {
    return message("s_q * h_q / h_kv is ", problem.rows_per_kv_head(), "; at most ", kMostRows,
                   " query rows a KV head are accepted");
  }
  return std::nullopt;
}

schedule::Geometry geometry(const DecodeProblem& problem, int workers) {
  const int tile_rows = tile_rows_of(problem);
  return dense_geometry(problem, workers,
                        {.tile_rows = tile_rows, .cost = tile_rows == 16 ? kCost : kCost32});
}

Status launch(const DecodeCall& call) {
  return launch_dense(call,
                      [](const DecodeCall& c, bool by_token) { return find_instance(c.problem, by_token); });
}

}  // namespace

const DecodeKernel kEtapKernel = {
    .name = "etap",
    .backend = Backend::kCuda,
    .takes =
        "bf16 and fp16 caches, qk_dim/v_dim 576/512, 512/512 or 320/256, up to 32 query rows a KV head, any "
        "page size",
    .declines = declines,
    .geometry = geometry,
    .workspace_bytes = dense_workspace_bytes,
    .launch = launch,
};

}  // namespace flashlatent::cuda
