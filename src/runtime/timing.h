// Times calls on either backend.
#pragma once

#include <functional>
#include <vector>

#include "flashlatent/backend.h"
#include "flashlatent/status.h"

namespace flashlatent::runtime {

/// A CUDA stream, which unlike the default stream can be captured; nothing on the CPU.
class Stream {
 public:
  static Result<Stream> create(const Executor& executor);
  Stream() = default;
  Stream(Stream&& other) noexcept : stream_(other.stream_) { other.stream_ = nullptr; }
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~Stream();
  void* get() const { return stream_; }

 private:
  void* stream_ = nullptr;
};

struct TimingOptions {
  int repeats = 40;
  bool graph = false;   ///< CUDA: time replays of a graph of many calls, which leaves launch gaps out.
  int graph_calls = 0;  ///< Calls in that graph; 0: chosen by the time that a call takes.
  bool cold = false;    ///< Overwrite more memory than the caches hold before each call.
  int rest_ms = 200;    ///< CUDA: rest before the first call, milliseconds.
};

/// Milliseconds of one call.
struct Timing {
  double median = 0;
  double least = 0;
  double most = 0;
  int repeats = 0;
};

/// Times `call`, which enqueues work on the executor's stream, after two untimed ones. On CUDA between events
/// around each call, or around each replay of a graph of 20 calls (fewer, at least 4, if they take above 1
/// ms). On the CPU for 3 seconds at most, but at least three times.
Result<Timing> time_calls(const std::function<Status()>& call, const TimingOptions& options,
                          const Executor& executor);

/// Times several calls alternately, so that changes with time affect all alike: each repeat runs every call
/// once.
Result<std::vector<Timing>> time_turn_about(const std::vector<std::function<Status()>>& calls,
                                            const TimingOptions& options, const Executor& executor);

}  // namespace flashlatent::runtime
