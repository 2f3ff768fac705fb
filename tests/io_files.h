// Files for tests: a directory that goes away with the test, raw safetensors bytes, golden data.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

namespace flashlatent::io {

class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "flashlatent-XXXXXX").string();
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
  }
  TempDir(const TempDir&) = delete;
  ~TempDir() { std::filesystem::remove_all(path_); }

  std::string path(std::string_view name = "") const { return (path_ / name).string(); }
  std::string write(std::string_view name, std::string_view bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return path(name);
  }

 private:
  std::filesystem::path path_;
};

inline std::string read_bytes(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

/// Safetensors bytes: the header's length, the header as it is, then `data_bytes` zeros.
inline std::string raw_safetensors(std::string_view header, std::size_t data_bytes = 0) {
  std::string bytes;
  for (int i = 0; i < 8; ++i)
    bytes += static_cast<char>(static_cast<std::uint64_t>(header.size()) >> (8 * i));
  return bytes.append(header).append(data_bytes, '\0');
}

/// A file of the data that may lie beside the project (FLASHLATENT_SHARED_DIR), or an empty string.
inline std::string shared_file(std::string_view name) {
  const auto path = std::filesystem::path(FLASHLATENT_SHARED_DIR) / name;
  return std::filesystem::exists(path) ? path.string() : std::string();
}

/// One line that starts with the file's name and holds `needle`.
inline void expect_message(const std::string& message, std::string_view file, std::string_view needle) {
  EXPECT_TRUE(message.starts_with(std::string(file) + ": ")) << message;
  EXPECT_NE(message.find(needle), std::string::npos) << message << "\nlacks: " << needle;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  EXPECT_LT(message.size(), 1000U) << message;
}

}  // namespace flashlatent::io
