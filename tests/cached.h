// Caches over which tests of dispatch go, and problems that read them.
#pragma once

#include "flashlatent/problem.h"

namespace flashlatent {

struct Cached {
  const char* name;
  KvLayout layout = KvLayout::kLatent;
  KvFormat format = KvFormat::kPlain;
  Dtype dtype = Dtype::kBF16;
  int page_size = 64;
  int qk_dim = 576, v_dim = 512;
  int kv_heads = 1;
  bool sparse = false;
  int window = 0;
};

/// Decode from that cache; `tokens`: how far the page table reaches, or topk.
inline DecodeProblem problem_of(const Cached& cached, int batch, int tokens, int heads) {
  DecodeProblem problem;
  problem.query.batch = batch;
  problem.query.heads = heads;
  problem.options.softmax_scale = 1;
  problem.options.window = cached.window;
  auto& cache = problem.cache;
  cache.layout = cached.layout;
  cache.format = cached.format;
  cache.dtype = cached.dtype;
  cache.page_size = cached.page_size;
  cache.qk_dim = cached.qk_dim;
  cache.v_dim = cached.v_dim;
  cache.heads = cached.kv_heads;
  if (cached.sparse) {
    problem.sparse = {.enabled = true, .topk = tokens};
  } else {
    cache.max_pages = (tokens + cached.page_size - 1) / cached.page_size;
  }
  return problem;
}

}  // namespace flashlatent
