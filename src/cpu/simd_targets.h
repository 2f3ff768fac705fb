// The targets that Highway compiles for. Include it before foreach_target.h.
#pragma once

// Left out: targets whose vectors have no fixed size, which cannot be kept in arrays; and SSSE3, for
// processors of before 2008, which get the scalar version.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | HWY_SSSE3)
