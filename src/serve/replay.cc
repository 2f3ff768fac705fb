#include "serve/replay.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "core/message.h"
#include "serve/engine.h"
#include "serve/scheduler.h"

namespace flashlatent::serve {

namespace {

Status check(const ReplayOptions& options) {
  if (options.page_size < 1)
    return invalid_argument("page_size is ", options.page_size, ", must be at least 1");
  const std::int64_t most = std::int64_t{options.page_size} * PagePool::kMaxPages;
  if (options.pool_tokens < options.page_size || options.pool_tokens > most) {
    return invalid_argument("pool_tokens is ", options.pool_tokens, ", must be ", options.page_size,
                            " (a page) to ", most);
  }
  if (options.verify_every < 1)
    return invalid_argument("verify_every is ", options.verify_every, ", must be at least 1");
  if (options.verify_heads < 1)
    return invalid_argument("verify_heads is ", options.verify_heads, ", must be at least 1");
  return {};
}

/// The value that a fraction `p` of the sorted values does not exceed.
double percentile(const std::vector<double>& sorted, double p) {
  if (sorted.empty()) return 0;
  const auto rank = static_cast<std::size_t>(std::ceil(p * static_cast<double>(sorted.size())));
  return sorted[std::max<std::size_t>(rank, 1) - 1];
}

/// Sums over steps, made into a report.
class Tally {
 public:
  void step(double seconds, std::size_t rows, std::int64_t context, int used_pages) {
    step_ms_.push_back(seconds * 1e3);
    seconds_ += seconds;
    rows_ += static_cast<double>(rows);
    context_ += static_cast<double>(context);
    used_ += used_pages;
    peak_ = std::max(peak_, used_pages);
  }

  void write(const Scheduler& scheduler, ReplayReport& report) {
    std::sort(step_ms_.begin(), step_ms_.end());
    const double steps = std::max<double>(1, static_cast<double>(step_ms_.size()));
    const PagePool::Stats pool = scheduler.pool().stats();
    const Scheduler::Counts& counts = scheduler.counts();
    report.requests = counts.completed;
    report.tokens = counts.generated;
    report.steps = static_cast<std::int64_t>(step_ms_.size());
    report.decode_seconds = seconds_;
    report.tokens_per_second = seconds_ > 0 ? static_cast<double>(report.tokens) / seconds_ : 0;
    report.step_ms_p50 = percentile(step_ms_, 0.5);
    report.step_ms_p99 = percentile(step_ms_, 0.99);
    report.step_ms_max = step_ms_.empty() ? 0 : step_ms_.back();
    report.batch_mean = rows_ / steps;
    report.context_mean = rows_ > 0 ? context_ / rows_ : 0;
    report.pool_pages = pool.pages;
    report.pool_used_mean = used_ / steps / pool.pages;
    report.pool_used_peak = static_cast<double>(peak_) / pool.pages;
    report.prefix_pages = counts.prefix_pages;
    report.prefix_hits = counts.prefix_hits;
    report.prefix_hit_rate = counts.prefix_pages > 0 ? static_cast<double>(counts.prefix_hits) /
                                                           static_cast<double>(counts.prefix_pages)
                                                     : 0;
    report.evictions = pool.evictions;
    report.preemptions = counts.preemptions;
    report.recomputed_tokens = counts.recomputed;
  }

 private:
  std::vector<double> step_ms_;
  double seconds_ = 0, rows_ = 0, context_ = 0, used_ = 0;
  int peak_ = 0;
};

/// Checks one row of the step that was just made; each sample takes another row and another layer.
Status verify(const Engine& engine, const Scheduler::Step& step, std::int64_t number, int layer, int heads,
              ReplayReport& report) {
  const int row = static_cast<int>(number * 7919 % static_cast<std::int64_t>(step.requests.size()));
  FLASHLATENT_ASSIGN_OR_RETURN(const auto comparison, engine.verify(step, row, layer, heads));
  report.verified_rows += comparison.rows;
  report.verify_worst_ratio = std::max(report.verify_worst_ratio, comparison.worst_ratio);
  if (!comparison.ok()) {
    const runtime::RowReport& worst = comparison.worst;
    report.mismatch = message("step ", number, ", layer ", layer, ", request ", step.requests[row],
                              " of the trace (row ", row, " of the batch), query head ", worst.head,
                              runtime::what_is_wrong(worst), " is ", worst.got, ", expected ", worst.expected,
                              "; the row's error is ", worst.error, ", allowed ", worst.tolerance, "; ",
                              comparison.wrong_rows, " of ", comparison.rows, " rows checked are wrong");
  }
  return {};
}

}  // namespace

Result<ReplayReport> replay(std::span<const io::TraceRequest> trace, const ReplayOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  FLASHLATENT_RETURN_IF_ERROR(check(options));
  const int pages = static_cast<int>(options.pool_tokens / options.page_size);
  FLASHLATENT_ASSIGN_OR_RETURN(
      auto scheduler, Scheduler::create(trace, {options.batch, pages, options.page_size, options.immediate}));
  std::int64_t longest = 1;
  for (const io::TraceRequest& request : trace) {
    longest = std::max(longest, std::int64_t{request.input_length} + request.output_length);
  }
  Engine::Options engine_options{options.executor,  options.format,
                                 options.scales,    options.dtype,
                                 options.layers,    options.heads,
                                 options.kv_heads,  options.kv_dim,
                                 options.batch,     pages,
                                 options.page_size, 0,
                                 options.seed,      options.prefix_sharing};
  engine_options.max_pages = static_cast<int>((longest + options.page_size - 1) / options.page_size);
  FLASHLATENT_ASSIGN_OR_RETURN(auto engine, Engine::create(trace, engine_options));

  ReplayReport report;
  Tally tally;
  double now_ms = 0;
  for (std::int64_t number = 0; !scheduler.done() && report.mismatch.empty();) {
    if (const auto arrival = scheduler.idle_until()) now_ms = std::max(now_ms, static_cast<double>(*arrival));
    FLASHLATENT_ASSIGN_OR_RETURN(const auto step, scheduler.begin_step(now_ms));
    if (step.requests.empty()) continue;  // only requests that ask for nothing have arrived
    for (const Scheduler::Fill& fill : step.fills) {
      FLASHLATENT_RETURN_IF_ERROR(engine.fill(fill, scheduler.pool()));
      report.filled_tokens += fill.end - fill.begin;
    }
    const int layer = static_cast<int>(number / options.verify_every % options.layers);
    FLASHLATENT_ASSIGN_OR_RETURN(const auto seconds, engine.step(step, scheduler.pool(), layer));
    now_ms += seconds * 1e3;
    tally.step(seconds, step.requests.size(), engine.context(), scheduler.pool().stats().used);
    if (options.verify && number % options.verify_every == 0) {
      FLASHLATENT_RETURN_IF_ERROR(verify(engine, step, number, layer, options.verify_heads, report));
    }
    FLASHLATENT_RETURN_IF_ERROR(scheduler.finish_step());
    if (options.progress) options.progress(scheduler.counts().generated);
    ++number;
  }
  FLASHLATENT_RETURN_IF_ERROR(scheduler.pool().check_invariants());
  tally.write(scheduler, report);
  report.wall_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace flashlatent::serve
