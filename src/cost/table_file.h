// Tables of costs as text: "gpu NAME", then a line for each place, "KERNEL SITUATION constant=nanoseconds
// ...". Text behind a # is a comment.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "cost/table.h"
#include "flashlatent/status.h"

namespace flashlatent::cost {

/// A constant's name in tables.
struct Field {
  const char* name;
  std::int32_t Constants::*member;
  bool may_be_negative = false;  ///< It is added to others, and may be what a call saves.
};
std::span<const Field> fields();

/// Source, cut and tile, by_tokens last: "records_shares_rows8", "shares_of_tiles", "rows64_by_tokens".
std::string name_of(const Situation& situation);
/// The same of a kernel: "mla_16 rows16".
std::string name_of(const Place& place);

/// The built-in constants, of an H200.
Table built_in_table();

/// The built-in constants times the factors of `workers`, for a GPU without a table: calls by this table are
/// cut as by the factors, except for the time of a block if half of the parts or more have work.
Table scaled_table(const std::string& gpu, const schedule::Workers& workers);

std::string to_text(const Table& table);

/// kInvalidArgument: a line that is no line of a table, a place or constant that is named twice, or a place
/// that is missing.
Result<Table> parse_table(std::string_view text);

/// Sets the table of its GPU for the process. Earlier tables stay in memory: workers may point to them.
/// kInvalidArgument after table_for_calls(): plans on a device would have other costs than calls.
Status set_table(Table table);

/// The table that was set for the GPU of this name; null: none.
const Table* table_of(std::string_view gpu);
/// The same for calls on that GPU.
const Table* table_for_calls(std::string_view gpu);

/// The table that was set last; null: none was.
const Table* newest_table();

/// Loads the file that FLASHLATENT_COSTS names, once; its error is returned by every later call.
Status load_from_environment();

/// Sets a file's table.
Status load_table(const std::string& path);

}  // namespace flashlatent::cost
