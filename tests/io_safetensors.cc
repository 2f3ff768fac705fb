#include "io/safetensors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "io_files.h"

namespace flashlatent::io {
namespace {

std::string refusal(std::string_view bytes) {
  const auto file = SafetensorsFile::parse(bytes, "bad.safetensors");
  EXPECT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), StatusCode::kInvalidArgument);
  return file.status().message();
}

TEST(Safetensors, RoundTrip) {
  const TempDir dir;
  const std::string path = dir.path("a.safetensors");
  std::vector<float> floats(6);
  std::iota(floats.begin(), floats.end(), 1.0F);
  const std::vector<std::uint8_t> bytes = {1, 2, 3};
  const std::vector<std::uint16_t> halves = {0x3F80, 0x4000};
  const std::vector<std::int32_t> ints = {-1, 7};
  const std::map<std::string, std::string> metadata = {{"kind", "test"}, {"note", "\u00e9 \"quoted\"\n"}};
  ASSERT_TRUE(write_safetensors(path,
                                {{"bytes", {bytes.data(), Dtype::kU8, {3}}},
                                 {"bf16", {halves.data(), Dtype::kBF16, {2, 1}}},
                                 {"fp16", {halves.data(), Dtype::kF16, {1, 2}}},
                                 {"floats", {floats.data(), Dtype::kF32, {2, 3}}},
                                 {"ints", {ints.data(), Dtype::kI32, {2}}},
                                 {"none", {nullptr, Dtype::kF32, {0, 4}}}},
                                metadata)
                  .ok());
  const auto file = SafetensorsFile::read(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->name(), path);
  EXPECT_EQ(file->metadata(), metadata);
  ASSERT_EQ(file->tensors().size(), 6U);
  for (const auto& [name, view] : file->tensors()) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.data) % 64, 0U) << name;
  }
  auto holds = [&](const char* name, Dtype dtype, const std::string& shape, const void* data,
                   std::size_t size) {
    const ConstTensorView view = file->tensor(name);
    EXPECT_EQ(view.dtype, dtype);
    EXPECT_NE(to_string(view).find(shape), std::string::npos) << to_string(view);
    EXPECT_EQ(std::memcmp(view.data, data, size), 0) << name;
  };
  holds("bytes", Dtype::kU8, "(3) strides (1)", bytes.data(), 3);
  holds("bf16", Dtype::kBF16, "(2, 1) strides (1, 1)", halves.data(), 4);
  holds("fp16", Dtype::kF16, "(1, 2) strides (2, 1)", halves.data(), 4);
  holds("floats", Dtype::kF32, "(2, 3) strides (3, 1)", floats.data(), 24);
  holds("ints", Dtype::kI32, "(2) strides (1)", ints.data(), 8);
  EXPECT_EQ(file->tensor("none").elements(), 0);
  EXPECT_FALSE(file->tensor("absent").present());
  // Nothing but the file is left, and its data starts aligned.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
}

TEST(Safetensors, UnalignedDataAndSpacesAreFine) {
  const std::string header =
      R"( {"u":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"f":{"shape":[1],"data_offsets":[1,5],"dtype":"F32"}} )";
  std::string bytes = raw_safetensors(header, 5);
  const float value = 2.5F;
  std::memcpy(bytes.data() + bytes.size() - 4, &value, 4);
  const auto file = SafetensorsFile::parse(bytes, "x");
  ASSERT_TRUE(file.ok()) << file.status().message();
  const ConstTensorView view = file->tensor("f");
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.data) % 64, 0U);
  EXPECT_EQ(*static_cast<const float*>(view.data), 2.5F);
}

