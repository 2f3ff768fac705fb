// The one-sided exchange, and gathering, with ranks that share one GPU: each has a stream and memory of its
// own, and their kernels run at once. On several GPUs tests/python/distributed_cases.py runs it.
#include "flashlatent/exchange.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
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

enum class Order {
  kByToken,
  kByHead
};  // heads are neighbours, or lie apart as a batched product writes them

struct QueryShape {
  int batch, s_q, heads, d;  // heads of a rank
  Dtype dtype = Dtype::kBF16;
  Order order = Order::kByToken;
  int padding = 0;  // elements after rows and requests
};

/// One rank's tensors of one gathering.
class GatherCall {
 public:
  GatherCall(const Executor& executor, const QueryShape& shape, int world)
      : shape_(shape),
        q_(made(executor, shape)),
        gathered_(executor, shape.dtype, {shape.batch, shape.s_q, shape.heads * world, shape.d},
                  shape.padding) {}

  void fill(std::mt19937& random) {
    for_rows([&](int b, int t, int h) {
      std::generate_n(q_row(b, t, h), row_bytes(), [&] { return static_cast<std::uint8_t>(random()); });
    });
    q_.upload();
    gathered_.upload();
  }

  Status run(const Peers& peers, const Executor& executor) const {
    TensorView q = q_.view();
    if (shape_.order == Order::kByHead) {
      const TensorView by_head = q;
      for (int i = 0; i < 3; ++i) {
        q.shape[i] = by_head.shape[(i + 1) % 3];
        q.strides[i] = by_head.strides[(i + 1) % 3];
      }
    }
    return exchange_gather(peers, q, gathered_.view(), executor);
  }

  /// All ranks' rows, and nothing between them.
  void expect_right(std::vector<GatherCall>& calls, int rank) {
    gathered_.download();
    for (int from = 0; from < static_cast<int>(calls.size()); ++from) {
      for_rows([&](int b, int t, int h) {
        std::uint8_t* row = gathered_.row(b, t, from * shape_.heads + h);
        EXPECT_EQ(std::memcmp(row, calls[from].q_row(b, t, h), row_bytes()), 0)
            << "rank " << rank << " from " << from << ", " << b << " " << t << " " << h;
        std::fill_n(row, row_bytes(), kUntouched);
      });
    }
    const auto untouched = [](std::uint8_t byte) { return byte == kUntouched; };
    EXPECT_TRUE(std::all_of(gathered_.bytes().begin(), gathered_.bytes().end(), untouched))
        << "rank " << rank;
  }

 private:
  static Tensor made(const Executor& executor, const QueryShape& s) {
    if (s.order == Order::kByHead) return {executor, s.dtype, {s.heads, s.batch, s.s_q, s.d}, s.padding};
    return {executor, s.dtype, {s.batch, s.s_q, s.heads, s.d}, s.padding};
  }
  template <class Function>
  void for_rows(const Function& function) const {
    for (int b = 0; b < shape_.batch; ++b) {
      for (int t = 0; t < shape_.s_q; ++t) {
        for (int h = 0; h < shape_.heads; ++h) function(b, t, h);
      }
    }
  }
  std::uint8_t* q_row(int b, int t, int h) {
    return shape_.order == Order::kByHead ? q_.row(h, b, t) : q_.row(b, t, h);
  }
  std::size_t row_bytes() const { return shape_.d * size_of(shape_.dtype); }

