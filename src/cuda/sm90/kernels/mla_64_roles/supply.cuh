// Copies into the ring by boxes: one warp of the output warpgroups refills a stage with one box as soon as it
// has been read. The first two stages of a segment are the tile's query rows, a box for each part; KV
// follows. Copies are computed for 32 stages at a time, one in each lane, so that starting one takes some 25
// instructions between two products.
#pragma once

#include "cuda/sm90/kernels/mla_64_roles/cursor.cuh"
#include "cuda/sm90/load/query_maps.cuh"
#include "cuda/sm90/math/mask.cuh"
#include "cuda/sm90/ptx/copy.cuh"

namespace flashlatent::mla_64_roles {

/// Used by a whole warp.
template <class Config>
class Supply {
 public:
  __device__ __forceinline__ Supply(SharedMemory<Config>& shared, const sm90::DecodeArguments& args,
                                    const CUtensorMap& kv_map, const sm90::QueryMaps& query_maps)
      : shared_(shared), args_(args), kv_map_(kv_map), query_maps_(query_maps) {}

  /// At a list's begin.
  __device__ __forceinline__ void begin(std::uint32_t list_parity) {
    ready_ = 0;
    find_item(cursor(), shared_.segments, args_, -1, list_parity);
    look_up(cursor());
  }
  /// The same if a part is this one segment, or an end: there is no list to wait for.
  __device__ __forceinline__ void begin(const sm90::Work& work) {
    ready_ = 0;
    Cursor at = {};
    if (!work.is_end() && stages_of(work.segment) > 0) at = cursor_at(args_, work, 0, 0);
    look_up(at);
    if (lane() == 0) cursor() = at;
    __syncwarp();
  }

  /// Starts the next copy, if there is one, into a stage: after its readers have completed the phase of this
  /// parity, or at once if the stage is known to be `empty`.
  __device__ __forceinline__ void request(int stage, std::uint32_t parity, bool empty) {
    if (next() == prepared()) prepare();
    if (next() == prepared()) return;
    const StageCopy copy = shared_.copies[next()];
    ++ready_;
    if (!empty) ptx::wait(shared_.kv_empty[stage], parity);
    if (ptx::elect_one()) {
      shared_.live[stage].bits = copy.live;
      ptx::arrive_expecting(shared_.kv_full[stage], copy.page >= 0 ? sizeof(Stage<Config>) : 0);
      if (copy.page >= 0) {
        if (copy.chunk == kOfQuery) {
          sm90::copy_query_chunks<Config::kQkDim>(shared_.kv[stage].tiles, query_maps_, args_.query,
                                                  {copy.page, copy.token}, shared_.kv_full[stage]);
        } else {
          ptx::copy_box(shared_.kv[stage].tiles, kv_map_, 0, copy.token, copy.chunk, copy.page,
                        shared_.kv_full[stage], ptx::evict_first_policy());
        }
      }
    }
    __syncwarp();
  }

 private:
  /// Both are counts of shared_.copies: the next copy to start, and how many are computed.
  static constexpr int kPrepared = 16;
  __device__ __forceinline__ int next() const { return ready_ & 0xFFFF; }
  __device__ __forceinline__ int prepared() const { return ready_ >> kPrepared; }

  __device__ __forceinline__ static int lane() { return threadIdx.x % 32; }
  __device__ __forceinline__ Cursor& cursor() { return shared_.cursors[0]; }

  /// Computes the copies of the next stages of a segment, up to one for each lane. Query rows are computed
  /// alone, so that they do not wait for the page table.
  __device__ __forceinline__ void prepare() {
    const Cursor at = cursor();
    ready_ = 0;
    if (at.token >= at.end) return;
    const bool is_query = at.token < at.begin;
    const int end = is_query ? at.begin : at.end;
    ready_ = min((end - at.token + kStageTokens - 1) / kStageTokens, 32) << kPrepared;
    __syncwarp();
    if (lane() < prepared()) {
      const int token = at.token + lane() * kStageTokens;
      shared_.copies[lane()] = is_query ? of_query(at, token) : of_tokens(at, token);
    }
    const int token = is_query ? at.begin : at.token + 32 * kStageTokens;
    if (token < at.end) {
      if (lane() == 0) cursor().token = token;
      __syncwarp();
    } else {
      find_item(cursor(), shared_.segments, args_, at.item, at.list_parity);
    }
    if (!is_query) look_up(cursor());
  }

  __device__ __forceinline__ StageCopy of_tokens(const Cursor& at, int token) const {
    const bool is_there = sm90::is_page(args_.cache, entry_);
    const std::uint64_t live = is_there ? sm90::low_tokens(at.seen - token) : 0;
    return {is_there ? entry_ : -1, args_.cache.page_size.remainder(token),
            at.kv_head * static_cast<int>(args_.cache.head_stride / 64), static_cast<std::uint32_t>(live)};
  }
  /// The copy of the tile's first or last rows.
  __device__ __forceinline__ StageCopy of_query(const Cursor& at, int token) const {
    const sm90::RowsInLine rows = query_rows_at(at, shared_.segments, args_, token);
    return {rows.request, rows.first, kOfQuery, 0};
  }

  /// Loads the page table's entries for the tokens that prepare() computes next.
  __device__ __forceinline__ void look_up(const Cursor& at) {
    const int token = max(at.token, at.begin) + lane() * kStageTokens;
    if (token < at.end) entry_ = __ldg(at.entries + args_.cache.page_size.quotient(token));
  }

  SharedMemory<Config>& shared_;
  const sm90::DecodeArguments& args_;
  const CUtensorMap& kv_map_;
  const sm90::QueryMaps& query_maps_;
  int entry_ = 0;  // of this lane's stage
  int ready_ = 0;  // next() and prepared() in one register
};

}  // namespace flashlatent::mla_64_roles
