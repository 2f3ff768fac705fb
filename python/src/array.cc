#include "python/src/array.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <typeinfo>
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
  result.negatable = result.torch && nb::hasattr(type, "is_neg");
  result.fake = module.starts_with("torch._subclasses");
  result.cupy = module.starts_with("cupy");
  result.masked = nb::hasattr(type, "__array_interface__") && nb::hasattr(type, "harden_mask");
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
  // int8 is no FP8: a cache quantised to integers would be read as other numbers.
  if ((code == kUInt || code == kFloat8E4M3FN) && bits == 8) return Dtype::kU8;
  return {};
}

/// NumPy's name of a DLPack type.
std::string name_of_dtype(int code, int bits) {
  constexpr const char* kNumbers[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
  constexpr const char* kEightBits[] = {"float8_e3m4",     "float8_e4m3",     "float8_e4m3b11fnuz",
                                        "float8_e4m3fn",   "float8_e4m3fnuz", "float8_e5m2",
                                        "float8_e5m2fnuz", "float8_e8m0fnu"};
  if (code == dlpack::kBool) return "bool";
  if (code < static_cast<int>(std::size(kNumbers))) return message(kNumbers[code], bits);
  const int narrow = code - dlpack::kFloat8E3M4;
  if (narrow < static_cast<int>(std::size(kEightBits))) return kEightBits[narrow];
  return message("code ", code, ", ", bits, " bits (DLPack)");
}

/// What elements an argument may have.
const char* accepted_elements(std::string_view name) {
  name = name.substr(name.rfind('.') + 1);  // of cache.keys, pages.block_table
  const auto is_one_of = [&](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (is_one_of({"block_table", "cache_seqlens", "indices", "topk_length", "cu_seqlens_q", "cu_seqlens",
                 "first_token", "extra_indices", "extra_topk_length", "extra_block_table",
                 "extra_cache_seqlens", "extra_lengths", "candidates", "slot_table", "counts", "out_counts",
                 "best_blocks", "lengths", "request_lengths"})) {
    return "int32 is expected";
  }
  if (is_one_of({"slot_mapping", "pairs", "positions", "slots"})) return "int32 and int64 are accepted";
  if (is_one_of({"attn_sink", "lse", "max_logits", "alibi_slopes", "key_scale", "value_scale", "kv_scale",
                 "new_kv_scale", "partial_lse", "scores", "all_scores", "out_weights"}))
    return "fp32 is expected";
  if (is_one_of({"q_scale"})) return "fp32, and beside index queries of e2m1 uint8, is expected";
  if (is_one_of({"table"})) return "fp32 and bf16 are accepted";
  if (is_one_of({"scales"})) return "fp32 and int32, and of index queries uint8, are accepted";
  if (is_one_of({"plan", "workspace", "index_cache"})) return "uint8 is expected";
  if (is_one_of({"codes"})) return "uint8 and float8_e4m3fn are accepted";
  if (is_one_of({"weights"})) return "fp32, and in quantize_index_queries() bf16 and fp16, are accepted";
  if (is_one_of({"latent", "rope", "norm_weight", "norm_bias", "partial_out"})) {
    return "fp32, bf16 and fp16 are accepted, and 16-bit integers as bf16 where dtype='bf16' says that they "
           "are";
  }
  if (is_one_of({"q", "q_rope"})) {
    return "bf16 and fp16 are accepted, with an e4m3 cache uint8 and float8_e4m3fn, and 16-bit integers as "
           "bf16 where dtype='bf16' says that they are";
  }
  if (is_one_of({"out", "rotated"})) {
    return "bf16 and fp16 are accepted, and 16-bit integers as bf16 where dtype='bf16' says that they are";
  }
  return "bf16, fp16 and, in FP8 caches, uint8 and float8_e4m3fn are accepted, and 16-bit integers as bf16 "
         "where dtype='bf16' says that they are";
}

[[noreturn]] void refuse_dtype(const char* name, const std::string& dtype) {
  refuse(name, " has elements of type ", dtype, "; ", accepted_elements(name));
}

bool is_other_float8(std::string_view dtype) {
  return dtype.starts_with("float8") && dtype != "float8_e4m3fn";
}

/// What str(array.dtype) says, without torch's prefix; empty where there is none.
std::string dtype_name(nb::handle array) {
  if (!nb::hasattr(array, "dtype")) return "";
  std::string name = nb::cast<std::string>(nb::str(nb::object(array.attr("dtype"))));
  constexpr std::string_view kTorch = "torch.";
  return name.starts_with(kTorch) ? name.substr(kTorch.size()) : name;
}

/// Refuses an array that its package did not export, in a line, where the package may take several.
[[noreturn]] void refuse_unreadable(const char* name, nb::handle array, const nb::python_error& error) {
  for (const char* attribute : {"device", "layout"}) {
    if (!nb::hasattr(array, attribute)) continue;
    const std::string value = nb::cast<std::string>(nb::str(nb::object(array.attr(attribute))));
    if (value == "meta") refuse(name, " is on device meta, which holds no data; cpu and cuda are accepted");
    if (value.starts_with("torch.") && value != "torch.strided") {
      refuse(name, " has the layout ", value, "; torch.strided is accepted");
    }
  }
  const std::string what = nb::cast<std::string>(nb::str(error.value()));
  refuse(name, " can't be read where it is: ", what.substr(0, what.find('\n')),
         "; a strided array on cpu or cuda is accepted");
}

/// torch's views of -x, such as x.conj().imag, whose memory holds x.
bool is_negated(nb::handle tensor) {
  static PyObject* const name = PyUnicode_InternFromString("is_neg");
  PyObject* self = tensor.ptr();
  const nb::object result = nb::steal(PyObject_VectorcallMethod(name, &self, 1, nullptr));
  if (!result.is_valid()) throw nb::python_error();
  return result.is(nb::handle(Py_True));
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
      integers_(other.integers_),
      capsule_(std::move(other.capsule_)),
      buffer_(other.buffer_) {
  other.buffer_ = {};
}

Array::~Array() {
  if (buffer_.obj != nullptr) PyBuffer_Release(&buffer_);
}

Array Array::read(const char* name, nb::handle object, std::optional<Dtype> sixteen_bits) {
  Array array = load(name, object, sixteen_bits);
  array.refuse_negated(name, object);
  return array;
}

/// Integers are not asked: what is negated lazily is the .imag of a complex tensor.
void Array::refuse_negated(const char* name, nb::handle object) const {
  const Dtype dtype = view_.dtype;
  const bool is_float = dtype == Dtype::kF16 || dtype == Dtype::kBF16 || dtype == Dtype::kF32;
  if (!is_float || object.is_none() || !array_type(object).negatable || !is_negated(object)) return;
  refuse(name, " is a lazily negated view (torch's is_neg()); torch.resolve_neg(", name, ") is accepted");
}

Array Array::load(const char* name, nb::handle object, std::optional<Dtype> sixteen_bits) {
  Array array;
  if (object.is_none()) return array;
  const ArrayType& type = array_type(object);
  if (type.fake) {
    refuse(name, " is a ", type_of(object),
           ", which has a shape and no data; the operators of flashlatent.torch take it");
  }
  if (type.masked) {
    refuse(name, " is a masked array, whose mask is not read; ", name, ".filled(value), or ", name,
           ".data with all values, is accepted");
  }
  if (type.exchange != nullptr) {
    dlpack::Tensor tensor;
    if (type.exchange->borrow(object.ptr(), &tensor) != 0) {
      refuse_unreadable(name, object, nb::python_error());
    }
    array.read_tensor(name, tensor, sixteen_bits);
  } else if (type.buffer) {
    array.read_buffer(name, object, sixteen_bits);
  } else if (nb::hasattr(object.type(), "__dlpack__")) {
    array.read_capsule(name, object, sixteen_bits);
  } else {
    refuse_type(name, " is a ", type_of(object),
                "; an array is expected (NumPy, torch, CuPy, JAX or any with DLPack)");
  }
  return array;
}

Array Array::output(const char* name, nb::handle object, std::optional<Dtype> sixteen_bits, bool fresh) {
  Array array = load(name, object, sixteen_bits);
  if (fresh || object.is_none()) return array;
  array.refuse_negated(name, object);
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
    refuse_dtype(name, name_of_dtype(tensor.dtype.code, tensor.dtype.bits));
  }
  integers_ = tensor.dtype.bits == 16 &&
              (tensor.dtype.code == dlpack::kInt || tensor.dtype.code == dlpack::kUInt) && !bits_are_known_;
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
    const std::string dtype = dtype_name(object);
    if (dtype != "bfloat16" && dtype != "float8_e4m3fn")
      refuse_dtype(name, dtype.empty() ? "unknown" : dtype);
    bits_are_known_ = dtype == "bfloat16";
    if (bits_are_known_) sixteen_bits = Dtype::kBF16;
    bits = object.attr("view")(bits_are_known_ ? "uint16" : "uint8");
    if (PyObject_GetBuffer(bits.ptr(), &buffer_, PyBUF_STRIDES | PyBUF_FORMAT) != 0) throw nb::python_error();
  }
  const char* format = buffer_.format != nullptr ? buffer_.format : "B";
  const char letter = *format == '<' || *format == '=' || *format == '@' ? format[1] : format[0];
  const bool is_signed = letter != '\0' && std::strchr("bhilq", letter) != nullptr;
  const bool is_unsigned = letter != '\0' && std::strchr("BHILQ", letter) != nullptr;
  const bool is_float = letter == 'e' || letter == 'f' || letter == 'd';
  std::int64_t strides[kMaxRank] = {}, shape[kMaxRank] = {};
  // ctypes gives no strides, although they are asked for: its arrays are contiguous.
  const bool strided = buffer_.strides != nullptr;
  for (int i = 0; i < buffer_.ndim && i < kMaxRank; ++i) {
    shape[i] = buffer_.shape[i];
    if (!strided) continue;
    if (buffer_.strides[i] % buffer_.itemsize != 0 && shape[i] > 1) {
      refuse(name, " has a stride of ", buffer_.strides[i], " bytes; multiples of its element's ",
             buffer_.itemsize, " are accepted");
    }
    strides[i] = buffer_.strides[i] / buffer_.itemsize;
  }
  if (!is_signed && !is_unsigned && !is_float) {
    const std::string dtype = dtype_name(object);
    refuse_dtype(name, dtype.empty() ? format : dtype);
  }
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
               .strides = strided ? strides : nullptr,
               .byte_offset = 0},
              sixteen_bits);
}

