// What the transposed kernel is compiled for, as data.
#pragma once

#include "core/formats/e4m3_latent.h"
#include "core/formats/fp8_584.h"
#include "core/formats/fp8_656.h"
#include "cuda/host/instance_key.h"

namespace flashlatent::mla_16_transposed {

/// Query rows a tile. From a plain cache 8, as tensor parallelism leaves of 64 or 128 heads; with more rows
/// mla_16 is as fast or faster (docs/log/mla_16.md, "mla_16 and mla_16_transposed").
inline constexpr int kTileRows = 16, kLowTileRows = 8;

inline constexpr auto kLowKeys = cuda::plain_keys(576, 512, kLowTileRows);
inline constexpr std::array<cuda::InstanceKey, 1> kFp8Keys = {
    {{Dtype::kBF16, fp8_656::kDim, fp8_656::kLatentDim, kTileRows, cuda::Loading::kFp8}}};
inline constexpr std::array<cuda::InstanceKey, 1> kRopeRecordKeys = {
    {{Dtype::kBF16, fp8_584::kDim, fp8_584::kDim, kTileRows, cuda::Loading::kRopeRecords}}};
/// mxfp8_528, nvfp4_288, fp8_528.
constexpr cuda::InstanceKey records_key(bool turns = false) {
  return {Dtype::kBF16, fp8_584::kDim, fp8_584::kDim, kTileRows, cuda::Loading::kRecords, 1, 1, turns};
}
inline constexpr std::array kRecordsKeys = {records_key()};
inline constexpr std::array kTurnsRecordsKeys = {records_key(true)};
constexpr cuda::InstanceKey e4m3_key(int qk_dim, cuda::Loading loading) {
  return {Dtype::kU8, qk_dim, e4m3_latent::kLatentDim, kTileRows, loading};
}
inline constexpr std::array kE4m3Keys = {e4m3_key(e4m3_latent::kDim, cuda::Loading::kFp8),
                                         e4m3_key(e4m3_latent::kDim, cuda::Loading::kListedFp8),
                                         e4m3_key(e4m3_latent::kLatentDim, cuda::Loading::kListedFp8)};
inline constexpr std::array<cuda::InstanceKey, 1> kListedKeys = {
    {{Dtype::kBF16, fp8_656::kDim, fp8_656::kLatentDim, kTileRows, cuda::Loading::kListedFp8}}};

/// For CTAs with a share of one item, by lists.
inline constexpr std::array kShareKeys = {kRopeRecordKeys[0], kListedKeys[0], kRecordsKeys[0]};

/// The keys of instances for sparse prefill, by lists.
inline constexpr std::array<cuda::InstanceKey, 2> kTurnsKeys = {
    {{Dtype::kBF16, fp8_584::kDim, fp8_584::kDim, kTileRows, cuda::Loading::kRopeRecords, 1, 1, true},
     {Dtype::kBF16, fp8_656::kDim, fp8_656::kLatentDim, kTileRows, cuda::Loading::kListedFp8, 1, 1, true}}};
constexpr cuda::InstanceKey e4m3_turns_key(int qk_dim) {
  return {Dtype::kU8, qk_dim, e4m3_latent::kLatentDim, kTileRows, cuda::Loading::kListedFp8, 1, 1, true};
}
inline constexpr std::array kTurnsE4m3Keys = {e4m3_turns_key(e4m3_latent::kDim),
                                              e4m3_turns_key(e4m3_latent::kLatentDim)};

}  // namespace flashlatent::mla_16_transposed
