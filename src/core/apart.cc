#include "core/apart.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>

#include "core/decode_inputs.h"
#include "core/message.h"
#include "core/overlap.h"
#include "core/return_if_error.h"

namespace flashlatent {

namespace {

/// A buffer as a view of its bytes.
ConstTensorView bytes_of(Memory memory, Device device) {
  if (memory.data == nullptr) return {};
  return {memory.data, Dtype::kU8, {static_cast<std::int64_t>(memory.bytes)}, device};
}

/// Appends the tensors of a call's rotations.
template <class Inputs>
NamedView* add_rotations(const Inputs& inputs, NamedView* next) {
  for (const RotationInput<Inputs>& input : kRotationInputs<Inputs>) {
    const Rotation& rotation = inputs.*input.rotation;
    *next++ = {input.positions, &rotation.positions};
    *next++ = {input.table, &rotation.table};
  }
  return next;
}
template <class Inputs>
constexpr std::size_t kRotationTensors = 2 * std::size(kRotationInputs<Inputs>);

}  // namespace

bool elements_are_apart(const ConstTensorView& view) {
  struct Dimension {
    std::int64_t stride, extent;
  };
  std::array<Dimension, kMaxRank> dimensions;  // by stride
  int count = 0;
  for (int i = 0; i < view.rank; ++i) {
    if (view.shape[i] == 0) return true;
    if (view.shape[i] == 1) continue;
    const Dimension dimension{std::abs(view.strides[i]), view.shape[i]};
    int at = count++;
    for (; at > 0 && dimensions[at - 1].stride > dimension.stride; --at) dimensions[at] = dimensions[at - 1];
    dimensions[at] = dimension;
  }
  std::int64_t span = 1;  // of the elements that the dimensions so far step through
  for (int i = 0; i < count; ++i) {
    if (dimensions[i].stride < span) return false;
    span += dimensions[i].stride * (dimensions[i].extent - 1);
  }
  return true;
}

Status expect_apart(std::span<const NamedView> written, std::span<const NamedView> read) {
  // Address ranges tell nearly all views apart.
  constexpr std::size_t kMostWritten = 8;
  if (written.size() > kMostWritten) return {StatusCode::kInternal, "a call writes more than eight tensors"};
  std::array<AddressRange, kMostWritten> ranges;
  for (std::size_t i = 0; i < written.size(); ++i) {
    const auto& [name, view] = written[i];
    ranges[i] = address_range(*view);
    if (!elements_are_apart(*view)) {
      return invalid_argument(name, " is ", to_string(*view),
                              ", where elements share memory; strides that keep them apart are accepted");
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (!ranges[i].meets(ranges[j]) || !overlap(*view, *written[j].view)) continue;
      return invalid_argument(name, " is ", to_string(*view), " at ", view->data, " and overlaps ",
                              written[j].name, ", ", to_string(*written[j].view), " at ",
                              written[j].view->data, "; both are written, and must be apart");
    }
  }
  for (const NamedView& other : read) {
    if (!other.view->present()) continue;
    const AddressRange range = address_range(*other.view);
    for (std::size_t i = 0; i < written.size(); ++i) {
      if (!range.meets(ranges[i])) continue;
      FLASHLATENT_RETURN_IF_ERROR(expect_apart(other.name, *other.view, written[i].name, *written[i].view));
    }
  }
  return {};
}

Status expect_apart(const DecodeInputs& inputs, const DecodeOutputs& outputs, Memory plan, Memory workspace,
                    Device device) {
  const ConstTensorView out = outputs.out, lse = outputs.lse, space = bytes_of(workspace, device),
                        planned = bytes_of(plan, device);
  const ConstTensorView codes = outputs.out_fp8.codes, scales = outputs.out_fp8.scales;
  const std::array<NamedView, 5> written = {{{"out", &out},
                                             {"lse", &lse},
                                             {"workspace", &space},
                                             {"out_fp8.codes", &codes},
                                             {"out_fp8.scales", &scales}}};
  std::array<NamedView, std::size(kDecodeInputs) + kRotationTensors<DecodeInputs> + 1> read;
  auto* next = std::transform(std::begin(kDecodeInputs), std::end(kDecodeInputs), read.data(),
                              [&](const DecodeInput& input) {
                                return NamedView{input.name, &(inputs.*input.view)};
                              });
  *add_rotations(inputs, next) = {"plan", &planned};
  return expect_apart(written, read);
}

Status expect_apart(const SparsePrefillInputs& inputs, const SparsePrefillOutputs& outputs, Memory workspace,
                    Device device) {
  const ConstTensorView out = outputs.out, max_logits = outputs.max_logits, lse = outputs.lse,
                        space = bytes_of(workspace, device);
  const ConstTensorView codes = outputs.out_fp8.codes, scales = outputs.out_fp8.scales;
  const std::array<NamedView, 6> written = {{{"out", &out},
                                             {"max_logits", &max_logits},
                                             {"lse", &lse},
                                             {"workspace", &space},
                                             {"out_fp8.codes", &codes},
                                             {"out_fp8.scales", &scales}}};
  std::array<NamedView, 11 + kRotationTensors<SparsePrefillInputs>> read = {
      {{"q", &inputs.q},
       {"q_rope", &inputs.q_rope},
       {"kv", &inputs.kv},
       {"indices", &inputs.indices},
       {"topk_length", &inputs.topk_length},
       {"attn_sink", &inputs.attn_sink},
       {"extra_kv_cache", &inputs.extra_kv_cache},
       {"extra_indices", &inputs.extra_indices},
       {"extra_topk_length", &inputs.extra_topk_length},
       {"kv_scale", &inputs.kv_scale},
       {"q_scale", &inputs.q_scale}}};
  add_rotations(inputs, read.data() + read.size() - kRotationTensors<SparsePrefillInputs>);
  return expect_apart(written, read);
}

Status expect_apart(const PlanLengths& lengths, Memory plan, Device device) {
  const ConstTensorView planned = bytes_of(plan, device);
  const std::array<NamedView, 1> written = {{{"plan", &planned}}};
  const std::array<NamedView, 3> read = {{{"lengths.cache", &lengths.cache},
                                          {"lengths.extra", &lengths.extra},
                                          {"cu_seqlens_q", &lengths.cu_seqlens_q}}};
  return expect_apart(written, read);
}

}  // namespace flashlatent
