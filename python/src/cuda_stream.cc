#include "python/src/cuda_stream.h"

#include "python/src/array.h"
#include "python/src/errors.h"
#if FLASHLATENT_WITH_CUDA
#include "cuda/host/runtime.h"
#endif

namespace flashlatent::python {

namespace {

void* pointer_from(nb::handle number) {
  return reinterpret_cast<void*>(nb::cast<std::uintptr_t>(number));
}

void* handle_of(nb::handle stream) {
  if (nb::isinstance<nb::int_>(stream)) return pointer_from(stream);
  if (nb::hasattr(stream, "__cuda_stream__"))
    return pointer_from(nb::object(stream.attr("__cuda_stream__")()[1]));
  for (const char* attribute : {"cuda_stream", "ptr"}) {
    if (nb::hasattr(stream, attribute)) return pointer_from(stream.attr(attribute));
  }
  refuse("stream is a ", type_of(stream),
         "; an integer handle or a stream object of torch or CuPy is accepted");
}

}  // namespace

WorkStream::WorkStream(nb::handle like, Device device, nb::handle stream) : device_(device) {
  if (device.type == DeviceType::kCpu) {
    if (!stream.is_none()) refuse("stream is given and the arrays are on the CPU; leave stream out");
    return;
  }
  if (!stream.is_none()) {
    handle_ = handle_of(stream);
    return;
  }
  const ArrayType& type = array_type(like);
  if (type.exchange != nullptr) {
    if (type.exchange->current_stream(dlpack::kCuda, device.index, &handle_) != 0) throw nb::python_error();
  } else if (type.torch) {
    handle_ = handle_of(nb::object(nb::module_::import_("torch.cuda").attr("current_stream")(device.index)));
  } else if (type.cupy) {
    handle_ =
        handle_of(nb::object(nb::module_::import_("cupy.cuda").attr("get_current_stream")(device.index)));
  } else {
    unknown_ = true;
  }
}

void WorkStream::finish() const {
#if FLASHLATENT_WITH_CUDA
  if (!unknown_) return;
  const cuda::DeviceGuard guard(device_.index);
  check(guard.status());
  check(cuda::to_status(cudaStreamSynchronize(static_cast<cudaStream_t>(handle_)), "cudaStreamSynchronize"));
#endif
}

unsigned long long capture_id([[maybe_unused]] Device device, [[maybe_unused]] void* stream) {
#if FLASHLATENT_WITH_CUDA
  if (device.type == DeviceType::kCuda) {
    const cuda::DeviceGuard guard(device.index);
    check(guard.status());
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long id = 0;
    check(cuda::to_status(cudaStreamGetCaptureInfo(static_cast<cudaStream_t>(stream), &status, &id),
                          "cudaStreamGetCaptureInfo"));
    if (status == cudaStreamCaptureStatusActive) return id;
  }
#endif
  return 0;
}

void wait_and_copy([[maybe_unused]] Device device, [[maybe_unused]] void* stream,
                   [[maybe_unused]] const void* from, [[maybe_unused]] void* to,
                   [[maybe_unused]] std::size_t bytes) {
#if FLASHLATENT_WITH_CUDA
  const cuda::DeviceGuard guard(device.index);
  check(guard.status());
  auto* on = static_cast<cudaStream_t>(stream);
  check(cuda::to_status(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, on), "cudaMemcpyAsync"));
  check(cuda::to_status(cudaStreamSynchronize(on), "cudaStreamSynchronize"));
#endif
}

}  // namespace flashlatent::python
