#include "io/case.h"

#include <gtest/gtest.h>

#include <functional>

#include "case_drafts.h"

namespace flashlatent::io {
namespace {

TEST(Case, Dense) {
  const auto loaded = parse_case(dense().bytes(), "x");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->kind, CaseKind::kDenseDecode);
  EXPECT_EQ(loaded->softmax_scale, 0.125F);
  EXPECT_TRUE(loaded->out_ref().present());
  EXPECT_TRUE(loaded->lse_ref().present());
  const auto problem = loaded->problem();
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  EXPECT_EQ(to_string(*problem),
            "decode b=2 s_q=3 h_q=4 h_kv=2 d=48/32 bf16 page=16x3 scale=0.125 causal sink");
  const DecodeInputs inputs = loaded->inputs();
  EXPECT_EQ(static_cast<const std::int32_t*>(inputs.block_table.data)[4], 99);
  EXPECT_TRUE(inputs.attn_sink.present());
  EXPECT_FALSE(inputs.cu_seqlens_q.present());
}

TEST(Case, RaggedOverTwoCaches) {
  Draft draft = ragged();
  draft.tensors["extra_kv_cache"] = {Dtype::kBF16, {7, 16, 2, 48}, {}};
  draft.tensors["extra_block_table"] = {Dtype::kI32, {2, 1}, {0, 6}};
  draft.tensors["extra_cache_seqlens"] = {Dtype::kI32, {2}, {0, 16}};
  const auto loaded = parse_case(draft.bytes(), "x");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const auto problem = loaded->problem();
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  EXPECT_TRUE(problem->query.ragged && problem->cache.extra.enabled);
  draft.tensors["extra_cache_seqlens"].shape = {2, 3};
  EXPECT_NE(parse_case(draft.bytes(), "x")
                .status()
                .message()
                .find("\"extra_cache_seqlens\" is int32 (2, 3); expected int32 (batch = 2)"),
            std::string::npos)
      << parse_case(draft.bytes(), "x").status().message();
  draft.tensors.erase("extra_cache_seqlens");
  draft.tensors.erase("extra_block_table");
  draft.tensors["extra_indices"] = {Dtype::kI32, {2, 3, 4}, {}};
  EXPECT_NE(parse_case(draft.bytes(), "x").status().message().find("it needs an extra_block_table"),
            std::string::npos)
      << parse_case(draft.bytes(), "x").status().message();
}

TEST(Case, Ragged) {
  const auto loaded = parse_case(ragged().bytes(), "x");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const auto problem = loaded->problem();
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  EXPECT_TRUE(problem->query.ragged);
  EXPECT_EQ(problem->query.tokens, 3);
  EXPECT_EQ(problem->query.batch, 2);
}

TEST(Case, WithoutCausalWhereItMakesNoDifference) {
  Draft draft = dense();
  draft.metadata.erase("causal");
  draft.tensors["q"].shape[1] = draft.tensors["out_ref"].shape[1] = draft.tensors["lse_ref"].shape[2] = 1;
  const auto loaded = parse_case(draft.bytes(), "x");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_FALSE(loaded->causal);
}

TEST(Case, Sparse) {
  const auto loaded = parse_case(sparse().bytes(), "x");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const auto problem = loaded->problem();
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  EXPECT_EQ(to_string(*problem),
            "sparse decode b=2 s_q=1 h_q=4 h_kv=1 d=576/512 fp8_656 page=4 topk=5 scale=1");
  EXPECT_EQ(static_cast<const std::int32_t*>(loaded->inputs().indices.data)[1], 999);
  EXPECT_TRUE(loaded->inputs().topk_length.present());
  Draft causal = sparse();
  causal.metadata["causal"] = "true";
  expect_message(parse_case(causal.bytes(), "x")->problem().status().message(), "x", "causal is set");
}

TEST(Case, DenseFp8) {
  Draft fp8 = dense();
  fp8.metadata["kv_format"] = "fp8_656";
  fp8.tensors["kv_cache"] = {Dtype::kU8, {5, 16, 1, 656}, {}};
  auto problem = parse_case(fp8.bytes(), "x")->problem();
  expect_message(problem.status().message(), "x", "qk_dim is 48; an fp8_656 cache has 576");
  fp8.tensors["q"].shape[3] = 576;
  problem = parse_case(fp8.bytes(), "x")->problem();
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  EXPECT_EQ(problem->cache.format, KvFormat::kFp8_656);
}

TEST(Case, Paged) {
  auto loaded = parse_case(paged().bytes(), "x");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  auto problem = loaded->problem();
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  EXPECT_EQ(to_string(*problem),
            "separate decode b=2 s_q=1 h_q=6 h_kv=3 d=80/64 fp16 page=8x3 scale=1 alibi");
  EXPECT_TRUE(loaded->inputs().value_cache.present());

  Draft draft = packed();
  draft.metadata["soft_cap"] = "30";
  draft.metadata["window"] = "4";
  problem = parse_case(draft.bytes(), "x")->problem();
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  EXPECT_EQ(problem->cache.layout, KvLayout::kPacked);
  EXPECT_EQ(problem->cache.page_size, 8);
  EXPECT_EQ(problem->options.separate.soft_cap, 30);
  EXPECT_EQ(problem->options.window, 4);
}

TEST(Case, TwoCaches) {
  Draft draft = two_caches();
  auto loaded = parse_case(draft.bytes(), "x");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  auto problem = loaded->problem();
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  EXPECT_EQ(to_string(*problem),
            "sparse decode b=2 s_q=1 h_q=4 h_kv=1 d=512/512 fp8_584 page=3 topk=5 extra_page=2 extra_topk=6 "
            "scale=1");
  EXPECT_EQ(loaded->inputs().extra_kv_cache.strides[0], 1744);

  for (const char* name : {"extra_indices", "extra_topk_length", "indices"}) draft.tensors.erase(name);
  draft.tensors["extra_block_table"] = {Dtype::kI32, {2, 9}, {}};
  draft.tensors["extra_cache_seqlens"] = {Dtype::kI32, {2, 1}, {18, 0}};
  draft.tensors["block_table"] = {Dtype::kI32, {2, 1}, {}};
  draft.tensors["cache_seqlens"] = {Dtype::kI32, {2}, {3, 0}};
  draft.metadata["kind"] = "dense_decode";
  draft.metadata["window"] = "2";
  problem = parse_case(draft.bytes(), "x")->problem();
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  EXPECT_EQ(problem->options.window, 2);
  EXPECT_EQ(problem->cache.extra.max_pages, 9);
}

TEST(Case, PagedE4m3) {
  const auto loaded = parse_case(e4m3().bytes(), "x");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const auto problem = loaded->problem();
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  EXPECT_EQ(problem->cache.format, KvFormat::kE4m3);
  EXPECT_EQ(loaded->inputs().key_scale.shape[0], 3);
  EXPECT_EQ(loaded->inputs().value_scale.shape[0], 1);
}

TEST(Case, LatentE4m3) {
  const auto loaded = parse_case(latent_e4m3().bytes(), "x");
  const auto problem = loaded->problem();
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  EXPECT_EQ(problem->cache.format, KvFormat::kE4m3);
  EXPECT_TRUE(problem->query.e4m3);
  EXPECT_EQ(loaded->inputs().q_scale.shape[0], 4);
}

TEST(Case, LatentE4m3OfAQueryInTwoParts) {
  Draft draft = latent_e4m3();
  draft.tensors["q"].shape[3] = 512;
  draft.tensors["q_rope"] = {Dtype::kU8, {2, 1, 4, 64}, {}};
  const auto loaded = parse_case(draft.bytes(), "x");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const auto problem = loaded->problem();
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  EXPECT_EQ(problem->cache.qk_dim, 576);
  draft.tensors["kv_cache"].shape[3] = 512;
  expect_message(parse_case(draft.bytes(), "x").status().message(), "x", "d = 576");
}

TEST(Case, PrefillLoadsAndIsNoDecode) {
  const auto loaded = parse_case(prefill().bytes(), "x");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const auto problem = loaded->problem();
  EXPECT_EQ(problem.status().code(), StatusCode::kUnsupported);
  expect_message(problem.status().message(), "x", "kind is sparse_prefill; dense_decode, sparse_decode and");
  const SparsePrefillInputs inputs = loaded->prefill_inputs();
  EXPECT_EQ(inputs.kv.rank, 3);
  EXPECT_EQ(inputs.q.rank, 3);
}

/// The first case with both edges. Positions and tables are 0.
Draft with_edges() {
  Draft draft = sparse();
  draft.metadata.insert({{"q_norm", "1e-6"},
                         {"q_rotate.pairs", "neox"},
                         {"out_rotate.table_layout", "interleaved"},
                         {"out_fp8.scale_columns", "32"},
                         {"out_fp8.groups", "2"},
                         {"out_fp8.keeps_out", "false"}});
  for (const std::string rotation : {"q_rotate", "out_rotate"}) {
    draft.tensors[rotation + ".positions"] = {Dtype::kI32, {2, 1}, {}};
    draft.tensors[rotation + ".table"] = {Dtype::kF32, {9, 64}, {}};
  }
  return draft;
}

TEST(Case, Edges) {
  const auto loaded = parse_case(with_edges().bytes(), "x");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->unknown_names(), std::vector<std::string>{});
  const DecodeInputs inputs = loaded->inputs();
  EXPECT_EQ(inputs.q_norm, 1e-6F);
  EXPECT_EQ(inputs.q_rotate.pairs, RotaryPairs::kHalves);
  EXPECT_EQ(inputs.q_rotate.layout, RotaryTable::kHalves);
  EXPECT_EQ(inputs.out_rotate.pairs, RotaryPairs::kNeighbours);
  EXPECT_EQ(inputs.out_rotate.layout, RotaryTable::kInterleaved);
  EXPECT_EQ(inputs.out_rotate.table.shape[1], 64);
  EXPECT_EQ(loaded->out_fp8.columns, 32);
  EXPECT_EQ(loaded->out_fp8.groups, 2);
  EXPECT_FALSE(loaded->out_fp8.keeps_out);
  const auto problem = loaded->problem();
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  EXPECT_TRUE(problem->options.q_edge && problem->options.out_edge);

