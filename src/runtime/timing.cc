#include "runtime/timing.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>
#include <vector>

#include "core/message.h"
#include "runtime/device_memory.h"
#include "runtime/graph.h"
#if FLASHLATENT_WITH_CUDA
#include "cuda/host/runtime.h"
#endif

namespace flashlatent::runtime {

namespace {

constexpr int kWarmUps = 2;
// The chip's clock depends on what ran before: after heavy products it stays low (1.6 of 1.98 GHz) for tenths
// of a second, and an idle chip takes some milliseconds to raise it. So every case starts after a rest
// (TimingOptions::rest_ms) and with some untimed calls.
constexpr std::chrono::milliseconds kWarmUpTime{10};
// On the CPU, of each call: stop repeating after this time, but not before three repeats.
constexpr std::chrono::seconds kMostCpuTime{3};
constexpr int kLeastRepeats = 3;
// Calls in a graph; fewer where they would take longer than kGraphMs. 40 replays then end within 50 ms,
// before heavy products lower the clock; so do 40 calls without a graph.
constexpr int kGraphCalls = 20;
constexpr int kLeastGraphCalls = 4;
constexpr double kGraphMs = 1.0;
constexpr std::size_t kFlushBytes = std::size_t{256} << 20;  // an H200 has 60 MB of L2

using Call = std::function<Status()>;

/// The times of each call.
std::vector<Timing> summarise(std::vector<std::vector<double>> times) {
  std::vector<Timing> timings;
  for (std::vector<double>& of : times) {
    std::sort(of.begin(), of.end());
    timings.push_back({of[of.size() / 2], of.front(), of.back(), static_cast<int>(of.size())});
  }
  return timings;
}

/// Memory that is overwritten before each call, if the options ask for it.
class Flusher {
 public:
  static Result<Flusher> create(const TimingOptions& options, const Executor& executor) {
    Flusher flusher;
    flusher.executor_ = executor;
    if (!options.cold) return flusher;
    FLASHLATENT_ASSIGN_OR_RETURN(flusher.buffer_, Buffer::allocate(executor, kFlushBytes));
    return flusher;
  }
  Status flush() {
    return buffer_.size() == 0 ? Status{} : fill(buffer_.data(), 1, buffer_.size(), executor_);
  }

 private:
  Buffer buffer_;
  Executor executor_;
};

Result<std::vector<Timing>> time_on_cpu(const std::vector<Call>& calls, const TimingOptions& options,
                                        Flusher& flusher) {
  using Clock = std::chrono::steady_clock;
  std::vector<std::vector<double>> times(calls.size());
  const auto start = Clock::now();
  auto too_long = [&] { return Clock::now() - start > kMostCpuTime * calls.size(); };
  for (int i = -kWarmUps; i < options.repeats; ++i) {
    if (i < 0 && too_long()) continue;
    for (std::size_t k = 0; k < calls.size(); ++k) {
      FLASHLATENT_RETURN_IF_ERROR(flusher.flush());
      const auto begin = Clock::now();
      FLASHLATENT_RETURN_IF_ERROR(calls[k]());
      const std::chrono::duration<double, std::milli> time = Clock::now() - begin;
      if (i >= 0) times[k].push_back(time.count());
    }
    if (i + 1 >= kLeastRepeats && too_long()) break;
  }
  return summarise(std::move(times));
}

#if FLASHLATENT_WITH_CUDA

class Event {
 public:
  Event() { cudaEventCreate(&event_); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Milliseconds between two events that have passed.
Result<float> between(const Event& begin, const Event& end) {
  float ms = 0;
  FLASHLATENT_RETURN_IF_ERROR(
      cuda::to_status(cudaEventElapsedTime(&ms, begin.get(), end.get()), "cudaEventElapsedTime"));
  return ms;
}

/// Milliseconds of a call and its launch, measured once the clock has risen.
Result<double> try_calls(const Call& call, cudaStream_t stream) {
  const Event begin, end;
  double least = std::numeric_limits<double>::infinity();
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - start < kWarmUpTime) {
    cudaEventRecord(begin.get(), stream);
    FLASHLATENT_RETURN_IF_ERROR(call());
    cudaEventRecord(end.get(), stream);
    FLASHLATENT_RETURN_IF_ERROR(cuda::to_status(cudaStreamSynchronize(stream), "cudaStreamSynchronize"));
    FLASHLATENT_ASSIGN_OR_RETURN(const float ms, between(begin, end));
    least = std::min<double>(least, ms);
  }
  return least;
}

/// A call, or a graph of many, between events.
class TimedCall {
 public:
  Status prepare(const Call& call, const TimingOptions& options, cudaStream_t stream) {
    begins_ = std::vector<Event>(options.repeats);
    ends_ = std::vector<Event>(options.repeats);
    launch_ = call;
    FLASHLATENT_RETURN_IF_ERROR(call());
    if (!options.graph) return {};
    calls_ = std::max(options.graph_calls, 1);
    if (!options.cold && options.graph_calls == 0) {
      FLASHLATENT_ASSIGN_OR_RETURN(const double ms, try_calls(call, stream));
      calls_ = static_cast<int>(std::clamp<double>(kGraphMs / ms, kLeastGraphCalls, kGraphCalls));
    }
    auto many = [&] {
      for (int i = 0; i < calls_; ++i) FLASHLATENT_RETURN_IF_ERROR(call());
      return Status{};
    };
    FLASHLATENT_RETURN_IF_ERROR(graph_.capture(many, stream));
    launch_ = [this, stream] { return graph_.launch(stream); };
    return {};
  }
  Status launch() const { return launch_(); }
  /// The repeat `i` of the call.
  Status launch(int i, cudaStream_t stream) const {
    cudaEventRecord(begins_[i].get(), stream);
    FLASHLATENT_RETURN_IF_ERROR(launch());
    cudaEventRecord(ends_[i].get(), stream);
    return {};
  }
  Result<std::vector<double>> times() const {
    std::vector<double> times;
    for (std::size_t i = 0; i < begins_.size(); ++i) {
      FLASHLATENT_ASSIGN_OR_RETURN(const float ms, between(begins_[i], ends_[i]));
      times.push_back(ms / static_cast<float>(calls_));
    }
    return times;
  }

