// Memory for the time of a call, which a thread keeps for its next ones.
#pragma once

#include <memory_resource>

namespace flashlatent {

/// The calling thread's. What has been given back serves later calls, blocks of up to 4 MB as they are; so
/// who takes blocks of sizes that follow from shapes alone takes nothing from the heap a second time.
std::pmr::memory_resource* scratch();

}  // namespace flashlatent
