#include "python/src/in_use.h"

#include <pthread.h>

namespace flashlatent::python {

namespace {

unsigned counted_forks = 0;  // a child has one thread when this is written

[[maybe_unused]] const int kRegistered = pthread_atfork(nullptr, nullptr, [] { ++counted_forks; });

}  // namespace

unsigned forks() {
  return counted_forks;
}

}  // namespace flashlatent::python
