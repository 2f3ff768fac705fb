// Temporary memory of a call, which a thread keeps for its next calls.
#pragma once

#include <memory_resource>

namespace flashlatent {

/// The calling thread's resource. It keeps blocks of up to 4 MB that were given back. A caller whose block
/// sizes depend on shapes alone takes nothing from the heap after its first call.
std::pmr::memory_resource* scratch();

}  // namespace flashlatent
