// What other packages call the cache formats.
#pragma once

#include <string>
#include <string_view>

namespace flashlatent {

/// The end of a message about a format that is not known: what `name` is called here; empty where no package
/// uses `name` for a format.
std::string known_as(std::string_view name);

}  // namespace flashlatent
