#include "runtime/case_spec.h"

#include <algorithm>
#include <cmath>

#include "core/formats/formats.h"
#include "runtime/layer_edges.h"

namespace flashlatent::runtime {

DecodeProblem problem_of(const CaseSpec& spec) {
  DecodeProblem p;
  const int longest = spec.lengths.empty() ? 0 : *std::max_element(spec.lengths.begin(), spec.lengths.end());
  const std::vector<int>& ragged = spec.ragged_tokens;
  p.query = {static_cast<int>(spec.lengths.size()), spec.query_tokens, spec.heads, !ragged.empty()};
  p.query.e4m3 = spec.e4m3_query;
  if (p.query.ragged) p.query.tokens = std::max(1, *std::max_element(ragged.begin(), ragged.end()));
  p.cache = {.format = spec.format,
             .dtype = spec.dtype,
             .heads = spec.kv_heads,
             .qk_dim = spec.qk_dim,
             .v_dim = spec.v_dim,
             .page_size = spec.page_size,
             .layout = spec.layout,
             .scales = has_places(spec.format) ? spec.scale_place : ScalePlace::kAuto};
  p.cache.max_pages = spec.sparse ? 0 : pages_for(longest, spec.page_size) + 2;
  p.sparse = {spec.sparse, spec.sparse ? spec.topk : 0};
  if (!spec.extra_lengths.empty()) {
    const int most = *std::max_element(spec.extra_lengths.begin(), spec.extra_lengths.end());
    p.cache.extra = {.enabled = true,
                     .indexed = spec.extra_indexed,
                     .page_size = spec.extra_page_size,
                     .topk = spec.extra_indexed ? spec.extra_topk : 0,
                     .max_pages = spec.extra_indexed ? 0 : pages_for(most, spec.extra_page_size) + 1,
                     .format = spec.extra_format};
  }
  p.options = {.softmax_scale = spec.logit_scale / std::sqrt(static_cast<float>(spec.qk_dim)),
               .causal = spec.causal,
               .attn_sink = spec.sink,
               .batch_invariant = spec.batch_invariant,
               .prefix_sharing = spec.prefix_sharing,
               .window = spec.window,
               .products = spec.products,
               .separate = {.soft_cap = spec.soft_cap, .alibi = spec.alibi},
               .shard = spec.shard};
  set_edge_options(spec.edges, p);
  return p;
}

}  // namespace flashlatent::runtime
