// The jobs of a CTA: which rows, and which tokens.
#pragma once

#include "cuda/sm90/kernels/gqa_128/arguments.h"
#include "cuda/sm90/walk/row_tile.cuh"

namespace flashlatent::gqa_128 {

/// A job: a tile of query rows and blocks of tokens.
struct Job {
  sm90::RowTile tile;           // shared prefix: only `request` counts, the request whose pages are read
  const std::int32_t* members;  // only of shared prefixes
  const std::int32_t* entries;  // of the page table; shared prefix: see shared_entries()
  int length;                   // of the request, or of the prefix
  int block_begin, block_end;
  std::int64_t partial_row;  // of the tile's first row, if shared or a segment; -1: the result is final
};

__device__ __forceinline__ float scale_of_head(const CacheScale& scale, int kv_head) {
  return scale.values == nullptr ? 1.0F : __ldg(scale.values + kv_head * scale.stride);
}

/// The place of a row of the tile.
struct RowPlace {
  int request;
  int origin;  // times batch_stride
  int token, head;
};

template <bool kShared>
__device__ __forceinline__ RowPlace place_of(const Arguments& args, const Job& job, int row) {
  const sm90::QueryArguments& query = args.decode.query;
  if constexpr (!kShared) {
    return {job.tile.request, job.tile.origin, job.tile.token(query, row), job.tile.head(query, row)};
  }
  const int member_rows = query.tokens * query.group.value;
  const int index = job.tile.first + row;
  const int rest = index % member_rows;
  const int request = __ldg(job.members + index / member_rows);
  return {request, request, query.group.quotient(rest),
          job.tile.kv_head * query.group.value + query.group.remainder(rest)};
}

/// What a row sees.
template <bool kShared>
__device__ __forceinline__ TokenSpan seen_by(const Arguments& args, const Job& job, int row) {
  if (kShared || (!args.decode.causal && args.window == 0)) return {0, job.length};
  if (args.decode.spans != nullptr) [[unlikely]] {
    const TokenSpan of_rank = job.tile.span(args.decode, job.tile.later(args.decode, row));
    return {of_rank.begin, min(job.length, of_rank.end)};
  }
  return Visibility::last(job.tile.end_in_context(args.decode, job.length, row), args.window);
}

template <bool kShared>
__device__ __forceinline__ TokenSpan seen_by_all(const Arguments& args, const Job& job) {
  return {seen_by<kShared>(args, job, max(job.tile.rows - 1, 0)).begin, seen_by<kShared>(args, job, 0).end};
}

/// Job number `index`: tiles of the longest rows first, so that no long one is left for the end, and
/// `section` sequences at a time.
template <int kBlockTokens>
__device__ __forceinline__ Job request_job(const Arguments& args, int index) {
  const sm90::DecodeArguments& decode = args.decode;
  const int section_tiles = args.section * decode.query.row_tiles.value;
  const int first_sequence = index / section_tiles * args.section;
  const int sequences = min(args.section, args.sequences - first_sequence);
  const int in_section = index % section_tiles;
  const int sequence = first_sequence + in_section % sequences;

  Job job = {};
  sm90::RowTile& tile = job.tile;
  tile.request = sequence / args.kv_heads;
  tile.kv_head = sequence % args.kv_heads;
  const sm90::RequestTokens own = sm90::request_tokens(decode.query, tile.request);
  tile.origin = own.origin;
  tile.tokens = own.count;
  const int tile_rows = decode.geometry.tile_rows;
  tile.first = (decode.query.row_tiles.value - 1 - in_section / sequences) * tile_rows;
  tile.rows = max(0, min(tile.tokens * decode.query.group.value - tile.first, tile_rows));
  if (tile.rows == 0) return job;
  job.length = max(0, min(decode.cache.lengths[tile.request], args.reach));
  job.entries = decode.cache.entries + tile.request * decode.cache.entries_stride;
  const TokenSpan first = seen_by<false>(args, job, 0), last = seen_by<false>(args, job, tile.rows - 1);
  job.block_begin = min(first.begin, max(last.end, 0)) / kBlockTokens;
  job.block_end = (max(last.end, 0) + kBlockTokens - 1) / kBlockTokens;
  return job;
}

/// The tile that a unit belongs to. Called by all lanes of a warp: one trip to memory for 32 tiles.
__device__ __forceinline__ int tile_of_unit(const PrefixArguments& plan, int unit) {
  const int tiles = plan.header->tiles, lane = threadIdx.x % 32;
  int found = 0;
  for (int first = 0; first < tiles; first += 32) {
    // Reads past the last tile stay in the plan's own memory.
    const bool begun = plan.tiles[min(first + lane, plan.shape.requests - 1)].unit_begin <= unit;
    const std::uint32_t before = __ballot_sync(0xffffffff, begun && first + lane < tiles);
    if (before == 0) break;
    found = first + 31 - __clz(static_cast<int>(before));
  }
  return found;
}

/// The job of unit `index` of the plan.
__device__ __forceinline__ Job shared_job(const Arguments& args, int index) {
  const PrefixArguments& plan = args.prefix;
  const prefix::Unit unit = prefix::unit_of(plan.shape, plan.tiles[tile_of_unit(plan, index)], index);
  Job job = {};
  job.members = plan.members + unit.tile.member_begin;
  job.tile.request = unit.tile.request;
  job.tile.kv_head = unit.kv_head;
  job.tile.rows = unit.tile.members * plan.shape.request_rows;
  job.entries = args.decode.cache.entries + job.tile.request * args.decode.cache.entries_stride;
  job.length = min(unit.tile.tokens, args.reach);
  job.block_begin = unit.block_begin;
  job.block_end = unit.block_end;
  job.partial_row = unit.row_begin;
  return job;
}

/// The page table entries of a member that still has all of a unit's tokens; if none has, the unit's results
/// are not used. Called by all lanes of a warp.
__device__ __forceinline__ const std::int32_t* shared_entries(const Arguments& args, const Job& job) {
  const prefix::Shape& shape = args.prefix.shape;
  auto sees = [&](int request) {
    return prefix::sees_prefix(job.length, min(args.decode.cache.lengths[request], args.reach), shape.unseen);
  };
  if (sees(job.tile.request)) return job.entries;
  const int members = job.tile.rows / shape.request_rows;
#pragma unroll 1
  for (int first = 0; first < members; first += 32) {
    const int request = job.members[min(first + static_cast<int>(threadIdx.x % 32), members - 1)];
    const std::uint32_t found = __ballot_sync(0xffffffff, sees(request));
    if (found == 0) continue;
    const int reader = __shfl_sync(0xffffffff, request, __ffs(static_cast<int>(found)) - 1);
    return args.decode.cache.entries + reader * args.decode.cache.entries_stride;
  }
  return job.entries;
}

template <class Config>
__device__ __forceinline__ Job job_of(const Arguments& args, int index) {
  if constexpr (Config::kShared) {
    return shared_job(args, index);
  } else {
    return request_job<Config::kBlockTokens>(args, index);
  }
}

/// The jobs of a CTA, for one warp. A CTA that is ready takes the next job, whose number it has asked for one
/// job ahead. It takes every header->workers-th unit of shared prefixes.
template <class Config>
class Jobs {
 public:
  __device__ __forceinline__ explicit Jobs(const Arguments& args)
      : args_(args), end_(args.jobs), index_(blockIdx.x) {
    if constexpr (Config::kShared) {
      const prefix::Header& plan = *args.prefix.header;
      end_ = index_ < plan.workers ? plan.units : 0;
    }
  }

  /// The next job that has rows; a job without rows if there is none.
  __device__ __forceinline__ Job next() {
    for (;;) {
      const int index = __shfl_sync(0xffffffff, index_, 0);
      if (index >= end_) return {};
      advance();
      const Job job = job_of<Config>(args_, index);
      if (job.tile.rows > 0) return job;
    }
  }

 private:
  __device__ __forceinline__ void advance() {
    if constexpr (Config::kShared) {
      index_ += args_.prefix.header->workers;
    } else if (args_.next_job == nullptr) {
      index_ = end_;
    } else if (threadIdx.x % 32 == 0) {
      index_ = gridDim.x + atomicAdd(args_.next_job, 1);
    }
  }

  const Arguments& args_;
  int end_;
  int index_;  // of the first lane
};

}  // namespace flashlatent::gqa_128
