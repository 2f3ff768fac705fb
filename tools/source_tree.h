// The sources that this program was built from.
#pragma once

namespace flashlatent::tools {

/// The id of the git tree, with "-dirty" if the working tree differed; "unknown" outside git.
const char* source_tree();

}  // namespace flashlatent::tools