 private:
  Graph graph_;
  Call launch_;
  int calls_ = 1;  // of the graph
  std::vector<Event> begins_, ends_;
};

/// All repeats are enqueued before the first wait, so that the host's time is not measured.
Result<std::vector<Timing>> time_on_cuda(const std::vector<Call>& calls, const TimingOptions& options,
                                         Flusher& flusher, cudaStream_t stream) {
  std::vector<TimedCall> timed(calls.size());
  for (std::size_t k = 0; k < calls.size(); ++k) {
    FLASHLATENT_RETURN_IF_ERROR(timed[k].prepare(calls[k], options, stream));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(options.rest_ms));
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - start < kWarmUpTime) {
    for (const TimedCall& call : timed) FLASHLATENT_RETURN_IF_ERROR(call.launch());
    FLASHLATENT_RETURN_IF_ERROR(cuda::to_status(cudaStreamSynchronize(stream), "cudaStreamSynchronize"));
  }
  for (int i = -kWarmUps; i < options.repeats; ++i) {
    for (const TimedCall& call : timed) {
      FLASHLATENT_RETURN_IF_ERROR(flusher.flush());
      FLASHLATENT_RETURN_IF_ERROR(i < 0 ? call.launch() : call.launch(i, stream));
    }
  }
  FLASHLATENT_RETURN_IF_ERROR(cuda::to_status(cudaStreamSynchronize(stream), "cudaStreamSynchronize"));
  std::vector<std::vector<double>> times;
  for (const TimedCall& call : timed) {
    FLASHLATENT_ASSIGN_OR_RETURN(times.emplace_back(), call.times());
  }
  return summarise(std::move(times));
}

#endif

}  // namespace

Result<Stream> Stream::create(const Executor& executor) {
  Stream stream;
#if FLASHLATENT_WITH_CUDA
  if (executor.backend == Backend::kCuda) {
    FLASHLATENT_RETURN_IF_ERROR(cuda::to_status(cudaSetDevice(executor.device), "cudaSetDevice"));
    cudaStream_t made = nullptr;
    FLASHLATENT_RETURN_IF_ERROR(
        cuda::to_status(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "cudaStreamCreate"));
    stream.stream_ = made;
  }
#endif
  (void)executor;
  return stream;
}

Stream::~Stream() {
#if FLASHLATENT_WITH_CUDA
  if (stream_ != nullptr) cudaStreamDestroy(static_cast<cudaStream_t>(stream_));
#endif
}

Result<std::vector<Timing>> time_turn_about(const std::vector<std::function<Status()>>& calls,
                                            const TimingOptions& options, const Executor& executor) {
  if (options.repeats < 1) return invalid_argument("repeats is ", options.repeats, "; at least 1 is needed");
  FLASHLATENT_ASSIGN_OR_RETURN(Flusher flusher, Flusher::create(options, executor));
#if FLASHLATENT_WITH_CUDA
  if (executor.backend == Backend::kCuda) {
    return time_on_cuda(calls, options, flusher, static_cast<cudaStream_t>(executor.stream));
  }
#endif
  return time_on_cpu(calls, options, flusher);
}

Result<Timing> time_calls(const std::function<Status()>& call, const TimingOptions& options,
                          const Executor& executor) {
  FLASHLATENT_ASSIGN_OR_RETURN(const std::vector<Timing> timings, time_turn_about({call}, options, executor));
  return timings[0];
}

}  // namespace flashlatent::runtime
