#include "cuda/mla_64_pingpong/instance.cuh"
#include "cuda/parts/fp8_register_loader.cuh"
#include "cuda/parts/listed_staged_loader.cuh"

namespace flashlatent::mla_64_pingpong {

using Table = std::array<cuda::DenseInstance, kTurnsE4m3Keys.size()>;

using cuda::Loading;
using FromRegisters = parts::Fp8RegisterLoader<1, parts::E4m3Token>;
using Listed = parts::ListedStagedLoader<parts::E4m3LatentRows, 1, 5>;
constinit const Table kTurnsE4m3 = cuda::of_keys(
    kTurnsE4m3Keys, Table{{turns_instance<__nv_bfloat16, 576, 1, FromRegisters>(Dtype::kU8, Loading::kFp8),
                           turns_instance<__nv_bfloat16, 512, 1, Listed>(Dtype::kU8, Loading::kListedFp8)}});

}  // namespace flashlatent::mla_64_pingpong