  Draft draft = prefill();
  draft.metadata["out_fp8.scale_columns"] = "128";
  draft.tensors["q_rotate.positions"] = {Dtype::kI64, {7}, {}};
  draft.tensors["q_rotate.table"] = {Dtype::kBF16, {9, 64}, {}};
  const auto of_prefill = parse_case(draft.bytes(), "x");
  ASSERT_TRUE(of_prefill.ok()) << of_prefill.status().message();
  EXPECT_EQ(of_prefill->prefill_inputs().q_rotate.positions.rank, 1);
  EXPECT_TRUE(of_prefill->prefill_options().out_edge);
  EXPECT_TRUE(of_prefill->out_fp8.keeps_out);
  EXPECT_EQ(of_prefill->out_fp8.groups, 1);
}

TEST(Case, UnknownNamesAreTold) {
  Draft draft = dense();
  EXPECT_EQ(parse_case(draft.bytes(), "x")->unknown_names(), std::vector<std::string>{});
  draft.metadata["windw"] = "4";
  draft.tensors["attn_sinks"] = {Dtype::kF32, {4}, {}};
  EXPECT_EQ(parse_case(draft.bytes(), "x")->unknown_names(),
            (std::vector<std::string>{"windw", "attn_sinks"}));
}

TEST(Case, ProblemErrorsNameTheFile) {
  Draft draft = dense();
  draft.tensors["kv_cache"].shape[2] = 3;
  const auto loaded = parse_case(draft.bytes(), "x");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  expect_message(loaded->problem().status().message(), "x", "h_q is 4, which is not a multiple of h_kv 3");
}