  QueryShape shape_;
  Tensor q_, gathered_;
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
    for (cudaGraphExec_t graph : graphs_) cudaGraphExecDestroy(graph);
    for (const Executor& executor : executors_) cudaStreamDestroy(static_cast<cudaStream_t>(executor.stream));
  }

  void make_memory(int rows, int v_dim) {
    bytes_ = std::max(exchange_bytes(rows, v_dim, world_), exchange_gather_bytes(rows, v_dim + 64, world_));
    for (const Executor& executor : executors_) {
      buffers_.push_back(std::move(*runtime::Buffer::allocate(executor, bytes_)));
      memory_.push_back(buffers_.back().data());
      ASSERT_TRUE(runtime::fill(memory_.back(), 0, bytes_, executor).ok());
      ASSERT_TRUE(runtime::synchronize(executor).ok());
    }
  }
  /// RankCall or GatherCall, of all ranks.
  template <class Call = RankCall, class CallShape>
  std::vector<Call> calls_of(const CallShape& shape) {
    std::vector<Call> calls;
    for (const Executor& executor : executors_) {
      calls.emplace_back(executor, shape, world_);
      calls.back().fill(random_);
    }
    return calls;
  }
  std::vector<GatherCall> gathers_of(const QueryShape& shape) { return calls_of<GatherCall>(shape); }
  template <class Call>
  void run(const std::vector<Call>& calls, int rank) {
    const Status status =
        calls[rank].run({.rank = rank, .memory = memory_, .bytes = bytes_}, executors_[rank]);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  template <class Call>
  void expect_right(std::vector<Call>& calls) {
    for (int rank = 0; rank < world_ && !HasFatalFailure(); ++rank) calls[rank].expect_right(calls, rank);
  }

  /// A graph a rank of what `enqueue` does for it.
  void capture(const std::function<void(int rank)>& enqueue) {
    for (int rank = 0; rank < world_; ++rank) {
      auto* stream = static_cast<cudaStream_t>(executors_[rank].stream);
      cudaGraph_t graph;
      graphs_.emplace_back();
      ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
      enqueue(rank);
      ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
      ASSERT_EQ(cudaGraphInstantiate(&graphs_.back(), graph, 0), cudaSuccess);
      ASSERT_EQ(cudaGraphUpload(graphs_.back(), stream), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      cudaGraphDestroy(graph);
    }
  }
  void replay(int times) {
    for (int i = 0; i < times; ++i) {
      for (int rank = 0; rank < world_; ++rank) {
        ASSERT_EQ(cudaGraphLaunch(graphs_[rank], static_cast<cudaStream_t>(executors_[rank].stream)),
                  cudaSuccess);
      }
    }
  }

  int world_ = 0;
  std::mt19937 random_{11};
  std::vector<Executor> executors_;
  std::vector<cudaGraphExec_t> graphs_;
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
  for (int i = 0; i < 5; ++i) layers.push_back(calls_of(Shape{i + 1, 1, 4, 512}));
  capture([&](int rank) {
    for (const auto& calls : layers) run(calls, rank);
  });
  for (int round = 0; round < 4; ++round) {
    for (auto& calls : layers) {
      for (RankCall& call : calls) call.fill(random_);
    }
    replay(25);
    for (auto& calls : layers) expect_right(calls);
  }
}

/// More packs than threads.
TEST_P(ExchangeTest, ManyRows) {
  if (world_ > 2) GTEST_SKIP() << "one GPU has not room for the threads of so many ranks at once";
  make_memory(2400, 512);
  std::vector<RankCall> calls = calls_of(Shape{75, 2, 16, 512});
  for (int rank = 0; rank < world_; ++rank) run(calls, rank);
  expect_right(calls);
}

const QueryShape kQueries[] = {{1, 1, 8, 576},
                               {4, 2, 3, 576, Dtype::kF16, Order::kByHead},
                               {2, 1, 16, 512, Dtype::kBF16, Order::kByHead, 8},
                               {3, 1, 5, 576, Dtype::kU8},
                               {2, 3, 2, 576, Dtype::kU8, Order::kByHead, 16},
                               {1, 4, 16, 512, Dtype::kBF16, Order::kByToken, 8},
                               {3, 1, 1, 72, Dtype::kF16, Order::kByToken, 3},
                               {2, 1, 7, 33, Dtype::kU8, Order::kByHead},
                               {5, 2, 3, 1, Dtype::kBF16},
                               {1, 1, 1, 576},
                               {0, 1, 4, 576}};

TEST_P(ExchangeTest, GathersOneShapeAfterTheOther) {
  make_memory(64, 512);
  for (int round = 0; round < 3; ++round) {
    for (const QueryShape& shape : kQueries) {
      std::vector<GatherCall> calls = gathers_of(shape);
      for (int rank = 0; rank < world_; ++rank) run(calls, rank);
      expect_right(calls);
    }
  }
}

/// One rank's calls are all enqueued before the next rank's: each runs ahead as far as it can.
TEST_P(ExchangeTest, GathersAndExchangesInAnyOrderOnOneMemory) {
  make_memory(64, 512);
  // Each kernel once: the driver may load one only when no other runs.
  const auto run_alone = [&](auto calls) {
    for (int rank = 0; rank < world_; ++rank) run(calls, rank);
    expect_right(calls);
  };
  run_alone(gathers_of({1, 1, 1, 576}));
  run_alone(gathers_of({1, 1, 1, 33}));
  run_alone(calls_of(Shape{1, 1, 1, 512}));
  std::vector<std::vector<GatherCall>> gathers;
  std::vector<std::vector<RankCall>> exchanges;
  for (int i = 0; i < 30; ++i) {
    gathers.push_back(gathers_of(kQueries[random_() % std::size(kQueries)]));
    exchanges.push_back(calls_of(Shape{i % 3 + 1, 1, 5, 512}));
  }
  std::vector<bool> gathers_next;
  for (int i = 0; i < 60; ++i) gathers_next.push_back(i % 2 == 0);
  std::shuffle(gathers_next.begin() + 10, gathers_next.end(), random_);
  for (int rank = 0; rank < world_; ++rank) {
    int gathered = 0, exchanged = 0;
    for (bool gather : gathers_next) {
      gather ? run(gathers[gathered++], rank) : run(exchanges[exchanged++], rank);
    }
  }
  for (auto& calls : gathers) expect_right(calls);
  for (auto& calls : exchanges) expect_right(calls);
}

TEST_P(ExchangeTest, GraphsOfLayers) {
  make_memory(32, 512);
  std::vector<std::vector<GatherCall>> gathers;
  std::vector<std::vector<RankCall>> exchanges;
  for (int i = 0; i < 3; ++i) {  // an odd number of calls: a graph's next replay has the other halves
    gathers.push_back(
        gathers_of({i + 1, 1, 4, 576, Dtype::kBF16, i == 1 ? Order::kByToken : Order::kByHead}));
    if (i < 2) exchanges.push_back(calls_of(Shape{i + 1, 1, 4, 512}));
  }
  capture([&](int rank) {
    for (std::size_t i = 0; i < gathers.size(); ++i) {
      run(gathers[i], rank);
      if (i < exchanges.size()) run(exchanges[i], rank);
    }
  });
  for (int round = 0; round < 4; ++round) {
    for (auto& calls : gathers) {
      for (GatherCall& call : calls) call.fill(random_);
    }
    replay(25);
    for (auto& calls : exchanges) expect_right(calls);
    for (auto& calls : gathers) expect_right(calls);
  }
}

/// More packs than threads.
TEST_P(ExchangeTest, GathersManyRows) {
  if (world_ > 2) GTEST_SKIP() << "one GPU has not room for the threads of so many ranks at once";
  make_memory(4800, 512);
  for (int d : {576, 512}) {
    std::vector<GatherCall> calls = gathers_of({75, 2, 32, d, Dtype::kBF16, Order::kByHead});
    for (int rank = 0; rank < world_; ++rank) run(calls, rank);
    expect_right(calls);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ExchangeTest, testing::Values(2, 3, 4, 5));

}  // namespace
}  // namespace flashlatent
