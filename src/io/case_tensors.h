// Finds and checks a case's tensors one by one; messages name the file and the tensor.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "flashlatent/status.h"
#include "io/case.h"

namespace flashlatent::io {

/// One dimension that a tensor should have: its name in the format's description and, if known, its extent.
struct Extent {
  const char* name;
  std::int64_t value = -1;
};

/// The values of an int32 tensor.
std::span<const std::int32_t> int32_values(const ConstTensorView& view);

class CaseTensors {
 public:
  explicit CaseTensors(const DecodeCase& decode_case) : case_(decode_case) {}

  /// Absent if the tensor has no view.
  ConstTensorView tensor(const char* name) const { return case_.file.tensor(name); }
  std::int64_t extent(const char* name, int dimension) const { return tensor(name).shape[dimension]; }
  /// Is the tensor present, with or without a view?
  bool is_there(const char* name) const;
  /// Dtype and shape of a tensor, also if it has no view.
  std::string describe(const char* name) const;

  /// Is the tensor present, with one of these dtypes and this shape?
  Status expect(const char* name, std::initializer_list<Dtype> dtypes, std::span<const Extent> shape) const;
  Status expect(const char* name, std::initializer_list<Dtype> dtypes,
                std::initializer_list<Extent> shape) const {
    return expect(name, dtypes, std::span(shape.begin(), shape.size()));
  }
  Status expect_optional(const char* name, std::initializer_list<Dtype> dtypes,
                         std::initializer_list<Extent> shape) const {
    return is_there(name) ? expect(name, dtypes, shape) : Status();
  }
  /// Is every value of an int32 tensor (one row a request), if present, from 0 to `most`?
  Status values_within(const char* name, std::int64_t most, const char* what) const;

  Status error(const char* name, const std::string& what) const;
  Status refuse(const std::string& what) const;

 private:
  /// Bytes of caches of kv_format e4m3 may be F8_E4M3 instead of uint8.
  bool may_be_e4m3(std::string_view name) const;

 protected:
  const DecodeCase& case_;
};

}  // namespace flashlatent::io
