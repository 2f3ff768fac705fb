// Do a case's tensors fit its kind, and each other?
#pragma once

#include <algorithm>
#include <iterator>

#include "core/formats/formats.h"
#include "flashlatent/status.h"
#include "io/case.h"

namespace flashlatent::io {

/// Does a file have caches of this format as (pages, page_bytes)? Those whose scales may follow a page's
/// data.
constexpr bool is_pages(KvFormat format) {
  return std::any_of(std::begin(kFormats), std::end(kFormats),
                     [format](const LatentFormat* f) { return f->format == format && f->apart(); });
}

/// Checks presence, dtypes, shapes and the values of lengths. `decode_case` has its metadata set.
Status check_tensors(const DecodeCase& decode_case);

/// The most query tokens of one request; `cu_seqlens` is int32 (batch + 1) on the CPU.
int longest_query(const ConstTensorView& cu_seqlens);

}  // namespace flashlatent::io
