// Cases of each kind to bend: tests change one thing and see what the reader says.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "io/case.h"
#include "io_files.h"

namespace flashlatent::io {

/// Shapes and int32 contents by tensor name (all else is zero), and metadata.
struct Draft {
  struct Tensor {
    Dtype dtype;
    std::vector<std::int64_t> shape;
    std::vector<std::int32_t> values;
  };
  std::map<std::string, std::string> metadata;
  std::map<std::string, Tensor> tensors;

  std::string bytes() const {
    const TempDir dir;
    std::vector<std::vector<std::int32_t>> storage;
    std::vector<NamedTensor> named;
    for (const auto& [name, tensor] : tensors) {
      ConstTensorView view;
      view.dtype = tensor.dtype;
      view.rank = static_cast<int>(tensor.shape.size());
      std::int64_t elements = 1;
      for (int i = view.rank - 1; i >= 0; --i) {
        view.shape[i] = tensor.shape[i];
        view.strides[i] = elements;
        elements *= tensor.shape[i];
      }
      storage.push_back(tensor.values);
      const std::size_t words = (elements * size_of(tensor.dtype) + 3) / 4;
      storage.back().resize(std::max(words, tensor.values.size()));
      view.data = storage.back().data();
      named.push_back({name, view});
    }
    EXPECT_TRUE(write_safetensors(dir.path("case"), named, metadata).ok());
    return read_bytes(dir.path("case"));
  }
};

inline Draft dense() {
  return {{{"kind", "dense_decode"}, {"softmax_scale", "0.125"}, {"causal", "true"}, {"head_dim_v", "32"}},
          {{"q", {Dtype::kBF16, {2, 3, 4, 48}, {}}},
           {"kv_cache", {Dtype::kBF16, {5, 16, 2, 48}, {}}},
           {"block_table", {Dtype::kI32, {2, 3}, {0, 1, -1, 4, 99, 2}}},
           {"cache_seqlens", {Dtype::kI32, {2}, {0, 48}}},
           {"attn_sink", {Dtype::kF32, {4}, {}}},
           {"out_ref", {Dtype::kF32, {2, 3, 4, 32}, {}}},
           {"lse_ref", {Dtype::kF32, {2, 4, 3}, {}}}}};
}

inline Draft ragged() {
  Draft draft = dense();
  draft.tensors["q"].shape = {4, 4, 48};
  draft.tensors["out_ref"].shape = {4, 4, 32};
  draft.tensors["cu_seqlens_q"] = {Dtype::kI32, {3}, {0, 1, 4}};
  return draft;
}

inline Draft sparse() {
  return {
      {{"kind", "sparse_decode"}, {"softmax_scale", "1"}, {"kv_format", "fp8_656"}, {"head_dim_v", "512"}},
      {{"q", {Dtype::kBF16, {2, 1, 4, 576}, {}}},
       {"kv_cache", {Dtype::kU8, {3, 4, 1, 656}, {}}},
       {"indices", {Dtype::kI32, {2, 1, 5}, {-1, 999}}},
       {"topk_length", {Dtype::kI32, {2}, {0, 5}}}}};
}

inline Draft paged() {
  return {{{"kind", "paged_decode"}, {"softmax_scale", "1"}, {"causal", "false"}},
          {{"q", {Dtype::kF16, {2, 1, 6, 80}, {}}},
           {"key_cache", {Dtype::kF16, {6, 8, 3, 80}, {}}},
           {"value_cache", {Dtype::kF16, {6, 8, 3, 64}, {}}},
           {"block_table", {Dtype::kI32, {2, 3}, {}}},
           {"cache_seqlens", {Dtype::kI32, {2}, {24, 1}}},
           {"alibi_slopes", {Dtype::kF32, {6}, {}}},
           {"out_ref", {Dtype::kF32, {2, 1, 6, 64}, {}}}}};
}

inline Draft packed() {
  Draft draft = paged();
  draft.tensors["key_cache"].shape = {6, 3, 10, 8, 8};
  draft.tensors["value_cache"].shape = {6, 3, 64, 8};
  return draft;
}

inline constexpr std::int32_t kOne = 0x3F800000;  // the bits of 1.0F

inline Draft e4m3() {
  Draft draft = packed();
  draft.metadata["kv_format"] = "e4m3";
  draft.tensors["key_cache"] = {Dtype::kU8, {6, 3, 5, 8, 16}, {}};
  draft.tensors["value_cache"].dtype = Dtype::kU8;
  draft.tensors["key_scale"] = {Dtype::kF32, {3}, {kOne, kOne, kOne}};
  draft.tensors["value_scale"] = {Dtype::kF32, {1}, {kOne}};
  return draft;
}

inline Draft prefill() {
  return {{{"kind", "sparse_prefill"}, {"softmax_scale", "1"}},
          {{"q", {Dtype::kBF16, {7, 4, 576}, {}}},
           {"kv", {Dtype::kBF16, {9, 1, 576}, {}}},
           {"indices", {Dtype::kI32, {7, 1, 3}, {}}}}};
}

inline Draft latent_e4m3() {
  return {{{"kind", "sparse_decode"},
           {"softmax_scale", "1"},
           {"kv_format", "e4m3"},
           {"products", "bf16"},
           {"head_dim_v", "512"}},
          {{"q", {Dtype::kU8, {2, 1, 4, 576}, {}}},
           {"q_scale", {Dtype::kF32, {4}, {kOne, kOne, kOne, kOne}}},
           {"kv_cache", {Dtype::kU8, {3, 4, 1, 576}, {}}},
           {"kv_scale", {Dtype::kF32, {1}, {kOne}}},
           {"indices", {Dtype::kI32, {2, 1, 5}, {-1, 999}}}}};
}

inline Draft two_caches() {
  return {{{"kind", "sparse_decode"},
           {"softmax_scale", "1"},
           {"kv_format", "fp8_584"},
           {"head_dim_v", "512"},
           {"page_size", "3"},
           {"extra_page_size", "2"}},
          {{"q", {Dtype::kBF16, {2, 1, 4, 512}, {}}},
           {"kv_cache", {Dtype::kU8, {3, 2304}, {}}},
           {"indices", {Dtype::kI32, {2, 1, 5}, {-1, 999}}},
           {"extra_kv_cache", {Dtype::kU8, {7, 1744}, {}}},
           {"extra_indices", {Dtype::kI32, {2, 1, 6}, {}}},
           {"extra_topk_length", {Dtype::kI32, {2}, {0, 6}}}}};
}

}  // namespace flashlatent::io
