#include "cuda/host/dense_launch.h"
#include "cuda/host/layer_edges.h"
#include "cuda/host/tensors.h"
#include "cuda/sm90/kernels/mla_64_pingpong/instances.h"
#include "cuda/sm90/kernels/mla_64_pingpong/takes.h"

namespace flashlatent::mla_64_pingpong {

namespace {

using cuda::DenseInstance;
using cuda::Loading;

const DenseInstance* find(const DecodeProblem& problem, Loading loading, int cluster, int team = 1) {
  return cuda::find_instance(
      {kInstances576x512, kInstances512x512, kInstances320x256, kInstancesFp8_656, kInstancesRopeRecords,
       kInstancesRecords, kInstancesE4m3, kInstancesListed, kTeams576x512},
      key_of(problem, loading, cluster, team));
}

/// Do parts have shares, or several items, that only instances for boxes take without a plan?
bool needs_boxes(const DecodeCall& call) {
  return cuda::loading_of(call.problem) == Loading::kBoxes &&
         (has_shares(call.geometry) || call.geometry.partition == schedule::Partition::kTurns);
}

/// A cache without pages has no boxes and no tokens to divide: each CTA takes a whole item.
Status launch_without_pages(const DecodeCall& call) {
  schedule::Geometry g = call.geometry;
  g.parts = g.requests * g.rounds;
  g.partition = schedule::Partition::kWhole;
  g.fixed_split = 0;
  return cuda::launch_dense(call.with(g),
                            [](const DecodeCall& c, Loading loading) { return find(c.problem, loading, 1); });
}

}  // namespace

Status launch(const DecodeCall& call) {
  if (needs_boxes(call) && call.inputs.kv_cache.shape[0] == 0) return launch_without_pages(call);
  return cuda::launch_dense(call, [](const DecodeCall& c, Loading loading) {
    const DecodeProblem& p = c.problem;
    if (c.sparse_prefill) {
      return cuda::find_instance(
          {kTurns, kTurnsFp8, kTurnsListed, kTurnsListed576, kTurnsE4m3, kTurnsRecords},
          turns_key_of(p, c.geometry));
    }
    if (has_shares(c.geometry) || has_items_in_turn(p, c.geometry)) {
      cuda::InstanceKey key = share_key_of(p, c.geometry);
      // Shares by boxes take Q by TMA alone (Config::kQueryInLine).
      if (key.loading == Loading::kBoxes && !cuda::rows_in_boxes(p, c.inputs)) key.loading = Loading::kTokens;
      return cuda::find_instance(
          {kShares576x512, kSharesFp8_656, kSharesRopeRecords, kSharesRecords, kSharesListed}, key);
    }
    const int team = c.geometry.team;
    if (team == 1) return find(p, loading, cluster_of(p, c.geometry, loading));
    // A cache without pages has no boxes: a single CTA takes a team's part.
    return find(p, loading, 1, loading == Loading::kBoxes ? team : 1);
  });
}

Status launch_teams(const DecodeCall& call) {
  return cuda::launch_dense(call, [](const DecodeCall& c, Loading) {
    const bool records = cuda::loading_of(c.problem) == Loading::kRecords;
    const cuda::InstanceKey key = records ? records_team_key() : any_team_key();
    if (cuda::has_edges(c.inputs, c.outputs)) return cuda::find_instance({kEdgesTeams}, with_edges(key));
    return cuda::find_instance({kAnyTeams}, key);
  });
}

}  // namespace flashlatent::mla_64_pingpong
