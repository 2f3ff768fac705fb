#include "python/src/array.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "python/src/errors.h"
#include "python/src/torch_empty.h"

namespace flashlatent::python {

namespace {

ArrayType inspect(nb::handle array) {
  ArrayType result;
  result.type = reinterpret_cast<PyTypeObject*>(array.type().ptr());
  Py_INCREF(array.type().ptr());  // entries outlive the types' modules
  const nb::handle type = array.type();
  nb::object name = nb::getattr(type, "__module__", nb::none());
  const std::string module = nb::isinstance<nb::str>(name) ? nb::cast<std::string>(name) : "";
  result.torch = nb::hasattr(type, "new_empty");
  result.cupy = module.starts_with("cupy");
  result.immutable = module.starts_with("jax");  // jax..., jaxlib...
  if (nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none()); !capsule.is_none()) {
    const auto* api =
        static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    if (api == nullptr) PyErr_Clear();
    if (api != nullptr && api->version.major == 1 && api->borrow != nullptr) result.exchange = api;
  }
  // JAX has buffers too, but copies what buffers can't describe.
  result.buffer = PyObject_CheckBuffer(array.ptr()) != 0 &&
                  (nb::hasattr(type, "__array_interface__") || !nb::hasattr(type, "__dlpack__"));
  return result;
}

std::optional<Dtype> dtype_of(int code, int bits, std::optional<Dtype> sixteen_bits) {
  using namespace dlpack;
  if (code == kBfloat && bits == 16) return Dtype::kBF16;
  if (code == kFloat && bits == 16) return Dtype::kF16;
  if (code == kFloat && bits == 32) return Dtype::kF32;
  if (code == kInt && bits == 32) return Dtype::kI32;
  if (code == kInt && bits == 64) return Dtype::kI64;
  if ((code == kUInt || code == kInt) && bits == 16) return sixteen_bits;
  // An FP8 cache holds scales and bf16 besides: its bytes may come as any type of one byte.
  if ((code == kUInt || code == kInt || code == kFloat8E4M3FN) && bits == 8) return Dtype::kU8;
  return {};
}

[[noreturn]] void refuse_dtype(const char* name, const std::string& dtype) {
  refuse(name, " has elements of type ", dtype,
         "; bf16, fp16, fp32, int32, int64 and uint8 are accepted, and 16-bit integers as bf16 where "
         "dtype='bf16' says that they are");
}

}  // namespace

std::string type_of(nb::handle object) {
  return nb::cast<std::string>(nb::str(nb::type_name(object.type())));
}

const ArrayType& array_type(nb::handle array) {
  static auto& seen = *new std::vector<std::unique_ptr<ArrayType>>;
  const auto* type = reinterpret_cast<PyTypeObject*>(Py_TYPE(array.ptr()));
  for (const auto& entry : seen) {
    if (entry->type == type) return *entry;
  }
  seen.push_back(std::make_unique<ArrayType>(inspect(array)));
  return *seen.back();
}

Array::Array(Array&& other) noexcept
    : view_(other.view_),
      read_only_(other.read_only_),
      capsule_(std::move(other.capsule_)),
      buffer_(other.buffer_) {
  other.buffer_ = {};
}

Array::~Array() {
  if (buffer_.obj != nullptr) PyBuffer_Release(&buffer_);
}

Array Array::read(const char* name, nb::handle object, std::optional<Dtype> sixteen_bits) {
  Array array;
  if (object.is_none()) return array;
  const ArrayType& type = array_type(object);
  if (type.exchange != nullptr) {
    dlpack::Tensor tensor;
    if (type.exchange->borrow(object.ptr(), &tensor) != 0) throw nb::python_error();
    array.read_tensor(name, tensor, sixteen_bits);
  } else if (type.buffer) {
    array.read_buffer(name, object, sixteen_bits);
  } else if (nb::hasattr(object.type(), "__dlpack__")) {
    array.read_capsule(name, object, sixteen_bits);
  } else {
    refuse(name, " is a ", type_of(object),
           "; an array is expected (NumPy, torch, CuPy, JAX or any with DLPack)");
  }
  return array;
}

