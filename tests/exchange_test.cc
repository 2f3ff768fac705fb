// The one-sided exchange with ranks that share one GPU: each has a stream and memory of its own, and their
// kernels run at once. On several GPUs tests/python/distributed_cases.py runs it.
#include "flashlatent/exchange.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "core/element.h"
#include "device_tensor.h"

namespace flashlatent {
namespace {

struct Shape {
  int batch, s_q, heads, v_dim;  // heads of a rank
  Dtype dtype = Dtype::kBF16;
  bool has_sink = false;
};

/// One rank's tensors of one call.
class RankCall {
 public:
  RankCall(const Executor& executor, const Shape& shape, int world)
      : shape_(shape),
        world_(world),
        partial_out_(executor, shape.dtype, {shape.batch, shape.s_q, shape.heads * world, shape.v_dim}, 8),
        partial_lse_(executor, Dtype::kF32, {shape.batch, shape.heads * world, shape.s_q}),
        sink_(executor, Dtype::kF32, {1, shape.heads}),
        out_(executor, shape.dtype, {shape.batch, shape.s_q, shape.heads, shape.v_dim}),
        lse_(executor, Dtype::kF32, {shape.batch, shape.heads, shape.s_q}) {}

  /// Some parts have no tokens, and NaN where their outputs are.
  void fill(std::mt19937& random) {
    std::normal_distribution<float> normal;
    for (int b = 0; b < shape_.batch; ++b) {
      for (int h = 0; h < shape_.heads * world_; ++h) {
        for (int t = 0; t < shape_.s_q; ++t) {
          const bool empty = random() % 5 == 0;
          partial_lse_.row<float>(b, h)[t] = empty ? -INFINITY : 5 * normal(random);
          auto* row = partial_out_.row<std::uint16_t>(b, t, h);
          for (int d = 0; d < shape_.v_dim; ++d)
            row[d] = from_float(empty ? NAN : normal(random), shape_.dtype);
        }
      }
    }
    for (int h = 0; h < shape_.heads; ++h) sink_.row<float>(0)[h] = normal(random);
    for (Tensor* tensor : {&partial_out_, &partial_lse_, &sink_, &out_, &lse_}) tensor->upload();
  }

  Status run(const Peers& peers, const Executor& executor) const {
    ConstTensorView sink;
    if (shape_.has_sink)
      sink = ConstTensorView(sink_.view().data, Dtype::kF32, {shape_.heads}, sink_.view().device);
    return exchange_combine(peers, partial_out_.view(), partial_lse_.view(), sink, out_.view(), lse_.view(),
                            executor);
  }

  /// Against the parts of all ranks, in double precision.
  void expect_right(std::vector<RankCall>& calls, int rank) {
    out_.download();
    lse_.download();
    for (int b = 0; b < shape_.batch; ++b) {
      for (int h = 0; h < shape_.heads; ++h) {
        for (int t = 0; t < shape_.s_q; ++t) expect_row_right(calls, rank, b, h, t);
      }
    }
  }

 private:
  void expect_row_right(std::vector<RankCall>& calls, int rank, int b, int h, int t) {
    const int head = rank * shape_.heads + h;
    double sum = 0;
    for (RankCall& call : calls) sum += std::exp(double{call.partial_lse_.row<float>(b, head)[t]});
    const float lse = lse_.row<float>(b, h)[t];
    if (sum == 0) {
      ASSERT_EQ(lse, -INFINITY);
    } else {
      ASSERT_NEAR(lse, std::log(sum), 1e-4);
    }
    const double with_sink = shape_.has_sink ? sum + std::exp(double{sink_.row<float>(0)[h]}) : sum;
    for (int d = 0; d < shape_.v_dim; ++d) {
      double expected = 0;
      for (RankCall& call : calls) {
        const double weight = std::exp(double{call.partial_lse_.row<float>(b, head)[t]});
        const auto bits = call.partial_out_.row<std::uint16_t>(b, t, head)[d];
        if (weight > 0) expected += weight / with_sink * to_float(bits, shape_.dtype);
      }
      ASSERT_NEAR(to_float(out_.row<std::uint16_t>(b, t, h)[d], shape_.dtype), expected, 0.02)
          << "rank " << rank << ", " << b << " " << t << " " << h << " " << d;
    }
  }

