// A progress bar on stderr.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace flashlatent::tools {

/// On a terminal a bar that redraws itself; elsewhere a line now and then, if the work takes long.
class Progress {
 public:
  Progress(std::string what, std::int64_t total) : what_(std::move(what)), total_(total > 0 ? total : 1) {}
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Before printing something else.
  void clear() {
    if (terminal_ && drawn_) std::fprintf(stderr, "\r\033[K");
    drawn_ = false;
  }

  void update(std::int64_t done) {
    const auto now = std::chrono::steady_clock::now();
    const std::chrono::duration<double> pause(terminal_ ? 0.1 : 10.0);
    if (now - last_ < pause && done < total_) return;
    if (!terminal_ && now - start_ < pause) return;
    last_ = now;
    drawn_ = true;
    constexpr int kWidth = 30;
    const int filled = static_cast<int>(done * kWidth / total_);
    const int percent = static_cast<int>(done * 100 / total_);
    if (terminal_) {
      std::fprintf(stderr, "\r%s [%-*s] %3d %% (%lld/%lld)", what_.c_str(), kWidth,
                   std::string(filled, '#').c_str(), percent, static_cast<long long>(done),
                   static_cast<long long>(total_));
    } else {
      std::fprintf(stderr, "%s: %d %% (%lld/%lld)\n", what_.c_str(), percent, static_cast<long long>(done),
                   static_cast<long long>(total_));
    }
    std::fflush(stderr);
  }

 private:
  const std::string what_;
  const std::int64_t total_;
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_{};
  bool drawn_ = false;
};

}  // namespace flashlatent::tools
