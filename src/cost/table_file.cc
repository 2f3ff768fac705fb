#include "cost/table_file.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <fstream>
#include <memory>
#include <mutex>
#include <sstream>
#include <vector>

#include "core/environment.h"
#include "core/message.h"
#include "cost/device.h"

namespace flashlatent::cost {

namespace {

constexpr Field kFields[] = {
    {"per_block", &Constants::per_block},
    {"per_split", &Constants::per_split},
    {"per_call", &Constants::per_call, true},
    {"per_merge", &Constants::per_merge},
    {"per_block_alone", &Constants::per_block_alone},
    {"per_block_memory", &Constants::per_block_memory},
    {"per_block_products", &Constants::per_block_products},
    {"shared_merge", &Constants::shared_merge},
    {"lone_merge", &Constants::lone_merge},
    {"block_here", &Constants::block_here},
    {"block_alone", &Constants::block_alone},
    {"block_streaming", &Constants::block_streaming},
    {"lone_request_merge", &Constants::lone_request_merge, true},
    {"per_member", &Constants::per_member},
    {"lone_share", &Constants::lone_share, true},
};
static_assert(sizeof(Constants) == std::size(kFields) * sizeof(std::int32_t));

constexpr std::string_view kVendor = "NVIDIA ";
/// A constant's largest magnitude: 10 ms. Costs are 32-bit numbers, and are multiplied by up to 100.
constexpr std::int32_t kMost = 10'000'000;

/// A file's text in a message, which is a line of printable characters.
std::string shown(std::string_view text) {
  constexpr std::size_t kMostShown = 60;
  std::string printable(text.substr(0, kMostShown));
  for (char& c : printable) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text.size() > kMostShown ? printable + "..." : printable;
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line.substr(0, line.find('#')));
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

/// "per_block=1200": one constant.
Status take_constant(const std::string& word, int line, Constants& constants) {
  const std::size_t equals = word.find('=');
  const std::string name = word.substr(0, equals);
  const auto* field =
      std::find_if(std::begin(kFields), std::end(kFields), [&](const Field& f) { return name == f.name; });
  if (equals == std::string::npos || field == std::end(kFields)) {
    std::string names;
    for (const Field& f : kFields) names += message(names.empty() ? "" : ", ", f.name);
    return invalid_argument("line ", line, " of the costs has '", shown(word), "'; CONSTANT=NANOSECONDS of ",
                            names, " is accepted");
  }
  std::int32_t number = 0;
  const char* end = word.data() + word.size();
  const auto [stopped, error] = std::from_chars(word.data() + equals + 1, end, number);
  const std::int32_t least = field->may_be_negative ? -kMost : 0;
  if (error != std::errc() || stopped != end || number < least || number > kMost) {
    return invalid_argument("line ", line, " of the costs has '", shown(word),
                            "'; a whole number of nanoseconds from ", least, " to ", kMost, " is accepted");
  }
  if (constants.*field->member != 0) {
    return invalid_argument("line ", line, " of the costs has ", name, " twice; once is accepted");
  }
  constants.*field->member = number;
  return {};
}

/// "mla_16 rows16 per_block=1140 ...": a place and its constants.
Status take_place(const std::vector<std::string>& words, int line, Table& table, std::vector<bool>& found) {
  const std::string name = message(words[0], " ", words.size() > 1 ? words[1] : "");
  const auto place =
      std::find_if(kPlaces.begin(), kPlaces.end(), [&](const Place& p) { return name_of(p) == name; });
  if (place == kPlaces.end()) {
    return invalid_argument(
        "line ", line, " of the costs begins with '", shown(name),
        "'; 'gpu NAME', or KERNEL SITUATION as `flashlatent costs` prints them, is accepted");
  }
  const auto index = static_cast<std::size_t>(place - kPlaces.begin());
  if (found[index]) {
    return invalid_argument("line ", line, " of the costs is about '", name, "' again; one line is accepted");
  }
  found[index] = true;
  for (std::size_t i = 2; i < words.size(); ++i) {
    FLASHLATENT_RETURN_IF_ERROR(take_constant(words[i], line, table.constants[index]));
  }
  return {};
}

/// All tables that were set: read without a lock, and never taken back.
using Tables = std::vector<const Table*>;
std::atomic<const Tables*> all_tables{nullptr};
std::atomic<bool> called{false};  // table_for_calls()?

/// Is this a time of calls, and not a cost by which calls are cut?
bool is_of_times(Cut cut) {
  return cut == Cut::kTimes || cut == Cut::kTimesQueryTokens || cut == Cut::kTeamQueryTokens;
}

Constants scaled_teams(const Constants& constants, const schedule::Workers& workers) {
  const TeamCosts on = team_costs_of(constants, -1).on(workers);
  return {.per_call = on.call,
          .per_block_memory = on.block_memory,
          .shared_merge = on.shared_merge,
          .lone_merge = on.lone_merge,
          .block_here = on.block_here,
          .block_alone = on.block_alone,
          .block_streaming = on.block_streaming,
          .lone_request_merge = on.lone_request};
}

Constants scaled_constants(const Place& place, const Constants& constants, const schedule::Workers& workers) {
  if (constants.block_streaming != 0) return scaled_teams(constants, workers);
  const Costs costs = costs_of(constants, -1);
  const schedule::CostModel on = costs.on(workers);
  // by_memory() makes segments and merges of these grow as bytes do.
  const bool by_bytes = place.situation.cut == Cut::kByMemory;
  return {.per_block = scaled(constants.per_block, workers.clock),
          .per_split = by_bytes                           ? scaled(constants.per_split, workers.memory)
                       : is_of_times(place.situation.cut) ? costs.segment_on(workers)
                                                          : on.per_split,
          .per_call = on.per_call,
          .per_merge = by_bytes ? scaled(constants.per_merge, workers.memory) : on.per_merge,
          .per_block_alone = on.per_block_alone,
          .per_block_memory = scaled(constants.per_block_memory, workers.memory),
          .per_block_products = scaled(constants.per_block_products, workers.products),
          .per_member = costs.per_member_on(workers),
          .lone_share = costs.lone_share_on(workers)};
}

}  // namespace

std::span<const Field> fields() {
  return kFields;
}

std::string name_of(const Situation& situation) {
  const bool source_last = situation.source == Source::kTokens;
  const char* source = kSourceNames[static_cast<std::size_t>(situation.source)];
  std::string name;
  const auto add = [&name](std::string_view part) {
    name += message(name.empty() || part.empty() ? "" : "_", part);
  };
  if (!source_last) add(source);
  add(kCutNames[static_cast<std::size_t>(situation.cut)]);
  if (situation.tile == Tile::kTiles && situation.cut != Cut::kLine) add("of");
  add(kTileNames[static_cast<std::size_t>(situation.tile)]);
  if (source_last) add(source);
  return name;
}

std::string name_of(const Place& place) {
  return message(kKernelNames[static_cast<std::size_t>(place.kernel)], " ", name_of(place.situation));
}

Table scaled_table(const std::string& gpu, const schedule::Workers& workers) {
  Table table = built_in_table();
  table.gpu = gpu;
  for (std::size_t i = 0; i < kPlaces.size(); ++i) {
    table.constants[i] = scaled_constants(kPlaces[i], table.constants[i], workers);
  }
  return table;
}

Table built_in_table() {
  Table table{.gpu = "H200"};
  for (const Row& row : rows::kH200) {
    Constants& constants = table.constants[place_of(row.kernel, row.situation)];
    for (const Field& field : kFields) constants.*field.member += row.constants.*field.member;
  }
  return table;
}

std::string to_text(const Table& table) {
  std::string text = message("gpu ", table.gpu, "\n");
  for (std::size_t i = 0; i < kPlaces.size(); ++i) {
    text += name_of(kPlaces[i]);
    for (const Field& field : kFields) {
      const std::int32_t number = table.constants[i].*field.member;
      if (number != 0) text += message(" ", field.name, "=", number);
    }
    text += "\n";
  }
  return text;
}

Result<Table> parse_table(std::string_view text) {
  Table table;
  std::vector<bool> found(kPlaces.size());
  std::istringstream lines{std::string(text)};
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const std::vector<std::string> words = words_of(line);
    if (words.empty()) continue;
    if (words[0] != "gpu") {
      FLASHLATENT_RETURN_IF_ERROR(take_place(words, number, table, found));
      continue;
    }
    if (words.size() < 2 || !table.gpu.empty()) {
      return invalid_argument("line ", number, " of the costs is '", shown(line),
                              "'; one line 'gpu NAME' is accepted");
    }
    for (std::size_t i = 1; i < words.size(); ++i) table.gpu += message(i > 1 ? " " : "", words[i]);
    if (table.gpu.starts_with(kVendor)) table.gpu.erase(0, kVendor.size());
  }
  if (table.gpu.empty()) return invalid_argument("the costs have no line 'gpu NAME'; one is accepted");
  const auto missing = std::find(found.begin(), found.end(), false);
  if (missing != found.end()) {
    return invalid_argument("the costs have no line '", name_of(kPlaces[missing - found.begin()]),
                            " ...'; a line for each that `flashlatent costs` prints is accepted, ",
                            "and those of other versions have other lines");
  }
  return table;
}

