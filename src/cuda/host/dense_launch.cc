#include "cuda/host/dense_launch.h"

#include <algorithm>

#include "core/message.h"
#include "core/query_parts.h"
#include "cuda/cuda_backend.h"
#include "cuda/host/combine.h"
#include "cuda/host/decode_arguments.h"
#include "cuda/host/launch_ctas.h"
#include "cuda/host/runtime.h"
#include "cuda/host/tensors.h"
#include "plan/schedule.h"

namespace flashlatent::cuda {

namespace {

/// Makes the maps of the query's two tensors if boxes can load rows. If q is empty no kernel uses them.
Status query_maps(const DecodeCall& call, const BoxMaps& boxes, DenseLaunch& launch) {
  if (call.inputs.q.elements() == 0) return {};
  if (boxes.query == nullptr || !launch.args.query.rows_in_boxes) return {};
  const bool in_line = rows_in_line(call.problem, call.inputs);
  const int rows = boxes.query_rows > 0 ? boxes.query_rows : launch.args.geometry.tile_rows;
  auto make = [&](const char* name, const ConstTensorView& part, CUtensorMap& map) {
    ConstTensorView view = with_batch(part);
    if (call.problem.query.ragged) std::swap(view.shape[0], view.shape[1]);  // one request with all rows
    return boxes.query(name, view, rows, in_line, map);
  };
  FLASHLATENT_RETURN_IF_ERROR(
      make("q", query_parts::first_of(call.problem, call.inputs), launch.query.first));
  const ConstTensorView rope = query_parts::rope_of(call.problem, call.inputs);
  if (!rope.present()) return {};
  return make(call.inputs.q_rope.present() ? "q_rope" : "q", rope, launch.query.rope);
}

/// The loading that this call needs: a cache without pages cannot be loaded with TMA boxes.
Loading loading_from(const DecodeProblem& problem, const ConstTensorView& kv_cache) {
  const Loading loading = loading_of(problem);
  return loading == Loading::kBoxes && kv_cache.shape[0] == 0 ? Loading::kTokens : loading;
}

}  // namespace

const DenseInstance* find_instance(std::initializer_list<std::span<const DenseInstance>> tables,
                                   const InstanceKey& key) {
  for (const auto& table : tables) {
    for (const DenseInstance& instance : table) {
      if (instance.key == key) return &instance;
    }
  }
  return nullptr;
}

Status launch_dense(const DecodeCall& planned,
                    const DenseInstance* (*find)(const DecodeCall& call, Loading loading)) {
  const schedule::Geometry geometry = geometry_of_call(planned.problem, planned.inputs, planned.geometry);
  const DecodeCall call = planned.with(geometry);
  const ConstTensorView& cache = call.inputs.kv_cache;
  FLASHLATENT_RETURN_IF_ERROR(check_alignment("q", call.inputs.q, 16));
  if (call.inputs.q_rope.present()) {
    FLASHLATENT_RETURN_IF_ERROR(check_alignment("q_rope", call.inputs.q_rope, 16));
  }
  const bool listed = goes_by_lists(call.problem);
  if (!listed) FLASHLATENT_RETURN_IF_ERROR(check_alignment("kv_cache", cache, 16));
  FLASHLATENT_RETURN_IF_ERROR(check_alignment("out", call.outputs.out, 4));
  FLASHLATENT_RETURN_IF_ERROR(check_pages("kv_cache", cache));
  DeviceGuard guard(call.executor.device);
  FLASHLATENT_RETURN_IF_ERROR(guard.status());

  DenseLaunch launch = {};
  launch.args = decode_arguments(call);
  launch.args.cache.data = cache.data;
  launch.args.cache.page_stride = cache.strides[0];
  launch.args.cache.token_stride = cache.strides[1];
  launch.args.cache.head_stride = cache.strides[2];
  launch.args.cache.box_tokens = box_tokens_of(call.problem);
  if (listed) FLASHLATENT_RETURN_IF_ERROR(set_listed_caches(call, launch.args.cache));
  const DenseInstance* instance = find(call, loading_from(call.problem, cache));
  if (instance != nullptr && instance->boxes.kv != kv_tensor_map && !heads_in_chunks(cache))
    instance = find(call, Loading::kTokens);
  if (instance == nullptr) {
    return {StatusCode::kInternal, message("no compiled kernel takes ", to_string(call.problem))};
  }
  const BoxMaps& boxes = instance->boxes;
  launch.args.cache.box_tokens = std::min(launch.args.cache.box_tokens, boxes.most_tokens);
  if (instance->key.loading == Loading::kBoxes) {
    FLASHLATENT_RETURN_IF_ERROR(boxes.kv("kv_cache", cache, launch.args.cache.box_tokens, launch.kv));
  }
  if (!boxes.query_lines) launch.args.query.rows_in_boxes = rows_in_line(call.problem, call.inputs);
  FLASHLATENT_RETURN_IF_ERROR(query_maps(call, boxes, launch));
  FLASHLATENT_RETURN_IF_ERROR(write_missing_rows(launch.args, call.problem, call.executor));
  const InstanceKey& key = instance->key;
  const bool merges = instance->merges && merges_in_kernel(call.problem, geometry);
  if (merges) launch.args.merge_state = static_cast<sm90::MergeState*>(call.workspace.data);
  const int team = key.team == 0 ? geometry.team : key.team;
  FLASHLATENT_RETURN_IF_ERROR(
      launch_ctas(instance->kernel, launch.args.geometry.parts * launch.args.geometry.lanes * team,
                  key.cluster * team, call.executor, {&launch.args, &launch.kv, &launch.query}));
  if (merges) return {};
  return combine_plan(launch.args, call.problem.cache, Partials::kByTile, call.executor);
}

}  // namespace flashlatent::cuda
