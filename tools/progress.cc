#include "tools/progress.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "io/text.h"

namespace flashlatent::tools {

namespace {

constexpr int kMostBar = 30, kLeastBar = 4;
constexpr int kUsualColumns = 80;

/// COLUMNS if set, else the terminal's answer. Asked each time, since windows change.
int columns_of_terminal() {
  if (const char* said = std::getenv("COLUMNS"); said != nullptr) {
    if (const auto number = io::parse_integer(said); number && *number > 0 && *number < 10000) {
      return static_cast<int>(*number);
    }
  }
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return kUsualColumns;
}

}  // namespace

std::string progress_line(const std::string& what, std::int64_t done, std::int64_t total, int columns) {
  const std::string percent = fmt::format("{:3} %", done * 100 / total);
  const std::string count = fmt::format(" ({}/{})", done, total);
  const auto text = static_cast<int>(what.size() + percent.size() + count.size());
  const int bar = std::min(kMostBar, columns - text - 4);  // " [] "
  if (bar >= kLeastBar) {
    const std::string filled(static_cast<std::size_t>(done * bar / total), '#');
    return fmt::format("{} [{:<{}}] {}{}", what, filled, bar, percent, count);
  }
  if (text + 1 <= columns) return fmt::format("{} {}{}", what, percent, count);
  return percent.substr(0, static_cast<std::size_t>(std::max(columns, 0)));
}

Progress::Progress(std::string what, std::int64_t total)
    : what_(std::move(what)), total_(total > 0 ? total : 1), terminal_(isatty(STDERR_FILENO) != 0) {}

void Progress::clear() {
  if (terminal_ && drawn_) std::fprintf(stderr, "\r\033[K");
  drawn_ = false;
}

void Progress::update(std::int64_t done) {
  const auto now = std::chrono::steady_clock::now();
  const std::chrono::duration<double> pause(terminal_ ? 0.1 : 10.0);
  if (now - last_ < pause && done < total_) return;
  if (!terminal_ && now - start_ < pause) return;
  last_ = now;
  drawn_ = true;
  if (terminal_) {
    // One column less: a full last column wraps on some terminals.
    fmt::print(stderr, "\r{}\033[K", progress_line(what_, done, total_, columns_of_terminal() - 1));
  } else {
    fmt::print(stderr, "{}: {} % ({}/{})\n", what_, done * 100 / total_, done, total_);
  }
  std::fflush(stderr);
}

}  // namespace flashlatent::tools
