// Copies into the ring token by token, for pages of any size; all warps of the output warpgroups start them
// while their products run. A thread copies 16 bytes of each chunk of one token of a stage: nine copies from
// one address. The copies themselves arrive on barriers, so no thread waits for them, and the scorer fences
// for all.
//
// A stage costs little beside its copies. Tokens are located for eight stages at a time. Which tokens count
// is written only where some do not, and until each stage's place has been overwritten.
#pragma once

#include "cuda/sm90/kernels/mla_64_roles/cursor.cuh"
#include "cuda/sm90/load/query_maps.cuh"
#include "cuda/sm90/ptx/copy.cuh"

namespace flashlatent::mla_64_roles {

/// Used by all multiplying warps. Each has a cursor of its own; all are at the same stage.
template <class Config>
class TokenSupply {
 public:
  __device__ __forceinline__ TokenSupply(SharedMemory<Config>& shared, const sm90::DecodeArguments& args,
                                         const CUtensorMap&, const sm90::QueryMaps& query_maps)
      : shared_(shared), args_(args), query_maps_(query_maps) {}

  /// At a list's begin.
  __device__ __forceinline__ void begin(std::uint32_t list_parity) {
    next_ = (next_ & kAllStale) | sources_end();
    find_item(cursor(), shared_.segments, args_, -1, list_parity);
    look_up(cursor());
  }
  /// The same for items by kTurns.
  __device__ __forceinline__ void begin_turns() {
    next_ = sources_end();
    find_turn(cursor(), shared_.turns.ahead[warp()], args_, sm90::first_in_turn(args_));
    look_up(cursor());
  }
  /// The same if a part is this one segment, or an end: there is no list to wait for.
  __device__ __forceinline__ void begin(const sm90::Work& work) {
    next_ = sources_end();
    Cursor at = {};
    if (!work.is_end() && stages_of(work.segment) > 0) at = cursor_at(args_, work, 0, 0);
    look_up(at);
    if (lane() == 0) cursor() = at;
    __syncwarp();
  }

  /// Call before request(): locates the tokens of the next stages, up to kAhead of a segment.
  __device__ __forceinline__ void prepare() {
    if (has_prepared() || !is_at_tokens()) return;
    const Cursor at = cursor();
    const int stages = min((at.end - at.token + kStageTokens - 1) / kStageTokens, kAhead);
    const std::uint64_t source = source_of(at, at.token + lane_token());
    const bool has_dead = __any_sync(0xffffffff, source == 0 && lane() / kTokens < stages);
    // They fill the end of shared_.sources.
    const int first = kAhead - stages, place = first + lane() / kTokens;
    if (place < kAhead) shared_.sources.of[place][warp() * kTokens + lane() % kTokens] = source;
    __syncwarp();
    if (at.token + kAhead * kStageTokens < at.end) {
      if (lane() == 0) cursor().token += kAhead * kStageTokens;
      __syncwarp();
    } else if constexpr (Config::kTurns) {
      TurnPlace& place = shared_.turns.ahead[warp()];
      find_turn(cursor(), place, args_,
                schedule::turn_after(args_.geometry, {place.round, place.request, 0, 0}));
    } else {
      find_item(cursor(), shared_.segments, args_, at.item, at.list_parity);
    }
    next_ = (next_ & kAllStale) | (has_dead ? kHasDead : 0) |
            ptx::shared_address(&shared_.sources.of[first][threadIdx.x / 8]) | (threadIdx.x & kThread);
    look_up(cursor());
  }

  /// Starts the next copies, if there are any, into a stage: after its readers have completed the phase of
  /// this parity, or at once if the stage is known to be `empty`.
  __device__ __forceinline__ void request(int stage, std::uint32_t parity, bool empty) {
    if (!has_prepared()) return request_query(stage, parity, empty);
    const auto* source = ptx::load_shared_pointer(next_ & kAddress);
    if (!empty) ptx::wait(shared_.kv_empty[stage], parity);
    const bool must_say = next_ >= kStale;
    const std::uint32_t place = next_;
    next_ += sizeof(shared_.sources.of[0]);
    // Before the copies: an instruction that overwrites their registers waits until they have been read.
    asm volatile("" : "+r"(next_));
    if (source != nullptr) {
      // In each 64 columns: 16 bytes of the token's row, and their place in the stage. `place` ends with the
      // thread.
      const std::uint8_t* from = source + ((place ^ place >> 3) & kThread) * 16;
      const std::uint32_t to = ptx::shared_address(&shared_.kv[stage]) + (place & 0xFF) * 16;
#pragma unroll
      for (int chunk = 0; chunk < Config::kQkChunks; ++chunk) {
        ptx::copy_16_bytes(to + chunk * sizeof(StageTile), from + chunk * sm90::kRowBytes);
      }
    }
    if (!must_say) [[likely]] {
      ptx::copy_arrive(shared_.kv_full[stage]);
    } else {
      say_live(stage, source != nullptr);
    }
  }