TEST(Case, BadCasesAreNamed) {
  using Change = std::function<void(Draft&)>;
  auto meta = [](const char* key, const char* value) -> Change {
    return [=](Draft& draft) { draft.metadata[key] = value; };
  };
  auto no_meta = [](const char* key) -> Change { return [=](Draft& draft) { draft.metadata.erase(key); }; };
  auto no = [](const char* name) -> Change { return [=](Draft& draft) { draft.tensors.erase(name); }; };
  auto shape = [](const char* name, std::vector<std::int64_t> extents) -> Change {
    return [=](Draft& draft) { draft.tensors[name].shape = extents; };
  };
  auto dtype = [](const char* name, Dtype type) -> Change {
    return [=](Draft& draft) { draft.tensors[name].dtype = type; };
  };
  auto values = [](const char* name, std::vector<std::int32_t> numbers) -> Change {
    return [=](Draft& draft) { draft.tensors[name].values = numbers; };
  };
  auto add = [](const char* name, Draft::Tensor tensor) -> Change {
    return [=](Draft& draft) { draft.tensors[name] = tensor; };
  };
  const struct {
    Draft draft;
    Change change;
    const char* says;
  } cases[] = {
      {dense(), no_meta("kind"), "metadata \"kind\" is missing; expected dense_decode, sparse_decode"},
      {dense(), meta("kind", "dense"), "metadata \"kind\" is \"dense\"; expected"},
      {dense(), no_meta("softmax_scale"), "metadata \"softmax_scale\" is missing; expected a finite"},
      {dense(), meta("softmax_scale", ""), "metadata \"softmax_scale\" is \"\"; expected"},
      {dense(), meta("softmax_scale", "0.1x"), "metadata \"softmax_scale\" is \"0.1x\"; expected"},
      {dense(), meta("softmax_scale", " 0.1"), "metadata \"softmax_scale\" is \" 0.1\"; expected"},
      {dense(), meta("softmax_scale", "nan"), "metadata \"softmax_scale\" is \"nan\"; expected"},
      {dense(), meta("softmax_scale", "-inf"), "metadata \"softmax_scale\" is \"-inf\"; expected"},
      {dense(), meta("softmax_scale", "1e39"), "metadata \"softmax_scale\" is \"1e39\"; expected"},
      {dense(), meta("softmax_scale", "1e999"), "metadata \"softmax_scale\" is \"1e999\"; expected"},
      {dense(), no_meta("causal"), "metadata \"causal\" is missing; expected true or false"},
      {dense(), meta("causal", "True"), "metadata \"causal\" is \"True\"; expected true or false"},
      {dense(), no_meta("head_dim_v"), "metadata \"head_dim_v\" is missing; expected a whole number"},
      {dense(), meta("head_dim_v", "32.0"), "metadata \"head_dim_v\" is \"32.0\"; expected"},
      {dense(), meta("head_dim_v", "0"), "metadata \"head_dim_v\" is \"0\"; expected"},
      {dense(), meta("head_dim_v", "99999999999999999999"), "expected a whole number from 1 to 4096"},
      {dense(), meta("kv_format", "fp8"),
       "metadata \"kv_format\" is \"fp8\"; expected fp8_656, e4m3, fp8_584, "},
      {dense(), meta("scales", "token"), "metadata \"scales\" is \"token\"; expected nothing"},
      {two_caches(), meta("kv_format", "mxfp8_528"),
       "metadata \"scales\" is missing; expected token or page"},
      {two_caches(), meta("extra_kv_format", "nvfp4_288"),
       "expected kv_format, or nvfp4_288 beside mxfp8_528"},
      {dense(), meta("kv_format", "fp8_656"), "metadata \"kv_format\" is fp8_656, but the cache is bf16"},
      {dense(), no("q"), "tensor \"q\" is missing; expected bf16 or fp16 (batch, s_q, h_q, d)"},
      {dense(), dtype("q", Dtype::kF32), "tensor \"q\" is fp32 (2, 3, 4, 48); expected bf16 or fp16"},
      {dense(), shape("q", {6, 4, 48}), "tensor \"q\" is bf16 (6, 4, 48); expected"},
      {dense(), no("kv_cache"),
       "tensor \"kv_cache\" is missing; expected bf16 (pages, page_size, h_kv, d = 48)"},
      {dense(), dtype("kv_cache", Dtype::kF16), "tensor \"kv_cache\" is fp16 (5, 16, 2, 48); expected bf16"},
      {dense(), dtype("kv_cache", Dtype::kU8),
       "tensor \"kv_cache\" is uint8 (5, 16, 2, 48); a uint8 cache needs"},
      {dense(), shape("kv_cache", {5, 16, 2, 47}), "tensor \"kv_cache\" is bf16 (5, 16, 2, 47); expected"},
      {dense(), no("block_table"),
       "tensor \"block_table\" is missing; expected int32 (batch = 2, max_pages)"},
      {dense(), shape("block_table", {3, 3}),
       "tensor \"block_table\" is int32 (3, 3); expected int32 (batch = 2"},
      {dense(), dtype("block_table", Dtype::kF32), "tensor \"block_table\" is fp32 (2, 3); expected int32"},
      {dense(), no("cache_seqlens"), "tensor \"cache_seqlens\" is missing; expected int32 (batch = 2)"},
      {dense(), values("cache_seqlens", {1, 49}),
       "tensor \"cache_seqlens\": request 1 has 49; it must be from 0 to 48 (max_pages * page_size)"},
      {dense(), values("cache_seqlens", {-1, 4}), "tensor \"cache_seqlens\": request 0 has -1; it must be"},
      {dense(), shape("attn_sink", {5}), "tensor \"attn_sink\" is fp32 (5); expected fp32 (h_q = 4)"},
      {dense(), shape("out_ref", {2, 3, 4, 48}),
       "tensor \"out_ref\" is fp32 (2, 3, 4, 48); expected fp32 (batch"},
      {dense(), dtype("out_ref", Dtype::kBF16), "tensor \"out_ref\" is bf16"},
      {dense(), shape("lse_ref", {2, 3, 4}),
       "tensor \"lse_ref\" is fp32 (2, 3, 4); expected fp32 (batch = 2, h_q"},
      {dense(), add("alibi_slopes", {Dtype::kF32, {4}, {}}),
       "\"alibi_slopes\" does not belong in a case of kind"},
      {ragged(), shape("q", {2, 2, 4, 48}),
       "tensor \"q\" is bf16 (2, 2, 4, 48); expected bf16 or fp16 (total"},
      {ragged(), values("cu_seqlens_q", {1, 2, 4}),
       "tensor \"cu_seqlens_q\" is int32 (3); starts at 1; it must"},
      {ragged(), values("cu_seqlens_q", {0, 5, 4}),
       "decreases from 5 to 4 at request 1; it must not decrease"},
      {ragged(), values("cu_seqlens_q", {0, 1, 3}), "ends at 3; it must end at q's 4 tokens"},
      {ragged(), shape("cu_seqlens_q", {0}),
       "tensor \"cu_seqlens_q\" is int32 (0); expected int32 (batch + 1)"},
      {ragged(), dtype("cu_seqlens_q", Dtype::kF32), "tensor \"cu_seqlens_q\" is fp32 (3); expected int32"},
      {ragged(), shape("cu_seqlens_q", {2}), "tensor \"cu_seqlens_q\" is int32 (2); ends at 1"},
      {two_caches(), no_meta("page_size"), "metadata \"page_size\" is missing; expected a whole number"},
      {two_caches(), no_meta("extra_page_size"), "metadata \"extra_page_size\" is missing; expected a whole"},
      {sparse(), meta("page_size", "64"), "metadata \"page_size\" is \"64\"; expected nothing"},
      {two_caches(), shape("kv_cache", {3, 2288}),
       "tensor \"kv_cache\" is uint8 (3, 2288); a page of 3 tokens has 2304 bytes or more"},
      {two_caches(), no("extra_kv_cache"), "metadata \"extra_page_size\" is \"2\"; expected nothing"},
      {two_caches(), values("extra_topk_length", {0, 7}),
       "tensor \"extra_topk_length\": request 1 has 7; it must be from 0 to 6 (extra_topk)"},
      {sparse(), no_meta("kv_format"), "tensor \"kv_cache\" is uint8 (3, 4, 1, 656); a uint8 cache needs"},
      {sparse(), shape("kv_cache", {3, 4, 1, 640}),
       "tensor \"kv_cache\" is uint8 (3, 4, 1, 640); expected uint8"},
      {sparse(), no_meta("head_dim_v"), "metadata \"head_dim_v\" is missing; expected a whole number"},
      {sparse(), no("indices"), "tensor \"indices\" is missing; expected int32 (batch = 2, s_q = 1, topk)"},
      {sparse(), add("topk_length", {Dtype::kI32, {2, 2}, {0, 1, 2, 4, 0, 0, 0}}),
       "tensor \"topk_length\" is int32 (2, 2); expected int32 (batch = 2, s_q = 1)"},
      {sparse(), values("topk_length", {5, 6}),
       "tensor \"topk_length\": request 1 has 6; it must be from 0 to 5"},
      {paged(), no("key_cache"),
       "tensor \"key_cache\" is missing; expected fp16 (pages, page_size, h_kv, d = 80)"},
      {paged(), shape("value_cache", {6, 8, 2, 64}),
       "tensor \"value_cache\" is fp16 (6, 8, 2, 64); expected"},
      {paged(), meta("head_dim_v", "80"), "tensor \"value_cache\" is fp16 (6, 8, 3, 64); its d_v is not"},
      {paged(), meta("kv_format", "fp8_656"), "metadata \"kv_format\" is fp8_656, but the cache is fp16"},
      {paged(), values("cache_seqlens", {25, 0}), "tensor \"cache_seqlens\": request 0 has 25"},
      {packed(), shape("key_cache", {6, 3, 20, 8, 4}),
       "tensor \"key_cache\" is fp16 (6, 3, 20, 8, 4); expected"},
      {packed(), shape("q", {2, 1, 6, 84}), "a packed key_cache needs d to be a multiple of 8"},
      {packed(), meta("soft_cap", "-1"), "metadata \"soft_cap\" is \"-1\"; expected a finite number"},
      {packed(), meta("window", "1.5"), "metadata \"window\" is \"1.5\"; expected a whole number"},
      {sparse(), meta("window", "5"),
       "expected a whole number from 0 to 2^31 - 1 in a dense_decode or paged"},
      {dense(), meta("kv_format", "e4m3"), "metadata \"kv_format\" is e4m3, but the cache is bf16"},
      {paged(), add("key_scale", {Dtype::kF32, {1}, {}}), "\"key_scale\" is fp32 (1); it belongs to a cache"},
      {e4m3(), no_meta("kv_format"), "tensor \"key_cache\" is uint8 (6, 3, 5, 8, 16); expected fp16"},
      {e4m3(), shape("key_scale", {2}), "tensor \"key_scale\" is fp32 (2); expected fp32 (1 or h_kv = 1)"},
      {latent_e4m3(), shape("q_scale", {3}), "tensor \"q_scale\" is fp32 (3); expected fp32 (1 or h_q = 4)"},
      {e4m3(), dtype("q", Dtype::kF32), "expected bf16 or fp16 (batch, s_q, h_q, d)"},
      {latent_e4m3(), add("kv_scale", {Dtype::kF32, {1}, {0}}), "tensor kv_scale[0] is 0; positive finite"},
      {latent_e4m3(), add("q_scale", {Dtype::kF32, {4}, {kOne, kOne, -1}}), "tensor q_scale[2] is"},
      {latent_e4m3(), shape("kv_scale", {2}), "tensor \"kv_scale\" is fp32 (2); expected fp32 (1 = 1)"},
      {latent_e4m3(), dtype("q", Dtype::kBF16), "tensor \"q_scale\" is fp32 (4); it belongs to a q of e4m3"},
      {latent_e4m3(), meta("products", "int8"),
       "metadata \"products\" is \"int8\"; expected auto, bf16 or fp8"},
      {sparse(), add("kv_scale", {Dtype::kF32, {1}, {}}), "it belongs to a cache of kv_format e4m3"},
      {prefill(), add("out_ref", {Dtype::kF32, {7, 5, 512}, {}}),
       "\"out_ref\" is fp32 (7, 5, 512); expected fp32 (s_q = 7"},
      {prefill(), no("kv"), "tensor \"kv\" is missing; expected bf16 (s_kv, h_kv, d = 576)"},
      {prefill(), add("kv_cache", {Dtype::kBF16, {3, 3, 1, 576}, {}}), "kv_cache is there, too; one of them"},
      {prefill(), add("topk_length", {Dtype::kI32, {7}, {0, 1, 2, 4, 0, 0, 0}}),
       "query token 3 has 4; it must be from 0 to 3 (topk)"},
      {prefill(), add("max_logits_ref", {Dtype::kF32, {4, 7}, {}}), "expected fp32 (s_q = 7, h_q = 4)"},
      {prefill(), add("extra_kv_cache", {Dtype::kBF16, {3, 3, 1, 576}, {}}),
       "tensor \"extra_indices\" is missing; expected int32 (s_q = 7, h_kv = 1, extra_topk)"},
      {prefill(), shape("q", {7, 4, 575}), "expected bf16 (s_kv, h_kv, d = 575)"},
      {prefill(),
       [](Draft& draft) {
         draft.metadata["kv_format"] = "e4m3";
         draft.tensors["q"].dtype = Dtype::kU8;
       },
       "\"q\" is uint8 (7, 4, 576); with rows (kv) bf16 and fp16 are accepted"},
      {dense(), meta("q_norm", "-1"), "metadata \"q_norm\" is \"-1\"; expected 0 (no norm), or a"},
      {dense(), meta("q_norm", "1e-40"),
       "metadata \"q_norm\" is \"1e-40\"; expected 0 (no norm), or a finite number of 1.2e-38"},
      {dense(), meta("q_rotate.pairs", "neox"), "expected gptj or neox beside q_rotate.table, or absent"},
      {with_edges(), meta("out_rotate.pairs", "gpt"),
       "metadata \"out_rotate.pairs\" is \"gpt\"; expected gptj or"},
      {dense(), meta("out_fp8.groups", "2"), "expected nothing without out_fp8.scale_columns"},
      {with_edges(), meta("out_fp8.scale_columns", "64"), "is \"64\"; expected 128 or 32, or absent"},
      {with_edges(), meta("out_fp8.groups", "3"),
       "\"out_fp8.groups\" is \"3\", and q has 4 heads; a divisor of them"},
      {with_edges(), meta("out_fp8.keeps_out", "no"), "is \"no\"; expected true or false, or absent"},
      {dense(), meta("out_fp8.scale_columns", "32"),
       "outputs have 32 columns; with an FP8 output a multiple of 128"},
      {with_edges(), no("q_rotate.positions"),
       "q_rotate.positions is missing; positions and table go together"},
      {with_edges(), shape("q_rotate.positions", {2}), "q_rotate.positions is int32 (2) "},
      {with_edges(), shape("out_rotate.table", {9, 24}), "out_rotate.table is fp32 (9, 24) "},
      {with_edges(), values("out_rotate.positions", {0, 9}),
       "out_rotate.positions has 9 for token 1; out_rotate.table has 9 positions"},
      {with_edges(), dtype("out_rotate.table", Dtype::kI32), "fp32 and bf16 are accepted"},
      {prefill(), shape("indices", {7, 2, 3}),
       "tensor \"indices\" is int32 (7, 2, 3); expected int32 (s_q = 7"},
  };
  for (const auto& [original, change, says] : cases) {
    ASSERT_TRUE(parse_case(original.bytes(), "x").ok());
    Draft draft = original;
    change(draft);
    const auto loaded = parse_case(draft.bytes(), "bad.safetensors");
    EXPECT_FALSE(loaded.ok()) << says;
    EXPECT_EQ(loaded.status().code(), StatusCode::kInvalidArgument);
    expect_message(loaded.status().message(), "bad.safetensors", says);
  }
}

