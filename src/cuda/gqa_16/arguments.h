// What gqa_16 is launched with beside what every decode kernel is.
#pragma once

#include <cuda.h>

#include "cuda/parts/arguments.h"
#include "plan/prefix.h"

namespace flashlatent::gqa_16 {

/// Keys, or values. Strides in bytes. `unit_stride`: from 16 bytes of a token to the next 16, or for packed
/// values from one of their elements to the next.
struct Plane {
  const std::uint8_t* data;
  std::int64_t page_stride, head_stride, token_stride, unit_stride;
  const float* scale;  // fp8: one, or one a KV head; null: 1
  int scale_stride;    // 0 or 1
};

/// How a score becomes one: s -> cap * tanh(s / cap), + slope * (t - (L - 1)).
struct ScoreArguments {
  const float* alibi_slopes;  // one a query head, or null
  float soft_cap;             // 0: none
  int window;                 // tokens that a query token sees, itself included; 0: all
};

/// Partial rows of `dim`, normalised, and their lse.
struct PartialRows {
  float* out;
  float* lse;
};

/// Prefixes that requests share, which another launch attends to: the results are merged with those of a
/// request's first segment, which are kept until both are there.
struct PrefixArguments {
  const prefix::Share* shares;  // one a request; null: nothing is shared
  const std::int32_t* lengths;  // of requests, now
  int unseen;                   // prefix::Shape's
  PartialRows results;          // of prefixes
  PartialRows kept;             // (requests, kv_heads, request_rows)
  int kv_heads, request_rows;
};

struct Arguments {
  CUtensorMap key_map, value_map;
  // With prefixes cache.lengths is null: the plan's segments end where its cuts do, an item's last one at the
  // page table's reach, and job_of() ends them where the request does.
  parts::DecodeArguments decode;
  PrefixArguments prefix;
  parts::Ticket* tickets;  // of those who split a request (splits.cuh); null: a combine step comes after
  Plane keys, values;
  ScoreArguments score;
  Divisor ctas_a_part;
  int box_tokens;      // of a box of the maps, 16 or 8; 0: there are none, 16 bytes are copied at a time
  int tiles_a_cta;     // row tiles side by side: 1, 2, 4 or 8, no more than warps
  int team;            // CTAs that share a segment's blocks, or 1; then a CTA has one segment
  int dim;             // of keys and values: whole units of 16 bytes
  int reach;           // tokens that a page table has room for
  bool given_is_bf16;  // queries and outputs; else they are fp16
};

}  // namespace flashlatent::gqa_16