void Array::export_capsule(nb::handle object) {
  const nb::object device = object.attr("__dlpack_device__")();
  nb::dict arguments;
  // torch and CuPy: the work goes to their current stream, so that nothing needs to wait (-1). Others make
  // their data ready for CUDA's default stream.
  const ArrayType& type = array_type(object);
  if (nb::cast<int>(device[0]) != dlpack::kCpu && (type.torch || type.cupy)) arguments["stream"] = -1;
  nb::object exported = nb::borrow(object);
  if (type.torch) {  // old torch exports no FP8
    const nb::object torch = nb::module_::import_("torch");
    const nb::object e4m3 = nb::getattr(torch, "float8_e4m3fn", nb::none());
    if (!e4m3.is_none() && nb::object(object.attr("dtype")).is(e4m3)) {
      exported = object.attr("view")(torch.attr("uint8"));
    }
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
}

void Array::read_capsule(const char* name, nb::handle object, std::optional<Dtype> sixteen_bits) {
  // Before the export, which may call bytes of any FP8 type uint8.
  if (const std::string dtype = dtype_name(object); is_other_float8(dtype)) refuse_dtype(name, dtype);
  try {
    export_capsule(object);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_Exception) || error.matches(PyExc_MemoryError)) throw;
    refuse_unreadable(name, object, error);
  } catch (const std::bad_cast&) {
    refuse(name, " is a ", type_of(object),
           ", whose __dlpack_device__() returns no pair of a device type and a number; one is expected");
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
  if (managed == nullptr) {
    PyErr_Clear();
    refuse(name, " is a ", type_of(object),
           ", whose __dlpack__() returns no capsule of DLPack; one is expected");
  }
  read_tensor(name, managed->tensor, sixteen_bits);
}

void refuse_unused_dtype(std::optional<Dtype> dtype, bool used) {
  if (!dtype || used) return;
  refuse("dtype is '", to_string(*dtype),
         "', which says what 16-bit integers hold, and no array has any; leave dtype out");
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