 private:
  static constexpr int kTokens = kStageTokens / Config::kOutputWarps;  // of a stage, for a warp
  // stages whose tokens a warp locates at once, one token for each lane
  static constexpr int kAhead = 32 / kTokens;
  static_assert(kTokens * 8 == 32, "a lane has 16 bytes of each chunk");
  static_assert(sizeof(TokenSources) == kAhead * kStageTokens * sizeof(std::uint64_t));

  // The fields of next_.
  static constexpr std::uint32_t kThread = 7;  // the thread among the eight that copy a row
  // the address in shared_.sources of its next token
  static constexpr std::uint32_t kAddress = (1 << 18) - 1 - kThread;
  static constexpr std::uint32_t kStale = 1 << 18;  // stage 0 was last written with dead tokens
  // some prepared stages have dead tokens
  static constexpr std::uint32_t kHasDead = kStale << Config::kStages;
  static constexpr std::uint32_t kAllStale = kHasDead - kStale;
  __device__ __forceinline__ bool has_prepared() const {
    return sources_end() > (next_ & kAddress);
  }
  __device__ __forceinline__ std::uint32_t sources_end() const {
    return ptx::shared_address(&shared_.sources.of[kAhead]);
  }

  __device__ __forceinline__ static int lane() {
    return threadIdx.x % 32;
  }
  __device__ __forceinline__ static int warp() {
    return threadIdx.x / 32;
  }
  __device__ __forceinline__ Cursor& cursor() const {
    return shared_.cursors[warp()];
  }
  /// The token that this lane locates, counted from the next stage's first one.
  __device__ __forceinline__ static int lane_token() {
    return lane() / kTokens * kStageTokens + warp() * kTokens + lane() % kTokens;
  }

  /// Is the cursor at tokens, and neither at query rows nor at the end?
  __device__ __forceinline__ bool is_at_tokens() const {
    const Cursor& at = cursor();
    return at.token >= at.begin && at.token < at.end;
  }

  /// The address of a token; 0 if it is dead.
  __device__ __forceinline__ std::uint64_t source_of(const Cursor& at, int token) const {
    const sm90::TokenPlace place = sm90::place_of(args_.cache, entry_, token);
    if (place.page < 0 || token >= at.seen) return 0;
    return reinterpret_cast<std::uint64_t>(static_cast<const typename Config::Element*>(args_.cache.data) +
                                           sm90::offset_of(args_.cache, place, at.kv_head));
  }

  /// Loads the entries of this lane's token for the stages that prepare() computes next.
  __device__ __forceinline__ void look_up(const Cursor& at) {
    entry_ =
        sm90::entry_of(args_.cache, {at.entries, at.end, 0, 0, 0}, max(at.token, at.begin) + lane_token());
  }

  /// Arrives with the bits of this warp's live tokens. A copy's arrival would release nothing that was
  /// written before it.
  __device__ __forceinline__ void say_live(int stage, bool is_live) {
    const std::uint32_t live = __ballot_sync(0xffffffff, is_live);
    if (lane() == 0) {
      shared_.live[stage].put(warp(), live);
      ptx::copy_arrive_beside(shared_.kv_full[stage]);
      ptx::arrive(shared_.kv_full[stage]);
    } else {
      ptx::copy_arrive(shared_.kv_full[stage]);
    }
    __syncwarp();
    next_ = (next_ & ~(kStale << stage)) | (live == ~0U ? 0 : kStale << stage);
  }

  /// Loads half of the tile's query rows, by one box for each part, if the cursor is at them.
  __device__ __forceinline__ void request_query(int stage, std::uint32_t parity, bool empty) {
    const int token = cursor().token;
    if (token >= cursor().begin) return;
    ptx::Barrier& full = shared_.kv_full[stage];
    if (!empty) ptx::wait(shared_.kv_empty[stage], parity);
    if (threadIdx.x == 0) {
      const sm90::RowsInLine rows = rows_at(token);
      ptx::arrive_expecting(full, sizeof(Stage<Config>));
      sm90::copy_query_chunks<Config::kQkDim>(shared_.kv[stage].tiles, query_maps_, args_.query, rows, full);
    } else {
      ptx::arrive(full);
    }
    __syncwarp();
    if (lane() == 0) cursor().token = token + kStageTokens;
    __syncwarp();
  }

  /// The query rows that a place before the first token stands for.
  __device__ __forceinline__ sm90::RowsInLine rows_at(int token) const {
    if constexpr (Config::kTurns) {
      const TurnPlace& place = shared_.turns.ahead[warp()];
      const sm90::RowTile tile =
          sm90::row_tile(args_, place.request, place.round, args_.lanes.remainder(blockIdx.x));
      const sm90::RowsInLine rows = tile.in_line(args_.query);
      return {rows.request, rows.first + token + sm90::kTileRows};
    } else {
      return query_rows_at(cursor(), shared_.segments, args_, token);
    }
  }

  SharedMemory<Config>& shared_;
  const sm90::DecodeArguments& args_;
  const sm90::QueryMaps& query_maps_;
  std::uint32_t next_ = 0;
  int entry_ = -1;  // of this lane's token, for the stages after those
};

}  // namespace flashlatent::mla_64_roles
