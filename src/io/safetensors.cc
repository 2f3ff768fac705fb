#include "io/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <new>

#include "core/message.h"
#include "io/safetensors_header.h"
#include "io/text.h"

namespace flashlatent::io {

namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kAlignment = 64;

std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

Result<SafetensorsHeader> read_header(const ByteSource& source, std::uint64_t& data_begin) {
  if (source.size() == 0) return source.error("is empty; a safetensors file is expected");
  if (source.size() < kLengthBytes) {
    return source.error(
        fmt::format("header length: the file has {} bytes; a safetensors file starts with 8 "
                    "bytes of header length",
                    source.size()));
  }
  unsigned char prefix[kLengthBytes];
  FLASHLATENT_RETURN_IF_ERROR(source.read(0, prefix, kLengthBytes));
  std::uint64_t length = 0;
  for (int i = kLengthBytes - 1; i >= 0; --i) length = length << 8 | prefix[i];
  const std::uint64_t rest = source.size() - kLengthBytes;
  if (length > kMaxHeaderBytes) {
    return source.error(
        fmt::format("header length is {}; at most {} is accepted (is this a safetensors file?)", length,
                    kMaxHeaderBytes));
  }
  if (length > rest) {
    return source.error(
        fmt::format("header length is {}, but only {} bytes follow: truncated, or not a "
                    "safetensors file",
                    length, rest));
  }
  std::string text(length, '\0');
  FLASHLATENT_RETURN_IF_ERROR(source.read(kLengthBytes, text.data(), length));
  data_begin = kLengthBytes + length;
  auto header = parse_safetensors_header(text, rest - length);
  if (!header.ok()) return source.error(header.status().message());
  return header;
}

ConstTensorView contiguous_view(const void* data, const TensorEntry& entry) {
  ConstTensorView view;
  view.data = data;
  view.dtype = *entry.dtype;
  view.rank = static_cast<int>(entry.shape.size());
  std::int64_t stride = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    view.shape[i] = entry.shape[i];
    view.strides[i] = stride;
    stride *= entry.shape[i];
  }
  return view;
}

/// For messages: "F64 (3, 4)".
std::string describe(const TensorEntry& entry) {
  return printable(fmt::format("{} ({})", entry.dtype_name, fmt::join(entry.shape, ", ")), 120);
}

}  // namespace

void SafetensorsFile::Free::operator()(std::byte* memory) const {
  ::operator delete(memory, std::align_val_t(kAlignment));
}

Result<SafetensorsFile> SafetensorsFile::load(const ByteSource& source) {
  std::uint64_t data_begin = 0;
  FLASHLATENT_ASSIGN_OR_RETURN(auto header, read_header(source, data_begin));

  // Offsets in the file have no alignment, so each tensor is copied to an aligned place.
  std::uint64_t total = 0;
  for (const TensorEntry& entry : header.tensors) {
    if (has_view(entry)) total += aligned(entry.end - entry.begin);
  }
  SafetensorsFile file;
  file.storage_.reset(
      static_cast<std::byte*>(::operator new(total, std::align_val_t(kAlignment), std::nothrow)));
  if (!file.storage_) return source.error(fmt::format("its {} bytes do not fit in memory", source.size()));
  std::byte* at = file.storage_.get();
  for (const TensorEntry& entry : header.tensors) {
    if (!has_view(entry)) {
      file.without_view_.emplace(entry.name, describe(entry));
      continue;
    }
    if (entry.dtype_name == "F8_E4M3") file.e4m3_.insert(entry.name);
    const std::uint64_t bytes = entry.end - entry.begin;
    FLASHLATENT_RETURN_IF_ERROR(source.read(data_begin + entry.begin, at, bytes));
    file.tensors_.emplace(entry.name, contiguous_view(at, entry));
    at += aligned(bytes);
  }
  file.name_ = source.name();
  file.metadata_ = std::move(header.metadata);
  return file;
}

Result<SafetensorsFile> SafetensorsFile::read(const std::string& path) {
  FLASHLATENT_ASSIGN_OR_RETURN(const auto source, open_file(path));
  return load(*source);
}

Result<SafetensorsFile> SafetensorsFile::parse(std::string_view bytes, std::string_view name) {
  return load(*memory_source(bytes, name));
}

ConstTensorView SafetensorsFile::tensor(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? ConstTensorView() : found->second;
}

}  // namespace flashlatent::io
