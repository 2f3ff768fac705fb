// What gqa_128 is launched with.
#pragma once

#include "cuda/parts/arguments.h"
#include "plan/prefix.h"

namespace flashlatent::gqa_128 {

/// Partial rows of `dim`, normalised, and their lse.
struct PartialRows {
  float* out;
  float* lse;
};

/// Shared prefixes: whose rows meet which tokens the plan says, results are partial ones.
struct PrefixArguments {
  prefix::Shape shape;
  const prefix::Header* header;
  const prefix::Tile* tiles;
  const std::int32_t* members;
};

struct Arguments {
  parts::DecodeArguments decode;
  int dim;                    // of keys and values
  int reach;                  // tokens that a page table has room for
  int window;                 // tokens that a query token sees, itself included; 0: all
  float soft_cap;             // 0: none
  const float* alibi_slopes;  // one a query head, or null
  int kv_heads;
  int sequences;           // requests times KV heads: each one's row tiles read the same tokens
  int section;             // sequences whose tiles are done together, so that their tokens stay in L2
  int jobs;                // of all CTAs; shared, or of segments: the plan says
  std::int32_t* next_job;  // 0 at first; null where each CTA has one at most
  int block_sharers;  // of segments: 2 if the warpgroups have the same rows and share their blocks, else 1
  bool query_boxes;   // Q comes by TMA
  bool wide_output;   // rows of out are aligned to 16 bytes
  PrefixArguments prefix;  // shared
  PartialRows partial;     // shared, and of segments
};

}  // namespace flashlatent::gqa_128
