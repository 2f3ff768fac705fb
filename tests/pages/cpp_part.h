// What C++ statements in pages take for granted: scripts/run_pages compiles each block that is marked `cpp
// part`, in a function of its own, behind this file.
#pragma once

#include <flashlatent/flashlatent.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fl = flashlatent;

void* allocate(std::size_t bytes);
int report(const std::string& message);

// What pages use of the CUDA runtime, which their readers have and the compiler here need not.
using cudaStream_t = struct Stream*;
using cudaGraph_t = struct Graph*;
enum { cudaStreamCaptureModeGlobal, cudaMemcpyDeviceToHost };
int cudaStreamBeginCapture(cudaStream_t, int);
int cudaStreamEndCapture(cudaStream_t, cudaGraph_t*);
int cudaMemcpy(void*, const void*, std::size_t, int);
extern cudaStream_t stream;
extern cudaGraph_t graph;

extern fl::DecodeProblem problem;
extern fl::Executor executor;
extern const fl::Plan& plan;
extern fl::Memory plan_memory, workspace, found;
extern fl::DecodeInputs inputs;
extern fl::DecodeOutputs outputs;
extern std::vector<fl::DecodeInputs> inputs_of;
extern std::vector<fl::DecodeOutputs> outputs_of;
extern fl::Status status;
extern fl::Device device;

extern std::int64_t batch, s_q, h_q, s_kv, topk, pages, page_size, page_bytes;
extern int layers, max_pages;

// Memory.
extern void *cache, *q_pointer, *rope_pointer, *kv_scale, *q, *kv, *indices, *topk_length, *extra_indices,
    *key_data, *value_data, *weights, *index_keys, *counts;

// Tensors.
extern fl::ConstTensorView cache_seqlens, block_table, cu_seqlens, extra_bytes, latent, rope, slot_mapping,
    from, pairs, keys, values, partial_out, partial_lse, host_block_table, host_cache_seqlens, weight,
    positions, cos_sin, pooled, compressed_slots, index_q, index_weights, window_table, compressed_table;
extern fl::TensorView window_slots, window_indices, ends, extra_lengths, token_positions;
extern fl::TensorView kv_cache, to, out, max_logits, lse, key_cache, value_cache, key_rows, value_rows,
    window_cache, compressed_cache, codes, scales, scaled;
extern fl::KeyValueCache other;

// What pages use with the page pool.
extern std::vector<fl::PagePool::ContentId> contents;
extern int prompt_tokens;
extern std::vector<fl::PagePool::Sequence> sequences;
extern std::vector<std::int32_t> table, lengths;
