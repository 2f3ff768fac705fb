#include <algorithm>

#include "cuda/cuda_backend.h"
#include "cuda/host/launch.h"
#include "cuda/sm90/ptx/barrier.cuh"
#include "cuda/sm90/ptx/copy.cuh"
#include "runtime/read_cache.h"

namespace flashlatent::runtime {

namespace {

constexpr int kWarps = 4;
constexpr int kStages = 6;       // of each warp
constexpr int kMostPieces = 16;  // in a stage: two lanes look up one piece

struct Ring {
  alignas(128) std::uint8_t bytes[kStages][Piece::kMostBytes];
  Piece pieces[kStages][kMostPieces];
  ptx::Barrier full[kStages];
};

/// Reads all pieces, `per_stage` in a stage. Stages are dealt round-robin to the warps: one warp alone would
/// be limited by its own instructions. The pieces of a stage are looked up one pass over the ring ahead.
__global__ void __launch_bounds__(32 * kWarps, 1)
    read_pieces(const Piece* pieces, int per_stage, int stages) {
  extern __shared__ __align__(128) std::uint8_t raw[];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int first = static_cast<int>(blockIdx.x + warp * gridDim.x),
            step = static_cast<int>(kWarps * gridDim.x);
  Ring& ring = reinterpret_cast<Ring*>(raw)[warp];
  const int pitch = Piece::kMostBytes / per_stage / 16 * 16;
  if (lane < kStages) ptx::init(ring.full[lane], 1);
  ptx::publish_barriers();
  __syncwarp();
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();

  int next = first;  // the next stage to look up
  auto look_up = [&](int place) {
    if (next < stages && lane < 2 * per_stage) {
      const auto* words = reinterpret_cast<const std::uint32_t*>(pieces + std::int64_t{next} * per_stage);
      ptx::copy_4_bytes(ptx::shared_address(ring.pieces[place]) + 4 * lane, words + lane);
    }
    ptx::copy_commit();
    next += step;
  };
  auto ask = [&](int place) {
    ptx::copy_wait<kStages - 1>();
    __syncwarp();
    const Piece piece = lane < per_stage ? ring.pieces[place][lane] : Piece{};
    const std::uint32_t bytes = __reduce_add_sync(0xffffffff, static_cast<std::uint32_t>(piece.bytes));
    if (lane == 0) ptx::arrive_expecting(ring.full[place], bytes);
    __syncwarp();
    if (piece.bytes > 0) {
      ptx::copy_bytes(ring.bytes[place] + lane * pitch, reinterpret_cast<const void*>(piece.address),
                      piece.bytes, ring.full[place]);
    }
    look_up(place);
  };
  int asked = first, awaited = first;
  for (int place = 0; place < kStages; ++place) look_up(place);
  for (int place = 0; place < kStages && asked < stages; ++place, asked += step) ask(place);
  for (std::uint32_t parity = 0; awaited < stages; parity ^= 1) {
    for (int place = 0; place < kStages && awaited < stages; ++place, awaited += step) {
      ptx::wait(ring.full[place], parity);
      if (asked < stages) ask(place);
      asked += step;
    }
  }
}

}  // namespace

Result<Timing> time_reading(const std::vector<Piece>& all, const TimingOptions& options,
                            const Executor& executor) {
  FLASHLATENT_ASSIGN_OR_RETURN(int multiprocessors, cuda::multiprocessors(executor.device));
  FLASHLATENT_RETURN_IF_ERROR(cuda::allow_shared_memory<read_pieces>(kWarps * sizeof(Ring), executor.device));
  std::uint64_t largest = 16;
  for (const Piece& piece : all) largest = std::max<std::uint64_t>(largest, piece.bytes);
  const int per_stage = std::min<int>(kMostPieces, Piece::kMostBytes / largest);
  std::vector<Piece> pieces = all;
  pieces.resize((pieces.size() + per_stage - 1) / per_stage * per_stage);
  const std::size_t size = pieces.size() * sizeof(Piece);
  FLASHLATENT_ASSIGN_OR_RETURN(Buffer memory, Buffer::allocate(executor, size));
  FLASHLATENT_RETURN_IF_ERROR(copy_to_device(memory.data(), pieces.data(), size, executor));
  cuda::LaunchShape shape{
      .blocks = multiprocessors, .threads = 32 * kWarps, .shared_bytes = kWarps * sizeof(Ring)};
  shape.overlaps_previous = true;
  return time_calls(
      [&] {
        return cuda::launch(read_pieces, shape, executor, static_cast<const Piece*>(memory.data()), per_stage,
                            static_cast<int>(pieces.size() / per_stage));
      },
      options, executor);
}

}  // namespace flashlatent::runtime
