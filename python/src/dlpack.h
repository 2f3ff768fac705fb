// The binary layout of DLPack 1.x (https://dmlc.github.io/dlpack), as far as it is read here.
#pragma once

#include <cstdint>

namespace flashlatent::python::dlpack {

enum DeviceType : std::int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };

enum DtypeCode : std::uint8_t {
  kInt = 0,
  kUInt = 1,
  kFloat = 2,
  kBfloat = 4,
  kBool = 6,
  kFloat8E3M4 = 7,
  kFloat8E4M3FN = 10
};

struct Tensor {
  void* data;
  struct {
    std::int32_t type, index;
  } device;
  std::int32_t rank;
  struct {
    std::uint8_t code, bits;
    std::uint16_t lanes;
  } dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null: contiguous
  std::uint64_t byte_offset;
};

struct ManagedTensor {  // in a capsule "dltensor"
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};

struct Version {
  std::uint32_t major, minor;
};

struct ManagedTensorVersioned {  // in a capsule "dltensor_versioned"
  Version version;
  void* context;
  void (*deleter)(ManagedTensorVersioned*);
  std::uint64_t flags;  // bit 0: read-only
  Tensor tensor;
};

/// Functions of a framework that read its tensors without a call of Python. A capsule "dlpack_exchange_api"
/// in the attribute __dlpack_c_exchange_api__ of the tensor's type; PyTorch has it from 2.10 on.
struct ExchangeApi {
  Version version;
  void* previous;
  void* allocate;
  void* export_managed;
  void* import_managed;
  int (*borrow)(void* object, Tensor* tensor);  // may be null; -1: a Python exception is set
  int (*current_stream)(std::int32_t device_type, std::int32_t device, void** stream);
};

}  // namespace flashlatent::python::dlpack
