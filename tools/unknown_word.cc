#include "tools/unknown_word.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <string_view>
#include <vector>

namespace flashlatent::tools {

namespace {

constexpr std::size_t kLeastPrefix = 3;

/// The edit distance: letters inserted, removed, replaced, or swapped with a neighbour.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  std::iota(d[0].begin(), d[0].end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    d[i][0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

/// The known word that `word` is probably meant to be: a misspelling, or one is a beginning of the other.
/// Empty if there is none.
std::string closest(std::string_view word, const std::vector<std::string>& known) {
  std::string best;
  std::size_t least = word.size() / 4 + 2;  // the first distance that is too large
  for (const std::string& candidate : known) {
    const bool begins = std::min(word.size(), candidate.size()) >= kLeastPrefix &&
                        (word.starts_with(candidate) || candidate.starts_with(word));
    const std::size_t away = begins ? 1 : distance(word, candidate);
    if (away < least) {
      least = away;
      best = candidate;
    }
  }
  return best;
}

std::string explain(std::string_view word, const char* kind, const CLI::App& app,
                    const std::vector<std::string>& known) {
  const std::string text = fmt::format("'{}' is no {} of {}", word, kind, app.get_name());
  const std::string meant = closest(word, known);
  if (!meant.empty()) return fmt::format("{}; did you mean '{}'?", text, meant);
  return known.size() > 10 ? text : fmt::format("{}; {} are accepted", text, fmt::join(known, ", "));
}

}  // namespace

std::optional<std::string> explain_unknown_word(const CLI::App& app, int argc, const char* const* argv) {
  const CLI::App* current = &app;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--") return std::nullopt;
    if (word.starts_with("-")) {
      const std::string name(word.substr(0, word.find('=')));
      const CLI::Option* option = current->get_option_no_throw(name);
      if (option != nullptr) {
        if (option->get_items_expected_min() > 0 && name.size() == word.size()) ++i;  // skips its value
        continue;
      }
      if (!word.starts_with("--")) return std::nullopt;
      std::vector<std::string> known;
      for (const CLI::Option* each : current->get_options()) {
        for (const std::string& long_name : each->get_lnames()) known.push_back("--" + long_name);
      }
      return explain(name, "option", *current, known);
    }
    const std::vector<const CLI::App*> subcommands =
        current->get_subcommands([](const CLI::App*) { return true; });
    if (subcommands.empty()) continue;  // a file, not a subcommand
    const auto found = std::ranges::find_if(subcommands, [&](auto* s) { return s->get_name() == word; });
    if (found != subcommands.end()) {
      current = *found;
      continue;
    }
    std::vector<std::string> known;
    known.reserve(subcommands.size());
    for (const CLI::App* subcommand : subcommands) known.push_back(subcommand->get_name());
    return explain(word, "subcommand", *current, known);
  }
  return std::nullopt;
}

}  // namespace flashlatent::tools
