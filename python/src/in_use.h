// Which calls work in memory that a Plan keeps. Calls on the CPU release the interpreter's lock, so other
// calls may begin meanwhile.
#pragma once

namespace flashlatent::python {

/// How many forks lie between the first process and this one.
unsigned forks();

/// Counts the calls that work in one piece of memory. Guarded by the interpreter's lock. A child made by fork
/// has none of its parent's other threads, nor their calls.
class InUse {
 public:
  bool any() const { return calls_ > 0 && forks_ == forks(); }

  /// A call, for the time of its life.
  class Call {
   public:
    /// `use` null: a call that works elsewhere.
    explicit Call(InUse* use) : use_(use) {
      if (use_ == nullptr) return;
      if (use_->forks_ != forks()) *use_ = {};
      ++use_->calls_;
    }
    ~Call() {
      if (use_ != nullptr) --use_->calls_;
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    InUse* use_;
  };

 private:
  int calls_ = 0;
  unsigned forks_ = forks();
};

}  // namespace flashlatent::python
