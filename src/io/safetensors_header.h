// The JSON header of a safetensors file, parsed and checked.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "flashlatent/status.h"
#include "flashlatent/tensor.h"

namespace flashlatent::io {

struct TensorEntry {
  std::string name;
  Dtype dtype = Dtype::kU8;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  ///< Byte offsets in the data that follows the header.
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<TensorEntry> tensors;  ///< In the order of their data, which they cover without gap or overlap.
};

/// The dtype's name in the format: "BF16", "F16", "F32", "I32", "U8".
const char* safetensors_name(Dtype dtype);

/// Parses the header of a file with `data_bytes` bytes of tensor data. Takes memory in proportion to `text`
/// at most. Messages name the field, not the file.
Result<SafetensorsHeader> parse_safetensors_header(std::string_view text, std::uint64_t data_bytes);

}  // namespace flashlatent::io
