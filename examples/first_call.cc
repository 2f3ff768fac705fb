// Two requests of 200 and 65 cached tokens, 16 heads: plan once per step, decode once per layer.
#include <flashlatent/flashlatent.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace fl = flashlatent;

#ifdef USE_CUDA
#include <cuda_runtime_api.h>
constexpr fl::Device kDevice{fl::DeviceType::kCuda, 0};
constexpr fl::Backend kBackend = fl::Backend::kCuda;
void* allocate(std::size_t bytes) {
  void* memory = nullptr;
  return cudaMalloc(&memory, bytes) == cudaSuccess ? memory : nullptr;
}
void copy(void* to, const void* from, std::size_t bytes) {
  cudaMemcpy(to, from, bytes, cudaMemcpyDefault);
}
#else
constexpr fl::Device kDevice{};
constexpr fl::Backend kBackend = fl::Backend::kCpu;
void* allocate(std::size_t bytes) {
  return std::aligned_alloc(256, (bytes + 255) / 256 * 256);
}
void copy(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}
#endif

template <class T>
T* placed(const std::vector<T>& values) {
  void* memory = allocate(values.size() * sizeof(T));
  copy(memory, values.data(), values.size() * sizeof(T));
  return static_cast<T*>(memory);
}

int main() {
  const std::vector<std::uint16_t> q(2 * 16 * 576, 0x3f00), cache(8 * 64 * 576, 0x3f80);  // bf16 0.5 and 1
  const std::vector<int> pages{5, 0, 3, 7, 1, 6, -1, -1}, lengths{200, 65};

  fl::DecodeProblem problem;
  problem.query = {.batch = 2, .tokens = 1, .heads = 16};
  problem.cache = {.qk_dim = 576, .v_dim = 512, .page_size = 64, .max_pages = 4};
  problem.options.softmax_scale = 1 / std::sqrt(192.0F);
  fl::Executor executor;
  executor.backend = kBackend;

  const auto plan = fl::Plan::make(problem, executor);
  if (!plan.ok()) return std::puts(plan.status().message().c_str()), 1;
  const fl::Memory plan_memory{allocate(plan->plan_bytes()), plan->plan_bytes()};
  const fl::Memory workspace{allocate(plan->workspace_bytes()), plan->workspace_bytes()};

  fl::DecodeInputs in;
  in.q = {placed(q), fl::Dtype::kBF16, {2, 1, 16, 576}, kDevice};
  in.kv_cache = {placed(cache), fl::Dtype::kBF16, {8, 64, 1, 576}, kDevice};
  in.block_table = {placed(pages), fl::Dtype::kI32, {2, 4}, kDevice};
  in.cache_seqlens = {placed(lengths), fl::Dtype::kI32, {2}, kDevice};
  std::vector<float> lse(2 * 16);
  fl::DecodeOutputs to;
  to.out = {allocate(2 * 16 * 512 * 2), fl::Dtype::kBF16, {2, 1, 16, 512}, kDevice};
  to.lse = {placed(lse), fl::Dtype::kF32, {2, 16, 1}, kDevice};

  fl::Status status = plan->schedule(in.cache_seqlens, plan_memory);       // once per step
  if (status.ok()) status = plan->decode(in, to, plan_memory, workspace);  // once per layer
  if (!status.ok()) return std::puts(status.message().c_str()), 1;
  copy(lse.data(), to.lse.data, lse.size() * sizeof(float));
  std::printf("%s: lse %.4f and %.4f\n", plan->kernel(), lse[0], lse[16]);
}
