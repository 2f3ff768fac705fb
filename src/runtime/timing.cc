#include "runtime/timing.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>
#include <vector>

#include "core/message.h"
#include "runtime/device_memory.h"
#if FLASHLATENT_WITH_CUDA
#include "cuda/common/runtime.h"
#endif

namespace flashlatent::runtime {

namespace {

constexpr int kWarmUps = 2;
// The chip's clock depends on what ran before: after heavy products it stays low (1.6 of 1.98 GHz) for tenths
// of a second, and an idle chip takes some milliseconds to raise it. So every case starts after a rest
// (TimingOptions::rest_ms) and with some untimed calls.
constexpr std::chrono::milliseconds kWarmUpTime{10};
constexpr int kLeastRepeats = 3;
// Calls in a graph; fewer where they would take longer than kGraphMs. 40 replays then end within 50 ms,
// before heavy products lower the clock; so do 40 calls without a graph.
constexpr int kGraphCalls = 20;
constexpr int kLeastGraphCalls = 4;
constexpr double kGraphMs = 1.0;
constexpr std::size_t kFlushBytes = std::size_t{256} << 20;  // an H200 has 60 MB of L2

Timing summarise(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.front(), times.back(), static_cast<int>(times.size())};
}

/// Memory that is overwritten before each call, if the options ask for it.
class Flusher {
 public:
  static Result<Flusher> create(const TimingOptions& options, const Executor& executor) {
    Flusher flusher;
    flusher.executor_ = executor;
    if (!options.cold) return flusher;
    Result<Buffer> buffer = Buffer::allocate(executor, kFlushBytes);
    if (!buffer.ok()) return buffer.status();
    flusher.buffer_ = std::move(*buffer);
    return flusher;
  }
  Status flush() {
    return buffer_.size() == 0 ? Status{} : fill(buffer_.data(), 1, buffer_.size(), executor_);
  }

 private:
  Buffer buffer_;
  Executor executor_;
};

Result<Timing> time_on_cpu(const std::function<Status()>& call, const TimingOptions& options,
                           Flusher& flusher) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  const auto start = Clock::now();
  auto too_long = [&] {
    return std::chrono::duration<double>(Clock::now() - start).count() > options.max_seconds;
  };
  for (int i = -kWarmUps; i < options.repeats; ++i) {
    if (i < 0 && too_long()) continue;
    FLASHLATENT_RETURN_IF_ERROR(flusher.flush());
    const auto begin = Clock::now();
    FLASHLATENT_RETURN_IF_ERROR(call());
    const std::chrono::duration<double, std::milli> time = Clock::now() - begin;
    if (i >= 0) times.push_back(time.count());
    if (static_cast<int>(times.size()) >= kLeastRepeats && too_long()) break;
  }
  return summarise(std::move(times));
}

