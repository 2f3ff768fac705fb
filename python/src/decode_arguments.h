// What a decode call is given, in one struct, from Python to the library.
#pragma once

#include <limits>
#include <optional>
#include <string_view>
#include <tuple>

#include "flashlatent/decode.h"
#include "python/src/arguments.h"
#include "python/src/array.h"
#include "python/src/layer_edges.h"

namespace flashlatent::python {

/// Every argument of any decode call, as Python gave it; None where an array is absent.
struct DecodeArguments {
  nb::handle q = Py_None, kv_cache = Py_None, block_table = Py_None, cache_seqlens = Py_None,
             indices = Py_None, topk_length = Py_None, cu_seqlens_q = Py_None, attn_sink = Py_None;
  nb::handle key_cache = Py_None, value_cache = Py_None, key_scale = Py_None, value_scale = Py_None,
             alibi_slopes = Py_None;
  nb::handle kv_scale = Py_None, q_scale = Py_None, q_rope = Py_None;

  nb::handle extra_kv_cache = Py_None, extra_indices = Py_None, extra_topk_length = Py_None,
             extra_block_table = Py_None, extra_cache_seqlens = Py_None;
  std::optional<int> page_size, extra_page_size;  ///< Of caches (pages, page_bytes).
  std::optional<std::string_view> kv_format, extra_kv_format, scales;

  float softmax_scale = std::numeric_limits<float>::quiet_NaN();
  int v_dim = 512;
  bool causal = false;
  bool batch_invariant = false;
  int window = 0;
  float soft_cap = 0;
  float empty_lse = -std::numeric_limits<float>::infinity();
  std::string_view prefix_sharing = "off";
  std::string_view products = "auto";
  int typical_tokens = 0;
  std::optional<std::tuple<int, int, int>> shard;  ///< (rank, world, run).
  std::optional<int> tokens;                       ///< Ragged: the most query tokens that a request has.
  std::optional<std::string_view> dtype;           ///< Of 16-bit integers, see Array::read().
  std::optional<bool> check_inputs = false;        ///< See check.h. False: what the Plan or Step says.

  // The edges of the layer: rotations (positions, table[, pairs[, table_layout]]), and (codes, scales).
  float q_norm = 0;
  nb::handle q_rotate = Py_None, out_rotate = Py_None, out_fp8 = Py_None;

  // Where there is a problem, but no arrays of a call yet.
  bool has_attn_sink = false, has_alibi = false, has_q_edge = false, has_out_edge = false;
  int calls_per_plan = 0;

  // Given by the caller; None where the call is to make it.
  nb::object out = nb::none(), lse = nb::none();
  nb::handle plan = Py_None, workspace = Py_None;
  nb::handle stream = Py_None;

