// Which clusters a device holds.
#pragma once

#include "plan/workers.h"

namespace flashlatent::cuda {

/// Asks the device, by a kernel whose CTAs have a multiprocessor each, as those of all kernels by teams.
/// Needs no stream, memory or synchronisation. Unknown if the device does not say.
schedule::ClusterRoom cluster_room(int device);

}  // namespace flashlatent::cuda
