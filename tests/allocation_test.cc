// A Plan's calls take nothing from the heap after a thread's first one. An executable of its own: it replaces
// operator new. (What OpenMP and the CUDA driver take from malloc is theirs.)
#include <atomic>
#include <cstdlib>
#include <new>

#include "contracts.h"
#include "flashlatent/plan.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<int> allocations{0};

void* allocate(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
  const std::size_t rounded = (bytes / alignment + 1) * alignment;
  void* memory = std::aligned_alloc(alignment, rounded);
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) {
  return allocate(bytes);
}
void* operator new[](std::size_t bytes) {
  return allocate(bytes);
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate(bytes);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace flashlatent {
namespace {

using runtime::CaseSpec;
using runtime::DecodeRun;

/// Calls of operator new, on any thread, while `body` runs.
template <class Body>
int allocations_of(Body&& body) {
  allocations = 0;
  counting = true;
  body();
  counting = false;
  return allocations;
}

class Allocations : public Contracts {
 protected:
  Allocations() { executor_.threads = 4; }

  void SetUp() override {
    Contracts::SetUp();
    if (on_gpu()) executor_.threads = 0;
  }

  /// A call with the lengths of `first`, then one of `c`.
  void expect_none(const runtime::RandomCase& first, const runtime::RandomCase& c, const CaseSpec& spec) {
    DecodeRun warm = place(first, executor_);
    DecodeRun run = place(c, executor_);
    ASSERT_EQ(warm.problem(), run.problem());
    ASSERT_TRUE(warm.run().ok());
    ASSERT_TRUE(runtime::synchronize(executor_).ok());
    Status planned, decoded;
    EXPECT_EQ(allocations_of([&] { planned = run.plan(); }), 0) << "schedule(), " << spec.name;
    EXPECT_EQ(allocations_of([&] { decoded = run.decode(); }), 0) << "decode(), " << spec.name;
    ASSERT_TRUE(planned.ok()) << planned.message();
    ASSERT_TRUE(decoded.ok()) << decoded.message();
    ASSERT_TRUE(run.fetch().ok());
  }

  /// By the kernel that is picked, and by each that takes the problem and its tensors: a first call with
  /// requests that are all as long as the longest, then one with the spec's lengths.
  void expect_none_of_all(const CaseSpec& spec) {
    const runtime::RandomCase c = runtime::make_case(spec, 1);
    CaseSpec longest = spec;
    longest.lengths.assign(spec.lengths.size(), *std::max_element(spec.lengths.begin(), spec.lengths.end()));
    const runtime::RandomCase first = runtime::make_case(longest, 1);
    int takers = 0;
    for (const std::string& kernel : names()) {
      executor_.kernel = kernel;
      if (!plan_bytes(c.problem, executor_).ok()) continue;
      DecodeRun run = place(c, executor_);
      if (!run.handle().running_kernel(run.inputs(), run.outputs()).ok()) continue;
      ++takers;
      expect_none(first, c, spec);
      if (HasFailure()) FAIL() << "kernel '" << kernel << "', " << to_string(c.problem);
    }
    EXPECT_GT(takers, 0) << spec.name;
  }

 private:
  /// None, and all but the oracle's.
  std::vector<std::string> names() const {
    std::vector<std::string> names{""};
    for (const KernelInfo& kernel : kernels()) {
      if (kernel.backend == GetParam() && kernel.name != "reference") names.push_back(kernel.name);
    }
    return names;
  }
};

/// Few long requests among short ones, so that plans are packed.
std::vector<int> varied(int requests, int longest) {
  std::vector<int> lengths(requests);
  for (int i = 0; i < requests; ++i) lengths[i] = 1 + i * 131 % (i % 7 == 0 ? longest : longest / 6);
  lengths[requests / 2] = longest;
  return lengths;
}

TEST_P(Allocations, OfLatentCaches) {
  expect_none_of_all({.name = "plain", .lengths = varied(40, 2000)});
  expect_none_of_all({.name = "a lone request", .heads = 128, .lengths = {3000}});
  expect_none_of_all({.name = "fp16, 128 heads",
                      .dtype = Dtype::kF16,
                      .query_tokens = 2,
                      .heads = 128,
                      .lengths = varied(9, 900),
                      .causal = true,
                      .sink = true});
  expect_none_of_all({.name = "fp8", .format = KvFormat::kFp8_656, .heads = 64, .lengths = varied(20, 900)});
  expect_none_of_all({.name = "batch_invariant", .lengths = varied(5, 900), .batch_invariant = true});
  expect_none_of_all(
      {.name = "ragged", .lengths = varied(4, 900), .ragged_tokens = {2, 0, 1, 3}, .causal = true});
}

// The kernel mla_64_roles leaves such tensors to another one.
TEST_P(Allocations, OfTensorsWithGaps) {
  expect_none_of_all(
      {.name = "strided", .query_tokens = 2, .heads = 128, .lengths = varied(9, 900), .strided = true});
}

TEST_P(Allocations, OfSparseDecode) {
  for (KvFormat format : {KvFormat::kPlain, KvFormat::kFp8_656}) {
    expect_none_of_all({.name = "sparse",
                        .format = format,
                        .query_tokens = 2,
                        .heads = 64,
                        .lengths = varied(6, 900),
                        .sparse = true,
                        .topk = 300,
                        .topk_lengths = {300, 0, 7, 120, 300, 64}});
  }
}

TEST_P(Allocations, OfKeysAndValues) {
  CaseSpec spec{.name = "separate",
                .layout = KvLayout::kSeparate,
                .heads = 8,
                .kv_heads = 2,
                .qk_dim = 128,
                .v_dim = 128,
                .page_size = 16,
                .lengths = varied(20, 900)};
  expect_none_of_all(spec);
  spec.soft_cap = 30;
  spec.alibi = true;
  spec.window = 100;
  expect_none_of_all(spec);
  spec.layout = KvLayout::kPacked;
  spec.format = KvFormat::kE4m3;
  spec.scales = 2;
  expect_none_of_all(spec);
  spec = {.name = "prefill",
          .layout = KvLayout::kSeparate,
          .query_tokens = 70,
          .heads = 8,
          .kv_heads = 2,
          .qk_dim = 128,
          .v_dim = 128,
          .page_size = 16,
          .lengths = varied(3, 500),
          .causal = true};
  expect_none_of_all(spec);
}

TEST_P(Allocations, OfSharedPrefixes) {
  for (PrefixSharing sharing : {PrefixSharing::kAuto, PrefixSharing::kAlways}) {
    CaseSpec spec{.name = "shared prefixes",
                  .layout = KvLayout::kSeparate,
                  .heads = 8,
                  .kv_heads = 2,
                  .qk_dim = 128,
                  .v_dim = 128,
                  .page_size = 16,
                  .lengths = varied(20, 900),
                  .prefix_sharing = sharing,
                  .sharers = 5,
                  .shared_tokens = 256};
    expect_none_of_all(spec);
    if (sharing == PrefixSharing::kAlways) continue;
    spec.window = 100;  // so that none are shared, for a reason that takes words
    expect_none_of_all(spec);
  }
}

// A choice takes some: so they are counted.
TEST_P(Allocations, AreCounted) {
  const DecodeProblem problem = runtime::problem_of({.name = "plain"});
  EXPECT_GT(allocations_of([&] { EXPECT_TRUE(Plan::make(problem, executor_).ok()); }), 0);
}

INSTANTIATE_TEST_SUITE_P(Backends, Allocations, kBackends, backend_name);

}  // namespace
}  // namespace flashlatent
