// What a call demands of one tensor.
#pragma once

#include <initializer_list>
#include <span>
#include <vector>

#include "flashlatent/status.h"
#include "flashlatent/tensor.h"

namespace flashlatent {

/// The extents that a tensor must have; -1 accepts any. For the time of one call, which allocates nothing: a
/// decode call checks ten tensors.
class Extents {
 public:
  // As a list of numbers is written.
  // NOLINTNEXTLINE(google-explicit-constructor)
  Extents(std::initializer_list<std::int64_t> list) : extents_(list.begin(), list.size()) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  Extents(const std::vector<std::int64_t>& list) : extents_(list) {}

  std::size_t size() const { return extents_.size(); }
  std::int64_t operator[](std::size_t i) const { return extents_[i]; }

 private:
  std::span<const std::int64_t> extents_;
};

/// Is `view` there, of this dtype, shape and device, at an address aligned to its
/// dtype? kInvalidArgument names it, what it is and what is expected.
Status expect(const char* name, const ConstTensorView& view, Dtype dtype, Device device,
              const Extents& shape);

Status innermost_contiguous(const char* name, const ConstTensorView& view);

/// Both.
Status expect_strided(const char* name, const ConstTensorView& view, Dtype dtype, Device device,
                      const Extents& shape);

/// The same of int32 or int64.
Status expect_integers(const char* name, const ConstTensorView& view, Device device, const Extents& shape);

/// Are the strides of this cache, (pages, page_size, 1, 584), those of fp8_584's pages (core/fp8_584.h)?
Status expect_fp8_584_strides(const char* name, const ConstTensorView& view);

/// A scale, if it is there: fp32 (1), or one a head.
Status expect_scale(const char* name, const ConstTensorView& scale, std::int64_t heads, Device device);

/// Of such a scale on the CPU: positive and finite numbers.
Status expect_positive(const char* name, const ConstTensorView& scale);

/// Of a cache of bytes: does its last dimension say which format it is of?
Status expect_fp8_format(const char* name, const ConstTensorView& view);

/// Extents that kernels count with 32 bits: from 0 to 2^30.
Status expect_countable(const char* name, const ConstTensorView& view);

}  // namespace flashlatent
