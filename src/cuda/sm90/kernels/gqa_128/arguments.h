// Parameters of gqa_128's kernels.
#pragma once

#include "cuda/sm90/walk/arguments.h"
#include "plan/prefix.h"

namespace flashlatent::gqa_128 {

/// Partial rows of `dim`, normalised, and their lse.
struct PartialRows {
  float* out;
  float* lse;
};

/// Shared prefixes: the plan says which rows attend to which tokens, and all results are partial.
struct PrefixArguments {
  prefix::Shape shape;
  const prefix::Header* header;
  const prefix::Tile* tiles;
  const std::int32_t* members;
};

/// The scale of e4m3 keys or values: one, or one for each KV head.
struct CacheScale {
  const float* values;  // null: 1
  int stride;           // 0 or 1
};

struct Arguments {
  sm90::DecodeArguments decode;
  int dim;                    // of keys and values
  int reach;                  // the most tokens of a page table
  int window;                 // a query token sees this many tokens, itself included; 0: all
  float soft_cap;             // 0: none
  const float* alibi_slopes;  // one for each query head, or null
  int kv_heads;
  int sequences;           // requests times KV heads; the row tiles of one read the same tokens
  int section;             // sequences whose tiles are computed together, so that their tokens stay in L2
  int jobs;                // of all CTAs; with shared prefixes and segments the plan has them
  std::int32_t* next_job;  // 0 at first; null if each CTA has at most one job
  int block_sharers;       // segments: 2 if both warpgroups have the same rows and divide their blocks, else
                           // 1
  bool query_boxes;        // Q is loaded by TMA
  bool wide_output;        // rows of out are aligned to 16 bytes
  PrefixArguments prefix;  // only of shared prefixes
  PartialRows partial;     // of shared prefixes, and of segments
  CacheScale key_scale, value_scale;
};

}  // namespace flashlatent::gqa_128
