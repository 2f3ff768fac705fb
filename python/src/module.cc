// The extension module flashlatent._native.
#include "python/src/bindings.h"

NB_MODULE(_native, module) {
  using namespace flashlatent::python;
  // torch keeps what its operators use for ever.
  nanobind::set_leak_warnings(false);
  module.doc() = "FlashLatent's library. The package flashlatent is what to import.";
  bind_problem(module);
  bind_plan(module);
  bind_step(module);
  bind_combine(module);
  bind_edges(module);
  bind_prepare_step(module);
  bind_exchange(module);
  bind_index_topk(module);
  bind_kv_cache(module);
  bind_key_value_cache(module);
  bind_page_pool(module);
  bind_sparse_prefill(module);
  bind_query(module);
  bind_checked_call(module);
}
