#include "core/index_check.h"

#include <array>
#include <limits>

#include "core/apart.h"
#include "core/enum_names.h"
#include "core/expect.h"
#include "core/message.h"

namespace flashlatent {

namespace {

constexpr EnumName<IndexFormat> kFormats[] = {{IndexFormat::kFp8_132, "fp8_132"},
                                              {IndexFormat::kMxfp4_68, "mxfp4_68"}};
constexpr int kMaxPageSize = 1 << 20, kMaxBlock = 1024, kMaxHeads = 128;
constexpr std::int64_t kMaxSpan = 1LL << 30;

/// Checks a tensor of (batch, s_q, ...), or ragged (tokens, ...), and reads its strides.
class OfTokens {
 public:
  OfTokens(bool ragged, std::int64_t batch, std::int64_t tokens, Device device)
      : ragged_(ragged), batch_(batch), tokens_(tokens), device_(device) {}

  template <class T, class View>
  Status read(const char* name, const View& view, Dtype dtype, std::initializer_list<std::int64_t> inner,
              OverTokens<T>& over) const {
    std::vector<std::int64_t> shape;
    if (!ragged_) shape.push_back(batch_);
    shape.push_back(tokens_);
    shape.insert(shape.end(), inner);
    if (inner.size() == 0) {  // the last stride is that of query tokens, which is free
      FLASHLATENT_RETURN_IF_ERROR(expect(name, view, dtype, device_, shape));
    } else {
      FLASHLATENT_RETURN_IF_ERROR(expect_strided(name, view, dtype, device_, shape));
    }
    over.data = static_cast<T*>(view.data);
    over.request = ragged_ ? 0 : view.strides[0];
    over.token = view.strides[ragged_ ? 0 : 1];
    over.inner = inner.size() == 0 ? 0 : view.strides[ragged_ ? 1 : 2];
    return {};
  }

  template <class T, class View>
  Status read_optional(const char* name, const View& view, Dtype dtype,
                       std::initializer_list<std::int64_t> inner, OverTokens<T>& over) const {
    return view.present() ? read(name, view, dtype, inner, over) : Status{};
  }

