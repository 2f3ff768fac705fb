// The JSON header of a safetensors file, parsed and checked.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flashlatent/status.h"
#include "flashlatent/tensor.h"

namespace flashlatent::io {

struct TensorEntry {
  std::string name;
  std::string dtype_name;      ///< As the header has it; any string.
  std::optional<Dtype> dtype;  ///< What a view of it has, if views have such elements.
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  ///< Byte offsets in the data that follows the header.
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<TensorEntry> tensors;  ///< In the order of their data, which they cover without gap or overlap.
};

/// The dtype's name in the format: "BF16", "F16", "F32", "I32", "U8", "I64".
const char* safetensors_name(Dtype dtype);

/// Can a ConstTensorView show it? "F8_E4M3" is shown as uint8. Other dtypes, scalars and ranks above kMaxRank
/// are legal in a file, but have no view.
bool has_view(const TensorEntry& entry);

/// Parses the header of a file with `data_bytes` bytes of tensor data. Takes memory in proportion to `text`
/// at most. Messages name the field, not the file.
Result<SafetensorsHeader> parse_safetensors_header(std::string_view text, std::uint64_t data_bytes);

}  // namespace flashlatent::io