  // Only the drop-in sets these.
  ScalePlace v41_place = ScalePlace::kAuto;  ///< Where a cache of 528 or 288 bytes without kv_format is
                                             ///< DeepSeek V4.1's: the place of its scales.
  bool default_scale = false;                ///< softmax_scale is 1 / sqrt(qk_dim).
  std::optional<bool> is_fp8;                ///< What the caller says of kv_cache.
};

namespace arguments {

// Rows by their names in Python.
inline constexpr auto kQ = argument("q", &DecodeArguments::q);
inline constexpr auto kBlockTable = argument("block_table", &DecodeArguments::block_table);
inline constexpr auto kCacheSeqlens = argument("cache_seqlens", &DecodeArguments::cache_seqlens);
inline constexpr auto kCuSeqlensQ = argument("cu_seqlens_q", &DecodeArguments::cu_seqlens_q);
inline constexpr auto kIndices = argument("indices", &DecodeArguments::indices);
inline constexpr auto kQRope = argument("q_rope", &DecodeArguments::q_rope);

/// A latent cache, and which of its tokens.
inline constexpr auto kLatent =
    std::tuple(required(kQ), required(argument("kv_cache", &DecodeArguments::kv_cache)), kBlockTable);
/// Keys and values.
inline constexpr auto kKeyValue =
    std::tuple(required(kQ), required(argument("key_cache", &DecodeArguments::key_cache)),
               required(argument("value_cache", &DecodeArguments::value_cache)), required(kBlockTable));

/// Options of every problem.
inline constexpr auto kProblem = std::tuple(
    required(argument("softmax_scale", &DecodeArguments::softmax_scale)),
    argument("causal", &DecodeArguments::causal), kCuSeqlensQ, argument("tokens", &DecodeArguments::tokens),
    argument("batch_invariant", &DecodeArguments::batch_invariant),
    argument("empty_lse", &DecodeArguments::empty_lse), argument("dtype", &DecodeArguments::dtype),
    argument("shard", &DecodeArguments::shard), argument("typical_tokens", &DecodeArguments::typical_tokens));
inline constexpr auto kWindow = argument("window", &DecodeArguments::window);
/// The extra cache, and which of its tokens.
inline constexpr auto kExtra = std::tuple(argument("extra_kv_cache", &DecodeArguments::extra_kv_cache),
                                          argument("extra_indices", &DecodeArguments::extra_indices),
                                          argument("extra_block_table", &DecodeArguments::extra_block_table),
                                          argument("page_size", &DecodeArguments::page_size),
                                          argument("extra_page_size", &DecodeArguments::extra_page_size),
                                          argument("kv_format", &DecodeArguments::kv_format),
                                          argument("scales", &DecodeArguments::scales),
                                          argument("extra_kv_format", &DecodeArguments::extra_kv_format));
inline constexpr auto kLatentProblem =
    std::tuple_cat(std::tuple(argument("v_dim", &DecodeArguments::v_dim), kQRope, kIndices, kWindow,
                              argument("products", &DecodeArguments::products)),
                   kExtra);
inline constexpr auto kKeyValueProblem =
    std::tuple(kWindow, argument("soft_cap", &DecodeArguments::soft_cap));
/// Only for a problem without a call.
inline constexpr auto kHasSink = std::tuple(argument("attn_sink", &DecodeArguments::has_attn_sink),
                                            argument("calls_per_plan", &DecodeArguments::calls_per_plan),
                                            argument("q_edge", &DecodeArguments::has_q_edge),
                                            argument("out_edge", &DecodeArguments::has_out_edge));
inline constexpr auto kHasMore = std::tuple(argument("alibi", &DecodeArguments::has_alibi),
                                            argument("prefix_sharing", &DecodeArguments::prefix_sharing));

/// What a call has besides its problem.
inline constexpr auto kCall = std::tuple(
    argument("attn_sink", &DecodeArguments::attn_sink), argument("out", &DecodeArguments::out),
    argument("lse", &DecodeArguments::lse), argument("plan", &DecodeArguments::plan),
    argument("workspace", &DecodeArguments::workspace), argument("stream", &DecodeArguments::stream),
    argument("check_inputs", &DecodeArguments::check_inputs), argument("q_norm", &DecodeArguments::q_norm),
    argument("q_rotate", &DecodeArguments::q_rotate), argument("out_rotate", &DecodeArguments::out_rotate),
    argument("out_fp8", &DecodeArguments::out_fp8));
inline constexpr auto kLatentCall = std::tuple(
    argument("topk_length", &DecodeArguments::topk_length),
    argument("extra_topk_length", &DecodeArguments::extra_topk_length),
    argument("extra_cache_seqlens", &DecodeArguments::extra_cache_seqlens),
    argument("kv_scale", &DecodeArguments::kv_scale), argument("q_scale", &DecodeArguments::q_scale));
inline constexpr auto kKeyValueCall = std::tuple(argument("alibi_slopes", &DecodeArguments::alibi_slopes),
                                                 argument("key_scale", &DecodeArguments::key_scale),
                                                 argument("value_scale", &DecodeArguments::value_scale));

}  // namespace arguments

/// What the arguments kv_format and scales say.
CacheFormat cache_format(std::optional<std::string_view> kv_format, std::optional<std::string_view> scales);
std::optional<KvFormat> optional_format(std::optional<std::string_view> kv_format,
                                        const char* name = "kv_format");

/// A cache in rows as it is; bytes (pages, page_bytes) as the pages that they are, whose `page_size` the
/// argument `size_name` says: of `format`, or of fp8_584.
ConstTensorView latent_cache(const char* name, const TensorView& view, const char* size_name,
                             std::optional<int> page_size, std::optional<KvFormat> format);

/// The arrays of a call as views, for the time of the call. `sixteen_bits`: see Array::read().
class InputArrays {
 public:
  InputArrays(const DecodeArguments& arguments, std::optional<Dtype> sixteen_bits);
  DecodeInputs inputs() const;

  /// The FP8 output, which is written.
  Fp8Output out_fp8() const;

  /// Refuses a `dtype` that no array needs.
  void check_dtype(std::optional<Dtype> dtype) const;

 private:
  /// Arrays that most calls do not have: to make even absent ones takes time.
  struct Rare {
    Array indices, topk_length, cu_seqlens_q, attn_sink;
  };
  struct KeysAndValues {
    Array key_cache, value_cache, key_scale, value_scale, alibi_slopes;
  };

  struct Scales {
    Array kv, q;
  };

  struct Extra {
    Array kv_cache, indices, topk_length, block_table, cache_seqlens;
  };

  Array q_, kv_cache_, block_table_, cache_seqlens_;
  std::optional<int> page_size_, extra_page_size_;
  std::optional<Array> rope_;
  std::optional<KvFormat> format_, extra_format_;
  std::optional<Rare> rare_;
  std::optional<Extra> extra_;
  std::optional<Scales> scales_;
  std::optional<KeysAndValues> separate_;
  float q_norm_;
  std::optional<LayerEdgeArrays> edges_;
};

/// (rank, world, run); all tokens if there is none.
ContextShard shard_of(const std::optional<std::tuple<int, int, int>>& shard);

/// What 16-bit integers hold, if the caller says.
std::optional<Dtype> sixteen_bits_of(const DecodeArguments& arguments);

/// The problem that these arrays and options pose. Arrays say whether there is a sink, and slopes.
DecodeProblem problem_of(const DecodeInputs& inputs, const DecodeArguments& arguments);

}  // namespace flashlatent::python