  Shape shape_;
  int world_;
  Tensor partial_out_, partial_lse_, sink_, out_, lse_;
};

class ExchangeTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (Status status = available(Backend::kCuda); !status.ok()) GTEST_SKIP() << status.message();
    if (std::getenv("CUDA_LAUNCH_BLOCKING") != nullptr) GTEST_SKIP() << "ranks would wait for each other";
    world_ = GetParam();
    for (int rank = 0; rank < world_; ++rank) {
      cudaStream_t stream;
      ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
      executors_.emplace_back();
      executors_.back().backend = Backend::kCuda;
      executors_.back().stream = stream;
    }
  }
  void TearDown() override {
    for (const Executor& executor : executors_) cudaStreamDestroy(static_cast<cudaStream_t>(executor.stream));
  }

  void make_memory(int rows, int v_dim) {
    bytes_ = exchange_bytes(rows, v_dim, world_);
    for (const Executor& executor : executors_) {
      buffers_.push_back(std::move(*runtime::Buffer::allocate(executor, bytes_)));
      memory_.push_back(buffers_.back().data());
      ASSERT_TRUE(runtime::fill(memory_.back(), 0, bytes_, executor).ok());
      ASSERT_TRUE(runtime::synchronize(executor).ok());
    }
  }
  std::vector<RankCall> calls_of(const Shape& shape) {
    std::vector<RankCall> calls;
    for (const Executor& executor : executors_) {
      calls.emplace_back(executor, shape, world_);
      calls.back().fill(random_);
    }
    return calls;
  }
  void run(const std::vector<RankCall>& calls, int rank) {
    const Status status =
        calls[rank].run({.rank = rank, .memory = memory_, .bytes = bytes_}, executors_[rank]);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  void expect_right(std::vector<RankCall>& calls) {
    for (int rank = 0; rank < world_ && !HasFatalFailure(); ++rank) calls[rank].expect_right(calls, rank);
  }

  int world_ = 0;
  std::mt19937 random_{11};
  std::vector<Executor> executors_;
  std::vector<runtime::Buffer> buffers_;
  std::vector<void*> memory_;
  std::size_t bytes_ = 0;
};

/// Words of other shapes lie in the same places.
TEST_P(ExchangeTest, OneShapeAfterTheOther) {
  make_memory(64, 512);
  const Shape shapes[] = {{1, 1, 8, 512},
                          {4, 2, 3, 512, Dtype::kF16},
                          {2, 1, 16, 72, Dtype::kBF16, true},
                          {1, 4, 16, 512, Dtype::kBF16, true},
                          {3, 1, 1, 8},
                          {1, 1, 8, 256, Dtype::kF16, true}};
  for (int round = 0; round < 3; ++round) {
    for (const Shape& shape : shapes) {
      std::vector<RankCall> calls = calls_of(shape);
      for (int rank = 0; rank < world_; ++rank) run(calls, rank);
      expect_right(calls);
    }
  }
}

/// Exchanges of one stream overlap: what one leaves must not be taken for another's.
TEST_P(ExchangeTest, GraphsOfManyAfterEachOther) {
  make_memory(32, 512);
  std::vector<std::vector<RankCall>> layers;
  for (int i = 0; i < 5; ++i) layers.push_back(calls_of({i + 1, 1, 4, 512}));
  std::vector<cudaGraphExec_t> graphs(world_);
  for (int rank = 0; rank < world_; ++rank) {
    auto* stream = static_cast<cudaStream_t>(executors_[rank].stream);
    cudaGraph_t graph;
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    for (const auto& calls : layers) run(calls, rank);
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&graphs[rank], graph, 0), cudaSuccess);
    ASSERT_EQ(cudaGraphUpload(graphs[rank], stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    cudaGraphDestroy(graph);
  }
  for (int round = 0; round < 4; ++round) {
    for (auto& calls : layers) {
      for (RankCall& call : calls) call.fill(random_);
    }
    for (int replay = 0; replay < 25; ++replay) {
      for (int rank = 0; rank < world_; ++rank) {
        ASSERT_EQ(cudaGraphLaunch(graphs[rank], static_cast<cudaStream_t>(executors_[rank].stream)),
                  cudaSuccess);
      }
    }
    for (auto& calls : layers) expect_right(calls);
  }
  for (cudaGraphExec_t graph : graphs) cudaGraphExecDestroy(graph);
}

/// More packs than threads.
TEST_P(ExchangeTest, ManyRows) {
  if (world_ > 2) GTEST_SKIP() << "one GPU has not room for the threads of so many ranks at once";
  make_memory(2400, 512);
  std::vector<RankCall> calls = calls_of({75, 2, 16, 512});
  for (int rank = 0; rank < world_; ++rank) run(calls, rank);
  expect_right(calls);
}

INSTANTIATE_TEST_SUITE_P(Ranks, ExchangeTest, testing::Values(2, 3, 4, 5));

}  // namespace
}  // namespace flashlatent
