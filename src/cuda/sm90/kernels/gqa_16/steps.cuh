// A warp's steps through a segment: loads keys and values of 16 tokens (e4m3: 32) from pages into the warp's
// own ring of stages. The warps of a CTA do not synchronise until the segment's end.
//
// Pages of whole boxes are loaded by TMA: one lane starts copies, and page table entries are looked up a
// batch ahead, one in each lane. Other pages are loaded by cp.async, 16 bytes at a time, and each lane looks
// up a token's entry a step ahead.
#pragma once

#include "cuda/sm90/kernels/gqa_16/arguments.h"
#include "cuda/sm90/kernels/gqa_16/config.h"
#include "cuda/sm90/ptx/barrier.cuh"
#include "cuda/sm90/ptx/copy.cuh"
#include "cuda/sm90/walk/kv_tokens.cuh"

namespace flashlatent::gqa_16 {

/// The tokens that a warp works on.
struct StepRange {
  sm90::BlockRange tokens;  // entries, the request's length, its KV head
  int begin, end;           // tokens of the segment; begin is a multiple of 16
};

template <class Config>
class Loader {
 public:
  /// `full`: one barrier for each stage.
  __device__ __forceinline__ Loader(const Arguments& args, std::uint8_t* stages, ptx::Barrier* full)
      : args_(args), stages_(stages), full_(full), lane_(threadIdx.x % 32) {}

  /// Call once, before all threads synchronise.
  __device__ __forceinline__ void prepare() const {
    if (lane_ != 0) return;
    // With TMA the lane that starts copies arrives; otherwise every lane, when its copies have landed.
    for (int i = 0; i < Config::kStages; ++i) ptx::init(full_[i], args_.box_tokens > 0 ? 1 : 32);
    ptx::publish_barriers();
    if (args_.box_tokens == 0) return;
    ptx::prefetch_map(args_.key_map);
    ptx::prefetch_map(args_.value_map);
  }

  /// Announces steps: the first at `token`, then every `stride` tokens.
  __device__ __forceinline__ void announce(const StepRange& range, int token, int stride) {
    if (clearing_ == kUnknown) {
      clearing_ = 0;
      if ((range.end - token) / 2 >= Config::kClearingSteps * stride) begin_to_clear();
    }
    range_ = range;
    token_ = token;
    stride_ = stride;
    entry_ = look_up(token);
    if (args_.box_tokens > 0) begin_batch();
  }

  /// Starts loading the next step's tokens. Returns a bit for each token that counts; the stage holds garbage
  /// for other tokens.
  __device__ __forceinline__ std::uint32_t request(int stage) {
    std::uint32_t live;
    if (args_.box_tokens > 0) {
      live = request_boxes(stage);
      if (--clearing_ == 0) policy_ = ptx::evict_first_policy();
      token_ += stride_;
      if (++step_ == batch_steps()) {
        entry_ = entry_ahead_;
        begin_batch();
      }
    } else {
      live = request_units(stage);
      token_ += stride_;
      entry_ = look_up(token_);
    }
    return live;
  }

  /// Waits until a stage's step, in uses of this parity, has arrived.
  __device__ __forceinline__ void wait(int stage, std::uint32_t parity) const {
    ptx::wait(full_[stage], parity);
  }

 private:
  static constexpr int kMostLines = Config::kStepTokens / 8;
  static constexpr int kUnknown = 1 << 30;

  __device__ __forceinline__ void begin_to_clear() {
    clearing_ = Config::kClearingSteps;
    policy_ = ptx::evict_unchanged_policy();
  }

  /// A step's tokens are 2^line_bits() lines of boxes.
  __device__ __forceinline__ int line_bits() const {
    return Config::kTokenTiles - 1 + static_cast<int>(args_.box_tokens == 8);
  }
  /// Steps whose entries the lanes hold.
  __device__ __forceinline__ int batch_steps() const { return 32 >> line_bits(); }

  /// The token that this lane looks up: the first token of a box of the batch of steps that begins at
  /// `token`; without boxes one of the step's tokens.
  __device__ __forceinline__ int own_token(int token) const {
    if (args_.box_tokens == 0) return token + lane_ % Config::kStepTokens;
    const int lines = 1 << line_bits();
    return token + (lane_ >> line_bits()) * stride_ + (lane_ & (lines - 1)) * args_.box_tokens;
  }
  __device__ __forceinline__ int look_up(int token) const {
    const int own = own_token(token);
    return own < range_.end ? sm90::entry_of(args_.decode.cache, range_.tokens, own) : -1;
  }

  /// Begins the batch at token_, whose entries have arrived.
  __device__ __forceinline__ void begin_batch() {
    step_ = 0;
    entry_ahead_ = look_up(token_ + batch_steps() * stride_);
    place_ = args_.decode.cache.page_size.remainder(own_token(token_));
    pages_ = __ballot_sync(0xffffffff, sm90::is_page(args_.decode.cache, entry_));
  }

  __device__ __forceinline__ std::uint32_t request_boxes(int stage) const {
    const int first = step_ << line_bits(), lines = 1 << line_bits();
    const std::uint32_t pages = pages_ >> first;
    std::uint32_t live = 0;
#pragma unroll
    for (int i = 0; i < kMostLines; ++i) {
      if (i < lines && (pages >> i & 1) != 0) live |= ((1U << args_.box_tokens) - 1) << i * args_.box_tokens;
    }
    if (ptx::elect_one()) ptx::arrive_expecting(full_[stage], __popc(live) * 2 * Config::kRowBytes);
#pragma unroll 1
    for (int i = 0; i < lines; ++i) {
      const int page = __shfl_sync(0xffffffff, entry_, first + i);
      const int token = __shfl_sync(0xffffffff, place_, first + i);
      if ((pages >> i & 1) != 0 && ptx::elect_one()) {
        const int row = i * args_.box_tokens;  // of the step
        std::uint8_t* keys = stages_ + stage * Config::kStageBytes + row / 16 * Config::kTileBytes;
        copy_boxes(args_.key_map, keys, row % 16, token, page, stage, Config::kUnitElements);
        copy_boxes(args_.value_map, keys + Config::kPlaneBytes, row % 16, token, page, stage, 1);
      }
    }
    __syncwarp();
    const int count = range_.end - token_;
    return count < Config::kStepTokens ? live & ((1U << count) - 1) : live;
  }

