// The parts of the extension module, each in its own file.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <string>
#include <string_view>

#include "flashlatent/backend.h"
#include "flashlatent/problem.h"
#include "python/src/fp32.h"

namespace flashlatent::python {

namespace nb = nanobind;

void bind_problem(nb::module_& module);
void bind_plan(nb::module_& module);
void bind_step(nb::module_& module);
void bind_kv_cache(nb::module_& module);
void bind_key_value_cache(nb::module_& module);
void bind_combine(nb::module_& module);
void bind_edges(nb::module_& module);
void bind_prepare_step(nb::module_& module);
void bind_exchange(nb::module_& module);
void bind_index_topk(nb::module_& module);
void bind_page_pool(nb::module_& module);
void bind_sparse_prefill(nb::module_& module);
void bind_query(nb::module_& module);
void bind_checked_call(nb::module_& module);

/// "bf16" or "fp16" as a Dtype.
Dtype dtype_from_name(std::string_view name);

/// "cpu", "cuda", "cuda:1" as where a call runs.
Executor executor_on(std::string_view device, int threads, const std::string& kernel);

/// Where tensors on `device` are worked on.
Executor executor_on(Device device, int threads = 0, const std::string& kernel = "");

/// Multiprocessors or threads of a schedule that no device is asked for.
void check_workers(int workers);

}  // namespace flashlatent::python
