#include "flashlatent/status.h"

#include "core/enum_names.h"

namespace flashlatent {

constexpr EnumName<StatusCode> kCodes[] = {
    {StatusCode::kOk, "ok"},
    {StatusCode::kInvalidArgument, "invalid argument"},
    {StatusCode::kUnsupported, "unsupported"},
    {StatusCode::kUnavailable, "unavailable"},
    {StatusCode::kExhausted, "exhausted"},
    {StatusCode::kInternal, "internal error"},
};

const char* to_string(StatusCode code) {
  return name_of(kCodes, code);
}

}  // namespace flashlatent
