#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "io/safetensors.h"
#include "io/safetensors_header.h"
#include "io/text.h"

namespace flashlatent::io {

namespace {

// Why a tensor cannot be written, empty if it can.
std::string check_tensor(const NamedTensor& tensor) {
  const ConstTensorView& view = tensor.view;
  if (tensor.name == "__metadata__") return "the name is reserved";
  if (find_invalid_utf8(tensor.name)) return "the name is not UTF-8";
  if (!view.present()) return "there is no tensor of that name to write";
  if (view.device.type != DeviceType::kCpu)
    return "is on " + to_string(view.device) + "; copy it to the CPU first";
  std::int64_t stride = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    if (view.shape[i] > 1 && view.strides[i] != stride) return "is " + to_string(view) + "; not contiguous";
    stride *= view.shape[i];
  }
  if (view.data == nullptr && view.elements() > 0) return "has a null pointer";
  return {};
}

}  // namespace

Status write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                         const std::map<std::string, std::string>& metadata) {
  auto refuse = [&](std::string_view field, std::string_view why) {
    return Status(StatusCode::kInvalidArgument, fmt::format("{}: {}: {}", printable(path), field, why));
  };
  std::set<std::string> names;
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& tensor : tensors) {
    const auto field = fmt::format("tensor {}", in_quotes(tensor.name));
    if (auto why = check_tensor(tensor); !why.empty()) return refuse(field, why);
    if (!names.insert(tensor.name).second) return refuse(field, "is given twice");
    order.push_back(&tensor);
  }
  std::ranges::stable_sort(order, std::ranges::greater{},
                           [](const NamedTensor* tensor) { return size_of(tensor->view.dtype); });

  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  for (const auto& [key, value] : metadata) {
    if (find_invalid_utf8(key) || find_invalid_utf8(value)) {
      return refuse(fmt::format("metadata {}", in_quotes(key)), "is not UTF-8");
    }
    header["__metadata__"][key] = value;
  }
  std::vector<std::string_view> data;
  std::uint64_t at = 0;
  for (const NamedTensor* tensor : order) {
    const ConstTensorView& view = tensor->view;
    const std::uint64_t bytes = static_cast<std::uint64_t>(view.elements()) * size_of(view.dtype);
    header[tensor->name] = {
        {"dtype", safetensors_name(view.dtype)},
        {"shape", std::vector<std::int64_t>(view.shape.begin(), view.shape.begin() + view.rank)},
        {"data_offsets", {at, at + bytes}}};
    data.emplace_back(static_cast<const char*>(view.data), bytes);
    at += bytes;
  }

  // Spaces after the header align the data for those who map the file.
  std::string text = header.dump();
  text.resize((text.size() + 8 + 63) / 64 * 64 - 8, ' ');
  std::string length(8, '\0');
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
  std::vector<std::string_view> pieces = {length, text};
  pieces.insert(pieces.end(), data.begin(), data.end());
  return write_file(path, pieces);
}

}  // namespace flashlatent::io
