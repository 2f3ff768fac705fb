// A child made by fork, whose parent has used several threads, gets the parent's results.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <set>
#include <thread>

#include "cpu/parallel.h"
#include "flashlatent/combine.h"
#include "flashlatent/kv_cache.h"
#include "runtime/compare.h"
#include "runtime/decode_run.h"
#include "runtime/random_case.h"

namespace flashlatent {
namespace {

constexpr int kThreads = 4;
using Bytes = std::vector<std::uint8_t>;

/// Runs `child` in a child of this process. A child that hangs is ended by the alarm and fails.
void expect_in_child(const std::function<bool()>& child) {
  const pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    alarm(120);
    _exit(child() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
      << (WIFSIGNALED(status) ? "the child hung or broke" : "the child's result is another");
}

/// `result` makes the same bytes in the parent, in a child, and in a child of a child that has used threads.
void expect_same_in_children(const std::function<Bytes()>& result) {
  const Bytes expected = result();
  ASSERT_FALSE(expected.empty());
  expect_in_child([&] { return result() == expected; });
  expect_in_child([&] {
    if (result() != expected) return false;
    const pid_t pid = fork();
    if (pid == 0) {
      alarm(120);
      _exit(result() == expected ? 0 : 1);
    }
    int status = 0;
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  });
}

Executor threads() {
  Executor executor;
  executor.threads = kThreads;
  return executor;
}

Bytes decoded(const runtime::CaseSpec& spec, const char* kernel) {
  const runtime::RandomCase c = runtime::make_case(spec, 1);
  Executor executor = threads();
  executor.kernel = kernel;
  Result<runtime::DecodeRun> run = runtime::DecodeRun::create(c.problem, c.inputs, executor);
  if (!run.ok() || !run->run().ok() || !run->fetch().ok()) return {};
  if (!runtime::compare(c.problem, c.inputs, run->out(), run->lse()).ok()) return {};
  Bytes bytes = run->out_bytes();
  bytes.insert(bytes.end(), run->lse_bytes().begin(), run->lse_bytes().end());
  return bytes;
}

TEST(Fork, DecodeInAChild) {
  const runtime::CaseSpec latent{.heads = 16, .lengths = {1000, 3, 700}};
  const runtime::CaseSpec packed{.layout = KvLayout::kPacked,
                                 .heads = 8,
                                 .kv_heads = 2,
                                 .qk_dim = 64,
                                 .v_dim = 64,
                                 .lengths = {1000, 3, 700}};
  const runtime::CaseSpec prefixes{.layout = KvLayout::kSeparate,
                                   .heads = 4,
                                   .kv_heads = 2,
                                   .qk_dim = 64,
                                   .v_dim = 64,
                                   .page_size = 16,
                                   .lengths = {400, 410, 420},
                                   .prefix_sharing = PrefixSharing::kAlways,
                                   .sharers = 3,
                                   .shared_tokens = 384};
  for (const auto& spec : {latent, packed, prefixes}) {
    expect_same_in_children([&] { return decoded(spec, "cpu_dense"); });
  }
  expect_same_in_children([&] { return decoded({.heads = 4, .lengths = {50, 3}}, "reference"); });
}

TEST(Fork, CacheOperationsInAChild) {
  constexpr std::int64_t kPages = 8, kSize = 16, kTokens = kPages * kSize, kHeads = 2, kDim = 32;
  std::vector<std::uint16_t> rows(kTokens * kHeads * kDim);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::uint16_t>(i % 0x7000);
  std::vector<std::int32_t> numbers(kTokens);
  for (std::int64_t i = 0; i < kTokens; ++i) numbers[i] = static_cast<std::int32_t>(kTokens - 1 - i);
  const std::vector<std::int32_t> pairs = {0, 4, 1, 5, 2, 6, 3, 7},
                                  ends = {0, static_cast<std::int32_t>(kTokens)};
  const std::vector<std::int32_t> table = {7, 6, 5, 4, 3, 2, 1, 0};
  const ConstTensorView latents(rows.data(), Dtype::kBF16, {kTokens, kHeads * kDim});
  const ConstTensorView keys(rows.data(), Dtype::kBF16, {kTokens, kHeads, kDim});
  const ConstTensorView slots(numbers.data(), Dtype::kI32, {kTokens});
  const ConstTensorView pages(table.data(), Dtype::kI32, {1, kPages}), cu(ends.data(), Dtype::kI32, {2});
  const ConstTensorView some(pairs.data(), Dtype::kI32, {4, 2});
  const Executor executor = threads();
  expect_same_in_children([&]() -> Bytes {
    std::vector<std::uint16_t> a(rows.size()), b(rows.size()), c(rows.size()), d(rows.size()), e(rows.size());
    const TensorView cache(a.data(), Dtype::kBF16, {kPages, kSize, 1, kHeads * kDim});
    const TensorView other(b.data(), Dtype::kF16, {kPages, kSize, 1, kHeads * kDim});
    const TensorView gathered(c.data(), Dtype::kBF16, {kTokens, 1, kHeads * kDim});
    const KeyValueCache separate{{d.data(), Dtype::kBF16, {kPages, kSize, kHeads, kDim}},
                                 {e.data(), Dtype::kBF16, {kPages, kSize, kHeads, kDim}}};
    std::vector<std::uint16_t> f(rows.size()), g(rows.size()), h(rows.size()), i(rows.size());
    const KeyValueCache packed{{f.data(), Dtype::kBF16, {kPages, kHeads, kDim / 8, kSize, 8}},
                               {g.data(), Dtype::kBF16, {kPages, kHeads, kDim, kSize}}};
    const TensorView key_rows(h.data(), Dtype::kBF16, {kTokens, kHeads, kDim});
    const TensorView value_rows(i.data(), Dtype::kBF16, {kTokens, kHeads, kDim});
    const bool ok = append_latent(latents, {}, slots, cache, executor).ok() &&
                    copy_pages(cache, cache, some, executor).ok() &&
                    convert_cache(cache, other, executor).ok() &&
                    gather_cache(cache, pages, cu, {}, gathered, executor).ok() &&
                    append_kv(keys, keys, slots, separate, executor).ok() &&
                    convert_kv(separate, packed, executor).ok() &&
                    gather_kv(packed, pages, cu, {}, key_rows, value_rows, executor).ok();
    if (!ok) return {};
    Bytes bytes;
    for (const auto* tensor : {&a, &b, &c, &d, &e, &f, &g, &h, &i}) {
      const auto* first = reinterpret_cast<const std::uint8_t*>(tensor->data());
      bytes.insert(bytes.end(), first, first + tensor->size() * 2);
    }
    return bytes;
  });
}

TEST(Fork, CombineInAChild) {
  constexpr std::int64_t kParts = 3, kBatch = 5, kHeads = 4, kDim = 16;
  const std::vector<float> partial(kParts * kBatch * kHeads * kDim, 2), lse(kParts * kBatch * kHeads, 1);
  expect_same_in_children([&]() -> Bytes {
    std::vector<float> out(kBatch * kHeads * kDim), merged(kBatch * kHeads);
    const Status status = combine({partial.data(), Dtype::kF32, {kParts, kBatch, 1, kHeads, kDim}},
                                  {lse.data(), Dtype::kF32, {kParts, kBatch, kHeads, 1}}, {},
                                  {out.data(), Dtype::kF32, {kBatch, 1, kHeads, kDim}},
                                  {merged.data(), Dtype::kF32, {kBatch, kHeads, 1}}, threads());
    if (!status.ok()) return {};
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(out.data());
    return {bytes, bytes + out.size() * sizeof(float)};
  });
}

/// Threads that a loop ran on.
std::size_t threads_of_loop() {
  std::atomic<int> arrived{0};
  std::vector<std::thread::id> ids(kThreads);
  cpu::parallel_for(kThreads, kThreads, [&](std::int64_t i) {
    ids[i] = std::this_thread::get_id();
    ++arrived;
  });
  EXPECT_EQ(arrived, kThreads);
  return std::set(ids.begin(), ids.end()).size();
}

TEST(Fork, AChildHasAsManyThreads) {
  const std::size_t threads = threads_of_loop();
  expect_in_child([&] { return threads_of_loop() == threads && threads_of_loop() == threads; });
}

TEST(Fork, OfAThreadThatIsNotTheFirst) {
  std::thread([] {
    threads_of_loop();
    expect_in_child([] {
      threads_of_loop();
      std::thread([] { threads_of_loop(); }).join();
      return true;
    });
  }).join();
}

}  // namespace
}  // namespace flashlatent