// Each is legal in the format; a view can show the first two only.
TEST(Safetensors, AnyDtypeAndRankIsRead) {
  const auto file = SafetensorsFile::parse(
      raw_safetensors(R"({"codes":{"dtype":"F8_E4M3","shape":[2,1],"data_offsets":[0,2]},
                          "last":{"dtype":"F32","shape":[1],"data_offsets":[67,71]},
                          "doubles":{"dtype":"F64","shape":[2],"data_offsets":[2,18]},
                          "scalar":{"dtype":"F32","shape":[],"data_offsets":[18,22]},
                          "deep":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1,4],"data_offsets":[22,26]},
                          "bools":{"dtype":"BOOL","shape":[3],"data_offsets":[26,29]},
                          "nibbles":{"dtype":"F4","shape":[3,2],"data_offsets":[29,32]},
                          "new":{"dtype":"F1000","shape":[9],"data_offsets":[32,67]},
                          "__metadata__":null})",
                      71),
      "x");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_TRUE(file->metadata().empty());
  EXPECT_EQ(file->tensors().size(), 2U);
  EXPECT_EQ(file->tensor("codes").dtype, Dtype::kU8);
  EXPECT_TRUE(file->is_e4m3("codes"));
  EXPECT_FALSE(file->is_e4m3("last"));
  EXPECT_TRUE(file->tensor("last").present());
  const std::map<std::string, std::string> described = {
      {"doubles", "F64 (2)"},   {"scalar", "F32 ()"}, {"bools", "BOOL (3)"},
      {"nibbles", "F4 (3, 2)"}, {"new", "F1000 (9)"}, {"deep", "U8 (1, 1, 1, 1, 1, 1, 1, 1, 1, 4)"}};
  EXPECT_EQ(file->without_view(), described);
}

// One tensor "q" with these fields over `data_bytes` bytes.
std::string one(std::string_view fields, std::size_t data_bytes = 4) {
  return raw_safetensors(R"({"q":{)" + std::string(fields) + "}}", data_bytes);
}