/// The bytes of a case in which dtypes in the header are replaced, whose elements have as many bits.
std::string with_dtype(const Draft& draft, const std::string& tensor, const std::string& from,
                       const std::string& to) {
  std::string bytes = draft.bytes();
  const std::size_t at = bytes.find("\"dtype\":\"" + from, bytes.find("\"" + tensor + "\":"));
  EXPECT_NE(at, std::string::npos);
  bytes.replace(at + 9, from.size(), to);
  const std::size_t space = bytes.find(" ", at);  // the header ends with some: its length stays
  if (to.size() > from.size()) bytes.erase(space, to.size() - from.size());
  return bytes;
}

TEST(Case, E4m3CachesMayBeF8) {
  std::string bytes = e4m3().bytes();
  for (const char* name : {"key_cache", "value_cache"}) {
    bytes = with_dtype(e4m3(), name, "U8", "F8_E4M3");
    const auto loaded = parse_case(bytes, "x");
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    EXPECT_EQ(loaded->file.tensor(name).dtype, Dtype::kU8);
    EXPECT_TRUE(loaded->problem().ok());
  }
  // The bytes of an fp8_656 cache are not all e4m3.
  expect_message(parse_case(with_dtype(sparse(), "kv_cache", "U8", "F8_E4M3"), "x").status().message(), "x",
                 "tensor \"kv_cache\" is F8_E4M3 (3, 4, 1, 656); expected uint8");
}