 private:
  bool ragged_;
  std::int64_t batch_, tokens_;
  Device device_;
};

Status in_range(const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return {};
  return invalid_argument(name, " is ", value, "; ", least, " to ", most, " are accepted");
}

/// cu_seqlens_q, on the CPU: from 0 to `tokens`, never falling.
Status expect_prefix_sums(const ConstTensorView& sums, std::int64_t tokens) {
  const auto* values = static_cast<const std::int32_t*>(sums.data);
  const std::int64_t last = sums.shape[0] - 1;
  std::int64_t before = 0;
  for (std::int64_t i = 0; i <= last; ++i) {
    const std::int64_t value = values[i * sums.strides[0]];
    if (value < before || (i == 0 && value != 0) || (i == last && value != tokens)) {
      return invalid_argument("cu_seqlens_q[", i, "] is ", value,
                              "; it must begin with 0, never fall, and end at q's ", tokens, " query tokens");
    }
    before = value;
  }
  return {};
}

Status read_lengths(const IndexTopkInputs& inputs, const OfTokens& over, Device device, IndexCall& call) {
  const ConstTensorView& lengths = inputs.cache_seqlens;
  call.lengths_per_token = !call.causal && (call.ragged || lengths.rank == 2);
  if (call.causal && lengths.rank == 2) {
    return invalid_argument("cache_seqlens is ", to_string(lengths),
                            ", what each query token sees, and causal is true; with causal expected int32 (",
                            call.batch, ")");
  }
  if (call.lengths_per_token) {
    return over.read("cache_seqlens", lengths, Dtype::kI32, {}, call.lengths);
  }
  FLASHLATENT_RETURN_IF_ERROR(expect("cache_seqlens", lengths, Dtype::kI32, device, {call.batch}));
  call.lengths = {static_cast<const std::int32_t*>(lengths.data), lengths.strides[0], 0, 0};
  return {};
}

Status read_tables(const IndexTopkInputs& inputs, const IndexTopkOptions& options, Device device,
                   IndexCall& call) {
  const ConstTensorView &table = inputs.block_table, &slots = inputs.slot_table;
  FLASHLATENT_RETURN_IF_ERROR(expect_strided("block_table", table, Dtype::kI32, device, {call.batch, -1}));
  if (table.shape[1] * options.page_size > kMaxSpan) {
    return invalid_argument("block_table is ", to_string(table), " and page_size ", options.page_size,
                            "; up to 2^30 tokens of a request are accepted");
  }
  call.block_table = static_cast<const std::int32_t*>(table.data);
  call.table_stride = table.strides[0];
  call.max_pages = static_cast<int>(table.shape[1]);
  if (!slots.present()) {
    if (options.slot_page_size == 0) return {};
    return invalid_argument("slot_page_size is ", options.slot_page_size, ", but slot_table is missing");
  }
  FLASHLATENT_RETURN_IF_ERROR(expect_strided("slot_table", slots, Dtype::kI32, device, {call.batch, -1}));
  FLASHLATENT_RETURN_IF_ERROR(in_range("slot_page_size", options.slot_page_size, 1, kMaxPageSize));
  FLASHLATENT_RETURN_IF_ERROR(expect_countable("slot_table", slots));
  call.slot_table = static_cast<const std::int32_t*>(slots.data);
  call.slot_stride = slots.strides[0];
  call.slot_columns = static_cast<int>(slots.shape[1]);
  call.slot_page_size = options.slot_page_size;
  return {};
}

}  // namespace

const char* to_string(IndexFormat format) {
  return name_of(kFormats, format);
}

Result<IndexFormat> index_format_from_name(std::string_view name) {
  return value_of(kFormats, name, "index_format", "fp8_132 and mxfp4_68");
}

std::int64_t index_key_bytes(IndexFormat format) {
  return index_keys::page_bytes(format, 1);
}

Status expect_index_cache(const ConstTensorView& cache, IndexFormat format, int page_size, Device device) {
  FLASHLATENT_RETURN_IF_ERROR(in_range("page_size", page_size, 1, kMaxPageSize));
  FLASHLATENT_RETURN_IF_ERROR(expect_strided("index_cache", cache, Dtype::kU8, device, {-1, -1}));
  FLASHLATENT_RETURN_IF_ERROR(expect_countable("index_cache", cache));
  const std::int64_t least = index_keys::page_bytes(format, page_size);
  if (cache.shape[0] == 0) return {};
  if (cache.shape[1] < least) {
    return invalid_argument("index_cache is ", to_string(cache), "; a page of ", page_size, " keys of ",
                            to_string(format), " has ", least, " bytes");
  }
  const std::int64_t stride = cache.strides[0];
  const bool aligned = reinterpret_cast<std::uintptr_t>(cache.data) % index_keys::kPageAlignment == 0;
  if (!aligned || (cache.shape[0] > 1 && (stride < least || stride % index_keys::kPageAlignment != 0))) {
    return invalid_argument("index_cache is ", to_string(cache), " at ", cache.data,
                            "; pages begin at a multiple of ", index_keys::kPageAlignment, " bytes and lie ",
                            least, " bytes apart or more");
  }
  return {};
}

Result<IndexCall> index_call(const IndexTopkInputs& inputs, const IndexTopkOutputs& outputs,
                             const IndexTopkOptions& options, Device device) {
  IndexCall call;
  call.format = options.format;
  call.causal = options.causal;
  call.ragged = inputs.cu_seqlens_q.present();
  call.page_size = options.page_size;
  const ConstTensorView& q = inputs.q;
  const int rank = call.ragged ? 3 : 4;
  if (!q.present() || q.dtype != Dtype::kU8 || q.rank != rank ||
      (q.shape[rank - 1] != index_keys::kDim && q.shape[rank - 1] != index_keys::kDim / 2)) {
    return invalid_argument("q is ", q.present() ? to_string(q) : "missing", "; expected uint8 (",
                            call.ragged ? "tokens" : "batch, s_q",
                            ", heads, 128), which is e4m3, or (..., 64), which is e2m1, on ",
                            to_string(device));
  }
  FLASHLATENT_RETURN_IF_ERROR(expect_countable("q", q));
  call.fp4_query = q.shape[rank - 1] == index_keys::kDim / 2;
  const std::int64_t heads = q.shape[rank - 2];
  if (heads < 8 || heads > kMaxHeads || heads % 8 != 0) {
    return invalid_argument("q is ", to_string(q), "; 8 to ", kMaxHeads,
                            " heads, a multiple of 8, are accepted");
  }
  call.heads = static_cast<int>(heads);
  call.tokens = static_cast<int>(q.shape[call.ragged ? 0 : 1]);
  std::int64_t batch = call.ragged ? 0 : q.shape[0];
  if (call.ragged) {
    const ConstTensorView& sums = inputs.cu_seqlens_q;
    FLASHLATENT_RETURN_IF_ERROR(expect("cu_seqlens_q", sums, Dtype::kI32, device, {-1}));
    FLASHLATENT_RETURN_IF_ERROR(expect_countable("cu_seqlens_q", sums));
    if (sums.shape[0] < 1)
      return invalid_argument("cu_seqlens_q is ", to_string(sums), "; expected (batch + 1)");
    batch = sums.shape[0] - 1;
    if (device.type == DeviceType::kCpu) FLASHLATENT_RETURN_IF_ERROR(expect_prefix_sums(sums, call.tokens));
    call.cu_seqlens_q = static_cast<const std::int32_t*>(sums.data);
    call.cu_stride = sums.strides[0];
  }
  call.batch = static_cast<int>(batch);
  if (call.rows() > (1LL << 30)) {
    return invalid_argument("q is ", to_string(q), "; up to 2^30 query tokens are accepted");
  }
  const OfTokens over(call.ragged, batch, call.tokens, device);
  FLASHLATENT_RETURN_IF_ERROR(over.read("q", q, Dtype::kU8, {heads, q.shape[rank - 1]}, call.q));
  if (call.fp4_query) {
    FLASHLATENT_RETURN_IF_ERROR(
        over.read("q_scale", inputs.q_scale, Dtype::kU8, {heads, index_keys::kGroups}, call.q_scale));
  } else if (inputs.q_scale.present()) {
    return invalid_argument("q_scale is given, but q is e4m3; only e2m1 queries (..., 64) have scales");
  }
  FLASHLATENT_RETURN_IF_ERROR(over.read("weights", inputs.weights, Dtype::kF32, {heads}, call.weights));

  FLASHLATENT_RETURN_IF_ERROR(
      expect_index_cache(inputs.index_cache, options.format, options.page_size, device));
  call.index_cache = static_cast<const std::uint8_t*>(inputs.index_cache.data);
  call.pages = inputs.index_cache.shape[0];
  call.page_stride = inputs.index_cache.strides[0];
  FLASHLATENT_RETURN_IF_ERROR(read_tables(inputs, options, device, call));
  FLASHLATENT_RETURN_IF_ERROR(read_lengths(inputs, over, device, call));

  FLASHLATENT_RETURN_IF_ERROR(in_range("candidate_block", options.candidate_block, 1, kMaxBlock));
  call.candidate_block = options.candidate_block;
  std::int64_t span = call.reach();
  if (inputs.candidates.present()) {
    FLASHLATENT_RETURN_IF_ERROR(over.read("candidates", inputs.candidates, Dtype::kI32, {-1}, call.blocks));
    const std::int64_t blocks = inputs.candidates.shape[call.ragged ? 1 : 2];
    span = blocks * options.candidate_block;
    if (blocks < 1 || span > kMaxSpan) {
      return invalid_argument("candidates is ", to_string(inputs.candidates), " with candidate_block ",
                              options.candidate_block, "; 1 block to 2^30 tokens are accepted");
    }
    call.candidates = static_cast<int>(blocks);
  }
  call.span = static_cast<int>(span);

  FLASHLATENT_RETURN_IF_ERROR(over.read("indices", outputs.indices, Dtype::kI32, {-1}, call.indices));
  const std::int64_t topk = outputs.indices.shape[call.ragged ? 1 : 2];
  FLASHLATENT_RETURN_IF_ERROR(in_range("topk, the last extent of indices,", topk, 1, kMaxIndexTopk));
  call.topk = static_cast<int>(topk);
  FLASHLATENT_RETURN_IF_ERROR(over.read_optional("counts", outputs.counts, Dtype::kI32, {}, call.counts));
  FLASHLATENT_RETURN_IF_ERROR(over.read_optional("scores", outputs.scores, Dtype::kF32, {topk}, call.scores));
  FLASHLATENT_RETURN_IF_ERROR(
      over.read_optional("all_scores", outputs.all_scores, Dtype::kF32, {span}, call.all_scores));
  if (outputs.best_blocks.present()) {
    if (call.candidates > 0) {
      return invalid_argument("best_blocks and candidates are given; one of them is accepted");
    }
    FLASHLATENT_RETURN_IF_ERROR(over.read("best_blocks", outputs.best_blocks, Dtype::kI32, {-1}, call.best));
    const std::int64_t best = outputs.best_blocks.shape[call.ragged ? 1 : 2];
    FLASHLATENT_RETURN_IF_ERROR(in_range("the last extent of best_blocks", best, 1, kMaxIndexTopk));
    call.best_blocks = static_cast<int>(best);
  }
  return call;
}

Result<MergeCall> merge_call(const ConstTensorView& scores, const ConstTensorView& counts,
                             const ConstTensorView& indices, int rank, const TensorView& out,
                             const TensorView& out_counts, Device device) {
  FLASHLATENT_RETURN_IF_ERROR(expect_strided("scores", scores, Dtype::kF32, device, {-1, -1, -1, -1}));
  FLASHLATENT_RETURN_IF_ERROR(expect_countable("scores", scores));
  const std::int64_t ranks = scores.shape[0], batch = scores.shape[1], tokens = scores.shape[2],
                     topk = scores.shape[3];
  FLASHLATENT_RETURN_IF_ERROR(in_range("topk, the last extent of scores,", topk, 1, kMaxIndexTopk));
  FLASHLATENT_RETURN_IF_ERROR(in_range("the first extent of scores, the ranks,", ranks, 1, 1024));
  FLASHLATENT_RETURN_IF_ERROR(in_range("rank", rank, 0, ranks - 1));
  FLASHLATENT_RETURN_IF_ERROR(expect("counts", counts, Dtype::kI32, device, {ranks, batch, tokens}));
  FLASHLATENT_RETURN_IF_ERROR(expect_strided("indices", indices, Dtype::kI32, device, {batch, tokens, topk}));
  FLASHLATENT_RETURN_IF_ERROR(expect_strided("out", out, Dtype::kI32, device, {batch, tokens, topk}));
  MergeCall call;
  call.ranks = static_cast<int>(ranks);
  call.rank = rank;
  call.batch = static_cast<int>(batch);
  call.tokens = static_cast<int>(tokens);
  call.topk = static_cast<int>(topk);
  call.scores = {static_cast<const float*>(scores.data), scores.strides[1], scores.strides[2], 1};
  call.score_rank_stride = scores.strides[0];
  call.counts = {static_cast<const std::int32_t*>(counts.data), counts.strides[1], counts.strides[2], 1};
  call.count_rank_stride = counts.strides[0];
  call.indices = {static_cast<const std::int32_t*>(indices.data), indices.strides[0], indices.strides[1], 1};
  call.out = {static_cast<std::int32_t*>(out.data), out.strides[0], out.strides[1], 1};
  if (out_counts.present()) {
    FLASHLATENT_RETURN_IF_ERROR(expect("out_counts", out_counts, Dtype::kI32, device, {batch, tokens}));
    call.out_counts = {static_cast<std::int32_t*>(out_counts.data), out_counts.strides[0],
                       out_counts.strides[1], 1};
  }
  const ConstTensorView merged = out, merged_counts = out_counts;
  const std::array<NamedView, 2> written = {{{"out", &merged}, {"out_counts", &merged_counts}}};
  const std::array<NamedView, 3> read = {{{"scores", &scores}, {"counts", &counts}, {"indices", &indices}}};
  FLASHLATENT_RETURN_IF_ERROR(expect_apart(written, read));
  return call;
}

Status expect_apart(const IndexTopkInputs& inputs, const IndexTopkOutputs& outputs, Memory workspace,
                    Device device) {
  const ConstTensorView memory =
      workspace.data == nullptr
          ? ConstTensorView{}
          : ConstTensorView{workspace.data, Dtype::kU8, {static_cast<std::int64_t>(workspace.bytes)}, device};
  const ConstTensorView indices = outputs.indices, counts = outputs.counts, scores = outputs.scores,
                        all = outputs.all_scores, best = outputs.best_blocks;
  const std::array<NamedView, 6> written = {{{"indices", &indices},
                                             {"counts", &counts},
                                             {"scores", &scores},
                                             {"all_scores", &all},
                                             {"best_blocks", &best},
                                             {"workspace", &memory}}};
  const std::array<NamedView, 9> read = {{{"q", &inputs.q},
                                          {"q_scale", &inputs.q_scale},
                                          {"weights", &inputs.weights},
                                          {"index_cache", &inputs.index_cache},
                                          {"block_table", &inputs.block_table},
                                          {"cache_seqlens", &inputs.cache_seqlens},
                                          {"cu_seqlens_q", &inputs.cu_seqlens_q},
                                          {"candidates", &inputs.candidates},
                                          {"slot_table", &inputs.slot_table}}};
  return expect_apart(written, read);
}

}  // namespace flashlatent
