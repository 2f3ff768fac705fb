// A progress bar on stderr.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace flashlatent::tools {

/// One line of at most `columns` characters. The bar is shortened first, then left out, then the name.
std::string progress_line(const std::string& what, std::int64_t done, std::int64_t total, int columns);

/// On a terminal a bar that redraws itself, as wide as there is room (COLUMNS, or the terminal's width).
/// Elsewhere a line now and then, if the work takes long.
class Progress {
 public:
  Progress(std::string what, std::int64_t total);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Call before printing something else.
  void clear();
  void update(std::int64_t done);

 private:
  const std::string what_;
  const std::int64_t total_;
  const bool terminal_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_{};
  bool drawn_ = false;
};

}  // namespace flashlatent::tools
