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
  /// Reads `count` bytes at `offset`, which must lie within size().
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

/// A source of `bytes`, which the caller keeps alive.
std::unique_ptr<ByteSource> memory_source(std::string_view bytes, std::string_view name);

/// Writes the pieces one after the other to a new file beside `path` and renames it to `path`, so that a
/// reader sees the old file or the whole new one. Follows symbolic links; refuses to replace what is not a
/// regular file. kInvalidArgument has the system's reason.
Status write_file(const std::string& path, std::span<const std::string_view> pieces);

/// Can the file be created or replaced now? Ask before long work whose result goes there.
Status can_write_file(const std::string& path);

}  // namespace flashlatent::io
