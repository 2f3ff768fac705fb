// A team of any size, for items of few blocks by indices: each CTA has one block, or two, and loads them at
// once (parts/fp8_584_at_once.cuh). Shapes tell who has which; lengths only say which tokens count. What the
// CTAs have is merged as team.cuh does it, but cut finer, since a team's size need not divide the rows: a
// piece is eight rows of 64 columns, and an owner has a run of pieces. Rows that are not live are not sent.
//
// All CTAs send, those without tokens zeros, so that each knows by shapes how many bytes it gets.
#pragma once

#include "cuda/mla_64_pingpong/keys.h"
#include "cuda/mla_64_pingpong/warpgroup.cuh"
#include "cuda/parts/epilogue.cuh"
#include "cuda/parts/packed_row.cuh"
#include "plan/shares.h"
#include "plan/whole.h"

namespace flashlatent::mla_64_pingpong {

/// What this CTA has to do, as shapes say.
struct TeamPart {
  int size, rank;  // of the team, and this CTA in it
  int begin, blocks;
  parts::Work work;
  int pieces;              // of all owners
  int first, end;          // this owner's
  int room;                // pieces for which an owner has a place
  std::uint32_t expected;  // bytes that this CTA gets

  __device__ __forceinline__ explicit TeamPart(const parts::DecodeArguments& args)
      : size(args.geometry.team), rank(ptx::rank_in_cluster()) {
    const schedule::Geometry& g = args.geometry;
    const int team = blockIdx.x / static_cast<unsigned>(size);
    const schedule::Cut cut = schedule::whole_cut(g, args.lanes.quotient(team));
    work.tile = parts::row_tile(args, cut.request, cut.round, args.lanes.remainder(team));
    const int all = schedule::max_blocks(g);
    begin = schedule::share_begin(all, size, rank);
    blocks = schedule::share_begin(all, size, rank + 1) - begin;
    pieces = (work.tile.rows + 7) / 8 * kPiecesOfEight;
    room = (pieces + size - 1) / size;
    first = first_of(rank);
    end = first_of(rank + 1);
    const int groups = first < end ? (end - 1) / kPiecesOfGroup - first / kPiecesOfGroup + 1 : 0;
    expected = size * ((end - first) * kPieceBytes + groups * 8 * static_cast<int>(sizeof(float4)));
    work.segment = {cut.round, cut.request, 0, 0, 0, -1};
  }

  static constexpr int kPieceBytes = 1024;  // 8 rows of 64 columns in fp16
  static constexpr int kPiecesOfEight = 8;  // of 512 columns
  static constexpr int kPiecesOfGroup = 4;  // of a warpgroup's half of them

  __device__ __forceinline__ int first_of(int owner) const {
    return schedule::share_begin(pieces, size, owner);
  }
  __device__ __forceinline__ int owner_of(int piece) const {
    return static_cast<int>(static_cast<unsigned>((piece + 1) * size - 1) / static_cast<unsigned>(pieces));
  }
};

template <class Config>
class AnyTeamWarpgroup : public Warpgroup<Config> {
  using Base = Warpgroup<Config>;
  using Base::args_, Base::base_, Base::fragment_, Base::me_, Base::o_, Base::shared_, Base::thread_;

 public:
  __device__ __forceinline__ AnyTeamWarpgroup(SharedMemory<Config>& shared,
                                              const parts::DecodeArguments& args,
                                              const CUtensorMap& query_map, int me, const TeamPart& part)
      : Base(shared, args, query_map, me), part_(part) {}

  /// By one thread a piece, before the launch before is done: where a piece goes.
  __device__ __forceinline__ static void route(SharedMemory<Config>& shared, const TeamPart& part,
                                               int piece) {
    if (piece >= part.pieces) return;
    const int owner = part.owner_of(piece);
    const int slot = part.rank * part.room + piece - part.first_of(owner);
    shared.team.routes[piece] = {ptx::address_in(owner, incoming(shared) + slot),
                                 ptx::address_in(owner, &shared.team.received)};
  }

