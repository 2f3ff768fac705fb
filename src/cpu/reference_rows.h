// What the rows of a call hold, element by element: cached tokens and queries.
#pragma once

#include <cstdint>
#include <vector>

#include "core/edge_rows.h"
#include "cpu/reference_tokens.h"
#include "flashlatent/decode.h"

namespace flashlatent::cpu {

/// The scale of a tensor, or of a head.
float scale_of(const ConstTensorView& scale, int head);

/// A token's key and its value: as many elements as `row` has.
void read_key(const DecodeProblem& problem, const DecodeInputs& inputs, Place place, int kv_head,
              std::vector<double>& row);
void read_value(const DecodeProblem& problem, const DecodeInputs& inputs, Place place, int kv_head,
                std::vector<double>& row);

/// Where a query row begins in `view`: q, q_rope or out.
std::int64_t query_offset(const DecodeProblem& problem, const DecodeInputs& inputs, int request, int token,
                          int head, const ConstTensorView& view);

/// The position of a query token.
std::int64_t position_of(const edges::Rotary& rotary, const DecodeProblem& problem,
                         const DecodeInputs& inputs, int request, int token);

/// The elements of a query row, times `scale`, which e4m3 may have. With edges the row is prepared.
std::vector<double> query_elements(const DecodeProblem& problem, const DecodeInputs& inputs, int request,
                                   int token, int head, const ConstTensorView& scale);

}  // namespace flashlatent::cpu
