// Parameters of gqa_16's kernel, beside those of every decode kernel.
#pragma once

#include <cuda.h>

#include "cuda/sm90/walk/arguments.h"
#include "plan/prefix.h"

namespace flashlatent::gqa_16 {

/// Keys, or values. Strides in bytes. `unit_stride`: from 16 bytes of a token to its next 16; with packed
/// values from one element of a token to the next.
struct Plane {
  const std::uint8_t* data;
  std::int64_t page_stride, head_stride, token_stride, unit_stride;
  const float* scale;  // e4m3: one, or one for each KV head; null: 1
  int scale_stride;    // 0 or 1
};

/// Changes to a score: s -> cap * tanh(s / cap), then + slope * (t - (L - 1)).
struct ScoreArguments {
  const float* alibi_slopes;  // one for each query head, or null
  float soft_cap;             // 0: none
  int window;                 // a query token sees this many tokens, itself included; 0: all
};

/// Partial rows of `dim`, normalised, and their lse.
struct PartialRows {
  float* out;
  float* lse;
};

/// Prefixes that requests share. Another launch attends to them. Its results are merged with those of a
/// request's first segment, which are kept until both are complete.
struct PrefixArguments {
  const prefix::Share* shares;  // one for each request; null: nothing is shared
  const std::int32_t* lengths;  // of requests, in this call
  int unseen;                   // see prefix::Shape
  PartialRows results;          // of the prefixes
  PartialRows kept;             // of first segments: (requests, kv_heads, request_rows)
  int kv_heads, request_rows;
};

struct Arguments {
  CUtensorMap key_map, value_map;
  // With shared prefixes cache.lengths is null. The plan's segments then end at its cuts, and the last one of
  // an item at the page table's reach; job_of() ends them at the request's length.
  sm90::DecodeArguments decode;
  PrefixArguments prefix;
  sm90::Ticket* tickets;  // for the parts of a split request (splits.cuh); null: a combine step follows
  Plane keys, values;
  ScoreArguments score;
  Divisor ctas_a_part;
  int box_tokens;      // tokens of a TMA box, 16 or 8; 0: no maps, 16 bytes are copied at a time
  int tiles_a_cta;     // row tiles side by side: 1, 2, 4 or 8, at most the number of warps
  int team;            // CTAs that share a segment's blocks; more than 1: a CTA has one segment
  int dim;             // of keys and values, in whole units of 16 bytes
  int reach;           // the most tokens of a page table
  bool given_is_bf16;  // dtype of queries and outputs; false: fp16
};

}  // namespace flashlatent::gqa_16