Status set_table(Table table) {
  if (called.load(std::memory_order_acquire)) {
    return invalid_argument("costs of ", table.gpu,
                            " are set after a GPU was asked for; before the first call ",
                            "on a GPU they are accepted");
  }
  static std::mutex mutex;
  static std::vector<std::unique_ptr<const Table>> owned;
  static std::vector<std::unique_ptr<const Tables>> versions;
  const std::lock_guard lock(mutex);
  owned.push_back(std::make_unique<const Table>(std::move(table)));
  Tables tables = {owned.back().get()};  // the newest first
  if (!versions.empty()) tables.insert(tables.end(), versions.back()->begin(), versions.back()->end());
  versions.push_back(std::make_unique<const Tables>(std::move(tables)));
  all_tables.store(versions.back().get(), std::memory_order_release);
  return {};
}

const Table* table_of(std::string_view gpu) {
  const Tables* tables = all_tables.load(std::memory_order_acquire);
  if (tables == nullptr) return nullptr;
  for (const Table* table : *tables) {
    if (is_gpu(gpu, table->gpu)) return table;
  }
  return nullptr;
}

const Table* table_for_calls(std::string_view gpu) {
  called.store(true, std::memory_order_release);
  return table_of(gpu);
}

const Table* newest_table() {
  const Tables* tables = all_tables.load(std::memory_order_acquire);
  return tables == nullptr ? nullptr : tables->front();
}

Status load_table(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  const bool empty = file.peek() == std::ifstream::traits_type::eof() && !file.bad();
  if (!file.is_open() || path.find('\0') != std::string::npos || (!empty && !(text << file.rdbuf()))) {
    return invalid_argument(
        "'", path, "' cannot be read; a file of costs, as `flashlatent costs` prints them, is ", "accepted");
  }
  Result<Table> table = parse_table(text.str());
  if (!table.ok()) return invalid_argument("'", path, "': ", table.status().message());
  return set_table(std::move(*table));
}

Status load_from_environment() {
  static const Status kLoaded = [] {
    const std::string path(environment::costs());
    if (path.empty()) return Status();
    const Status status = load_table(path);
    return status.ok() ? status : invalid_argument("FLASHLATENT_COSTS names ", status.message());
  }();
  return kLoaded;
}

}  // namespace flashlatent::cost