  /// Copies the boxes of a plane, from its row `row` on. Packed: tokens are innermost, `scale` elements each.
  __device__ __forceinline__ void copy_boxes(const CUtensorMap& map, std::uint8_t* plane, int row, int token,
                                             int page, int stage, int scale) const {
    const int head = range_.tokens.kv_head;
    if constexpr (Config::kPacked) {
      ptx::copy_box(plane, map, token * scale, 0, head, page, full_[stage], policy_);
    } else {
#pragma unroll
      for (int box = 0; box < Config::kBoxes; ++box) {
        ptx::copy_box(plane + (box * 16 + row) * Config::kBoxBytes, map,
                      box * Config::kBoxBytes / Config::kElementBytes, token, head, page, full_[stage],
                      policy_);
      }
    }
  }

  __device__ __forceinline__ std::uint32_t request_units(int stage) const {
    const sm90::TokenPlace place =
        sm90::place_of(args_.decode.cache, entry_, token_ + lane_ % Config::kStepTokens);
    const std::uint32_t live = __ballot_sync(0xffffffff, place.page >= 0) & Config::kAllLive;
    const std::int64_t key = offset_of(args_.keys, place), value = offset_of(args_.values, place);
#pragma unroll 1
    for (int token = 0; token < Config::kStepTokens; token += 16) {
      const std::uint32_t keys =
          ptx::shared_address(stages_ + stage * Config::kStageBytes) + token / 16 * Config::kTileBytes;
      const std::uint32_t values = keys + Config::kPlaneBytes;
      copy_rows<true>(args_.keys, key, token, live, keys);
      if constexpr (Config::kPacked) {
        copy_packed_values(args_.values, value, token, live, values);
      } else {
        copy_rows<false>(args_.values, value, token, live, values);
      }
    }
    ptx::copy_arrive(full_[stage]);
    return live;
  }

  __device__ __forceinline__ std::int64_t offset_of(const Plane& plane, sm90::TokenPlace place) const {
    return place.page * plane.page_stride + place.token * plane.token_stride +
           range_.tokens.kv_head * plane.head_stride;
  }

  /// Units of 16 bytes of a token; the rest of kUnits is padding.
  __device__ __forceinline__ int units() const {
    return args_.dim * Config::kElementBytes / 16;
  }

  /// Copies the step's 16 tokens from `token` on, one row each. Neighbouring lanes copy neighbouring units.
  template <bool kKeys>
  __device__ __forceinline__ void copy_rows(const Plane& plane, std::int64_t own, int token,
                                            std::uint32_t live, std::uint32_t to) const {
#pragma unroll
    for (int first = 0; first < 16 * Config::kUnits; first += 32) {
      const int row = (first + lane_) / Config::kUnits, unit = (first + lane_) % Config::kUnits;
      const std::int64_t offset = __shfl_sync(0xffffffff, own, token + row);
      const bool reads = (live >> (token + row) & 1) != 0 && unit < units();
      const std::uint8_t* from = reads ? plane.data + offset + unit * plane.unit_stride : plane.data;
      ptx::copy_16_bytes_or_zeros(to + (kKeys ? Config::key_unit(row, unit) : Config::row_unit(row, unit)),
                                  from, reads);
    }
  }

  /// The same for packed values, one row for each element; the tokens of a row's 16 bytes are neighbours in a
  /// page.
  __device__ __forceinline__ void copy_packed_values(const Plane& plane, std::int64_t own, int token,
                                                     std::uint32_t live, std::uint32_t to) const {
    constexpr int kRowUnits = Config::kValueRow / 16;
#pragma unroll
    for (int first = 0; first < Config::kDim * kRowUnits; first += 32) {
      const int row = (first + lane_) / kRowUnits, unit = (first + lane_) % kRowUnits;
      const int from_token = token + unit * Config::kUnitElements;
      const std::int64_t offset = __shfl_sync(0xffffffff, own, from_token);
      const bool reads = (live >> from_token & 1) != 0 && row < args_.dim;
      const std::uint8_t* from = reads ? plane.data + offset + row * plane.unit_stride : plane.data;
      ptx::copy_16_bytes_or_zeros(to + row * Config::kValueRow + unit * 16, from, reads);
    }
  }

  const Arguments& args_;
  std::uint8_t* const stages_;
  ptx::Barrier* const full_;
  const int lane_;
  // Keys and values are read once, so they are evicted first: L2 keeps the plan, the page table and the
  // program. But L2 also keeps what earlier kernels have written, which leaves little room for loads in
  // flight. So if much is to be read, the first steps push those lines out.
  std::uint64_t policy_ = ptx::evict_first_policy();
  int clearing_ = kUnknown;  // steps that still do so
  StepRange range_ = {};
  int token_ = 0, stride_ = 0;  // of the next request
  int step_ = 0;                // its place in the batch
  // This lane's entry of the batch and of the next batch, and its token's place in the page; all lanes: which
  // entries are pages. Without boxes: the entry of a token of the next step.
  int entry_ = -1, entry_ahead_ = -1, place_ = 0;
  std::uint32_t pages_ = 0;
};

}  // namespace flashlatent::gqa_16