  /// The team's result of its only segment.
  __device__ __forceinline__ void finish() {
    __syncwarp();
    ptx::cluster_arrive();  // this CTA has read its blocks
    const auto& row_sum = this->add_up_rows(part_.work);
    ptx::cluster_wait();
    send(row_sum);
    receive();
  }

 private:
  using Element = typename Config::Element;
  using Row = parts::PackedRow<Element, Config::kHalfDim / 2>;
  static_assert(Row::kPackets == 8 && Config::kHalfDim == 256);

  /// Two packets of each lane.
  using Piece = uint4[2][32];
  static_assert(sizeof(Piece) == TeamPart::kPieceBytes);
  /// From each rank its run of pieces, where blocks were.
  __device__ __forceinline__ static Piece* incoming(SharedMemory<Config>& shared) {
    return reinterpret_cast<Piece*>(shared.kv);
  }
  /// Maximum and sum of eight rows, and the unit of a warpgroup's half of their packed values.
  using Statistics = float4[8];
  static constexpr int kGroups = 16;
  /// From each rank, behind the pieces.
  __device__ __forceinline__ Statistics* statistics(int rank, int group) const {
    constexpr int kMostPieces = kGroups * TeamPart::kPiecesOfGroup + kMostTeam;
    static_assert(kMostPieces * sizeof(Piece) + kMostTeam * kGroups * sizeof(Statistics) <=
                  sizeof(SharedMemory<Config>::kv));
    return reinterpret_cast<Statistics*>(incoming(shared_) + kMostPieces) + rank * kGroups + group;
  }

  template <class Sums>
  __device__ __forceinline__ void send(const Sums& row_sum) const {
    const int lane = thread_ % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int eight = thread_ / 32 * 2 + half, group = 2 * eight + me_;
      if (8 * eight >= part_.work.tile.rows) continue;
      const Row packed(o_, half, Row::quad_bound(o_, half));
      const int row = fragment_.row + 8 * half;
      const float4 of_row =
          make_float4(half ? base_.high : base_.low, row_sum[0][row] + row_sum[1][row], packed.unit, 0);
      const std::uint32_t received = ptx::shared_address(&shared_.team.received);
      const std::uint32_t place = ptx::shared_address(&(*statistics(part_.rank, group))[lane / 4]);
      std::uint32_t told = 0;
#pragma unroll
      for (int i = 0; i < TeamPart::kPiecesOfGroup; ++i) {
        const uint2 to = shared_.team.routes[TeamPart::kPiecesOfGroup * group + i];
        ptx::send(to.x + lane * 16, packed.packets[2 * i], to.y);
        ptx::send(to.x + 512 + lane * 16, packed.packets[2 * i + 1], to.y);
        if (lane % 4 == 0 && to.y != told) ptx::send(place - received + to.y, of_row, to.y);
        told = to.y;
      }
    }
  }

  /// Where a row's 64 columns of a piece go.
  struct Place {
    Element* out;
    float sink;
    bool live;
  };
  __device__ __forceinline__ Place place_of(int piece) const {
    const int row = piece / TeamPart::kPiecesOfEight * 8 + thread_ % 32 / 4;
    const parts::RowTile& tile = part_.work.tile;
    const bool live = row < tile.rows;
    const int token = tile.token(args_.query, live ? row : 0), head = tile.head(args_.query, live ? row : 0);
    return {
        parts::output_row<Element>(args_.output, tile, head, token) + piece % TeamPart::kPiecesOfEight * 64,
        parts::sink_of(args_.output, head), live};
  }

  /// Waits for what is sent to this CTA, adds it up in the order of ranks, and writes it.
  __device__ __forceinline__ void receive() const {
    int piece = part_.first + static_cast<int>(threadIdx.x) / 32;
    if (piece >= part_.end) return;
    Place place = place_of(piece);
    ptx::wait_for_cluster(shared_.team.received, 0);
    while (true) {
      add_up(piece, place);
      piece += Config::kComputeThreads / 32;
      if (piece >= part_.end) return;
      place = place_of(piece);
    }
  }

