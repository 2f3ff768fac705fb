// The kernels of this folder on the host: few_rows_takes.cc and rows64_takes.cc say what they take, launch.cc
// launches.
#pragma once

#include "cuda/host/latent_problem.h"
#include "cuda/sm90/kernels/fp8/keys.h"
#include "kernel/decode_kernel.h"

namespace flashlatent::fp8 {

inline bool is_e4m3(const DecodeProblem& problem) {
  return problem.cache.format == KvFormat::kE4m3;
}

inline bool is_fp8_584(const DecodeProblem& problem) {
  return cuda::is_in(cuda::kRopeRecordFormats, problem.cache.format);
}

/// Records. fp8_528, whose scales are fp32, goes by converted tiles.
inline bool is_of_records(const DecodeProblem& problem) {
  return cuda::is_in(cuda::kByteScaleFormats, problem.cache.format);
}

/// Why none of these kernels takes the problem's cache; nothing if they may, by rows or queries.
std::optional<std::string> declines_cache(const DecodeProblem& problem);
/// The same for fp8_584: all rows of a tile must attend to the same tokens.
std::optional<std::string> declines_fp8_584(const DecodeProblem& problem);
/// The same for records.
std::optional<std::string> declines_records(const DecodeProblem& problem);

/// The same for sparse prefill that may ask for the largest scores, which kernels of lists do not find.
std::optional<std::string> declines_max_logits(const DecodeProblem& problem, bool max_logits);

/// The instance for a call. `has_pages`: a cache without pages has no boxes.
cuda::InstanceKey key_of(const DecodeProblem& problem, const schedule::Geometry& geometry, bool has_pages);

/// The edges that these kernels have: of fp8_584, and of records, whose queries are turned but not
/// normalised. Rotations of the last 64 columns by neighbours, and scales for 128 columns; outputs where
/// items stay whole, or are in shares of up to 32 rows, when these are merged.
FusedEdges fuses(const DecodeProblem& problem, const schedule::Geometry& geometry, const DecodeInputs& inputs,
                 const DecodeOutputs& outputs);

/// Launches any of these instances: the geometry says which.
Status launch(const DecodeCall& call);

}  // namespace flashlatent::fp8
