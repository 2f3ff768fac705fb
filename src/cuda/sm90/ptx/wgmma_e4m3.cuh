// Warpgroup matrix products of e4m3: D[64, N] += A[64, 32] B[32, N], both K-major. Beside wgmma.cuh.
#pragma once

#include "cuda/sm90/ptx/wgmma.cuh"

namespace flashlatent::ptx {

/// Operands and descriptors as Wgmma's, with four bytes of k in place of a packed pair; no operand can be
/// transposed. A in registers, with r = lane / 4 and c = lane % 4: bytes 4 c to 4 c + 3 of rows r and r + 8,
/// then bytes 16 + 4 c to 16 + 4 c + 3 of these.
template <int kN>
struct WgmmaE4m3;

#define FLASHLATENT_WGMMA_E4M3(n, count, c0, c1, c2, c3, c4, c5)                                             \
  template <>                                                                                                \
  struct WgmmaE4m3<n> {                                                                                      \
    __device__ static __forceinline__ void ss(float (&d)[count], std::uint64_t a, std::uint64_t b,           \
                                              bool accumulate) {                                             \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #c2                                                  \
                   ", 0;\n"                                                                                  \
                   "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {" FLASHLATENT_NAMES_##count    \
                   "}, %" #c0 ", %" #c1 ", p, 1, 1;\n}\n"                                                    \
                   : FLASHLATENT_SUMS_##count(0)                                                             \
                   : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));                                     \
    }                                                                                                        \
    __device__ static __forceinline__ void rs(float (&d)[count], const std::uint32_t (&a)[4],                \
                                              std::uint64_t b, bool accumulate) {                            \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #c5                                                  \
                   ", 0;\n"                                                                                  \
                   "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {" FLASHLATENT_NAMES_##count    \
                   "}, {%" #c0 ", %" #c1 ", %" #c2 ", %" #c3 "}, %" #c4 ", p, 1, 1;\n}\n"                    \
                   : FLASHLATENT_SUMS_##count(0)                                                             \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate))); \
    }                                                                                                        \
  };
FLASHLATENT_WGMMA_E4M3(8, 4, 4, 5, 6, 7, 8, 9)
FLASHLATENT_WGMMA_E4M3(16, 8, 8, 9, 10, 11, 12, 13)
FLASHLATENT_WGMMA_E4M3(32, 16, 16, 17, 18, 19, 20, 21)
FLASHLATENT_WGMMA_E4M3(64, 32, 32, 33, 34, 35, 36, 37)
#undef FLASHLATENT_WGMMA_E4M3

/// Descriptor of a tile of rows of 64 bytes, swizzled in atoms of 8 rows (512 bytes), which lie `kAtomStride`
/// bytes apart. Advance by 32 bytes of k with + kStepOfE4m3.
template <int kAtomStride>
__device__ __forceinline__ std::uint64_t descriptor_k_major_64(std::uint32_t shared_address) {
  constexpr std::uint64_t kSwizzle64 = 2ULL << 62;
  constexpr std::uint64_t kStride = static_cast<std::uint64_t>(kAtomStride >> 4) << 32;
  constexpr std::uint64_t kUnused = 1ULL << 16;  // the leading offset has no meaning for this layout
  return kSwizzle64 | kStride | kUnused | ((shared_address & 0x3FFFF) >> 4);
}
inline constexpr std::uint64_t kStepOfE4m3 = 32 >> 4;

}  // namespace flashlatent::ptx
