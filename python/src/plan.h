// A problem with its kernel, plan storage and workspace at hand: what each call needs is looked up once.
#pragma once

#include "dispatch/select.h"
#include "python/src/array.h"
#include "python/src/memory.h"

namespace flashlatent::python {

/// The inputs of one decode call as Python gave them; None where one is absent.
struct InputHandles {
  nb::handle q = Py_None, kv_cache = Py_None, block_table = Py_None, cache_seqlens = Py_None,
             indices = Py_None, topk_length = Py_None, cu_seqlens_q = Py_None, attn_sink = Py_None;
  nb::handle key_cache = Py_None, value_cache = Py_None, key_scale = Py_None, value_scale = Py_None,
             alibi_slopes = Py_None;
};

/// The same as arrays, for the time of the call. `sixteen_bits`: see Array::read().
class InputArrays {
 public:
  InputArrays(const InputHandles& handles, std::optional<Dtype> sixteen_bits);
  DecodeInputs inputs() const;

  /// Refuses a `dtype` that no array needs.
  void check_dtype(std::optional<Dtype> dtype) const;

 private:
  /// Arrays that most calls have none of: to make even absent ones takes time.
  struct Rare {
    Array indices, topk_length, cu_seqlens_q, attn_sink;
  };
  struct KeysAndValues {
    Array key_cache, value_cache, key_scale, value_scale, alibi_slopes;
  };

  Array q_, kv_cache_, block_table_, cache_seqlens_;
  std::optional<Rare> rare_;
  std::optional<KeysAndValues> separate_;
};

/// What a decode call may bring besides; None where the call is to make it.
struct CallerHandles {
  nb::object out, lse;
  nb::handle plan, workspace;
  bool fresh_workspace = false;  ///< It is the binding's, see Array::output().
};

class Plan {
 public:
  /// Raises what select() has to say.
  Plan(const DecodeProblem& problem, const Executor& executor);

  const DecodeProblem& problem() const { return problem_; }
  const Selection& selection() const { return selection_; }
  Device device() const { return device_; }

  /// Plans a step on `stream` into `storage`, or its own, which like's package allocates. A `fresh` storage
  /// is the binding's, not the caller's: see Array::output(). `pages`: for prefixes that requests share.
  void schedule(const ConstTensorView& lengths, nb::handle like, nb::handle storage, void* stream,
                bool fresh = false, const HostPages* pages = nullptr);

  bool scheduled() const { return scheduled_; }

  /// One layer: (out, lse).
  nb::tuple decode(const DecodeInputs& inputs, nb::handle q, CallerHandles caller, void* stream);

 private:
  Executor executor_on_stream(void* stream) const;
  Status plan_into(Memory memory, const ConstTensorView& lengths, const HostPages* pages,
                   const Executor& executor) const;

  DecodeProblem problem_;
  Executor executor_;
  Device device_;
  Selection selection_;
  Buffer plan_;
  Buffer workspace_;
  bool scheduled_ = false;  // into plan_
};

}  // namespace flashlatent::python
