#include "tools/command.h"

#include "core/formats/formats.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "core/return_if_error.h"
#include "dispatch/select.h"
#include "io/text.h"

namespace flashlatent::tools {

void add_executor_options(CLI::App& app, ExecutorOptions& options) {
  app.add_option("--backend", options.backend,
                 "cpu or cuda; left out: FLASHLATENT_BACKEND if set, else cuda where it can run, else cpu")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--device", options.device, "CUDA: which device; 0 if left out")->check(CLI::Range(0, 1023));
  app.add_option("--threads", options.threads, "CPU: threads; 0, or left out: all")
      ->check(CLI::Range(0, 4096));
  app.add_option("--kernel", options.kernel, "Run this kernel or fail (see `flashlatent info`)")
      ->check(not_empty("kernel"));
}

Result<Executor> make_executor(const ExecutorOptions& options) {
  FLASHLATENT_ASSIGN_OR_RETURN(
      Backend backend, options.backend.empty() ? default_backend() : backend_from_name(options.backend));
  if (backend == Backend::kCpu && options.device) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("--device is {}, but the backend is cpu; it is for --backend cuda", *options.device));
  }
  if (backend == Backend::kCuda && options.threads) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("--threads is {}, but the backend is cuda; it is for --backend cpu", *options.threads));
  }
  Executor executor;
  executor.backend = backend;
  executor.device = options.device.value_or(0);
  executor.threads = options.threads.value_or(0);
  executor.kernel = options.kernel;
  if (Status status = validate(executor); !status.ok()) return status;
  return executor;
}

void add_typical_tokens_option(CLI::App& app, int& tokens) {
  app.add_option(
         "--typical-tokens", tokens,
         "How long contexts are expected to be: a kernel is chosen for requests of so many tokens; 0: as "
         "far as the page table reaches")
      ->check(CLI::Range(0, (1 << 30) - 1 + (1 << 30)))
      ->capture_default_str();
}

void add_seed_option(CLI::App& app, std::uint64_t& seed) {
  app.add_option("--seed", seed, "Seed of everything random: a whole number from 0 to 2^63 - 1")
      ->check(CLI::Validator(
          [](const std::string& text) -> std::string {
            const auto number = io::parse_integer(text);
            return number && *number >= 0 ? "" : text + " is no whole number from 0 to 2^63 - 1";
          },
          ""))
      ->capture_default_str();
}

std::optional<std::string> whole_number(std::string_view text) {
  static constexpr std::string_view kDigits = "0123456789";
  constexpr std::size_t kMostDigits = 18;
  const bool negative = text.starts_with('-');
  std::string_view rest = text.substr(negative);
  const auto take_digits = [&rest] {
    const std::string_view digits = rest.substr(0, rest.find_first_not_of(kDigits));
    rest.remove_prefix(digits.size());
    return std::string(digits);
  };
  std::string digits = take_digits();
  if (digits.empty()) return std::nullopt;
  if (rest.empty()) return std::string(text);
  std::string fraction;
  if (rest.starts_with('.')) {
    rest.remove_prefix(1);
    fraction = take_digits();
    if (fraction.empty()) return std::nullopt;
  }
  fraction.erase(fraction.find_last_not_of('0') + 1);
  std::size_t power = 0;
  if (!rest.empty()) {
    if (rest[0] != 'e' && rest[0] != 'E') return std::nullopt;
    rest.remove_prefix(1);
    if (rest.starts_with('+')) rest.remove_prefix(1);
    const std::string exponent = take_digits();
    if (exponent.empty() || exponent.size() > 2 || !rest.empty()) return std::nullopt;
    power = std::stoul(exponent);
  }
  if (fraction.size() > power || digits.size() + power > kMostDigits) return std::nullopt;
  fraction.resize(power, '0');
  digits += fraction;
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size() - 1));
  return (negative ? "-" : "") + digits;
}

void take_whole_numbers(CLI::App& app) {
  const CLI::Validator is_whole(
      [](std::string& text) -> std::string {
        const std::optional<std::string> number = whole_number(text);
        if (!number) return fmt::format("'{}' is no whole number", text);
        text = *number;
        return {};
      },
      "");
  const auto is_integer = [](const CLI::Option* option) {
    const std::string type = option->get_type_name();
    return type == "INT" || type == "UINT" || type.starts_with("INT:") || type.starts_with("UINT:");
  };
  for (CLI::Option* option : app.get_options(is_integer)) option->transform(is_whole);
  for (CLI::App* command : app.get_subcommands({})) take_whole_numbers(*command);
}

