#include <algorithm>

#include "cuda/common/launch.h"
#include "cuda/cuda_backend.h"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/copy.cuh"
#include "runtime/read_cache.h"

namespace flashlatent::runtime {

namespace {

constexpr int kStages = 24;
constexpr int kMostPieces = 16;  // a stage: two lanes look one up

struct Shared {
  alignas(128) std::uint8_t bytes[kStages][Piece::kMostBytes];
  Piece pieces[kStages][kMostPieces];
  ptx::Barrier full[kStages];
};

/// Stages of `per_stage` pieces, a round of them to all CTAs in turn. What a stage's pieces are is looked up
/// when the stage is asked for the last time before.
__global__ void __launch_bounds__(32, 1)
    read_pieces(const Piece* pieces, int per_stage, std::int64_t stages) {
  extern __shared__ __align__(128) std::uint8_t raw[];
  Shared& shared = *reinterpret_cast<Shared*>(raw);
  const int lane = static_cast<int>(threadIdx.x);
  if (lane < kStages) ptx::init(shared.full[lane], 1);
  ptx::publish_barriers();
  __syncwarp();
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  const std::int64_t count = (stages - blockIdx.x + gridDim.x - 1) / gridDim.x;  // of this CTA's stages
  const int pitch = Piece::kMostBytes / per_stage / 16 * 16;
  auto look_up = [&](std::int64_t k) {
    if (k < count && lane < 2 * per_stage) {
      const auto* words =
          reinterpret_cast<const std::uint32_t*>(pieces + (blockIdx.x + k * gridDim.x) * per_stage);
      ptx::copy_4_bytes(ptx::shared_address(shared.pieces[k % kStages]) + 4 * lane, words + lane);
    }
    ptx::copy_commit();
  };
  auto ask = [&](std::int64_t k) {
    const int stage = static_cast<int>(k % kStages);
    ptx::copy_wait<kStages - 1>();
    __syncwarp();
    const Piece piece = lane < per_stage ? shared.pieces[stage][lane] : Piece{};
    const std::uint32_t bytes = __reduce_add_sync(0xffffffff, static_cast<std::uint32_t>(piece.bytes));
    if (lane == 0) ptx::arrive_expecting(shared.full[stage], bytes);
    __syncwarp();
    if (piece.bytes > 0) {
      ptx::copy_bytes(shared.bytes[stage] + lane * pitch, reinterpret_cast<const void*>(piece.address),
                      piece.bytes, shared.full[stage]);
    }
    look_up(k + kStages);
  };
  for (int k = 0; k < kStages; ++k) look_up(k);
  for (std::int64_t k = 0; k < kStages && k < count; ++k) ask(k);
  for (std::int64_t k = 0; k < count; ++k) {
    ptx::wait(shared.full[k % kStages], k / kStages % 2);
    if (k + kStages < count) ask(k + kStages);
  }
}

}  // namespace

Result<Timing> time_reading(const std::vector<Piece>& all, const TimingOptions& options,
                            const Executor& executor) {
  Result<int> multiprocessors = cuda::multiprocessors(executor.device);
  if (!multiprocessors.ok()) return multiprocessors.status();
  FLASHLATENT_RETURN_IF_ERROR(cuda::allow_shared_memory<read_pieces>(sizeof(Shared), executor.device));
  std::uint64_t largest = 16;
  for (const Piece& piece : all) largest = std::max<std::uint64_t>(largest, piece.bytes);
  const int per_stage = std::min<int>(kMostPieces, Piece::kMostBytes / largest);
  std::vector<Piece> pieces = all;
  pieces.resize((pieces.size() + per_stage - 1) / per_stage * per_stage);
  const std::size_t size = pieces.size() * sizeof(Piece);
  Result<Buffer> memory = Buffer::allocate(executor, size);
  if (!memory.ok()) return memory.status();
  FLASHLATENT_RETURN_IF_ERROR(copy_to_device(memory->data(), pieces.data(), size, executor));
  cuda::LaunchShape shape{.blocks = *multiprocessors, .threads = 32, .shared_bytes = sizeof(Shared)};
  shape.overlaps_previous = true;
  return time_calls(
      [&] {
        return cuda::launch(read_pieces, shape, executor, static_cast<const Piece*>(memory->data()),
                            per_stage, static_cast<std::int64_t>(pieces.size() / per_stage));
      },
      options, executor);
}

}  // namespace flashlatent::runtime
