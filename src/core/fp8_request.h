// The FP8 output that a call of a case is to write.
#pragma once

namespace flashlatent {

struct Fp8Request {
  int columns = 0;        ///< That share a scale: 128, or 32; 0: no such output.
  int groups = 1;         ///< Groups of heads.
  bool keeps_out = true;  ///< Is `out` written, too?
};

}  // namespace flashlatent
