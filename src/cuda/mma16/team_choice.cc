// The 16-row kernel by teams, for calls too small to fill the device.
#include "core/message.h"
#include "cuda/common/if_compiled.h"
#include "cuda/common/teams.h"
#include "cuda/cuda_backend.h"
#include "cuda/mma16/choice.h"

namespace flashlatent::cuda {

namespace {

// From calls of 1 to 18 blocks a CTA. At 131,072 tokens 10 teams instead of 13 took 18 % longer, 13 instead
// of 14 1.5 %.
constexpr TeamCosts kCosts = {.call = 3850,
                              .shared_merge = 2700,
                              .lone_merge = 0,
                              .block_here = 1350,
                              .block_alone = 1850,
                              .block_streaming = 2250,
                              .lone_request = -750};
/// A team of 16 meets later than one of 8, and only half of its warps add up what it has.
constexpr int kLargeTeam = 1000;
constexpr int kFewTokens = 256;  // four blocks
/// In one of 4 each thread adds up two units, one after the other, and merges those of more teams.
constexpr int kSmallTeam = 1350, kSmallTeamMerge = 3500;

template <int kTeam>
std::optional<std::string> declines(const DecodeProblem& problem) {
  if (problem.cache.layout != KvLayout::kLatent) return not_latent(problem);
  if (problem.cache.format != KvFormat::kPlain) {
    return message("the cache is ", to_string(problem.cache.format), "; bf16 and fp16 are accepted");
  }
  if (problem.options.batch_invariant) return not_invariant();
  if (!is_listed({mma16::kKeysOf4x576x512, mma16::kKeysOf8x576x512, mma16::kKeysOf16x576x512,
                  mma16::kKeysOf4x512x512, mma16::kKeysOf8x512x512, mma16::kKeysOf4x320x256,
                  mma16::kKeysOf8x320x256},
                 mma16::key_of(problem, loading_of(problem), kTeam))) {
    return kTeam > 8 ? unknown_dimensions(problem, "576/512 is") : unknown_dimensions(problem);
  }
  return std::nullopt;
}

template <int kTeam>
schedule::Geometry geometry(const DecodeProblem& problem, int workers) {
  TeamCosts costs = kCosts;
  if (kTeam > 8) {
    costs.call += kLargeTeam;
    // Of few blocks a CTA; else requests of a team alone wait for no merge: 4 of 4,096 tokens 11.2 us, by
    // teams of 8 10.5, but 6 of 8,192 18.8 and 20.9.
    if (reach_of(problem) <= kFewTokens * kTeam) costs.lone_merge = costs.shared_merge;
  }
  if (kTeam < 8) {
    costs.call += kSmallTeam;
    costs.shared_merge += kSmallTeamMerge;
  }
  return team_geometry(problem, workers, {.tile_rows = mma16::kTileRows, .team = kTeam, .costs = costs});
}

template <int kTeam>
constexpr DecodeKernel kernel(const char* name) {
  return {
      .name = name,
      .backend = Backend::kCuda,
      .takes = kTeam > 8
                   ? "bf16 and fp16 caches of qk_dim/v_dim 576/512, any rows, for small batches; dense and "
                     "sparse, any page size; not with batch_invariant"
                   : "bf16 and fp16 caches of qk_dim/v_dim 576/512, 512/512 or 320/256, any rows, for small "
                     "batches; dense and sparse, any page size; not with batch_invariant",
      .declines = declines<kTeam>,
      .geometry = geometry<kTeam>,
      .workspace_bytes = team_workspace_bytes,
      .launch = FLASHLATENT_IF_COMPILED(mma16::launch)};
}

}  // namespace

const DecodeKernel kMma16Team4Kernel = kernel<4>("mma16_team4");
const DecodeKernel kMma16Team8Kernel = kernel<8>("mma16_team8");
const DecodeKernel kMma16Team16Kernel = kernel<16>("mma16_team16");

}  // namespace flashlatent::cuda
