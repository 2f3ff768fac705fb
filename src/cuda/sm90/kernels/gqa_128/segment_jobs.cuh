// The segments of a CTA's part of the plan, as jobs of gqa_128_split.
#pragma once

#include "cuda/sm90/kernels/gqa_128/jobs.cuh"
#include "cuda/sm90/walk/segments.cuh"

namespace flashlatent::gqa_128 {

/// The job of a segment and row tile: the blocks of the segment that some row sees.
template <class Config>
__device__ __forceinline__ Job segment_job(const Arguments& args, const schedule::Segment& segment,
                                           const sm90::RowTile& tile, int lane) {
  const sm90::DecodeArguments& decode = args.decode;
  const schedule::Geometry& g = decode.geometry;
  Job job = {};
  job.tile = tile;
  job.entries = decode.cache.entries + tile.request * decode.cache.entries_stride;
  // With a window the plan counts the last max_tokens tokens only, from block `origin` on. Without a window
  // the segment has the request's length, which spares a trip to memory.
  const int stored = g.max_tokens == args.reach
                         ? segment.length
                         : schedule::length_of(g, decode.cache.lengths, segment.request);
  job.length = max(0, min(stored, args.reach));
  constexpr int kTokens = Config::kBlockTokens;
  const int origin = (max(0, job.length - g.max_tokens) + kTokens - 1) / kTokens;
  const TokenSpan first = seen_by<false>(args, job, 0), last = seen_by<false>(args, job, tile.rows - 1);
  job.block_begin = max(origin + segment.block_begin, max(first.begin, 0) / kTokens);
  job.block_end = min(origin + segment.block_end, (max(last.end, 0) + kTokens - 1) / kTokens);
  const std::int64_t place = static_cast<std::int64_t>(segment.partial) * g.lanes + lane;
  job.partial_row = segment.partial < 0 ? -1 : place * g.tile_rows;
  return job;
}

/// The jobs of a CTA, for one warp.
template <class Config>
class SegmentJobs {
 public:
  __device__ __forceinline__ explicit SegmentJobs(const Arguments& args)
      : args_(args), segments_(args.decode) {}

  /// The next job that has rows; a job without rows if there is none.
  __device__ __forceinline__ Job next() {
    schedule::Segment segment;
    while (segments_.next(segment)) {
      const sm90::RowTile tile = segments_.tile_of(segment);
      if (tile.rows > 0) return segment_job<Config>(args_, segment, tile, segments_.lane());
    }
    return {};
  }

 private:
  const Arguments& args_;
  sm90::Segments<> segments_;
};

}  // namespace flashlatent::gqa_128
