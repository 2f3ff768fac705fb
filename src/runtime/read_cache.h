// Measures how long it takes to read the bytes of the cache that a decode call reads, and do nothing with
// them. It is a yardstick, launch included, and no bound: small pieces leave less than 192 KB under way, as 7
// tokens of fp8_584 a stage do, which are two pieces each.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/bench_input.h"
#include "runtime/timing.h"

namespace flashlatent::runtime {

/// A bulk copy of contiguous bytes of the cache; address and size are multiples of 16.
struct Piece {
  static constexpr int kMostBytes = 8192;
  std::uint64_t address : 48;
  std::uint64_t bytes : 16;
};

/// The cached tokens that the call attends to. Dense: each page once, however many requests share it, in the
/// order of the page table (the last page of a packed request counts as full). Sparse: the token of each
/// index.
Result<std::vector<Piece>> cache_pieces(const BenchInput& input);

/// CUDA: times a kernel that copies the pieces to shared memory, with up to 192 KB in flight a
/// multiprocessor.
Result<Timing> time_reading(const std::vector<Piece>& pieces, const TimingOptions& options,
                            const Executor& executor);

}  // namespace flashlatent::runtime
