// For what Highway compiles: to be included before foreach_target.h.
#pragma once

// Vectors of unknown size cannot be kept in arrays. What has SSSE3 but not SSE4 (before 2008) takes the
// scalar version.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_SSSE3)
