// One step of decode with an MLA cache, as an inference engine does it: plan once, decode per layer.
//
// Every cached token of a layer is the same row, so attention must give that row back: the program checks
// this and exits 1 if it is not so.
#include <flashlatent/flashlatent.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace fl = flashlatent;

namespace {

using Bf16 = std::uint16_t;

// The upper half of the fp32 bits: exact for the small powers of two used here.
Bf16 to_bf16(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<Bf16>(bits >> 16);
}

// Buffers are the caller's. Plan and workspace want an alignment of 256 bytes.
fl::Memory allocate(std::size_t bytes) {
  const std::size_t rounded = (bytes + 255) / 256 * 256;
  return {std::aligned_alloc(256, rounded), rounded};
}

int fail(const char* what, const fl::Status& status) {
  std::fprintf(stderr, "%s: %s\n", what, status.message().c_str());
  return 2;
}

}  // namespace

int main() {
  constexpr int kLayers = 2;
  constexpr int kPages = 8;
  constexpr int kPageSize = 64;

  fl::DecodeProblem problem;
  problem.query.batch = 2;
  problem.query.heads = 16;
  problem.cache.qk_dim = 576;
  problem.cache.v_dim = 512;
  problem.cache.page_size = kPageSize;
  problem.cache.max_pages = 4;
  problem.options.softmax_scale = 1.0F / std::sqrt(192.0F);

  // Request 0 has 200 tokens in 4 pages, request 1 has 65 in 2; -1 where the page table is not used.
  const std::vector<std::int32_t> cache_seqlens = {200, 65};
  const std::vector<std::int32_t> block_table = {5, 0, 3, 7, 1, 6, -1, -1};

  const fl::Executor executor;  // The CPU, all threads; set backend, device and stream for CUDA.
  const auto made = fl::Plan::make(problem, executor);  // Once: which kernel it is, and what that needs.
  if (!made.ok()) return fail("Plan::make", made.status());
  const fl::Plan& plan = *made;
  const fl::Memory plan_memory = allocate(plan.plan_bytes());
  const fl::Memory workspace = allocate(plan.workspace_bytes());

  // Once per step: which thread (or SM) does which blocks of which request.
  const fl::ConstTensorView lengths(cache_seqlens.data(), fl::Dtype::kI32, {2});
  if (fl::Status s = plan.schedule(lengths, plan_memory); !s.ok()) return fail("schedule", s);

  int wrong = 0;
  for (int layer = 0; layer < kLayers; ++layer) {
    const float cached = static_cast<float>(1 << layer);
    const std::vector<Bf16> kv_cache(kPages * kPageSize * 576, to_bf16(cached));
    const std::vector<Bf16> q(2 * 16 * 576, to_bf16(0.5F));
    std::vector<Bf16> out(2 * 16 * 512);
    std::vector<float> lse(2 * 16);

    fl::DecodeInputs inputs;
    inputs.q = {q.data(), fl::Dtype::kBF16, {2, 1, 16, 576}};
    inputs.kv_cache = {kv_cache.data(), fl::Dtype::kBF16, {kPages, kPageSize, 1, 576}};
    inputs.block_table = {block_table.data(), fl::Dtype::kI32, {2, 4}};
    inputs.cache_seqlens = lengths;
    fl::DecodeOutputs outputs;
    outputs.out = {out.data(), fl::Dtype::kBF16, {2, 1, 16, 512}};
    outputs.lse = {lse.data(), fl::Dtype::kF32, {2, 16, 1}};

    // Once per layer.
    if (fl::Status s = plan.decode(inputs, outputs, plan_memory, workspace); !s.ok()) {
      return fail("decode", s);
    }
    for (const Bf16 element : out) wrong += element != to_bf16(cached);
    std::printf("layer %d: lse of request 0 = %.4f, of request 1 = %.4f\n", layer, lse[0], lse[16]);
  }
  std::free(plan_memory.data);
  std::free(workspace.data);
  std::printf("%d wrong elements\n", wrong);
  return wrong == 0 ? 0 : 1;
}
