// What the kernels that take an FP8 cache's bytes straight to the tensor cores are compiled for, as data.
#pragma once

#include "core/formats/e4m3_latent.h"
#include "core/formats/fp8_584.h"
#include "core/formats/fp8_656.h"
#include "core/formats/mxfp8_528.h"
#include "cuda/host/instance_key.h"

namespace flashlatent::fp8 {

/// The kernel of few rows: query rows a tile. 64 rows by two tiles of 32 would take longer than by the 64-row
/// kernel.
inline constexpr int kMostFewRows = 32;
/// Teams: query rows a tile, CTAs a team.
inline constexpr int kTeamRows = 16, kTeamCtas = 8;
/// The 64-row kernel.
inline constexpr int kRows64 = 64;

constexpr cuda::InstanceKey key(int tile_rows, int team = 1) {
  return {Dtype::kBF16, fp8_656::kDim, fp8_656::kLatentDim, tile_rows, cuda::Loading::kFp8, 1, team};
}
/// e4m3 latents: by boxes of pages, or token by token.
constexpr cuda::InstanceKey e4m3_key(int tile_rows, cuda::Loading loading, int team = 1) {
  return {Dtype::kU8, e4m3_latent::kDim, e4m3_latent::kLatentDim, tile_rows, loading, 1, team};
}
/// fp8_584. `alone`, with few rows: a CTA has a share of one item, or whole items by kTurns.
constexpr cuda::InstanceKey fp8_584_key(int tile_rows, bool alone = false) {
  return {Dtype::kBF16, fp8_584::kDim, fp8_584::kDim, tile_rows, cuda::Loading::kRopeRecords, 1, 1, alone};
}
/// Records. `alone`: as with fp8_584.
constexpr cuda::InstanceKey records_key(int tile_rows, bool alone) {
  return {Dtype::kBF16, mxfp8_528::kDim, mxfp8_528::kDim, tile_rows, cuda::Loading::kRecords, 1, 1, alone};
}
/// Pages that are loaded by boxes are a multiple of so many tokens.
inline constexpr int kPageTokens = 16;

/// Few rows: each with and without the combine step.
inline constexpr std::array kFewRowsKeys = {key(8), key(16), key(32)};
inline constexpr std::array kTeamKeys = {key(kTeamRows, kTeamCtas)};
inline constexpr std::array kFewRowsE4m3Keys = {
    e4m3_key(8, cuda::Loading::kBoxes),  e4m3_key(8, cuda::Loading::kTokens),
    e4m3_key(16, cuda::Loading::kBoxes), e4m3_key(16, cuda::Loading::kTokens),
    e4m3_key(32, cuda::Loading::kBoxes), e4m3_key(32, cuda::Loading::kTokens)};
inline constexpr std::array kE4m3TeamKeys = {e4m3_key(kTeamRows, cuda::Loading::kBoxes, kTeamCtas),
                                             e4m3_key(kTeamRows, cuda::Loading::kTokens, kTeamCtas)};
inline constexpr std::array kFewRows584Keys = {fp8_584_key(8), fp8_584_key(16), fp8_584_key(32)};
inline constexpr std::array kAlone584Keys = {fp8_584_key(8, true), fp8_584_key(16, true),
                                             fp8_584_key(32, true)};
inline constexpr std::array kRecordsKeys = {
    records_key(8, false), records_key(16, false), records_key(32, false),      records_key(8, true),
    records_key(16, true), records_key(32, true),  records_key(kRows64, false), records_key(kRows64, true)};
/// With the edges of the layer.
constexpr cuda::InstanceKey with_edges(cuda::InstanceKey key) {
  key.edges = true;
  return key;
}
inline constexpr std::array kRows64Keys = {key(kRows64), e4m3_key(kRows64, cuda::Loading::kBoxes),
                                           e4m3_key(kRows64, cuda::Loading::kTokens), fp8_584_key(kRows64)};
/// Sparse prefill with the largest scores, token by token.
inline constexpr std::array kTurnsKeys = {cuda::in_turn(key(8)),
                                          cuda::in_turn(key(16)),
                                          cuda::in_turn(key(32)),
                                          cuda::in_turn(e4m3_key(8, cuda::Loading::kTokens)),
                                          cuda::in_turn(e4m3_key(16, cuda::Loading::kTokens)),
                                          cuda::in_turn(e4m3_key(32, cuda::Loading::kTokens)),
                                          cuda::in_turn(key(kRows64)),
                                          cuda::in_turn(e4m3_key(kRows64, cuda::Loading::kTokens))};
inline constexpr std::array kEdgesKeys = {
    with_edges(fp8_584_key(8, true)),  with_edges(fp8_584_key(16, true)),
    with_edges(fp8_584_key(32, true)), with_edges(fp8_584_key(kRows64)),
    with_edges(records_key(8, true)),  with_edges(records_key(16, true)),
    with_edges(records_key(32, true)), with_edges(records_key(kRows64, true))};

}  // namespace flashlatent::fp8
