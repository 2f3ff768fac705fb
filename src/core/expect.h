// Checks of one tensor argument: each returns kInvalidArgument with a message, or ok.
#pragma once

#include <initializer_list>
#include <span>
#include <vector>

#include "flashlatent/status.h"
#include "flashlatent/tensor.h"

namespace flashlatent {

struct LatentFormat;

/// The extents that a tensor must have; -1 accepts any. It points at the caller's list and lives for one
/// call, so that nothing is allocated: a decode call checks ten tensors.
class Extents {
 public:
  // Implicit, so that calls read `{batch, -1, 64}`. NOLINTNEXTLINE(google-explicit-constructor)
  Extents(std::initializer_list<std::int64_t> list) : extents_(list.begin(), list.size()) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  Extents(const std::vector<std::int64_t>& list) : extents_(list) {}
  explicit Extents(std::span<const std::int64_t> list) : extents_(list) {}

  std::size_t size() const { return extents_.size(); }
  std::int64_t operator[](std::size_t i) const { return extents_[i]; }

 private:
  std::span<const std::int64_t> extents_;
};

/// Is `view` present, of this dtype, shape and device, and at an address aligned to its dtype? The message
/// names the tensor, what it is and what is expected.
Status expect(const char* name, const ConstTensorView& view, Dtype dtype, Device device,
              const Extents& shape);

Status innermost_contiguous(const char* name, const ConstTensorView& view);

/// expect(), and an innermost stride of 1.
Status expect_strided(const char* name, const ConstTensorView& view, Dtype dtype, Device device,
                      const Extents& shape);

/// expect_strided() for a tensor of int32 or int64.
Status expect_integers(const char* name, const ConstTensorView& view, Device device, const Extents& shape);

/// Are the strides of a cache (pages, page_size, h_kv, last dimension) those of pages in this format?
Status expect_page_strides(const char* name, const ConstTensorView& view, const LatentFormat& format);

/// A scale, if it is present: fp32 (1) or (heads).
Status expect_scale(const char* name, const ConstTensorView& scale, std::int64_t heads, Device device);

/// The scale's numbers, on the CPU: positive and finite.
Status expect_positive(const char* name, const ConstTensorView& scale);

/// What names the tokens that are gathered: a page table, cu_seqlens, and first_token, which may be absent.
Status expect_gathered(const ConstTensorView& block_table, const ConstTensorView& cu_seqlens,
                       const ConstTensorView& first_token, Device device);

/// bf16 or fp16.
bool is_half(Dtype dtype);

/// Are all extents from 0 to 2^30, so that kernels can count with 32 bits?
Status expect_countable(const char* name, const ConstTensorView& view);

}  // namespace flashlatent
