// The product of 128 columns beside those of wgmma_e4m3.cuh, with A in registers. A's registers bind narrower
// ones: one of 64 columns takes as long.
#pragma once

#include "cuda/sm90/ptx/wgmma_e4m3.cuh"

namespace flashlatent::ptx {

template <>
struct WgmmaE4m3<128> {
  __device__ static __forceinline__ void rs(float (&d)[64], const std::uint32_t (&a)[4], std::uint64_t b,
                                            bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" FLASHLATENT_NAMES_64
        "}, {%64, %65, %66, %67}, %68, p, 1, 1;\n}\n"
        : FLASHLATENT_SUMS_64(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
  }
};

}  // namespace flashlatent::ptx
