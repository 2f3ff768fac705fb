#include "cpu/parallel.h"

#include <omp.h>
#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

namespace flashlatent::cpu {

namespace {

/// A thread that runs one parallel region at a time for another thread, which waits.
class StandIn {
 public:
  /// Throws std::system_error if the thread cannot be started. The thread lives as long as the process.
  StandIn() {
    std::thread([this] { serve(); }).detach();
  }

  void run(int threads, void (*region)(void*, int), void* context) {
    std::unique_lock lock(mutex_);
    threads_ = threads;
    context_ = context;
    region_ = region;
    changed_.notify_all();
    changed_.wait(lock, [this] { return region_ == nullptr; });
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return region_ != nullptr; });
      region_(context_, threads_);
      region_ = nullptr;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  void (*region_)(void*, int) = nullptr;  // null: no region is asked for, or it has ended
  void* context_ = nullptr;
  int threads_ = 1;
};

// State of the thread that called fork, the only one in the child.
thread_local bool team_is_lost = false;
thread_local StandIn* stand_in = nullptr;  // never freed, because its thread waits in it

void begin_child() {
  team_is_lost = true;
  stand_in = nullptr;  // a stand-in of the parent has no thread in the child
}

// Registered when the library is loaded and not at the first region, since other code may use the same OpenMP
// threads.
[[maybe_unused]] const int kRegistered = pthread_atfork(nullptr, nullptr, begin_child);

StandIn* make_stand_in() {
  try {
    return new StandIn;
  } catch (const std::system_error&) {
    return nullptr;
  }
}

}  // namespace

int hardware_threads() {
  return std::min(omp_get_max_threads(), kMostThreads);
}

void with_team(int threads, void (*region)(void* context, int threads), void* context) {
  if (!team_is_lost) return region(context, threads);
  if (stand_in == nullptr) stand_in = make_stand_in();
  if (stand_in == nullptr) return region(context, 1);
  stand_in->run(threads, region, context);
}

}  // namespace flashlatent::cpu
