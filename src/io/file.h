// Bytes in and out: a source that is a file or memory, and files that appear whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "flashlatent/status.h"

namespace flashlatent::io {

/// Random access to `size()` bytes. `name()` stands at the front of every message about them.
class ByteSource {
 public:
  virtual ~ByteSource() = default;

  const std::string& name() const { return name_; }
  std::uint64_t size() const { return size_; }
  /// Precondition: [offset, offset + count) lies within size().
  virtual Status read(std::uint64_t offset, void* to, std::size_t count) const = 0;

  /// "name: message", kInvalidArgument.
  Status error(std::string_view message) const;

 protected:
  ByteSource(std::string_view name, std::uint64_t size);

 private:
  std::string name_;
  std::uint64_t size_;
};

/// A regular file, opened for reading. kInvalidArgument if it is missing, unreadable, a directory or a
/// device.
Result<std::unique_ptr<ByteSource>> open_file(const std::string& path);

/// `bytes`, which the caller keeps alive.
std::unique_ptr<ByteSource> memory_source(std::string_view bytes, std::string_view name);

/// Writes the pieces one after the other to a new file beside `path` and renames it to `path`, so that a
/// reader sees the old file or the whole new one. Symbolic links are followed; what is there and is not a
/// regular file is refused. kInvalidArgument says what the system said.
Status write_file(const std::string& path, std::span<const std::string_view> pieces);

/// Can it be created or replaced now? For what is written after long work.
Status can_write_file(const std::string& path);

}  // namespace flashlatent::io
