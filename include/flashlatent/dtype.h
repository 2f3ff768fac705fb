// Element types.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flashlatent {

enum class Dtype : std::uint8_t { kBF16, kF16, kF32, kI32, kU8, kI64 };

/// Bytes of one element.
std::size_t size_of(Dtype dtype);
/// The name: "bf16", "fp16", "fp32", "int32", "uint8", "int64".
const char* to_string(Dtype dtype);

}  // namespace flashlatent
