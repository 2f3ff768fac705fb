#include "serve/scheduler.h"

#include <algorithm>
#include <limits>

#include "core/message.h"

namespace flashlatent::serve {

namespace {

Status check_fits(std::span<const io::TraceRequest> trace, const Scheduler::Options& options) {
  const auto tokens_of = [](const io::TraceRequest& request) {
    return request.output_length == 0 ? 0 : std::int64_t{request.input_length} + request.output_length;
  };
  const auto largest = std::ranges::max_element(trace, {}, tokens_of);
  if (largest == trace.end()) return {};
  // A pool has whole pages.
  const std::int64_t page = options.page_size;
  const std::int64_t needed = (tokens_of(*largest) + page - 1) / page * page;
  const std::int64_t capacity = options.pages * page;
  if (tokens_of(*largest) > std::numeric_limits<std::int32_t>::max()) {
    return invalid_argument("request ", largest - trace.begin(), " of the trace has ", largest->input_length,
                            " + ", largest->output_length, " tokens; at most 2147483647 are served");
  }
  if (needed <= capacity) return {};
  return invalid_argument("request ", largest - trace.begin(), " of the trace, the largest, has ",
                          largest->input_length, " + ", largest->output_length,
                          " tokens and can never fit a pool of ", capacity,
                          " tokens; the pool needs at least ", needed);
}

}  // namespace

Scheduler::Scheduler(std::span<const io::TraceRequest> trace, const Options& options, PagePool pool)
    : trace_(trace), options_(options), pool_(std::move(pool)), contents_(options.page_size) {}

Result<Scheduler> Scheduler::create(std::span<const io::TraceRequest> trace, const Options& options) {
  if (options.batch < 1) return invalid_argument("batch is ", options.batch, ", must be at least 1");
  FLASHLATENT_ASSIGN_OR_RETURN(auto pool, PagePool::create_pool(options.pages, options.page_size));
  FLASHLATENT_RETURN_IF_ERROR(check_fits(trace, options));
  return Scheduler(trace, options, std::move(pool));
}

std::optional<std::int64_t> Scheduler::idle_until() const {
  if (!running_.empty() || !waiting_.empty() || arrived_ == trace_.size()) return std::nullopt;
  return trace_[arrived_].timestamp_ms;
}

int Scheduler::next_length(const Request& request) const {
  return trace_[request.index].input_length + request.generated + 1;
}

Result<Scheduler::Step> Scheduler::begin_step(double now_ms) {
  arrive(now_ms);
  Step step;
  const std::int64_t preemptions = counts_.preemptions;
  FLASHLATENT_RETURN_IF_ERROR(grow_running(step));
  // The request that was just preempted needs more pages than it freed.
  if (counts_.preemptions == preemptions) FLASHLATENT_RETURN_IF_ERROR(admit(step));
  for (const Request& request : running_) {
    step.requests.push_back(request.index);
    step.sequences.push_back(request.sequence);
  }
  return step;
}

void Scheduler::arrive(double now_ms) {
  for (; arrived_ < trace_.size(); ++arrived_) {
    const io::TraceRequest& request = trace_[arrived_];
    if (!options_.immediate && static_cast<double>(request.timestamp_ms) > now_ms) return;
    if (request.output_length == 0) {  // asks for nothing
      ++counts_.completed;
      continue;
    }
    Request& waiting = waiting_.emplace_back();
    waiting.index = static_cast<int>(arrived_);
    waiting.contents = contents_.of(request);
  }
}

Status Scheduler::grow_running(Step& step) {
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Result<PagePool::Copy> grown = pool_.append(running_[i].sequence, 1);
    while (!grown.ok() && grown.status().code() == StatusCode::kExhausted) {
      FLASHLATENT_RETURN_IF_ERROR(preempt_youngest());
      if (i == running_.size()) return {};  // that was this one
      grown = pool_.append(running_[i].sequence, 1);
    }
    if (!grown.ok()) return grown.status();
    const int length = next_length(running_[i]);
    running_[i].filled = std::max(running_[i].filled, length);
    step.fills.push_back({running_[i].index, running_[i].sequence, length - 1, length});
  }
  return {};
}

Status Scheduler::preempt_youngest() {
  FLASHLATENT_RETURN_IF_ERROR(pool_.release(running_.back().sequence));
  waiting_.push_front(std::move(running_.back()));
  running_.pop_back();
  ++counts_.preemptions;
  return {};
}

Status Scheduler::admit(Step& step) {
  while (!waiting_.empty() && running_.size() < static_cast<std::size_t>(options_.batch)) {
    Request& request = waiting_.front();
    const int length = next_length(request);
    // A page to grow for each that runs: else it would soon be preempted again.
    const auto created = pool_.create(request.contents, length, static_cast<int>(running_.size()));
    if (!created.ok() && created.status().code() == StatusCode::kExhausted) return {};
    if (!created.ok()) return created.status();
    request.sequence = created->sequence;
    // The bytes are written before any request reads them, so requests of the same step can share them.
    if (const auto added = pool_.commit(request.sequence, request.contents); !added.ok())
      return added.status();
    const int begin = created->cached_pages * options_.page_size;
    step.fills.push_back({request.index, request.sequence, begin, length});
    counts_.recomputed += std::max(0, request.filled - begin);
    if (request.filled == 0) {  // one that was preempted finds its own pages again
      counts_.prefix_pages += static_cast<std::int64_t>(request.contents.size());
      counts_.prefix_hits += created->cached_pages;
    }
    request.filled = std::max(request.filled, length);
    running_.push_back(std::move(request));
    waiting_.pop_front();
  }
  return {};
}

Status Scheduler::finish_step() {
  std::size_t kept = 0;
  for (Request& request : running_) {
    ++counts_.generated;
    if (++request.generated < trace_[request.index].output_length) {
      if (&running_[kept] != &request) running_[kept] = std::move(request);
      ++kept;
      continue;
    }
    FLASHLATENT_RETURN_IF_ERROR(pool_.release(request.sequence));
    ++counts_.completed;
  }
  running_.resize(kept);
  return {};
}

}  // namespace flashlatent::serve
