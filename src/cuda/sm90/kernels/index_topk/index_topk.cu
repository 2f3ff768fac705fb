// index_topk() on CUDA: a launch that scores and a launch that chooses, for as many query tokens as there is
// room for scores.
#include "cuda/cuda_backend.h"
#include "cuda/host/launch.h"
#include "cuda/host/launch_ctas.h"
#include "cuda/host/tensor_map.h"
#include "cuda/index_backend.h"
#include "cuda/sm90/kernels/index_topk/loader.cuh"
#include "cuda/sm90/kernels/index_topk/scorer_fp8.cuh"
#include "cuda/sm90/kernels/index_topk/scorer_mxfp4.cuh"
#include "cuda/sm90/kernels/index_topk/select.cuh"

namespace flashlatent::cuda {

namespace indexer {

namespace {

template <int kColumns, IndexFormat kFormat, bool kFp4Query>
__global__ void __launch_bounds__(kThreads, 2)
    score_kernel(const __grid_constant__ ScoreArguments arguments, const __grid_constant__ CUtensorMap map) {
  extern __shared__ __align__(1024) std::uint8_t score_shared[];
  const Layout<kFormat, kFp4Query> layout(arguments.shape);
  auto& fixed = *reinterpret_cast<Fixed*>(score_shared + layout.fixed);
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages_of(kFormat); ++i) {
      ptx::init(fixed.full[i], kLoaderArrivals);
      ptx::init(fixed.empty[i], kConsumers / 32);
    }
    ptx::publish_barriers();
  }
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();          // the next launch may take its place in the queue
  const Run run = run_of_cta(arguments, fixed.room);  // its barriers publish the barriers above
  if (threadIdx.x >= kConsumers) {
    Loader<kFormat>(arguments, map, run, score_shared + layout.keys, fixed).load();
  } else if constexpr (kFormat == IndexFormat::kFp8_132) {
    Fp8Scorer<kColumns, kFp4Query>(arguments, score_shared, layout, fixed).score(run);
  } else {
    Mxfp4Scorer<kColumns, kFp4Query>(arguments, score_shared, layout, fixed).score(run);
  }
}

template <int kColumns, IndexFormat kFormat, bool kFp4Query>
Status launch_scores(const ScoreArguments& arguments, const CUtensorMap& map, int ctas,
                     const Executor& executor) {
  const Layout<kFormat, kFp4Query> layout(arguments.shape);
  LaunchShape shape;
  shape.blocks = ctas;
  shape.threads = kThreads;
  shape.shared_bytes = static_cast<std::size_t>(layout.bytes);
  shape.overlaps_previous = true;
  FLASHLATENT_RETURN_IF_ERROR(
      (allow_shared_memory<score_kernel<kColumns, kFormat, kFp4Query>>(kMostShared, executor.device)));
  FLASHLATENT_RETURN_IF_ERROR(
      (prefer_shared_memory<score_kernel<kColumns, kFormat, kFp4Query>>(executor.device)));
  return launch(score_kernel<kColumns, kFormat, kFp4Query>, shape, executor, arguments, map);
}

template <int kColumns, IndexFormat kFormat>
Status launch_scores(const ScoreArguments& arguments, const CUtensorMap& map, int ctas,
                     const Executor& executor) {
  return arguments.call.fp4_query ? launch_scores<kColumns, kFormat, true>(arguments, map, ctas, executor)
                                  : launch_scores<kColumns, kFormat, false>(arguments, map, ctas, executor);
}

template <int kColumns>
Status launch_scores(const ScoreArguments& arguments, const CUtensorMap& map, int ctas,
                     const Executor& executor) {
  return arguments.call.format == IndexFormat::kFp8_132
             ? launch_scores<kColumns, IndexFormat::kFp8_132>(arguments, map, ctas, executor)
             : launch_scores<kColumns, IndexFormat::kMxfp4_68>(arguments, map, ctas, executor);
}

/// The map of fp8_132 keys, with boxes of keys_of_run() keys; nothing if no keys are copied by boxes.
Status keys_map(const IndexCall& call, CUtensorMap& map) {
  const int keys = keys_of_run(call);
  map = {};
  if (call.format != IndexFormat::kFp8_132 || keys == 0 || call.pages == 0) return {};
  ConstTensorView view;
  view.data = call.index_cache;
  view.dtype = Dtype::kU8;
  view.rank = 4;
  view.shape = {call.pages, call.page_size, 1, index_keys::kDim};
  view.strides = {call.page_stride, index_keys::kDim, index_keys::kDim, 1};
  constexpr std::uint32_t kColumns = index_keys::kDim;
  return box_map("index_cache", view, {3, 1, 2, 0}, {kColumns, static_cast<std::uint32_t>(keys), 1, 1}, 128,
                 map);
}

template <bool kTeam>
Status launch_selection(const SelectArguments& arguments, int rows, int team, const Executor& executor) {
  constexpr CompiledKernel kKernel = {[] { return reinterpret_cast<const void*>(select_kernel<kTeam>); },
                                      kSelectThreads, sizeof(SelectShared)};
  FLASHLATENT_RETURN_IF_ERROR(prefer_shared_memory<select_kernel<kTeam>>(executor.device));
  return launch_ctas(kKernel, rows * team, team, executor, {&arguments});
}

}  // namespace

}  // namespace indexer

Result<std::size_t> index_topk_workspace_bytes(const IndexCall& call, const Executor& /*executor*/) {
  return static_cast<std::size_t>(indexer::wave_rows(call) * indexer::score_stride(call) * 4);
}

Status index_topk(const IndexCall& call, Memory workspace, const Executor& executor) {
  using namespace indexer;
  DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  FLASHLATENT_ASSIGN_OR_RETURN(const int processors, multiprocessors(executor.device));
  auto* scores = static_cast<std::uint32_t*>(workspace.data);
  const Shape shape = shape_of(call);
  const std::int64_t wave = wave_rows(call);
  CUtensorMap map;
  FLASHLATENT_RETURN_IF_ERROR(keys_map(call, map));
  for (std::int64_t first = 0; first < call.rows(); first += wave) {
    const int rows = static_cast<int>(std::min(wave, call.rows() - first));
    const ScoreArguments arguments{call,
                                   shape,
                                   scores,
                                   score_stride(call),
                                   static_cast<int>(first),
                                   rows,
                                   static_cast<int>(groups_of(call, shape))};
    FLASHLATENT_RETURN_IF_ERROR(shape.head_columns == 32
                                    ? launch_scores<32>(arguments, map, 2 * processors, executor)
                                    : launch_scores<64>(arguments, map, 2 * processors, executor));
    const SelectArguments select{call, scores, score_stride(call), static_cast<int>(first)};
    const int team = select_team(call, rows, processors);
    FLASHLATENT_RETURN_IF_ERROR(team > 1 ? launch_selection<true>(select, rows, team, executor)
                                         : launch_selection<false>(select, rows, team, executor));
  }
  return {};
}

}  // namespace flashlatent::cuda
