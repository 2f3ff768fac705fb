// The compiled instances of mla_16, as rows of data.
#pragma once

#include "cuda/host/dense_instance.h"
#include "cuda/sm90/kernels/mla_16/keys.h"

namespace flashlatent::mla_16 {

template <const auto& kKeysOf>
using Table = std::array<cuda::DenseInstance, kKeysOf.size()>;

extern const Table<kKeys> kInstances;
extern const Table<kTeamKeys> kTeams;
extern const Table<kTurnsKeys> kTurns;  // sparse prefill

}  // namespace flashlatent::mla_16