Result<std::vector<Timing>> time_turn_about_on_cpu(const std::vector<std::function<Status()>>& calls,
                                                   const TimingOptions& options) {
  using Clock = std::chrono::steady_clock;
  std::vector<std::vector<double>> times(calls.size());
  for (int i = -1; i < options.repeats; ++i) {
    for (std::size_t k = 0; k < calls.size(); ++k) {
      const auto begin = Clock::now();
      FLASHLATENT_RETURN_IF_ERROR(calls[k]());
      const std::chrono::duration<double, std::milli> time = Clock::now() - begin;
      if (i >= 0) times[k].push_back(time.count());
    }
  }
  std::vector<Timing> timings;
  timings.reserve(times.size());
  for (std::vector<double>& each : times) timings.push_back(summarise(std::move(each)));
  return timings;
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

/// A captured and instantiated CUDA graph.
class Graph {
 public:
  Graph() = default;
  ~Graph() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  Status capture(const std::function<Status()>& call, cudaStream_t stream) {
    FLASHLATENT_RETURN_IF_ERROR(cuda::to_status(
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture"));
    Status status = call();
    const cudaError_t error = cudaStreamEndCapture(stream, &graph_);
    FLASHLATENT_RETURN_IF_ERROR(status);
    FLASHLATENT_RETURN_IF_ERROR(cuda::to_status(error, "cudaStreamEndCapture"));
    return cuda::to_status(cudaGraphInstantiate(&executable_, graph_, 0), "cudaGraphInstantiate");
  }
  Status launch(cudaStream_t stream) {
    return cuda::to_status(cudaGraphLaunch(executable_, stream), "cudaGraphLaunch");
  }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

/// Milliseconds of a call and its launch, measured once the clock has risen.
Result<double> try_calls(const std::function<Status()>& call, cudaStream_t stream) {
  const Event begin, end;
  double least = std::numeric_limits<double>::infinity();
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - start < kWarmUpTime) {
    cudaEventRecord(begin.get(), stream);
    FLASHLATENT_RETURN_IF_ERROR(call());
    cudaEventRecord(end.get(), stream);
    FLASHLATENT_RETURN_IF_ERROR(cuda::to_status(cudaStreamSynchronize(stream), "cudaStreamSynchronize"));
    float ms = 0;
    FLASHLATENT_RETURN_IF_ERROR(
        cuda::to_status(cudaEventElapsedTime(&ms, begin.get(), end.get()), "cudaEventElapsedTime"));
    least = std::min<double>(least, ms);
  }
  return least;
}

/// All repeats are enqueued before the first wait, so that the host's time is not measured.
Result<Timing> time_on_cuda(const std::function<Status()>& call, const TimingOptions& options,
                            Flusher& flusher, cudaStream_t stream) {
  Graph graph;
  std::function<Status()> timed = call;
  int calls = 1;
  FLASHLATENT_RETURN_IF_ERROR(call());
  if (options.graph) {
    calls = std::max(options.graph_calls, 1);
    if (!options.cold && options.graph_calls == 0) {
      Result<double> ms = try_calls(call, stream);
      if (!ms.ok()) return ms.status();
      calls = static_cast<int>(std::clamp<double>(kGraphMs / *ms, kLeastGraphCalls, kGraphCalls));
    }
    auto many = [&] {
      for (int i = 0; i < calls; ++i) FLASHLATENT_RETURN_IF_ERROR(call());
      return Status{};
    };
    FLASHLATENT_RETURN_IF_ERROR(graph.capture(many, stream));
    timed = [&] { return graph.launch(stream); };
  }
  const std::vector<Event> begins(options.repeats), ends(options.repeats);
  std::this_thread::sleep_for(std::chrono::milliseconds(options.rest_ms));
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - start < kWarmUpTime) {
    FLASHLATENT_RETURN_IF_ERROR(timed());
    FLASHLATENT_RETURN_IF_ERROR(cuda::to_status(cudaStreamSynchronize(stream), "cudaStreamSynchronize"));
  }
  for (int i = -kWarmUps; i < options.repeats; ++i) {
    FLASHLATENT_RETURN_IF_ERROR(flusher.flush());
    if (i >= 0) cudaEventRecord(begins[i].get(), stream);
    FLASHLATENT_RETURN_IF_ERROR(timed());
    if (i >= 0) cudaEventRecord(ends[i].get(), stream);
  }
  FLASHLATENT_RETURN_IF_ERROR(cuda::to_status(cudaStreamSynchronize(stream), "cudaStreamSynchronize"));
  std::vector<double> times;
  for (int i = 0; i < options.repeats; ++i) {
    float ms = 0;
    FLASHLATENT_RETURN_IF_ERROR(
        cuda::to_status(cudaEventElapsedTime(&ms, begins[i].get(), ends[i].get()), "cudaEventElapsedTime"));
    times.push_back(ms / calls);
  }
  return summarise(std::move(times));
}

/// In each round every call, or a graph of it, is launched once, between events.
Result<std::vector<Timing>> time_turn_about_on_cuda(const std::vector<std::function<Status()>>& calls,
                                                    const TimingOptions& options, cudaStream_t stream) {
  const int graph_calls = options.graph ? std::max(options.graph_calls, 1) : 1;
  std::vector<Graph> graphs(options.graph ? calls.size() : 0);
  std::vector<std::function<Status()>> timed = calls;
  for (std::size_t k = 0; k < calls.size(); ++k) {
    FLASHLATENT_RETURN_IF_ERROR(calls[k]());
    if (!options.graph) continue;
    auto many = [&] {
      for (int i = 0; i < graph_calls; ++i) FLASHLATENT_RETURN_IF_ERROR(calls[k]());
      return Status{};
    };
    FLASHLATENT_RETURN_IF_ERROR(graphs[k].capture(many, stream));
    timed[k] = [&graphs, k, stream] { return graphs[k].launch(stream); };
  }
  const std::vector<Event> begins(options.repeats * calls.size()), ends(options.repeats * calls.size());
  std::this_thread::sleep_for(std::chrono::milliseconds(options.rest_ms));
  for (int i = -1; i < options.repeats; ++i) {
    for (std::size_t k = 0; k < calls.size(); ++k) {
      const std::size_t at = i * calls.size() + k;
      if (i >= 0) cudaEventRecord(begins[at].get(), stream);
      FLASHLATENT_RETURN_IF_ERROR(timed[k]());
      if (i >= 0) cudaEventRecord(ends[at].get(), stream);
    }
  }
  FLASHLATENT_RETURN_IF_ERROR(cuda::to_status(cudaStreamSynchronize(stream), "cudaStreamSynchronize"));
  std::vector<Timing> timings;
  for (std::size_t k = 0; k < calls.size(); ++k) {
    std::vector<double> times;
    for (int i = 0; i < options.repeats; ++i) {
      float ms = 0;
      const std::size_t at = i * calls.size() + k;
      FLASHLATENT_RETURN_IF_ERROR(cuda::to_status(cudaEventElapsedTime(&ms, begins[at].get(), ends[at].get()),
                                                  "cudaEventElapsedTime"));
      times.push_back(ms / graph_calls);
    }
    timings.push_back(summarise(std::move(times)));
  }
  return timings;
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

Result<Timing> time_calls(const std::function<Status()>& call, const TimingOptions& options,
                          const Executor& executor) {
  if (options.repeats < 1) return invalid_argument("repeats is ", options.repeats, "; at least 1 is needed");
  Result<Flusher> flusher = Flusher::create(options, executor);
  if (!flusher.ok()) return flusher.status();
#if FLASHLATENT_WITH_CUDA
  if (executor.backend == Backend::kCuda) {
    return time_on_cuda(call, options, *flusher, static_cast<cudaStream_t>(executor.stream));
  }
#endif
  return time_on_cpu(call, options, *flusher);
}

Result<std::vector<Timing>> time_turn_about(const std::vector<std::function<Status()>>& calls,
                                            const TimingOptions& options, const Executor& executor) {
  if (options.repeats < 1) return invalid_argument("repeats is ", options.repeats, "; at least 1 is needed");
#if FLASHLATENT_WITH_CUDA
  if (executor.backend == Backend::kCuda) {
    return time_turn_about_on_cuda(calls, options, static_cast<cudaStream_t>(executor.stream));
  }
#endif
  (void)executor;
  return time_turn_about_on_cpu(calls, options);
}

}  // namespace flashlatent::runtime