  __device__ __forceinline__ void add_up(int piece, const Place& place) const {
    const int lane = thread_ % 32, group = piece / TeamPart::kPiecesOfGroup;
    const Statistics* rows = statistics(0, group);
    const auto of_rank = [&](int rank) { return rows[rank * kGroups][lane / 4]; };
    float max = -INFINITY;
#pragma unroll 4
    for (int rank = 0; rank < part_.size; ++rank) max = fmaxf(max, of_rank(rank).x);
    const float base = parts::finite_or_zero(max);
    const Piece* from = incoming(shared_) + (piece - part_.first);
    float sum = 0;
    float x[2][8] = {};
#pragma unroll 2
    for (int rank = 0; rank < part_.size; ++rank, from += part_.room) {
      const float4 of_row = of_rank(rank);
      const float weight = parts::exp2_fast(of_row.x - base);
      sum += of_row.y * weight;
      parts::add_packet(x[0], (*from)[0][lane], weight * of_row.z);
      parts::add_packet(x[1], (*from)[1][lane], weight * of_row.z);
    }
    const parts::RowScale scale = parts::finish_row(max, sum);
    const int row = group / 2 * 8 + lane / 4;
    if (piece % TeamPart::kPiecesOfEight == 0 && lane % 4 == 0 && place.live) {
      const parts::RowTile& tile = part_.work.tile;
      parts::write_lse(args_.output, tile, tile.head(args_.query, row), tile.token(args_.query, row),
                       scale.lse);
    }
    const float factor = args_.output.sink == nullptr
                             ? scale.factor
                             : scale.factor * parts::sink_factor(scale.lse, place.sink);
    const bool aligned = parts::is_aligned(place.out);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      std::uint32_t words[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        words[k] = parts::pack<Element>(x[i][2 * k] * factor, x[i][2 * k + 1] * factor);
      }
      parts::store_words(place.out + 32 * i, words, place.live, aligned);
    }
  }

  const TeamPart& part_;
};

/// All of a CTA.
template <class Config>
__device__ __forceinline__ void attend_in_team(SharedMemory<Config>& shared,
                                               const parts::DecodeArguments& args,
                                               const CUtensorMap& query_map) {
  using Warpgroup = AnyTeamWarpgroup<Config>;
  static_assert(Config::kTeam == kMostTeam && Config::Loader::kMostBlocks == kMostTeamBlocks &&
                Config::kVDim == 512);
  static_assert(Config::kThreads == Config::Loader::kArrivals);
  TeamPart part(args);
  typename Config::Loader loader(args, part.work.tile, part.begin, part.blocks);
  if (threadIdx.x == 0) ptx::arrive_expecting(shared.team.received, part.expected);
  // Computing threads see it once a tile is full, for which all threads arrive.
  constexpr int kRoutes = sizeof(shared.team.routes) / sizeof(uint2);
  if (const int piece = static_cast<int>(threadIdx.x) - Config::kComputeThreads;
      piece >= 0 && piece < kRoutes) {
    Warpgroup::route(shared, part, piece);
  }
  parts::wait_for_launch_before();
  if (args.query.rows_in_line && threadIdx.x / 32 == Config::kThreads / 32 - 1 && ptx::elect_one()) {
    copy_query(shared, args, query_map, part.work.tile);
  }
  __syncwarp();
  part.work.segment.block_end = loader.load(shared.kv, shared.state);
  if (threadIdx.x >= Config::kComputeThreads) return ptx::give_registers<Config::kRegisters.load>();
  ptx::take_registers<Config::kRegisters.compute>();
  Warpgroup warpgroup(shared, args, query_map, threadIdx.x / 128, part);
  warpgroup.attend(part.work);
  warpgroup.finish();
}

}  // namespace flashlatent::mla_64_pingpong
