#include "tools/files.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "io/file.h"

namespace flashlatent::tools {

namespace {

constexpr const char* kStdout = "-";

/// The stream for JSON of "-".
FILE*& json_stream() {
  static FILE* stream = stdout;
  return stream;
}

bool is_same_file(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::error_code failure;
  if (std::filesystem::equivalent(a, b, failure) && !failure) return true;
  const auto real_a = std::filesystem::weakly_canonical(std::filesystem::absolute(a), failure);
  if (failure) return a == b;
  const auto real_b = std::filesystem::weakly_canonical(std::filesystem::absolute(b), failure);
  return failure ? a == b : real_a == real_b;
}

Status cannot_write_stdout() {
  return {StatusCode::kInvalidArgument, fmt::format("stdout cannot be written: {}", std::strerror(errno))};
}

}  // namespace

CLI::Validator writable_file() {
  return {[](const std::string& path) -> std::string {
            if (path == kStdout) return "- is no file here; only --json writes to stdout";
            return io::can_write_file(path).message();
          },
          ""};
}

Status check_files_differ(std::initializer_list<NamedFile> files) {
  for (const NamedFile* a = files.begin(); a != files.end(); ++a) {
    for (const NamedFile* b = files.begin(); b != a; ++b) {
      if (!(a->written || b->written) || a->path.empty() || b->path.empty()) continue;
      if (a->path == kStdout || b->path == kStdout || !is_same_file(a->path, b->path)) continue;
      return {StatusCode::kInvalidArgument,
              fmt::format("{} is '{}', the same file as {} '{}'; another one is needed", a->option, a->path,
                          b->option, b->path)};
    }
  }
  return {};
}

void add_json_option(CLI::App& app, std::string& path) {
  app.add_option("--json", path,
                 "Also write the result to this file as JSON; -: to stdout, and nothing else there")
      ->check(CLI::Validator(
          [](const std::string& name) { return name == kStdout ? "" : io::can_write_file(name).message(); },
          ""));
}

void keep_stdout_for_json(const CLI::App& app) {
  for (const CLI::App* chosen : app.get_subcommands()) {
    keep_stdout_for_json(*chosen);
    const CLI::Option* json = chosen->get_option_no_throw("--json");
    if (json == nullptr || json->count() == 0 || json->results().back() != kStdout) continue;
    std::fflush(stdout);
    if (const int copy = ::dup(STDOUT_FILENO); copy >= 0) json_stream() = ::fdopen(copy, "w");
    ::dup2(STDERR_FILENO, STDOUT_FILENO);
  }
}

std::string a_case_a_line(const nlohmann::ordered_json& document) {
  using Json = nlohmann::ordered_json;
  const auto brief = [](const Json& value) {
    return value.dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  if (!document.is_object()) return brief(document);
  // The members' key, which objects have and lists do not.
  const auto lines = [&](const Json& whole, const std::string& indent, const auto& text) {
    std::string members;
    for (const auto& [key, value] : whole.items()) {
      members += (members.empty() ? "\n" : ",\n") + indent + (whole.is_object() ? brief(key) + ": " : "") +
                 text(value);
    }
    return members;
  };
  const auto field = [&](const Json& value) {
    const bool of_cases =
        value.is_structured() && !value.empty() &&
        std::all_of(value.begin(), value.end(), [](const Json& x) { return x.is_structured(); });
    if (!of_cases) return brief(value);
    return (value.is_object() ? "{" : "[") + lines(value, "  ", brief) + "\n " +
           (value.is_object() ? "}" : "]");
  };
  return "{" + lines(document, " ", field) + "\n}";
}

Status write_json(const std::string& path, const nlohmann::ordered_json& document) {
  if (path.empty()) return {};
  const std::string text = a_case_a_line(document) + "\n";
  if (path == kStdout) {
    const bool written = std::fwrite(text.data(), 1, text.size(), json_stream()) == text.size() &&
                         std::fflush(json_stream()) == 0;
    return written ? Status() : cannot_write_stdout();
  }
  const std::array<std::string_view, 1> pieces = {text};
  return io::write_file(path, pieces);
}

Status finish_stdout() {
  return std::fflush(stdout) == 0 && std::ferror(stdout) == 0 ? Status() : cannot_write_stdout();
}

}  // namespace flashlatent::tools
