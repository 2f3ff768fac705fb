#include "cuda/host/layer_edges.h"

#include "cuda/host/tensors.h"

namespace flashlatent::cuda {

namespace {

bool turns_neighbours(const Rotation& rotation) {
  constexpr int kColumns = 64;
  return !rotation.present() ||
         (rotation.pairs == RotaryPairs::kNeighbours && rotation.table.shape[1] == kColumns);
}

}  // namespace

bool fits_query_edge(const DecodeProblem& problem, const DecodeInputs& inputs, bool boxes) {
  constexpr int kUnit = 16;  // of loads
  return turns_neighbours(inputs.q_rotate) && is_aligned(inputs.q, kUnit) &&
         (!boxes || rows_in_boxes(problem, inputs));
}

bool fits_output_edge(const DecodeInputs& inputs, const DecodeOutputs& outputs) {
  constexpr int kUnit = 16;  // of stores
  const Fp8Output& fp8 = outputs.out_fp8;
  return turns_neighbours(inputs.out_rotate) &&
         (!fp8.present() || (fp8.scales.dtype == Dtype::kF32 && is_aligned(fp8.codes, kUnit)));
}

bool has_edges(const DecodeInputs& inputs, const DecodeOutputs& outputs) {
  return inputs.q_norm > 0 || inputs.q_rotate.present() || inputs.out_rotate.present() ||
         outputs.out_fp8.present();
}

}  // namespace flashlatent::cuda