TEST(Case, TensorsThatNoViewShows) {
  // Under a name that cases know it is refused with what it is.
  expect_message(parse_case(with_dtype(dense(), "attn_sink", "F32", "I32"), "x").status().message(), "x",
                 "tensor \"attn_sink\" is int32 (4); expected fp32");
  expect_message(parse_case(with_dtype(dense(), "attn_sink", "F32", "U32"), "x").status().message(), "x",
                 "tensor \"attn_sink\" is U32 (4); expected fp32");
  expect_message(
      parse_case(with_dtype(with_edges(), "q_rotate.positions", "I32", "U32"), "x").status().message(), "x",
      "tensor \"q_rotate.positions\" is U32 (2, 1); expected int32 or int64");
  expect_message(parse_case(with_dtype(with_edges(), "q_rotate.table", "F32", "U32"), "x").status().message(),
                 "x", "tensor \"q_rotate.table\" is U32 ");
  // Under another name it is left out.
  Draft draft = dense();
  draft.tensors["extra"] = {Dtype::kF32, {4}, {}};
  const auto loaded = parse_case(with_dtype(draft, "extra", "F32", "U32"), "x");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->unknown_names(), std::vector<std::string>{"extra"});
}

Draft index() {
  return Draft{{{"kind", "index_topk"},
                {"topk", "7"},
                {"causal", "true"},
                {"index_format", "mxfp4_68"},
                {"page_size", "16"},
                {"slot_page_size", "2"}},
               {{"q", {Dtype::kU8, {2, 3, 8, 128}, {}}},
                {"weights", {Dtype::kF32, {2, 3, 8}, {}}},
                {"index_cache", {Dtype::kU8, {5, 1088}, {}}},
                {"block_table", {Dtype::kI32, {2, 3}, {0, 1, -1, 4, 99, 2}}},
                {"cache_seqlens", {Dtype::kI32, {2}, {0, 48}}},
                {"slot_table", {Dtype::kI32, {2, 24}, {}}},
                {"scores_ref", {Dtype::kF32, {2, 3, 48}, {}}}}};
}