TEST(Safetensors, BadBytesAreNamed) {
  const std::string big(80, '9');
  const struct {
    std::string bytes;
    const char* says;
  } cases[] = {
      {"", "is empty"},
      {"abc", "header length: the file has 3 bytes"},
      {"#!/bin/sh\nexit\n", "header length is 8299974037164990755; at most 100000000"},
      {std::string("\x00\xe1\xf5\x05\0\0\0\0", 8), "header length is 100000000, but only 0 bytes follow"},
      {std::string("\x01\xe1\xf5\x05\0\0\0\0", 8), "header length is 100000001; at most 100000000"},
      {raw_safetensors(R"({"q":{"dtype":"F32)"), "header: not JSON at byte"},
      {raw_safetensors(""), "header: not JSON at byte"},
      {raw_safetensors("{} x"), "header: not JSON at byte"},
      {raw_safetensors("{\"q\xff\":1}"), "header: not UTF-8 at byte 3"},
      {raw_safetensors("[]"), "header: is an array; an object is expected"},
      {raw_safetensors("null"), "header: is null; an object is expected"},
      {raw_safetensors("{}", 1), "data_offsets end at 0, but the file has 1 bytes of data"},
      {raw_safetensors(R"({"q":3})"), "tensor \"q\" is 3; an object is expected"},
      {raw_safetensors(R"({"q":[3]})"), "tensor \"q\" is an array; an object is expected"},
      {raw_safetensors(R"({"__metadata__":"x"})"), "__metadata__ is \"x\"; an object is expected"},
      {raw_safetensors(R"({"__metadata__":{"kind":1}})"),
       "__metadata__: \"kind\" is 1; a string is expected"},
      {raw_safetensors(R"({"__metadata__":{"kind":{}}})"), "__metadata__: \"kind\" is an object; a string"},
      {raw_safetensors(R"({"__metadata__":{"a":"1","a":"2"}})"), "__metadata__: key \"a\" appears twice"},
      {raw_safetensors(R"({"__metadata__":{},"__metadata__":{}})"),
       "header: key \"__metadata__\" appears twice"},
      {raw_safetensors(R"({"q":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
                           "q":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                       2),
       "header: key \"q\" appears twice"},
      {one(R"("dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4])"),
       "tensor \"q\": key \"dtype\" appears twice"},
      {one(R"("shape":[1],"data_offsets":[0,4])"), "tensor \"q\": dtype is missing"},
      {one(R"("dtype":"F32","data_offsets":[0,4])"), "tensor \"q\": shape is missing"},
      {one(R"("dtype":"F32","shape":[1])"), "tensor \"q\": data_offsets is missing"},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"stride":[1])"), "unknown field \"stride\""},
      {one(R"("dtype":"F64","shape":[1],"data_offsets":[0,4])"),
       "tensor \"q\": data_offsets [0, 4] span 4 bytes, but shape [1] of F64 takes 8"},
      {one(R"("dtype":1,"shape":[1],"data_offsets":[0,4])"), "tensor \"q\": dtype is 1; a string"},
      {one(R"("dtype":"F32","shape":1,"data_offsets":[0,4])"), "tensor \"q\": shape is 1; an array"},
      {one(R"("dtype":"F32","shape":["1"],"data_offsets":[0,4])"), "tensor \"q\": shape holds \"1\"; whole"},
      {one(R"("dtype":"F32","shape":[[1]],"data_offsets":[0,4])"), "tensor \"q\": shape holds an array"},
      {one(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), "tensor \"q\": shape holds -1"},
      {one(R"("dtype":"F32","shape":[1.5],"data_offsets":[0,4])"), "tensor \"q\": shape holds 1.5"},
      {one(R"("dtype":"F32","shape":[)" + big + R"(],"data_offsets":[0,4])"),
       "tensor \"q\": shape holds 99999"},
      {one(R"("dtype":"F32","shape":[],"data_offsets":[0,8])", 8), "shape [] of F32 takes 4"},
      {one(R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4])"),
       "tensor \"q\": shape[0] is 9223372036854775808, which is too large"},
      {one(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4])"),
       "tensor \"q\": shape [4294967296, 4294967296] of F32 is too large"},
      {one(R"("dtype":"F32","shape":[0,9223372036854775807],"data_offsets":[0,0])", 0),
       "of F32 is too large"},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"),
       "tensor \"q\": data_offsets [0, 4] span 4 bytes, but shape [2] of F32 takes 8"},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), "data_offsets [4, 0] run backwards"},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[0])"), "data_offsets has 1 numbers"},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4,8])"), "data_offsets has more than two"},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[0,-4])"), "data_offsets holds -4"},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4.0])"), "data_offsets holds 4.0"},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[0,8])"),
       "data_offsets [0, 8] exceed the file's 4 bytes"},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[18446744073709551612,18446744073709551615])"),
       "exceed the file's 4 bytes"},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])", 8),
       "data_offsets [4, 8] leave a gap after byte 0"},
      {one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])", 8), "end at 4, but the file has 8 bytes"},
      {raw_safetensors(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
                           "b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
                       6),
       "tensor \"b\": data_offsets [2, 6] overlap the tensor before, which ends at 4"},
      {raw_safetensors(R"({"two\nlines":1})"), "tensor \"two\\x0alines\" is 1"},
      {raw_safetensors("{\"" + std::string(5000, 'n') + "\":1}"), "nnn...\" is 1"},
      {raw_safetensors(std::string(100000, '[')), "header: is an array"},
      {raw_safetensors(R"({"a":)" + std::string(100000, '{')), "header: not JSON"},
  };
  for (const auto& [bytes, says] : cases) expect_message(refusal(bytes), "bad.safetensors", says);
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const std::string whole = one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])", 8);
  ASSERT_TRUE(SafetensorsFile::parse(whole, "x").ok());
  for (std::size_t size = 0; size < whole.size(); ++size) refusal(std::string_view(whole).substr(0, size));
}

std::string read_refusal(const std::string& path) {
  const auto file = SafetensorsFile::read(path);
  EXPECT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), StatusCode::kInvalidArgument);
  return file.status().message();
}

TEST(Safetensors, BadPathsAreNamed) {
  const TempDir dir;
  expect_message(read_refusal(dir.path("none")), dir.path("none"), "cannot be opened: No such file");
  expect_message(read_refusal(dir.path()), dir.path(), "is a directory");
  expect_message(read_refusal(dir.write("empty", "")), dir.path("empty"), "is empty");
  expect_message(read_refusal("/dev/zero"), "/dev/zero", "is not a regular file");
  ASSERT_EQ(::mkfifo(dir.path("pipe").c_str(), 0600), 0);
  expect_message(read_refusal(dir.path("pipe")), dir.path("pipe"), "is not a regular file");
  EXPECT_EQ(read_refusal("no\nsuch\nfile").find('\n'), std::string::npos);
}

