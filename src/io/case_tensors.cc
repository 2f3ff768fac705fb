#include "io/case_tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace flashlatent::io {

std::span<const std::int32_t> int32_values(const ConstTensorView& view) {
  return {static_cast<const std::int32_t*>(view.data), static_cast<std::size_t>(view.elements())};
}

bool CaseTensors::is_there(const char* name) const {
  return tensor(name).present() || case_.file.without_view().contains(name);
}

std::string CaseTensors::describe(const char* name) const {
  const auto found = case_.file.without_view().find(name);
  if (found != case_.file.without_view().end()) return found->second;
  const ConstTensorView view = tensor(name);
  return fmt::format("{} ({})", case_.file.is_e4m3(name) ? "F8_E4M3" : to_string(view.dtype),
                     fmt::join(view.shape.begin(), view.shape.begin() + view.rank, ", "));
}

Status CaseTensors::expect(const char* name, std::initializer_list<Dtype> dtypes,
                           std::span<const Extent> shape) const {
  const ConstTensorView view = tensor(name);
  bool fits = view.present() && std::ranges::count(dtypes, view.dtype) > 0 &&
              view.rank == static_cast<int>(shape.size()) && (may_be_e4m3(name) || !case_.file.is_e4m3(name));
  for (std::size_t i = 0; fits && i < shape.size(); ++i) {
    const std::int64_t wanted = shape[i].value;
    fits = wanted < 0 || view.shape[i] == wanted;
  }
  if (fits) return {};
  std::vector<std::string> names;
  for (Dtype dtype : dtypes) names.emplace_back(to_string(dtype));
  const bool bytes = std::ranges::count(dtypes, Dtype::kU8) > 0;
  if (bytes && may_be_e4m3(name)) names.emplace_back("F8_E4M3");
  std::vector<std::string> extents;
  for (const auto& [label, value] : shape) {
    extents.push_back(value < 0 ? label : fmt::format("{} = {}", label, value));
  }
  const auto expected = fmt::format("expected {} ({})", fmt::join(names, " or "), fmt::join(extents, ", "));
  if (!view.present() && !case_.file.without_view().contains(name)) {
    return refuse(fmt::format("tensor \"{}\" is missing; {}", name, expected));
  }
  return error(name, expected);
}

Status CaseTensors::values_within(const char* name, std::int64_t most, const char* what) const {
  const ConstTensorView view = tensor(name);
  if (!view.present()) return {};
  const auto values = int32_values(view);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] >= 0 && values[i] <= most) continue;
    const std::size_t each = view.rank == 2 ? static_cast<std::size_t>(view.shape[1]) : 1;
    return refuse(fmt::format("tensor \"{}\": {} {} has {}; it must be from 0 to {} ({})", name,
                              case_.kind == CaseKind::kSparsePrefill ? "query token" : "request", i / each,
                              values[i], most, what));
  }
  return {};
}

Status CaseTensors::error(const char* name, const std::string& what) const {
  return refuse(fmt::format("tensor \"{}\" is {}; {}", name, describe(name), what));
}

Status CaseTensors::refuse(const std::string& what) const {
  return {StatusCode::kInvalidArgument, fmt::format("{}: {}", case_.file.name(), what)};
}

bool CaseTensors::may_be_e4m3(std::string_view name) const {
  return case_.kv_format() == KvFormat::kE4m3 &&
         (name == "key_cache" || name == "value_cache" || name == "kv_cache" || name == "extra_kv_cache" ||
          name == "q" || name == "q_rope");
}

}  // namespace flashlatent::io
