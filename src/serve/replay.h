// A request trace, served from the first arrival to the last token.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "flashlatent/backend.h"
#include "flashlatent/problem.h"
#include "io/trace.h"

namespace flashlatent::serve {

struct ReplayOptions {
  Executor executor;
  KvFormat format = KvFormat::kPlain;
  ScalePlace scales = ScalePlace::kToken;  ///< For a format that leaves the place open.
  Dtype dtype = Dtype::kBF16;
  int layers = 1;
  int heads = 16;
  int kv_heads = 1;
  PrefixSharing prefix_sharing = PrefixSharing::kAuto;  ///< For decode, about the pages that prefix hits
                                                        ///< share.
  int kv_dim = 0;  ///< MHA, GQA, MQA: elements of a key, and of a value; 0: MLA, which has one KV head.
  int batch = 32;
  std::int64_t pool_tokens = 262144;  ///< Rounded down to whole pages.
  int page_size = 64;
  bool immediate = false;  ///< All requests are there at once.
  bool verify = false;     ///< Compare a sample with the oracle.
  int verify_every = 4;    ///< Steps from one sample to the next.
  int verify_heads = 2;    ///< Query heads of the sampled request.
  std::uint64_t seed = 0;
  /// Called after each step with the tokens generated so far.
  std::function<void(std::int64_t)> progress;
};

struct ReplayReport {
  std::int64_t requests = 0;  ///< All of them were served.
  std::int64_t tokens = 0;    ///< Generated.
  std::int64_t steps = 0;
  double decode_seconds = 0;  ///< Sum over all steps: page tables, plan, decode. The model's own work is not
                              ///< done.
  double wall_seconds = 0;    ///< Making latents and verifying included.
  double tokens_per_second = 0;  ///< tokens / decode_seconds
  double step_ms_p50 = 0, step_ms_p99 = 0, step_ms_max = 0;
  double batch_mean = 0;
  double context_mean = 0;  ///< Tokens a decoded row attends to.
  int pool_pages = 0;
  double pool_used_mean = 0;  ///< Fraction of the pool's pages that running requests hold.
  double pool_used_peak = 0;
  std::int64_t prefix_pages = 0;  ///< Whole prompt pages under hash ids, each request counted once.
  std::int64_t prefix_hits = 0;   ///< Those of prefix_pages that another request had left in the pool.
  double prefix_hit_rate = 0;     ///< prefix_hits / prefix_pages
  std::int64_t evictions = 0;
  std::int64_t preemptions = 0;
  std::int64_t filled_tokens = 0;      ///< Tokens whose latents were made.
  std::int64_t recomputed_tokens = 0;  ///< Those of filled_tokens that preemption had thrown away.
  std::int64_t verified_rows = 0;
  double verify_worst_ratio = 0;  ///< Largest error / tolerance.
  std::string mismatch;           ///< The first wrong row, which ended the replay; empty if there was none.
};

/// Serves the trace in simulated time: a step advances the clock by what its decode took. Errors are
/// kInvalidArgument (options, a request that can never fit) and what decode itself returns.
Result<ReplayReport> replay(std::span<const io::TraceRequest> trace, const ReplayOptions& options);

}  // namespace flashlatent::serve
