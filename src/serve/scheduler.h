// Continuous batching: which requests run in the next step, and on which pages.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "flashlatent/page_pool.h"
#include "flashlatent/status.h"
#include "io/trace.h"
#include "serve/content.h"

namespace flashlatent::serve {

/// Requests are served in order of arrival. Each step gives every running request one more token. A step
/// first makes room for these tokens: while the pool is full, it preempts the youngest running request, which
/// frees its pages and waits at the head of the queue, to be computed again. Then the step admits waiting
/// requests while the batch and the pool have room. Prompts share pages where their hash ids say so.
class Scheduler {
 public:
  struct Options {
    int batch = 32;  ///< Most requests that run at a time.
    int pages = 0;   ///< In the pool.
    int page_size = 64;
    bool immediate = false;  ///< Requests don't wait for their arrival time.
  };

  /// Tokens [begin, end) of a request have pages, but not yet their bytes.
  struct Fill {
    int request = 0;  ///< Number in the trace.
    PagePool::Sequence sequence;
    int begin = 0, end = 0;
  };

  /// One step's work. Row i of the batch is requests[i], whose pages are those of sequences[i].
  struct Step {
    std::vector<int> requests;
    std::vector<PagePool::Sequence> sequences;
    std::vector<Fill> fills;  ///< To be done in this order, before the decode.
  };

  struct Counts {
    std::int64_t completed = 0;  ///< Requests.
    std::int64_t preemptions = 0;
    std::int64_t generated = 0;   ///< Tokens.
    std::int64_t recomputed = 0;  ///< Tokens filled a second time, after a preemption.
    /// Whole pages under hash ids of requests admitted for the first time, and those of them that were found
    /// in the pool.
    std::int64_t prefix_pages = 0, prefix_hits = 0;
  };

  /// `trace` must outlive the scheduler. kInvalidArgument names a request that can never fit the pool.
  static Result<Scheduler> create(std::span<const io::TraceRequest> trace, const Options& options);

  bool done() const { return counts_.completed == static_cast<std::int64_t>(trace_.size()); }
  /// When the next request arrives, if there is nothing to do before.
  std::optional<std::int64_t> idle_until() const;

  /// Decides the step at time `now_ms`; empty if no request has arrived.
  Result<Step> begin_step(double now_ms);
  /// The step that was begun last has been computed: every running request has one more token.
  Status finish_step();

  const PagePool& pool() const { return pool_; }
  const Counts& counts() const { return counts_; }
  int waiting() const { return static_cast<int>(waiting_.size()); }

 private:
  struct Request {
    int index = 0;
    int generated = 0;
    int filled = 0;  // most tokens that ever had their bytes
    PagePool::Sequence sequence;
    std::vector<PagePool::ContentId> contents;
  };

  Scheduler(std::span<const io::TraceRequest> trace, const Options& options, PagePool pool);

  void arrive(double now_ms);
  Status grow_running(Step& step);
  Status admit(Step& step);
  Status preempt_youngest();
  /// Tokens that the request has in the coming step, including the token that the step gives it.
  int next_length(const Request& request) const;

  std::span<const io::TraceRequest> trace_;
  Options options_;
  PagePool pool_;
  PageContents contents_;
  std::size_t arrived_ = 0;
  std::deque<Request> waiting_;
  std::vector<Request> running_;  // oldest first
  Counts counts_;
};

}  // namespace flashlatent::serve
