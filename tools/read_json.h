// JSON of a user's file.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "flashlatent/status.h"
#include "io/file.h"

namespace flashlatent::tools {

/// Parses the file's text. Refuses files of more than 256 MB, and values nested more than 8 deep: copying and
/// printing a value is recursive. `accepted` ends the messages: "a file of shapes".
Result<nlohmann::ordered_json> read_json(const io::ByteSource& source, std::string_view accepted);

}  // namespace flashlatent::tools
