// The FP8 output of a call on the executor's device, and its copy on the CPU.
#pragma once

#include <cstdint>
#include <vector>

#include "core/fp8_request.h"
#include "flashlatent/edges.h"
#include "runtime/device_memory.h"

namespace flashlatent::runtime {

class Fp8Memory {
 public:
  /// Allocates what the request asks for, in the layout of engines. `out`: the output that is cast, of which
  /// only the shape is read.
  static Result<Fp8Memory> create(const Fp8Request& request, const TensorView& out, const Executor& executor);

  Status poison(int byte, const Executor& executor) const;
  /// Copies to the CPU; the stream's work is done.
  Status fetch(const Executor& executor);

  const Fp8Output& there() const { return there_; }                  ///< Absent if none was asked for.
  const Fp8Output& here() const { return here_; }                    ///< What fetch() has copied.
  const std::vector<std::uint8_t>& bytes() const { return bytes_; }  ///< Codes, then scales.

 private:
  Buffer codes_, scales_;
  Fp8Output there_, here_;
  std::vector<std::uint8_t> bytes_;
};

}  // namespace flashlatent::runtime
