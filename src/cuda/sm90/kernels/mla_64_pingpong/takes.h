// The mla_64_pingpong kernel on the host: takes.cc says what it takes, launch.cc launches.
#pragma once

#include "cuda/sm90/kernels/mla_64_pingpong/keys.h"
#include "kernel/decode_kernel.h"

namespace flashlatent::mla_64_pingpong {

cuda::InstanceKey key_of(const DecodeProblem& problem, cuda::Loading loading, int cluster, int team = 1);

/// Do query tokens have their own spans in a context that ranks share (sm90::DecodeArguments::spans)? Shares
/// by boxes and teams cannot take these (Config::kSpans): such calls have shares token by token.
bool has_spans(const DecodeProblem& problem);

/// The key of the instance for shares (schedule::combines_shares()).
cuda::InstanceKey share_key_of(const DecodeProblem& problem, const schedule::Geometry& geometry);

/// Does a schedule have such shares?
bool has_shares(const schedule::Geometry& geometry);

/// By two lists: are there instances of shares?
bool has_listed_shares(const DecodeProblem& problem, const schedule::Geometry& geometry);

/// By two lists: is each part whole items by kTurns, or one whole item? The instances for shares compute
/// these, too.
bool has_items_in_turn(const DecodeProblem& problem, const schedule::Geometry& geometry);

/// Neighbouring lanes can share KV blocks if they are tiles of the same KV head, and do if loading binds,
/// from an fp8_656 cache. By TMA each loads its own blocks: 0.233 ms, against 0.246 in step with another CTA.
/// Ragged queries cannot: the second tile of a short request may have no rows, and then no blocks.
int cluster_of(const DecodeProblem& problem, const schedule::Geometry& geometry, cuda::Loading loading);

/// The key of the instance for sparse prefill.
cuda::InstanceKey turns_key_of(const DecodeProblem& problem, const schedule::Geometry& geometry);

/// Blocks of an item that a team of mla_64_team shares.
int team_blocks_of(const DecodeProblem& problem);

Status launch(const DecodeCall& call);
/// Launches mla_64_team.
Status launch_teams(const DecodeCall& call);

}  // namespace flashlatent::mla_64_pingpong