Array Array::output(const char* name, nb::handle object, std::optional<Dtype> sixteen_bits, bool fresh) {
  Array array = read(name, object, sixteen_bits);
  if (fresh || object.is_none()) return array;
  if (array.read_only_ || array_type(object).immutable) {
    refuse(name, " is read-only; an array that can be written is expected");
  }
  return array;
}

void Array::read_tensor(const char* name, const dlpack::Tensor& tensor, std::optional<Dtype> sixteen_bits) {
  if (tensor.rank < 1 || tensor.rank > kMaxRank) {
    refuse(name, " has ", tensor.rank, " dimensions; 1 to ", kMaxRank, " are accepted");
  }
  const std::optional<Dtype> dtype = dtype_of(tensor.dtype.code, tensor.dtype.bits, sixteen_bits);
  if (!dtype || tensor.dtype.lanes != 1) {
    refuse_dtype(name,
                 message("code ", int{tensor.dtype.code}, ", ", int{tensor.dtype.bits}, " bits (DLPack)"));
  }
  view_.data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  view_.dtype = *dtype;
  view_.rank = tensor.rank;
  switch (tensor.device.type) {
    case dlpack::kCpu:
    case dlpack::kCudaHost:
      view_.device = {};
      break;
    case dlpack::kCuda:
    case dlpack::kCudaManaged:
      view_.device = {DeviceType::kCuda, tensor.device.index};
      break;
    default:
      refuse(name, " is on a device of DLPack type ", tensor.device.type, "; cpu and cuda are accepted");
  }
  std::int64_t contiguous = 1;
  for (int i = tensor.rank - 1; i >= 0; --i) {
    view_.shape[i] = tensor.shape[i];
    view_.strides[i] = tensor.strides != nullptr ? tensor.strides[i] : contiguous;
    contiguous *= tensor.shape[i];
  }
}

void Array::read_buffer(const char* name, nb::handle object, std::optional<Dtype> sixteen_bits) {
  nb::object bits;  // keeps what is read alive until the buffer holds it
  if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
    // NumPy exports no types of other packages: ml_dtypes.bfloat16 is read as its bits.
    PyErr_Clear();
    const std::string dtype =
        nb::cast<std::string>(nb::str(nb::getattr(object, "dtype", nb::str("unknown"))));
    if (dtype != "bfloat16" && !dtype.starts_with("float8_e4m3")) refuse_dtype(name, dtype);
    if (dtype == "bfloat16") sixteen_bits = Dtype::kBF16;
    bits = object.attr("view")(dtype == "bfloat16" ? "uint16" : "uint8");
    if (PyObject_GetBuffer(bits.ptr(), &buffer_, PyBUF_STRIDES | PyBUF_FORMAT) != 0) throw nb::python_error();
  }
  const char* format = buffer_.format != nullptr ? buffer_.format : "B";
  const char letter = *format == '<' || *format == '=' || *format == '@' ? format[1] : format[0];
  const bool is_signed = letter != '\0' && std::strchr("bhilq", letter) != nullptr;
  const bool is_unsigned = letter != '\0' && std::strchr("BHILQ", letter) != nullptr;
  const bool is_float = letter == 'e' || letter == 'f' || letter == 'd';
  std::int64_t strides[kMaxRank] = {}, shape[kMaxRank] = {};
  for (int i = 0; i < buffer_.ndim && i < kMaxRank; ++i) {
    shape[i] = buffer_.shape[i];
    if (buffer_.strides[i] % buffer_.itemsize != 0 && shape[i] > 1) {
      refuse(name, " has a stride of ", buffer_.strides[i], " bytes; multiples of its element's ",
             buffer_.itemsize, " are accepted");
    }
    strides[i] = buffer_.strides[i] / buffer_.itemsize;
  }
  if (!is_signed && !is_unsigned && !is_float) refuse_dtype(name, format);
  const int code = is_float ? dlpack::kFloat : is_signed ? dlpack::kInt : dlpack::kUInt;
  const int width = static_cast<int>(buffer_.itemsize) * 8;
  if (!dtype_of(code, width, sixteen_bits)) {
    refuse_dtype(name, message(is_float ? "float" : is_signed ? "int" : "uint", width));
  }
  read_only_ = buffer_.readonly != 0;
  read_tensor(name,
              {.data = buffer_.buf,
               .device = {dlpack::kCpu, 0},
               .rank = buffer_.ndim,
               .dtype = {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(width), 1},
               .shape = shape,
               .strides = strides,
               .byte_offset = 0},
              sixteen_bits);
}

