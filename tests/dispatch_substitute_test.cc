// Which kernel runs with tensors at hand, where the picked one cannot read or write them. No device is asked.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "choose/cutters.h"
#include "dispatch/select.h"

namespace flashlatent {
namespace {

const DecodeKernel* kernel_of(const std::string& name) {
  for (const choose::Cutter* cutter : choose::cutters()) {
    if (cutter->kernel.name == name) return &cutter->kernel;
  }
  return nullptr;
}

/// A call of two query tokens, whose tensors `change` may change.
struct Call {
  DecodeProblem problem;
  DecodeInputs inputs;
  DecodeOutputs outputs;

  explicit Call(int kv_heads = 1, int query_tokens = 2, int heads = 128) {
    problem.query = {.batch = 3, .tokens = query_tokens, .heads = heads};
    problem.cache.heads = kv_heads;
    problem.cache.max_pages = 10;
    problem.options.softmax_scale = 1;
    inputs.q = {memory, Dtype::kBF16, {3, query_tokens, heads, 576}};
    inputs.kv_cache = {memory, Dtype::kBF16, {30, 64, kv_heads, 576}};
    outputs.out = {memory, Dtype::kBF16, {3, query_tokens, heads, 512}};
  }

  void split_query() {
    inputs.q_rope = inputs.q;
    inputs.q.shape[3] = 512;
    inputs.q_rope.shape[3] = 64;
  }

  Result<const DecodeKernel*> runs(const char* picked, const char* asked_for) const {
    return kernel_of_call(*kernel_of(picked), problem, inputs, outputs, asked_for);
  }

  /// mla_64_pingpong does it in mla_64_roles's stead, and with mla_64_roles asked for it is refused for this
  /// tensor.
  void expect_substituted(const std::string& tensor) const {
    const Result<const DecodeKernel*> picked = runs("mla_64_roles", "");
    ASSERT_TRUE(picked.ok()) << picked.status().message();
    EXPECT_STREQ((*picked)->name, "mla_64_pingpong") << tensor;
    const Status asked_for = runs("mla_64_roles", "mla_64_roles").status();
    EXPECT_EQ(asked_for.code(), StatusCode::kUnsupported) << tensor;
    EXPECT_EQ(asked_for.message().find("kernel is 'mla_64_roles', but " + tensor + " "), 0U)
        << asked_for.message();
    EXPECT_NE(asked_for.message().find("mla_64_pingpong runs"), std::string::npos) << asked_for.message();
    // By its own name mla_64_pingpong does all of this.
    EXPECT_TRUE(runs("mla_64_pingpong", "mla_64_pingpong").ok());
  }

  alignas(256) static inline std::uint8_t memory[256];
};

TEST(Substitute, RolesRunsWhereItCan) {
  for (const Call& call : {Call(), Call(2, 1)}) {
    for (const char* asked_for : {"", "mla_64_roles"}) {
      const Result<const DecodeKernel*> kernel = call.runs("mla_64_roles", asked_for);
      ASSERT_TRUE(kernel.ok()) << kernel.status().message();
      EXPECT_STREQ((*kernel)->name, "mla_64_roles");
    }
  }
  // With such numbers of heads a box has some of a query token's rows, or whole query tokens.
  for (int heads : {16, 64, 128, 192}) {
    Call gaps(1, 2, heads);
    gaps.inputs.q.strides[1] += 8;
    EXPECT_STREQ((*gaps.runs("mla_64_roles", "mla_64_roles"))->name, "mla_64_roles") << heads;
    gaps.split_query();
    EXPECT_STREQ((*gaps.runs("mla_64_roles", "mla_64_roles"))->name, "mla_64_roles") << heads;
  }
  // Token by token it needs no boxes.
  Call call;
  call.problem.cache.page_size = call.inputs.kv_cache.shape[1] = 5;
  call.inputs.kv_cache.shape[0] = 0;
  EXPECT_STREQ((*call.runs("mla_64_roles", "mla_64_roles"))->name, "mla_64_roles");
}

TEST(Substitute, PingpongRunsWhereRolesCannot) {
  Call no_pages;
  no_pages.inputs.kv_cache.shape[0] = 0;
  no_pages.expect_substituted("kv_cache");
  Call heads_within_chunks(2, 1);
  heads_within_chunks.inputs.kv_cache.strides[2] += 8;
  heads_within_chunks.expect_substituted("kv_cache");
  Call gaps(1, 2, 80);
  gaps.inputs.q.strides[1] += 8;
  gaps.expect_substituted("q");
  Call gaps_of_rope(1, 2, 80);
  gaps_of_rope.split_query();
  gaps_of_rope.inputs.q_rope.strides[1] += 8;
  gaps_of_rope.expect_substituted("q");
  Call several_kv_heads(2, 2);
  several_kv_heads.expect_substituted("q");
  Call alignment;
  alignment.outputs.out.strides[2] += 2;
  alignment.expect_substituted("out");
}

TEST(Substitute, OthersHaveNone) {
  for (const choose::Cutter* cutter : choose::cutters()) {
    const DecodeKernel& kernel = cutter->kernel;
    EXPECT_EQ(kernel.substitute != nullptr, kernel.name == std::string("mla_64_roles")) << kernel.name;
  }
}

}  // namespace
}  // namespace flashlatent
