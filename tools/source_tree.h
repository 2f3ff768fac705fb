// Which sources this program was built from.
#pragma once

namespace flashlatent::tools {

/// The id of the git tree, with "-dirty" where the working tree differs, or "unknown" outside git.
const char* source_tree();

}  // namespace flashlatent::tools
