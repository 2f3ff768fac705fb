// How long it takes to read what a decode call reads of the cache, and to do nothing with it: the limit that
// the machine sets to any kernel on the same pages, launch included.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/bench_input.h"
#include "runtime/timing.h"

namespace flashlatent::runtime {

/// A bulk copy: contiguous bytes of the cache, both multiples of 16.
struct Piece {
  static constexpr int kMostBytes = 8192;
  std::uint64_t address : 48;
  std::uint64_t bytes : 16;
};

/// The cached tokens that the call attends to. Dense: each page once, however many requests share it, in the
/// order of the page table (the last page of a packed request whole). Sparse: each index's token.
Result<std::vector<Piece>> cache_pieces(const BenchInput& input);

/// CUDA: times a kernel that brings the pieces to shared memory, up to 192 KB in flight a multiprocessor.
Result<Timing> time_reading(const std::vector<Piece>& pieces, const TimingOptions& options,
                            const Executor& executor);

}  // namespace flashlatent::runtime
