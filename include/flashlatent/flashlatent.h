// Includes the whole public API.
#pragma once

#include "flashlatent/backend.h"
#include "flashlatent/check_inputs.h"
#include "flashlatent/combine.h"
#include "flashlatent/decode.h"
#include "flashlatent/edges.h"
#include "flashlatent/exchange.h"
#include "flashlatent/index_topk.h"
#include "flashlatent/kv_cache.h"
#include "flashlatent/page_pool.h"
#include "flashlatent/plan.h"
#include "flashlatent/plan_description.h"
#include "flashlatent/problem.h"
#include "flashlatent/sparse_prefill.h"
#include "flashlatent/status.h"
#include "flashlatent/tensor.h"
#include "flashlatent/version.h"
