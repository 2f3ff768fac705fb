// A CUDA graph of enqueued work.
#pragma once

#include <functional>

#include "flashlatent/status.h"

namespace flashlatent::runtime {

/// A captured and instantiated CUDA graph. In a build without CUDA capture() fails.
class Graph {
 public:
  Graph() = default;
  ~Graph();  // NOLINT(performance-trivially-destructible): not so with CUDA
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// Captures what `call` enqueues on the stream, which is not the default one. Once for each Graph.
  Status capture(const std::function<Status()>& call, void* stream);
  /// Enqueues it on the stream.
  Status launch(void* stream);

 private:
  void* graph_ = nullptr;       // cudaGraph_t
  void* executable_ = nullptr;  // cudaGraphExec_t
};

}  // namespace flashlatent::runtime
