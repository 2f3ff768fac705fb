// Arrays of other packages as views: NumPy by the buffer protocol, torch and all others by DLPack. Nothing is
// copied.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <optional>

#include "flashlatent/backend.h"
#include "flashlatent/tensor.h"
#include "python/src/dlpack.h"

namespace flashlatent::python {

namespace nb = nanobind;

/// How arrays of one Python type are read. Each type that was seen has one, which is never freed.
struct ArrayType {
  PyTypeObject* type = nullptr;
  const dlpack::ExchangeApi* exchange = nullptr;  ///< Null: read by buffer or __dlpack__.
  bool buffer = false;                            ///< Has the buffer protocol.
  bool torch = false;
  bool negatable = false;  ///< Has torch's is_neg().
  bool cupy = false;
  bool fake = false;    ///< torch's FakeTensor and what else is traced: no memory is behind it.
  bool masked = false;  ///< NumPy's masked arrays: what their mask says is not in their memory.
  bool immutable =
      false;  ///< JAX's, whatever its export says: on a GPU it does not say that it is read-only.
};

const ArrayType& array_type(nb::handle array);

/// The name of an object's type, for messages.
std::string type_of(nb::handle object);

/// A caller's array for the time of one call.
class Array {
 public:
  /// Reads `object`; None gives an absent view. `sixteen_bits` is what int16 and uint16 elements stand for.
  /// Raises InvalidArgumentError, which calls the array `name`.
  static Array read(const char* name, nb::handle object, std::optional<Dtype> sixteen_bits = {});
  /// The same for an array that is written. A fresh one, made by empty_like(), may be: JAX calls its arrays
  /// read-only.
  static Array output(const char* name, nb::handle object, std::optional<Dtype> sixteen_bits = {},
                      bool fresh = false);

  const TensorView& view() const { return view_; }

  /// Its elements are 16-bit integers, which `sixteen_bits` gave their meaning.
  bool integers() const { return integers_; }
  /// Its elements are 16-bit integers that hold `dtype`.
  bool integers_of(std::optional<Dtype> dtype) const { return integers_ && view_.dtype == dtype; }

  Array(Array&& other) noexcept;
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array();

 private:
  Array() = default;
  static Array load(const char* name, nb::handle object, std::optional<Dtype> sixteen_bits);
  void refuse_negated(const char* name, nb::handle object) const;
  void read_buffer(const char* name, nb::handle object, std::optional<Dtype> sixteen_bits);
  void export_capsule(nb::handle object);
  void read_capsule(const char* name, nb::handle object, std::optional<Dtype> sixteen_bits);
  void read_tensor(const char* name, const dlpack::Tensor& tensor, std::optional<Dtype> sixteen_bits);

  TensorView view_;
  bool read_only_ = false;
  bool integers_ = false;
  bool bits_are_known_ = false;  // 16-bit integers are a view of bf16
  nb::object capsule_;           // frees the exported tensor
  Py_buffer buffer_ = {};
};

/// Refuses `dtype`, which says what 16-bit integers hold, where no array has any.
void refuse_unused_dtype(std::optional<Dtype> dtype, bool used);

/// A new array of like's package on its device. `dtype` is like's own, or what is named.
nb::object empty_like(nb::handle like, std::initializer_list<std::int64_t> shape,
                      const char* dtype = nullptr);

}  // namespace flashlatent::python