void Array::read_capsule(const char* name, nb::handle object, std::optional<Dtype> sixteen_bits) {
  const nb::object device = object.attr("__dlpack_device__")();
  nb::dict arguments;
  // torch and CuPy: the work goes to their current stream, so that nothing needs to wait (-1). Others make
  // their data ready for CUDA's default stream.
  const ArrayType& type = array_type(object);
  if (nb::cast<int>(device[0]) != dlpack::kCpu && (type.torch || type.cupy)) arguments["stream"] = -1;
  nb::object exported = nb::borrow(object);
  if (type.torch &&
      nb::cast<std::string>(nb::str(nb::object(object.attr("dtype")))).starts_with("torch.float8")) {
    exported = object.attr("view")(nb::module_::import_("torch").attr("uint8"));  // old torch exports no FP8
  }
  const nb::object exporter = exported.attr("__dlpack__");
  try {
    nb::dict versioned;
    versioned.update(arguments);
    versioned["max_version"] = nb::make_tuple(1, 0);
    capsule_ = exporter(**versioned);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
    capsule_ = exporter(**arguments);  // from before DLPack 1.0
  }
  if (PyCapsule_IsValid(capsule_.ptr(), "dltensor_versioned")) {
    const auto* managed = static_cast<dlpack::ManagedTensorVersioned*>(
        PyCapsule_GetPointer(capsule_.ptr(), "dltensor_versioned"));
    if (managed->version.major != 1) {
      refuse(name, " is exported by DLPack ", managed->version.major, "; version 1 is accepted");
    }
    read_only_ = (managed->flags & 1) != 0;
    read_tensor(name, managed->tensor, sixteen_bits);
    return;
  }
  const auto* managed = static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule_.ptr(), "dltensor"));
  if (managed == nullptr) throw nb::python_error();
  read_tensor(name, managed->tensor, sixteen_bits);
}

nb::object empty_like(nb::handle like, std::initializer_list<std::int64_t> shape, const char* dtype) {
  const ArrayType& type = array_type(like);
  dlpack::Tensor tensor;
  if (type.torch && type.exchange != nullptr && type.exchange->borrow(like.ptr(), &tensor) == 0) {
    const bool cpu = tensor.device.type == dlpack::kCpu;
    const Device device = {cpu ? DeviceType::kCpu : DeviceType::kCuda, tensor.device.index};
    const DtypeKey key = dtype != nullptr ? DtypeKey{.name = dtype}
                                          : DtypeKey{.code = tensor.dtype.code, .bits = tensor.dtype.bits};
    return torch_empty(like, device, {shape.begin(), shape.size()}, key);
  }
  const nb::object function = nb::module_::import_("flashlatent._arrays").attr("empty_like");
  const nb::object extents = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(shape.size())));
  Py_ssize_t i = 0;
  for (std::int64_t extent : shape) PyTuple_SetItem(extents.ptr(), i++, PyLong_FromLongLong(extent));
  return function(like, extents, dtype == nullptr ? nb::none() : nb::object(nb::str(dtype)));
}

}  // namespace flashlatent::python
