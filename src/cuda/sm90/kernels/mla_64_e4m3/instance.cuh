// A compiled shape as a row of data.
#pragma once

#include "cuda/host/atoms_map.h"
#include "cuda/sm90/kernels/mla_64_e4m3/instances.h"
#include "cuda/sm90/kernels/mla_64_e4m3/kernel.cuh"

namespace flashlatent::mla_64_e4m3 {

constexpr cuda::Loading loading_of(Supply supply) {
  return supply == Supply::kBoxes    ? cuda::Loading::kBoxes
         : supply == Supply::kTokens ? cuda::Loading::kTokens
                                     : cuda::Loading::kListedFp8;
}

template <int kQkDim, int kRows, Supply kSupply>
constexpr cuda::DenseInstance instance() {
  using Shape = Config<kQkDim, kRows, kSupply>;
  return {.key = key(kQkDim, kRows, loading_of(kSupply)),
          .kernel = cuda::compiled_kernel<kernel<Shape>, Shape, SharedMemory<Shape>>(),
          .boxes = {.kv = cuda::kv_atoms_map, .query = nullptr},
          .merges = true};
}

template <int kQkDim, int kRows>
constexpr cuda::DenseInstance turns_instance() {
  using Shape = Config<kQkDim, kRows, Supply::kTokens, /*kTurns_=*/true>;
  return {.key = cuda::in_turn(key(kQkDim, kRows, cuda::Loading::kTokens)),
          .kernel = cuda::compiled_kernel<kernel<Shape>, Shape, SharedMemory<Shape>>(),
          .boxes = {.kv = cuda::kv_atoms_map, .query = nullptr}};
}

template <int kQkDim>
constexpr auto turns_instances() {
  return std::array{turns_instance<kQkDim, kFewRows>(), turns_instance<kQkDim, kTileRows>()};
}

template <int kQkDim>
constexpr auto instances() {
  using enum Supply;
  return std::array{instance<kQkDim, kFewRows, kBoxes>(),   instance<kQkDim, kFewRows, kTokens>(),
                    instance<kQkDim, kFewRows, kListed>(),  instance<kQkDim, kTileRows, kBoxes>(),
                    instance<kQkDim, kTileRows, kTokens>(), instance<kQkDim, kTileRows, kListed>()};
}

}  // namespace flashlatent::mla_64_e4m3
