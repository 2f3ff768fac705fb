#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <random>

#include "io/trace.h"

namespace flashlatent::io {

namespace {

constexpr double kMeanGapMs = 400;
constexpr std::size_t kSystemPrompts = 4;
constexpr std::size_t kOpenChats = 16;
constexpr int kLongestInput = 32768;

// Distributions over a generator that the C++ standard fixes, written out because the standard's own
// distributions differ between libraries.
class Random {
 public:
  explicit Random(std::uint64_t seed) : bits_(seed) {}

  /// Uniform in (0, 1).
  double unit() { return (static_cast<double>(bits_() >> 11) + 0.5) * 0x1p-53; }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(unit() * static_cast<double>(n)); }
  double exponential(double mean) { return -mean * std::log(unit()); }
  /// Log-normal token count: half are below `median`; cut to [1, most].
  int tokens(double median, double sigma, int most) {
    const double normal = std::sqrt(-2 * std::log(unit())) * std::cos(2 * std::numbers::pi * unit());
    return static_cast<int>(std::clamp(median * std::exp(sigma * normal), 1.0, static_cast<double>(most)));
  }

 private:
  std::mt19937_64 bits_;
};

// What a chat's next turn builds on: its text so far and the ids of the blocks that this text fills.
struct Chat {
  int tokens = 0;
  std::vector<std::int64_t> full_blocks;
};

}  // namespace

std::vector<TraceRequest> synthetic_trace(std::size_t n, std::uint64_t seed) {
  Random random(seed);
  std::int64_t next_id = 0;
  auto fill = [&](Chat& chat) {
    while (chat.full_blocks.size() < static_cast<std::size_t>(chat.tokens / kTraceBlockTokens)) {
      chat.full_blocks.push_back(next_id++);
    }
  };
  std::array<Chat, kSystemPrompts> prompts;
  for (Chat& prompt : prompts) {
    prompt.tokens = kTraceBlockTokens * static_cast<int>(1 + random.below(3));
    fill(prompt);
  }

  std::vector<Chat> chats;
  std::vector<TraceRequest> requests;
  requests.reserve(n);
  double now = 0;
  for (std::size_t i = 0; i < n; ++i) {
    now += random.exponential(kMeanGapMs);
    // Half of the requests go on with an open chat, the others start one, in place of an old one.
    std::size_t which = random.below(kOpenChats);
    if (which >= chats.size() || random.unit() < 0.5) {
      if (chats.size() < kOpenChats) {
        which = chats.size();
        chats.emplace_back();
      }
      chats[which] = prompts[random.below(kSystemPrompts)];
    }
    Chat& chat = chats[which];
    chat.tokens = std::min(chat.tokens + random.tokens(600, 1.2, kLongestInput), kLongestInput);
    fill(chat);

    TraceRequest request;
    request.timestamp_ms = static_cast<std::int64_t>(now);
    request.input_length = chat.tokens;
    request.output_length = random.tokens(150, 0.9, 2000);
    request.hash_ids = chat.full_blocks;
    // A last block that is not full is nobody else's.
    if (chat.tokens % kTraceBlockTokens != 0) request.hash_ids.push_back(next_id++);
    chat.tokens = std::min(chat.tokens + request.output_length, kLongestInput);
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace flashlatent::io
