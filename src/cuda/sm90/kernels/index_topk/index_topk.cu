// index_topk() on CUDA: a launch that scores and a launch that chooses, for as many query tokens as there is
// room for scores.
#include "cuda/cuda_backend.h"
#include "cuda/host/launch.h"
#include "cuda/host/launch_ctas.h"
#include "cuda/host/tensor_map.h"
#include "cuda/index_backend.h"
#include "cuda/sm90/kernels/index_topk/loader.cuh"
#include "cuda/sm90/kernels/index_topk/scorer.cuh"
#include "cuda/sm90/kernels/index_topk/select.cuh"

namespace flashlatent::cuda {

namespace indexer {

namespace {

/// What can be done before the previous launch has ended.
template <class Config, IndexFormat kFormat>
__device__ __forceinline__ void prepare(Fixed<Config>& fixed, const IndexCall& call, const CUtensorMap& map) {
  if (threadIdx.x == Config::kConsumers && kFormat == IndexFormat::kFp8_132 && call.pages > 0 &&
      keys_of_run(call) > 0) {
    ptx::prefetch_map(map);
  }
  if (threadIdx.x != 0) return;
  for (int i = 0; i < Config::stages(kFormat); ++i) {
    ptx::init(fixed.full[i], kLoaderArrivals);
    ptx::init(fixed.empty[i], Config::kConsumers / 32);
  }
  ptx::publish_barriers();
}

template <class Config, int kColumns, IndexFormat kFormat, bool kFp4Query>
__global__ void __launch_bounds__(Config::kThreads, Config::kCtas)
    score_kernel(const __grid_constant__ ScoreArguments arguments, const __grid_constant__ CUtensorMap map) {
  extern __shared__ __align__(1024) std::uint8_t score_shared[];
  const Layout<Config, kFormat, kFp4Query> layout(arguments.shape);
  auto& fixed = *reinterpret_cast<Fixed<Config>*>(score_shared + layout.fixed);
  touch(arguments);
  prepare<Config, kFormat>(fixed, arguments.call, map);
  __syncthreads();
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();  // the next launch may take its place in the queue
  const Run run = run_of_cta<Config>(arguments, fixed.room);
  if (threadIdx.x >= Config::kConsumers) {
    if constexpr (Config::kPairs) ptx::give_registers<Config::kLoaderRegisters>();
    if (threadIdx.x / 32 == Config::kConsumers / 32) {
      Loader<Config, kFormat>(arguments, map, run, score_shared + layout.keys, fixed).load();
    }
  } else {
    if constexpr (Config::kPairs) ptx::take_registers<Config::kScorerRegisters>();
    Scorer<Config, kColumns, kFormat, kFp4Query, WorkspaceSink>(arguments, score_shared, layout, fixed, {})
        .score(run);
  }
}

template <class Config, int kColumns, IndexFormat kFormat, bool kFp4Query>
Status launch_scores(const ScoreArguments& arguments, const CUtensorMap& map, int processors,
                     const Executor& executor) {
  constexpr auto kKernel = score_kernel<Config, kColumns, kFormat, kFp4Query>;
  const Layout<Config, kFormat, kFp4Query> layout(arguments.shape);
  LaunchShape shape;
  shape.blocks = Config::kCtas * processors;
  shape.threads = Config::kThreads;
  shape.shared_bytes = static_cast<std::size_t>(layout.bytes);
  shape.overlaps_previous = true;
  FLASHLATENT_RETURN_IF_ERROR(allow_shared_memory<kKernel>(Config::kMostShared, executor.device));
  FLASHLATENT_RETURN_IF_ERROR(prefer_shared_memory<kKernel>(executor.device));
  return launch(kKernel, shape, executor, arguments, map);
}

template <class Config, int kColumns, IndexFormat kFormat>
Status launch_scores(const ScoreArguments& arguments, const CUtensorMap& map, int processors,
                     const Executor& executor) {
  return arguments.call.fp4_query
             ? launch_scores<Config, kColumns, kFormat, true>(arguments, map, processors, executor)
             : launch_scores<Config, kColumns, kFormat, false>(arguments, map, processors, executor);
}

template <class Config, int kColumns>
Status launch_scores(const ScoreArguments& arguments, const CUtensorMap& map, int processors,
                     const Executor& executor) {
  if constexpr (!Config::kPairs) {
    return launch_scores<Config, kColumns, IndexFormat::kFp8_132>(arguments, map, processors, executor);
  } else {
    return arguments.call.format == IndexFormat::kFp8_132
               ? launch_scores<Config, kColumns, IndexFormat::kFp8_132>(arguments, map, processors, executor)
               : launch_scores<Config, kColumns, IndexFormat::kMxfp4_68>(arguments, map, processors,
                                                                         executor);
  }
}

template <class Config>
Status launch_scores(const ScoreArguments& arguments, const CUtensorMap& map, int processors,
                     const Executor& executor) {
  return arguments.shape.head_columns == 32 ? launch_scores<Config, 32>(arguments, map, processors, executor)
                                            : launch_scores<Config, 64>(arguments, map, processors, executor);
}

/// The chooser's part of a fused launch.
struct FusedShared {
  ChooseShared choose;
  alignas(16) std::uint32_t scores[kMostScoreTeam * kMostKeysOfTeam];
  ptx::Barrier scored;  ///< Completes with all scores.
};

/// Both launches in one: the CTAs of a cluster score a query token's keys, and the first one chooses.
template <IndexFormat kFormat, bool kFp4Query>
__global__ void __launch_bounds__(ScoreConfig<4>::kThreads, 1)
    fused_kernel(const __grid_constant__ ScoreArguments arguments, const __grid_constant__ CUtensorMap map) {
  using Config = ScoreConfig<4>;
  extern __shared__ __align__(1024) std::uint8_t fused_shared[];
  const Layout<Config, kFormat, kFp4Query> layout(arguments.shape);
  auto& fixed = *reinterpret_cast<Fixed<Config>*>(fused_shared + layout.fixed);
  auto& shared = *reinterpret_cast<FusedShared*>(fused_shared + (layout.bytes + 15) / 16 * 16);
  touch(arguments);
  if (threadIdx.x == 0) ptx::init(shared.scored, 1);
  prepare<Config, kFormat>(fixed, arguments.call, map);
  ptx::cluster_arrive();  // the chooser's barrier is there
  if (threadIdx.x < Config::kConsumers) clear_counts(shared.choose);
  const int rank = static_cast<int>(ptx::rank_in_cluster()), ctas = static_cast<int>(ptx::ctas_of_cluster());
  const int number = static_cast<int>(blockIdx.x) / ctas;
  ptx::cluster_wait();
  __syncthreads();
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();  // the next launch may take its place in the queue
  const Run all = run_of_row<Config>(arguments, row_of(arguments.call, number));
  const Run run = part_of(all, rank, ctas);
  if (threadIdx.x >= Config::kConsumers) {
    ptx::give_registers<Config::kLoaderRegisters>();
    if (threadIdx.x / 32 == Config::kConsumers / 32) {
      Loader<Config, kFormat>(arguments, map, run, fused_shared + layout.keys, fixed).load();
    }
    return;  // barriers of all threads are of those that have not returned
  }
  ptx::take_registers<Config::kScorerRegisters>();
  if (threadIdx.x == 0 && rank == 0) ptx::arrive_expecting(shared.scored, all.tiles * Config::kTile * 4);
  const ChooserSink sink{arguments.scores + number * arguments.score_stride,
                         ptx::address_in(0, shared.scores), ptx::address_in(0, &shared.scored)};
  Scorer<Config, 64, kFormat, kFp4Query, ChooserSink>(arguments, fused_shared, layout, fixed, sink)
      .score(run);
  if (rank != 0) return;
  ptx::wait_for_cluster(shared.scored, 0);
  const HeldKeys held;
  const Selector selector(arguments.call, SharedScores{shared.scores}, number, shared.choose, held);
  selector.choose_tokens();
  if (arguments.call.best_blocks > 0) selector.choose_blocks();
  if (arguments.call.all_scores.data != nullptr) selector.write_all_scores(0, 1);
}

template <IndexFormat kFormat, bool kFp4Query>
Status launch_fused(const ScoreArguments& arguments, const CUtensorMap& map, int team,
                    const Executor& executor) {
  using Config = ScoreConfig<4>;
  constexpr int kMost =
      Layout<Config, kFormat, kFp4Query>({64, 2, 1, 4}).bytes + 16 + static_cast<int>(sizeof(FusedShared));
  static_assert(kMost <= Config::kMostShared);
  constexpr CompiledKernel kKernel = {
      [] { return reinterpret_cast<const void*>(fused_kernel<kFormat, kFp4Query>); }, Config::kThreads,
      kMost};
  FLASHLATENT_RETURN_IF_ERROR((prefer_shared_memory<fused_kernel<kFormat, kFp4Query>>(executor.device)));
  return launch_ctas(kKernel, static_cast<int>(arguments.rows) * team, team, executor, {&arguments, &map});
}

template <IndexFormat kFormat>
Status launch_fused(const ScoreArguments& arguments, const CUtensorMap& map, int team,
                    const Executor& executor) {
  return arguments.call.fp4_query ? launch_fused<kFormat, true>(arguments, map, team, executor)
                                  : launch_fused<kFormat, false>(arguments, map, team, executor);
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

template <class Config>
Status launch_selection(const SelectArguments& arguments, int rows, const Executor& executor) {
  constexpr CompiledKernel kKernel = {[] { return reinterpret_cast<const void*>(select_kernel<Config>); },
                                      kChooseThreads, sizeof(SelectShared<Config>)};
  FLASHLATENT_RETURN_IF_ERROR((prefer_shared_memory<select_kernel<Config>>(executor.device)));
  return launch_ctas(kKernel, rows, 1, executor, {&arguments});
}

Status launch_team_selection(const SelectArguments& arguments, int rows, int team, const Executor& executor) {
  constexpr CompiledKernel kKernel = {[] { return reinterpret_cast<const void*>(select_team_kernel); },
                                      kChooseThreads, sizeof(SelectTeamShared)};
  FLASHLATENT_RETURN_IF_ERROR(prefer_shared_memory<select_team_kernel>(executor.device));
  return launch_ctas(kKernel, rows * team, team, executor, {&arguments});
}

Status launch_selection(const SelectArguments& arguments, int rows, int team, int processors,
                        const Executor& executor) {
  if (team > 1) return launch_team_selection(arguments, rows, team, executor);
  return rows <= processors ? launch_selection<SelectConfig<1>>(arguments, rows, executor)
                            : launch_selection<SelectConfig<2>>(arguments, rows, executor);
}

}  // namespace

}  // namespace indexer

Result<std::size_t> index_topk_workspace_bytes(const IndexCall& call, const Executor&) {
  return static_cast<std::size_t>(indexer::wave_rows(call) * indexer::score_stride(call) * 4);
}

Status index_topk(const IndexCall& call, Memory workspace, const Executor& executor) {
  using namespace indexer;
  DeviceGuard guard(executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());
  FLASHLATENT_ASSIGN_OR_RETURN(const int processors, multiprocessors(executor.device));
  auto* scores = static_cast<std::uint32_t*>(workspace.data);
  Shape shape = shape_of(call);
  const std::int64_t wave = wave_rows(call);
  const int select_ctas = select_team(call, processors);
  CUtensorMap map;
  FLASHLATENT_RETURN_IF_ERROR(keys_map(call, map));
  const bool scores_needed = !call.needs_no_scores(call.span);
  if (const int team = score_team(call, processors); team > 0 && scores_needed) {
    shape.group_rows = 1;
    const int rows = static_cast<int>(call.rows());
    const ScoreArguments arguments{call, shape, scores,      score_stride(call),         0,
                                   rows, rows,  call.tokens, places_without_scores(call)};
    return call.format == IndexFormat::kFp8_132
               ? launch_fused<IndexFormat::kFp8_132>(arguments, map, team, executor)
               : launch_fused<IndexFormat::kMxfp4_68>(arguments, map, team, executor);
  }
  for (std::int64_t first = 0; first < call.rows(); first += wave) {
    const int rows = static_cast<int>(std::min(wave, call.rows() - first));
    const ScoreArguments arguments{call,
                                   shape,
                                   scores,
                                   score_stride(call),
                                   static_cast<int>(first),
                                   rows,
                                   static_cast<int>(groups_of(call, shape)),
                                   groups_of_request(call, shape),
                                   places_without_scores(call)};
    if (scores_needed) {
      FLASHLATENT_RETURN_IF_ERROR(shape.warpgroups == 4
                                      ? launch_scores<ScoreConfig<4>>(arguments, map, processors, executor)
                                      : launch_scores<ScoreConfig<2>>(arguments, map, processors, executor));
    }
    const SelectArguments select{call, scores, score_stride(call), static_cast<int>(first), scores_needed};
    FLASHLATENT_RETURN_IF_ERROR(launch_selection(select, rows, select_ctas, processors, executor));
  }
  return {};
}

}  // namespace flashlatent::cuda