TEST(Safetensors, UnreadableFileIsNamed) {
  const TempDir dir;
  const std::string path = dir.write("secret", one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"));
  ASSERT_EQ(::chmod(path.c_str(), 0), 0);
  ASSERT_EQ(::chmod(dir.path().c_str(), 0755), 0);
  // Permissions don't stop root: be nobody for a while.
  const bool root = ::geteuid() == 0;
  if (root && ::seteuid(65534) != 0) GTEST_SKIP() << "cannot drop root's privileges";
  const std::string message = read_refusal(path);
  ASSERT_EQ(root ? ::seteuid(0) : 0, 0);
  expect_message(message, path, "cannot be opened: Permission denied");
}

TEST(SafetensorsWriter, BadTensorsAreNamed) {
  const TempDir dir;
  const std::string path = dir.path("out.safetensors");
  const float data[4] = {};
  ConstTensorView strided(data, Dtype::kF32, {2, 1});
  strided.strides[0] = 2;
  auto message = [&](const std::vector<NamedTensor>& tensors,
                     const std::map<std::string, std::string>& meta = {}) {
    const Status status = write_safetensors(path, tensors, meta);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_FALSE(std::filesystem::exists(path));
    return status.message();
  };
  const ConstTensorView good(data, Dtype::kF32, {4});
  expect_message(message({{"a", strided}}), path,
                 "tensor \"a\": is fp32 (2, 1) strides (2, 1) on cpu; not contiguous");
  expect_message(message({{"a", {}}}), path, "tensor \"a\": there is no tensor");
  expect_message(message({{"a", {nullptr, Dtype::kF32, {4}}}}), path, "tensor \"a\": has a null pointer");
  expect_message(message({{"a", {data, Dtype::kF32, {4}, {DeviceType::kCuda, 0}}}}), path, "is on cuda:0");
  expect_message(message({{"a", good}, {"a", good}}), path, "tensor \"a\": is given twice");
  expect_message(message({{"__metadata__", good}}), path, "the name is reserved");
  expect_message(message({{"\xff", good}}), path, "tensor \"\\xff\": the name is not UTF-8");
  expect_message(message({}, {{"key", "\xc3("}}), path, "metadata \"key\": is not UTF-8");
}

TEST(SafetensorsWriter, BadPathsAreNamed) {
  const TempDir dir;
  auto message = [](const std::string& path) {
    const Status status = write_safetensors(path, {});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  expect_message(message(dir.path("no/dir/out")), dir.path("no/dir/out"), "cannot be written: No such file");
  expect_message(message(dir.path()), dir.path(), "is a directory");
  expect_message(message("/dev/null"), "/dev/null", "is not a regular file; it is left alone");
  const std::string file = dir.write("file", "x");
  expect_message(message(file + "/out"), file + "/out", "cannot be written: Not a directory");
}

TEST(SafetensorsWriter, ReplacesAndFollowsLinks) {
  const TempDir dir;
  const std::string path = dir.write("old", "old content");
  std::filesystem::create_symlink("old", dir.path("link"));
  ASSERT_TRUE(write_safetensors(dir.path("link"), {}).ok());
  EXPECT_TRUE(std::filesystem::is_symlink(dir.path("link")));
  EXPECT_TRUE(SafetensorsFile::read(path).ok());
}

TEST(SafetensorsWriter, FullDiskLeavesTheOldFile) {
  // A limit on the size of files fails writes just as a full disk does.
  const TempDir dir;
  const std::string path = dir.write("old", "old content");
  const std::vector<float> data(1 << 16);
  auto write_too_much = [&] {
    const rlimit limit{4096, 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    std::signal(SIGXFSZ, SIG_IGN);
    const ConstTensorView view(data.data(), Dtype::kF32, {1 << 16});
    const Status status = write_safetensors(path, {{"a", view}});
    std::fprintf(stderr, "%s\n", status.message().c_str());
    std::exit(status.ok() ? 0 : 3);
  };
  EXPECT_EXIT(write_too_much(), ::testing::ExitedWithCode(3), "old: cannot be written: File too large");
  EXPECT_EQ(read_bytes(path), "old content");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
}

}  // namespace
}  // namespace flashlatent::io
