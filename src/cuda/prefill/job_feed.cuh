// How a CTA's jobs come to those that need them.
#pragma once

#include <type_traits>

#include "cuda/prefill/segment_jobs.cuh"
#include "cuda/prefill/smem_layout.cuh"

namespace flashlatent::prefill {

/// The jobs of a CTA, for the loading warps: the first one finds them, and gives them to the other three and
/// to those that compute.
template <class Config>
class JobFeed {
 public:
  __device__ __forceinline__ JobFeed(SharedMemory<Config>& shared, const Arguments& args)
      : shared_(shared),
        jobs_(args),
        warp_(static_cast<int>(threadIdx.x - Config::kComputeThreads) / 32),
        lane_(threadIdx.x % 32) {}

  /// The next one; false: there is none.
  __device__ __forceinline__ bool next(Job& job) {
    const std::uint32_t slot = index_ % kJobSlots, parity = index_ / kJobSlots % 2;
    ++index_;
    if (warp_ == 0) put(jobs_.next(), slot, parity);
    ptx::wait(shared_.jobs_full[slot], parity);
    job = shared_.jobs[slot];
    __syncwarp();
    if (warp_ != 0 && lane_ == 0) ptx::arrive(shared_.jobs_empty[slot]);
    return job.tile.rows != 0;
  }

 private:
  __device__ __forceinline__ void put(const Job& job, std::uint32_t slot, std::uint32_t parity) {
    ptx::wait(shared_.jobs_empty[slot], parity ^ 1);
    if (lane_ == 0) {
      shared_.jobs[slot] = job;
      ptx::arrive(shared_.jobs_full[slot]);
    }
    __syncwarp();
  }

  SharedMemory<Config>& shared_;
  std::conditional_t<Config::kSegments, SegmentJobs<Config>, Jobs<Config>> jobs_;
  const int warp_, lane_;
  std::uint32_t index_ = 0;
};

}  // namespace flashlatent::prefill
