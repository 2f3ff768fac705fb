// bf16 and fp16 caches: elements as they are.
#pragma once

#include "core/formats/format.h"

namespace flashlatent {

inline constexpr LatentFormat kPlainFormat = {.format = KvFormat::kPlain, .name = "plain"};

}  // namespace flashlatent