TEST(Case, IndexTopk) {
  const auto loaded = parse_case(index().bytes(), "x");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->kind, CaseKind::kIndexTopk);
  EXPECT_EQ(loaded->index.topk, 7);
  EXPECT_EQ(loaded->index.options.format, IndexFormat::kMxfp4_68);
  EXPECT_TRUE(loaded->index.options.causal);
  EXPECT_EQ(loaded->index.options.slot_page_size, 2);
  EXPECT_TRUE(loaded->unknown_names().empty());
  EXPECT_EQ(loaded->problem().status().code(), StatusCode::kUnsupported);
  const auto refused = [&](auto change, const char* part) {
    Draft draft = index();
    change(draft);
    expect_message(parse_case(draft.bytes(), "x").status().message(), "x", part);
  };
  refused([](Draft& d) { d.metadata["topk"] = "0"; }, "metadata \"topk\" is \"0\"; expected a whole number");
  refused([](Draft& d) { d.metadata.erase("index_format"); }, "metadata \"index_format\" is missing");
  refused([](Draft& d) { d.metadata.erase("slot_page_size"); }, "metadata \"slot_page_size\" is missing");
  refused([](Draft& d) { d.tensors["weights"].shape = {2, 3, 16}; }, "weights is fp32 (2, 3, 16)");
  refused([](Draft& d) { d.tensors.erase("q"); }, "tensor \"q\" is missing");
  refused([](Draft& d) { d.tensors["cache_seqlens"].values = {0, 49}; }, "has 49 at 1; 0 to 48");
  refused([](Draft& d) { d.tensors["scores_ref"].shape = {2, 3, 47}; }, "tensor \"scores_ref\" is");
  refused(
      [](Draft& d) {
        d.tensors["index_cache"].shape = {5, 1072};
      },
      "a page of 16 keys of mxfp4_68 has 1088");
  for (const auto& [name, from] : {std::pair{"slot_table", "I32"}, {"scores_ref", "F32"}}) {
    expect_message(parse_case(with_dtype(index(), name, from, "U32"), "x").status().message(), "x",
                   std::string("tensor \"") + name + "\" is U32 (2, ");
  }
  Draft other = index();
  other.tensors["kv_cache"] = {Dtype::kBF16, {2}, {}};
  EXPECT_EQ(parse_case(other.bytes(), "x")->unknown_names(), std::vector<std::string>{"kv_cache"});
}

