// Any bytes as a request trace.
#include <cstdint>
#include <string_view>

#include "check.h"
#include "io/trace.h"
#include "mutate.h"

using namespace flashlatent;
using namespace flashlatent::io;

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  std::minstd_rand random(seed);
  if (random() % 3 == 0) return mutate_number(data, size, max_size, size, random);
  return LLVMFuzzerMutate(data, size, max_size);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto trace = parse_trace(bytes, kInputName);
  if (!trace.ok()) {
    check_error(trace.status());
    return 0;
  }
  std::int64_t before = 0;
  for (const TraceRequest& request : *trace) {
    check(request.timestamp_ms >= before);
    before = request.timestamp_ms;
    check(request.input_length >= 0 && request.input_length <= kMaxTraceTokens);
    check(request.output_length >= 0 && request.output_length <= kMaxTraceTokens);
    const int blocks = (request.input_length + kTraceBlockTokens - 1) / kTraceBlockTokens;
    check(request.hash_ids.size() <= static_cast<std::size_t>(blocks));
    for (std::int64_t id : request.hash_ids) check(id >= 0);
  }
  return 0;
}