namespace {

/// The numbers of "1,2,3"; or `why` it is no such list.
std::optional<std::vector<int>> parse_list(std::string_view text, int least, int most, std::string& why) {
  std::vector<int> values;
  while (true) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view item = text.substr(0, comma);
    const auto number = io::parse_integer(whole_number(item).value_or(""));
    if (!number || *number < least || *number > most) {
      why = fmt::format("item {} is '{}'; whole numbers from {} to {}, separated by commas, are accepted",
                        values.size() + 1, item, least, most);
      return std::nullopt;
    }
    values.push_back(static_cast<int>(*number));
    if (comma == text.size()) return values;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace

CLI::Option* add_list_option(CLI::App& app, const std::string& flag, std::vector<int>& values, int least,
                             int most, const std::string& help) {
  const auto take = [&values, least, most](const std::string& text) {
    std::string why;
    values = parse_list(text, least, most, why).value_or(std::vector<int>());
  };
  const CLI::Validator is_list(
      [least, most](const std::string& text) {
        std::string why;
        parse_list(text, least, most, why);
        return why;
      },
      "");
  return app.add_option_function<std::string>(flag, take, help)
      ->type_name("INT,...")
      ->check(is_list)
      ->default_str(fmt::format("{}", fmt::join(values, ",")));
}

CLI::Validator number_between(double least, double most) {
  return {[least, most](const std::string& text) -> std::string {
            double number = 0;
            const bool is_number = CLI::detail::lexical_cast(text, number);
            // Not so of nan, either.
            if (is_number && number >= least && number <= most) return "";
            return fmt::format("{} is no number from {} to {}", text, least, most);
          },
          fmt::format("FLOAT in [{} - {}]", least, most)};
}

CLI::Validator not_empty(const std::string& what) {
  return {[what](const std::string& text) -> std::string {
            return text.empty() ? fmt::format("'' is no {}'s name; leave the option out instead", what) : "";
          },
          ""};
}

Status check_cuda_flag(const char* flag, bool given, const Executor& executor) {
  if (!given || executor.backend == Backend::kCuda) return {};
  return {StatusCode::kInvalidArgument,
          fmt::format("{} is for --backend cuda; the backend is {}", flag, to_string(executor.backend))};
}

int fail(const Status& status) {
  tell("flashlatent: {}\n", status.message());
  return kWrongInput;
}

namespace {

std::string& stored_command_line() {
  static std::string line;
  return line;
}

}  // namespace

const std::string& command_line() {
  return stored_command_line();
}

void set_command_line(int argc, char** argv) {
  std::string& line = stored_command_line();
  line = "flashlatent";
  // Only the last part of paths, since the report is read on other machines. Shards and dimensions have
  // slashes, too, but are no paths.
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const bool is_path = argument.find_first_not_of("0123456789/") != std::string_view::npos;
    line += ' ';
    line += is_path ? argument.substr(argument.rfind('/') + 1) : argument;
  }
}

std::vector<std::string> kv_format_names(const std::vector<std::string>& first) {
  std::vector<std::string> names = first;
  for (const LatentFormat* format : kFormats) {
    if (!format->plain() && format->name != names.back()) names.emplace_back(format->name);
  }
  return names;
}

void add_scale_place(CLI::App& app, std::string& place) {
  app.add_option("--scale-place", place,
                 names_with_places() +
                     ": each token's scales follow its data (token, or left out), or a page's scales its "
                     "data (page)")
      ->check(CLI::IsMember({"token", "page"}));
}

Result<ScalePlace> scale_place_of(const std::string& place, KvFormat format, const std::string& kv) {
  if (place.empty()) return ScalePlace::kToken;
  if (has_places(format)) return scale_place_from_name(place);
  return Status(
      StatusCode::kInvalidArgument,
      fmt::format("--scale-place is {}; it is for --kv {}, and --kv is {}", place, names_with_places(), kv));
}

}  // namespace flashlatent::tools
