// Which CUDA graph is being captured.
#pragma once

#include "flashlatent/tensor.h"

namespace flashlatent::python {

/// The id of the graph that `stream` of `device` is captured into; 0 if it is not.
unsigned long long capture_id(Device device, void* stream);

}  // namespace flashlatent::python
