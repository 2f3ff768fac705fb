// Draws shapes of served models, on one device or on one slice of tensor parallelism.
#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "core/token_bytes.h"
#include "runtime/random_value.h"
#include "tools/shape.h"

namespace flashlatent::tools {

namespace {

struct Heads {
  int query, kv, dim;
};

// Keys and values apart: query heads, KV heads, d.
constexpr std::array kPagedHeads = {
    Heads{32, 8, 128},  // Llama 3 8B
    Heads{64, 8, 128},  // Llama 3 70B
    Heads{16, 2, 128},  // the same on 4 devices; Qwen2.5 3B
    Heads{8, 1, 128},   // on 8
    Heads{16, 1, 128},  // Llama 3 405B on 8
    Heads{24, 8, 128},  // Llama 3.2 3B
    Heads{32, 8, 64},   // Llama 3.2 1B
    Heads{28, 4, 128},  // Qwen2.5 7B
    Heads{40, 8, 128},  // Qwen2.5 32B
    Heads{5, 1, 128},   // on 8
    Heads{12, 2, 128},  // Qwen2.5 1.5B
    Heads{14, 2, 64},   // Qwen2.5 0.5B
    Heads{32, 4, 128},  // Qwen3 30B-A3B
    Heads{64, 4, 128},  // Qwen3 235B-A22B
    Heads{96, 8, 128},  // Mistral Large
    Heads{64, 8, 64},   // gpt-oss
    Heads{8, 1, 64},    // on 8
    Heads{16, 8, 256},  // Gemma 2 9B
    Heads{4, 1, 256},   // Gemma 3 1B
    Heads{8, 8, 128},   // Llama 2 7B on 4
};
// Latent caches: 128, 64, 40 and 20 heads, and these on 2 to 16 devices; 96 and 48 are slices of other
// models.
constexpr std::array kLatentHeads = {128, 96, 64, 48, 40, 32, 24, 20, 16, 12, 8, 4};

// Query tokens, 20 equally likely values: one, or drafts of speculative decoding and multi-token prediction.
constexpr std::array kQueryTokens = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 4, 4, 5, 8};

constexpr std::array kBatches = {1,  2,  3,  4,  5,  6,   8,   12,  16,  24,  32, 40,
                                 48, 64, 72, 80, 96, 100, 112, 128, 160, 200, 256};
constexpr std::array kMeanLengths = {200,  300,  512,   777,   1000,  1500,  2048,  3000,  3333,  4096,
                                     6000, 8192, 12000, 16384, 20000, 32768, 60000, 65536, 100000};

// The most bytes of one layer's cache that a benchmark should read; 61 layers of one device could hold far
// more.
constexpr double kMostCacheBytes = 6e9;

/// The random numbers of one shape, from a seed of its own.
class Draws {
 public:
  Draws(std::uint64_t seed, int index)
      : seed_(runtime::random_bits(seed, static_cast<std::uint64_t>(index))) {}

  std::uint64_t bits() { return runtime::random_bits(seed_, next_++); }
  float normal() { return runtime::random_normal(seed_, next_++); }
  template <class T, std::size_t N>
  T one_of(const std::array<T, N>& list) {
    return list[bits() % N];
  }

 private:
  std::uint64_t seed_, next_ = 0;
};

Shape draw(std::uint64_t seed, int index) {
  Draws draws(seed, index);
  Shape shape;
  shape.latent = draws.bits() % 2 == 0;
  if (shape.latent) {
    shape.heads = draws.one_of(kLatentHeads);
    shape.dim = 576;
  } else {
    const Heads heads = draws.one_of(kPagedHeads);
    shape.heads = heads.query;
    shape.kv_heads = heads.kv;
    shape.dim = heads.dim;
  }
  shape.query_tokens = draws.one_of(kQueryTokens);
  const int batch = draws.one_of(kBatches);
  int mean = draws.one_of(kMeanLengths);
  const DecodeProblem::Cache cache = {.heads = shape.kv_heads,
                                      .qk_dim = shape.dim,
                                      .v_dim = shape.dim,
                                      .layout = shape.latent ? KvLayout::kLatent : KvLayout::kSeparate};
  const auto a_token = static_cast<double>(token_bytes(cache));
  while (a_token * batch * mean > kMostCacheBytes) mean /= 2;
  // Half of the batches have equal lengths; in the others the standard deviation is a third of the mean.
  shape.varied = draws.bits() % 2 == 0 && batch > 1;
  shape.lengths.assign(batch, std::max(mean, shape.query_tokens));
  if (!shape.varied) return shape;
  for (int& length : shape.lengths) {
    length = std::max(shape.query_tokens, static_cast<int>(mean * (1 + draws.normal() / 3)));
  }
  return shape;
}

}  // namespace

std::vector<Shape> draw_shapes(std::uint64_t seed, int count) {
  std::vector<Shape> shapes;
  shapes.reserve(count);
  for (int i = 0; i < count; ++i) shapes.push_back(draw(seed, i));
  return shapes;
}

}  // namespace flashlatent::tools