TEST(Case, BadFilesAreNamed) {
  const TempDir dir;
  expect_message(load_case(dir.path("none")).status().message(), dir.path("none"), "cannot be opened");
  expect_message(load_case(dir.path()).status().message(), dir.path(), "is a directory");
  expect_message(load_case(dir.write("empty", "")).status().message(), dir.path("empty"), "is empty");
}

TEST(Case, Golden) {
  const std::map<std::string, CaseKind> files = {
      {"golden/dense_bf16_page16.safetensors", CaseKind::kDenseDecode},
      {"golden/sparse_h8.safetensors", CaseKind::kSparseDecode},
      {"golden/paged_gqa_d80_p8.safetensors", CaseKind::kPagedDecode}};
  for (const auto& [name, kind] : files) {
    const std::string path = shared_file(name);
    if (path.empty()) GTEST_SKIP() << "no " << FLASHLATENT_SHARED_DIR << "/" << name;
    const auto loaded = load_case(path);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    EXPECT_EQ(loaded->kind, kind);
    EXPECT_TRUE(loaded->out_ref().present() && loaded->lse_ref().present());
    if (kind == CaseKind::kPagedDecode) continue;
    const auto problem = loaded->problem();
    ASSERT_TRUE(problem.ok()) << problem.status().message();
    EXPECT_EQ(problem->cache.page_size, kind == CaseKind::kDenseDecode ? 16 : 64);
    EXPECT_EQ(problem->query.heads, 8);
  }
}

}  // namespace
}  // namespace flashlatent::io
