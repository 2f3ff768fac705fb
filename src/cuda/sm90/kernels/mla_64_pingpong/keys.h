// What the mla_64_pingpong kernel is compiled for, as data.
#pragma once

#include "core/formats/fp8_584.h"
#include "core/formats/fp8_656.h"
#include "cuda/host/instance_key.h"

namespace flashlatent::mla_64_pingpong {

inline constexpr int kTileRows = 64;

inline constexpr auto kKeys576x512 = cuda::plain_keys(576, 512, kTileRows);
inline constexpr auto kKeys512x512 = cuda::plain_keys(512, 512, kTileRows);
inline constexpr auto kKeys320x256 = cuda::plain_keys(320, 256, kTileRows);

constexpr cuda::InstanceKey fp8_key(int cluster) {
  return {Dtype::kBF16, fp8_656::kDim, fp8_656::kLatentDim, kTileRows, cuda::Loading::kFp8, cluster};
}
inline constexpr std::array kFp8Keys = {fp8_key(2), fp8_key(1)};

constexpr cuda::InstanceKey rope_record_key(int cluster) {
  return {Dtype::kBF16, fp8_584::kDim, fp8_584::kDim, kTileRows, cuda::Loading::kRopeRecords, cluster};
}
inline constexpr std::array kRopeRecordKeys = {rope_record_key(2), rope_record_key(1)};

/// mxfp8_528, nvfp4_288, fp8_528.
constexpr cuda::InstanceKey records_key(int cluster, bool turns = false) {
  return {Dtype::kBF16, fp8_584::kDim, fp8_584::kDim, kTileRows, cuda::Loading::kRecords, cluster, 1, turns};
}
inline constexpr std::array kRecordsKeys = {records_key(2), records_key(1)};
inline constexpr std::array kTurnsRecordsKeys = {records_key(2, true), records_key(1, true)};

constexpr cuda::InstanceKey e4m3_key(int qk_dim, cuda::Loading loading, int cluster) {
  return {Dtype::kU8, qk_dim, 512, kTileRows, loading, cluster};
}
inline constexpr std::array kE4m3Keys = {e4m3_key(576, cuda::Loading::kFp8, 2),
                                         e4m3_key(576, cuda::Loading::kFp8, 1),
                                         e4m3_key(512, cuda::Loading::kListedFp8, 1)};

/// By two lists of tokens.
constexpr cuda::InstanceKey listed_key(Dtype dtype, cuda::Loading loading) {
  return {dtype, 512, 512, kTileRows, loading};
}
inline constexpr std::array kListedKeys = {listed_key(Dtype::kBF16, cuda::Loading::kListedFp8),
                                           listed_key(Dtype::kBF16, cuda::Loading::kListedTokens),
                                           listed_key(Dtype::kF16, cuda::Loading::kListedTokens)};

/// A team's blocks are loaded by boxes only.
constexpr cuda::InstanceKey team_key(Dtype dtype, int team) {
  return {dtype, 576, 512, kTileRows, cuda::Loading::kBoxes, 1, team};
}
inline constexpr std::array kTeamKeys576x512 = {team_key(Dtype::kBF16, 2), team_key(Dtype::kF16, 2),
                                                team_key(Dtype::kBF16, 4), team_key(Dtype::kF16, 4),
                                                team_key(Dtype::kBF16, 8), team_key(Dtype::kF16, 8)};

/// A team of any size up to this; its CTAs have so many blocks each at most.
inline constexpr int kMostTeam = 16, kMostTeamBlocks = 2;
constexpr cuda::InstanceKey any_team_key() {
  cuda::InstanceKey key = rope_record_key(1);
  key.team = 0;
  return key;
}
constexpr cuda::InstanceKey records_team_key() {
  cuda::InstanceKey key = any_team_key();
  key.loading = cuda::Loading::kRecords;
  return key;
}
inline constexpr std::array kAnyTeamKeys = {any_team_key(), records_team_key()};
/// The same with the edges of the layer.
constexpr cuda::InstanceKey with_edges(cuda::InstanceKey key) {
  key.edges = true;
  return key;
}
inline constexpr std::array kEdgesTeamKeys = {with_edges(any_team_key()), with_edges(records_team_key())};

/// For CTAs, or with fp8_656 clusters, that have a share of one item.
inline constexpr auto kShareKeys576x512 = cuda::plain_keys(576, 512, kTileRows);
inline constexpr std::array kFp8ShareKeys = {fp8_key(2)};
inline constexpr auto kRopeRecordShareKeys = kRopeRecordKeys;
inline constexpr auto kRecordsShareKeys = kRecordsKeys;
inline constexpr auto kListedShareKeys = kListedKeys;

/// The key of an instance for sparse prefill.
constexpr cuda::InstanceKey turns_key(Dtype dtype, int qk_dim, cuda::Loading loading, int cluster = 1) {
  return {dtype, qk_dim, 512, kTileRows, loading, cluster, 1, true};
}
inline constexpr std::array kTurnsKeys = {turns_key(Dtype::kBF16, 576, cuda::Loading::kTokens),
                                          turns_key(Dtype::kF16, 576, cuda::Loading::kTokens),
                                          turns_key(Dtype::kBF16, 512, cuda::Loading::kTokens),
                                          turns_key(Dtype::kF16, 512, cuda::Loading::kTokens)};
inline constexpr std::array kTurnsFp8Keys = {turns_key(Dtype::kBF16, 576, cuda::Loading::kFp8),
                                             turns_key(Dtype::kBF16, 512, cuda::Loading::kRopeRecords, 2),
                                             turns_key(Dtype::kBF16, 512, cuda::Loading::kRopeRecords)};
inline constexpr std::array kTurnsListedKeys = {turns_key(Dtype::kBF16, 512, cuda::Loading::kListedFp8),
                                                turns_key(Dtype::kBF16, 512, cuda::Loading::kListedTokens),
                                                turns_key(Dtype::kF16, 512, cuda::Loading::kListedTokens)};
inline constexpr std::array kTurnsListed576Keys = {turns_key(Dtype::kBF16, 576, cuda::Loading::kListedTokens),
                                                   turns_key(Dtype::kF16, 576, cuda::Loading::kListedTokens)};
inline constexpr std::array kTurnsE4m3Keys = {turns_key(Dtype::kU8, 576, cuda::Loading::kFp8),
                                              turns_key(Dtype::kU8, 512, cuda::Loading::kListedFp8)};

}  // namespace flashlatent::mla_64_pingpong
