// The tensors of DecodeInputs, and of rotations, by name, for those who read, copy or write all of them.
#pragma once

#include <iterator>

#include "flashlatent/decode.h"

namespace flashlatent {

struct DecodeInput {
  const char* name;
  ConstTensorView DecodeInputs::*view;
};

inline constexpr DecodeInput kDecodeInputs[] = {{"q", &DecodeInputs::q},
                                                {"q_rope", &DecodeInputs::q_rope},
                                                {"kv_cache", &DecodeInputs::kv_cache},
                                                {"block_table", &DecodeInputs::block_table},
                                                {"cache_seqlens", &DecodeInputs::cache_seqlens},
                                                {"indices", &DecodeInputs::indices},
                                                {"topk_length", &DecodeInputs::topk_length},
                                                {"cu_seqlens_q", &DecodeInputs::cu_seqlens_q},
                                                {"attn_sink", &DecodeInputs::attn_sink},
                                                {"key_cache", &DecodeInputs::key_cache},
                                                {"value_cache", &DecodeInputs::value_cache},
                                                {"key_scale", &DecodeInputs::key_scale},
                                                {"value_scale", &DecodeInputs::value_scale},
                                                {"kv_scale", &DecodeInputs::kv_scale},
                                                {"q_scale", &DecodeInputs::q_scale},
                                                {"alibi_slopes", &DecodeInputs::alibi_slopes},
                                                {"extra_kv_cache", &DecodeInputs::extra_kv_cache},
                                                {"extra_indices", &DecodeInputs::extra_indices},
                                                {"extra_topk_length", &DecodeInputs::extra_topk_length},
                                                {"extra_block_table", &DecodeInputs::extra_block_table},
                                                {"extra_cache_seqlens", &DecodeInputs::extra_cache_seqlens}};
/// The tensors of rotations in DecodeInputs or SparsePrefillInputs.
template <class Inputs>
struct RotationInput {
  const char *positions, *table;
  Rotation Inputs::*rotation;
};
template <class Inputs>
inline constexpr RotationInput<Inputs> kRotationInputs[] = {
    {"q_rotate.positions", "q_rotate.table", &Inputs::q_rotate},
    {"out_rotate.positions", "out_rotate.table", &Inputs::out_rotate}};

static_assert(sizeof(DecodeInputs) == sizeof(kDecodeInputs) / sizeof(DecodeInput) * sizeof(ConstTensorView) +
                                          alignof(DecodeInputs) +  // q_norm
                                          std::size(kRotationInputs<DecodeInputs>) * sizeof(Rotation),
              "all of them");

}  // namespace flashlatent
