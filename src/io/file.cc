#include "io/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "core/return_if_error.h"
#include "io/text.h"

namespace flashlatent::io {

namespace {

std::string system_message() {
  return std::generic_category().message(errno);
}

// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() { close(); }

  int get() const { return fd_; }
  bool close() { return fd_ < 0 || ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

class FileSource : public ByteSource {
 public:
  FileSource(std::string_view name, std::uint64_t size, Descriptor file)
      : ByteSource(name, size), file_(std::move(file)) {}

  Status read(std::uint64_t offset, void* to, std::size_t count) const override {
    auto* out = static_cast<char*>(to);
    while (count > 0) {
      const ssize_t got = ::pread(file_.get(), out, count, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return error(fmt::format("cannot be read at byte {}: {}", offset, system_message()));
      if (got == 0) return error(fmt::format("ended at byte {} while it was read", offset));
      out += got;
      offset += static_cast<std::uint64_t>(got);
      count -= static_cast<std::size_t>(got);
    }
    return {};
  }

 private:
  Descriptor file_;
};

class MemorySource : public ByteSource {
 public:
  MemorySource(std::string_view name, std::string_view bytes)
      : ByteSource(name, bytes.size()), bytes_(bytes) {}

  Status read(std::uint64_t offset, void* to, std::size_t count) const override {
    if (count > 0) std::memcpy(to, bytes_.data() + offset, count);
    return {};
  }

 private:
  std::string_view bytes_;
};

Status path_error(const std::string& path, std::string_view message) {
  return {StatusCode::kInvalidArgument, fmt::format("{}: {}", printable(path), message)};
}

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(put));
  }
  return true;
}

}  // namespace

ByteSource::ByteSource(std::string_view name, std::uint64_t size) : name_(printable(name)), size_(size) {}

Status ByteSource::error(std::string_view message) const {
  return {StatusCode::kInvalidArgument, fmt::format("{}: {}", name_, message)};
}

Result<std::unique_ptr<ByteSource>> open_file(const std::string& path) {
  // O_NONBLOCK: opening a pipe without a writer must not wait.
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return path_error(path, fmt::format("cannot be opened: {}", system_message()));
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return path_error(path, system_message());
  if (S_ISDIR(info.st_mode)) return path_error(path, "is a directory; a file is expected");
  if (!S_ISREG(info.st_mode)) return path_error(path, "is not a regular file");
  const auto size = static_cast<std::uint64_t>(info.st_size);
  return std::unique_ptr<ByteSource>(std::make_unique<FileSource>(path, size, std::move(file)));
}

std::unique_ptr<ByteSource> memory_source(std::string_view bytes, std::string_view name) {
  return std::make_unique<MemorySource>(name, bytes);
}

namespace {

/// A file that is written beside `path` and then renamed to it.
struct Draft {
  std::string target, name;
  Descriptor file;
};

Status cannot_write(const std::string& path) {
  return path_error(path, fmt::format("cannot be written: {}", system_message()));
}

Result<Draft> open_draft(const std::string& path) {
  std::error_code failure;
  std::filesystem::path target = path;
  if (const auto resolved = std::filesystem::weakly_canonical(path, failure); !failure) target = resolved;
  const auto there = std::filesystem::status(target, failure);
  if (std::filesystem::is_directory(there)) return path_error(path, "is a directory; a file is expected");
  if (std::filesystem::exists(there) && !std::filesystem::is_regular_file(there)) {
    return path_error(path, "is not a regular file; it is left alone");
  }
  const std::string name = fmt::format("{}.{}.tmp", target.string(), ::getpid());
  // O_EXCL: a new file, never one that somebody else put or linked there.
  ::unlink(name.c_str());
  Descriptor file(::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (file.get() < 0) return cannot_write(path);
  return Draft{target.string(), name, std::move(file)};
}

}  // namespace

Status can_write_file(const std::string& path) {
  Result<Draft> draft = open_draft(path);
  if (draft.ok()) ::unlink(draft->name.c_str());
  return draft.status();
}

Status write_file(const std::string& path, std::span<const std::string_view> pieces) {
  FLASHLATENT_ASSIGN_OR_RETURN(Draft draft, open_draft(path));
  bool written = std::ranges::all_of(pieces, [&](auto piece) { return write_all(draft.file.get(), piece); });
  // A full disk or a quota may be reported only when the file is closed.
  written = written && draft.file.close() && std::rename(draft.name.c_str(), draft.target.c_str()) == 0;
  if (written) return {};
  Status status = cannot_write(path);
  ::unlink(draft.name.c_str());
  return status;
}

}  // namespace flashlatent::io
