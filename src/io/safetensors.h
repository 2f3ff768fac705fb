// The safetensors format: u64 header length (little endian) | JSON header | tensor data without gaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "flashlatent/status.h"
#include "flashlatent/tensor.h"
#include "io/file.h"

namespace flashlatent::io {

/// A header longer than this is refused, like everywhere else that reads the format.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

/// A file's tensors in CPU memory. All of the header is checked, against the file's size too, before memory
/// is taken for the data, which is never more than the file holds. Every error is one line, kInvalidArgument,
/// and names the file and the field.
class SafetensorsFile {
 public:
  /// Any tensor that the format allows; of those without a view (has_view() in safetensors_header.h) only the
  /// description is kept.
  static Result<SafetensorsFile> read(const std::string& path);
  /// The same from memory; `name` stands for the path in messages. Copies what it needs.
  static Result<SafetensorsFile> parse(std::string_view bytes, std::string_view name);

  /// What messages call this file.
  const std::string& name() const { return name_; }
  /// The strings under `__metadata__`.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// Contiguous views by name, valid as long as this object or one moved from it; each starts at a multiple
  /// of 64 bytes.
  const std::map<std::string, ConstTensorView>& tensors() const { return tensors_; }
  /// The tensor of that name, or an absent view.
  ConstTensorView tensor(const std::string& name) const;
  /// "F64 (3, 4)" by name: tensors that a view cannot show, by dtype or rank. Their data is not read.
  const std::map<std::string, std::string>& without_view() const { return without_view_; }
  /// Is the tensor of that name F8_E4M3? Its view is uint8.
  bool is_e4m3(const std::string& name) const { return e4m3_.contains(name); }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };

  static Result<SafetensorsFile> load(const ByteSource& source);

  std::string name_;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, ConstTensorView> tensors_;
  std::map<std::string, std::string> without_view_;
  std::set<std::string> e4m3_;
  std::unique_ptr<std::byte[], Free> storage_;
};

/// A tensor to write: on the CPU, contiguous.
struct NamedTensor {
  std::string name;
  ConstTensorView view;
};

/// Writes the tensors, largest elements first so that all are aligned, and the metadata. The file appears
/// whole or not at all (see write_file). kInvalidArgument names the file and the tensor or the system's
/// reason.
Status write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                         const std::map<std::string, std::string>& metadata = {});

}  // namespace flashlatent::io
