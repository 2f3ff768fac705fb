// The attention of a model without the model: paged caches of random latents, and one decode a layer.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "flashlatent/kv_cache.h"
#include "flashlatent/plan.h"
#include "io/trace.h"
#include "runtime/compare.h"
#include "runtime/device_memory.h"
#include "serve/scheduler.h"

namespace flashlatent::serve {

/// Owns the memory of either backend and everything that a step reads. All values come from `seed`, the trace
/// and a position (latents.h), so that a check can make them again.
class Engine {
 public:
  struct Options {
    Executor executor;
    KvFormat format = KvFormat::kPlain;
    ScalePlace scales = ScalePlace::kToken;  ///< For a format that leaves the place open.
    Dtype dtype = Dtype::kBF16;
    int layers = 1;
    int heads = 16;  ///< h_q.
    int kv_heads = 1;
    int kv_dim = 0;  ///< MHA, GQA, MQA: elements of a key, and of a value. 0: MLA, which has one KV head.
    int batch = 32;  ///< Rows of every step; unused rows have length 0.
    int pages = 0;   ///< In each layer's cache.
    int page_size = 64;
    int max_pages = 0;  ///< The most pages of a request.
    std::uint64_t seed = 0;
    PrefixSharing prefix_sharing = PrefixSharing::kAuto;  ///< For decode.
  };

  /// `trace` must outlive the engine. Allocates everything that steps need; unwritten cache memory is NaN.
  static Result<Engine> create(std::span<const io::TraceRequest> trace, const Options& options);

  /// Writes the latents of these tokens into the caches of all layers, as prefill and the model would.
  Status fill(const Scheduler::Fill& fill, const PagePool& pool);

  /// One step: writes and uploads page tables and lengths, plans, decodes every layer. Returns the seconds
  /// that these took; making the queries is not timed. The results of `kept_layer` stay until the next step.
  Result<double> step(const Scheduler::Step& step, const PagePool& pool, int kept_layer);

  /// Compares about `heads` query heads of one row of the last step with the oracle, on latents made afresh.
  Result<runtime::Comparison> verify(const Scheduler::Step& step, int row, int kept_layer, int heads) const;

  /// Tokens that all rows of the last step attended to.
  std::int64_t context() const;

 private:
  Engine(std::span<const io::TraceRequest> trace, const Options& options);

  Status check_host_memory() const;
  Status allocate();
  Status too_large(std::string_view why) const;
  std::size_t cache_bytes() const;  // of one layer
  bool latent() const { return problem_.cache.layout == KvLayout::kLatent; }
  std::int64_t page_stride() const;  ///< For a latent cache, in elements.
  TensorView latent_view(void* data, std::int64_t pages, Device device) const;
  /// The library writes the cache, out of staged rows.
  bool appends() const { return !latent() || options_.format != KvFormat::kPlain; }
  void set_cache(int layer, DecodeInputs& inputs) const;
  std::uint16_t* row_of(int layer, std::int64_t slot) const;
  TensorView cache_view(int layer) const;
  KeyValueCache key_value_cache(int layer) const;
  void make_row(std::uint16_t* row, int request, int position, int layer) const;
  Status copy_staged(int layer, const std::vector<std::int32_t>& slots);
  Status append_staged(int layer, const std::vector<std::int32_t>& slots);
  Status make_queries(const Scheduler::Step& step, const PagePool& pool);

  std::span<const io::TraceRequest> trace_;
  Options options_;
  DecodeProblem problem_;
  std::optional<Plan> handle_;  // empty until allocate() has made it
  std::int64_t row_;            // elements of a token: its latent row, or its keys and then its values
  Device device_;
  std::vector<runtime::Buffer> caches_;  // one a layer
  runtime::Buffer q_, out_, kept_out_, lse_, kept_lse_, block_table_, cache_seqlens_, plan_, workspace_;
  runtime::Buffer staged_rows_, staged_slots_;  // what is appended
  std::vector<std::uint16_t> host_q_;
  std::vector<std::uint16_t> staging_;  // unless threads write the cache: rows on their way into it
  std::vector<std::int32_t> host_block_table_, host_cache_seqlens_;
};

}  // namespace flashlatent::serve
