// A team of any size, for items of few blocks by indices: each CTA has one or two blocks, and loads them at
// once (load/rows_at_once.cuh). Shapes tell which CTA has which block; lengths only say which tokens
// count. Outputs are merged as in team.cuh, but cut finer, since a team's size need not divide the rows: a
// piece is eight rows of 64 columns, and an owner has a run of pieces. Rows that are not live are not sent.
//
// All CTAs send, those without tokens zeros, so that shapes tell each CTA how many bytes it gets.
#pragma once

#include "cuda/sm90/kernels/mla_64_pingpong/kernel.cuh"
#include "cuda/sm90/kernels/mla_64_pingpong/keys.h"
#include "cuda/sm90/load/query_edge.cuh"
#include "cuda/sm90/merge/epilogue.cuh"
#include "cuda/sm90/merge/packed_row.cuh"
#include "cuda/sm90/merge/row_edge.cuh"

namespace flashlatent::mla_64_pingpong {

struct NoEdge {};

template <class Config>
class AnyTeamWarpgroup : public Warpgroup<Config> {
  using Base = Warpgroup<Config>;
  using Base::args_, Base::base_, Base::fragment_, Base::me_, Base::o_, Base::shared_, Base::thread_;

 public:
  __device__ __forceinline__ AnyTeamWarpgroup(SharedMemory<Config>& shared, const sm90::DecodeArguments& args,
                                              const sm90::QueryMaps& query_maps, int me, const TeamPart& part)
      : Base(shared, args, query_maps, me), part_(part) {
    if constexpr (Config::kEdges) {
      const edges::Rotary& rotary = args.edges.output;
      if (rotary.positions != nullptr) position_ = rotary.position(part.tile.request, part.tile.first_token);
    }
  }

  /// Pieces of one owner: with edges 128 columns, which have one scale.
  static constexpr int kTogether = Config::kEdges ? 2 : 1;

  /// Finds where a piece goes, by one thread a piece, before the previous launch is done.
  __device__ __forceinline__ static void route(SharedMemory<Config>& shared, const TeamPart& part,
                                               int piece) {
    if (piece >= part.pieces || part.size == 1) return;
    const int owner = SmallDivisor(part.pieces / kTogether).quotient((piece / kTogether + 1) * part.size - 1);
    const int slot = part.rank * part.room + piece - part.first_of(owner, kTogether);
    shared.team.routes[piece] = {ptx::address_in(owner, incoming(shared) + slot),
                                 ptx::address_in(owner, &shared.team.received)};
  }

  /// The team's result of its only segment.
  __device__ __forceinline__ void finish(const sm90::Work& work) {
    if (part_.size == 1) return finish_alone(work);
    __syncwarp();
    ptx::cluster_arrive();  // this CTA has read its blocks
    const auto& row_sum = this->add_up_rows(work);
    ptx::cluster_wait();
    send(row_sum);
    receive();
  }

 private:
  using Element = typename Config::Element;
  using Row = sm90::PackedRow<Element, Config::kHalfDim / 2>;
  static_assert(Row::kPackets == 8 && Config::kHalfDim == 256);

  /// Two packets of each lane.
  using Piece = uint4[2][32];
  static_assert(sizeof(Piece) == TeamPart::kPieceBytes);
  /// From each rank its run of pieces, stored where blocks were.
  __device__ __forceinline__ static Piece* incoming(SharedMemory<Config>& shared) {
    return reinterpret_cast<Piece*>(shared.kv);
  }
  /// Maximum and sum of eight rows, and the unit of a warpgroup's half of their packed values.
  using Statistics = float4[8];
  static constexpr int kGroups = 16;
  /// From each rank, behind the pieces.
  __device__ __forceinline__ Statistics* statistics(int rank, int group) const {
    constexpr int kMostPieces = kGroups * TeamPart::kPiecesOfGroup + kMostTeam * kTogether;
    static_assert(kMostPieces * sizeof(Piece) + kMostTeam * kGroups * sizeof(Statistics) <=
                  sizeof(SharedMemory<Config>::kv));
    return reinterpret_cast<Statistics*>(incoming(shared_) + kMostPieces) + rank * kGroups + group;
  }

  /// A CTA without a team writes its result.
  __device__ __forceinline__ void finish_alone(const sm90::Work& work) {
    const auto& row_sum = this->add_up_rows(work);
    const sm90::RowTile& tile = part_.tile;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = fragment_.row + 8 * half;
      const sm90::RowScale scale =
          sm90::finish_row(half ? base_.high : base_.low, row_sum[0][row] + row_sum[1][row]);
      const float sink = row < tile.rows ? sm90::sink_of(args_.output, tile.head(args_.query, row)) : 0.0F;
      const int column = me_ * Config::kHalfDim + fragment_.column;
      sm90::write_output<Element>(o_, row, half, scale, sink, args_, tile, column, column == 0);
    }
  }

  template <class Sums>
  __device__ __forceinline__ void send(const Sums& row_sum) const {
    const int lane = thread_ % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int eight = thread_ / 32 * 2 + half, group = 2 * eight + me_;
      if (8 * eight >= part_.tile.rows) return;
      const Row packed(o_, half, Row::quad_bound(o_, half));
      const int row = fragment_.row + 8 * half;
      const float4 of_row =
          make_float4(half ? base_.high : base_.low, row_sum[0][row] + row_sum[1][row], packed.unit, 0);
      const std::uint32_t received = ptx::shared_address(&shared_.team.received);
      const std::uint32_t statistic = ptx::shared_address(&(*statistics(part_.rank, group))[lane / 4]);
      std::uint32_t told = 0;
#pragma unroll
      for (int i = 0; i < TeamPart::kPiecesOfGroup; ++i) {
        const uint2 to = shared_.team.routes[TeamPart::kPiecesOfGroup * group + i];
        ptx::send(to.x + lane * 16, packed.packets[2 * i], to.y);
        ptx::send(to.x + 512 + lane * 16, packed.packets[2 * i + 1], to.y);
        if (lane % 4 == 0 && to.y != told) ptx::send(statistic - received + to.y, of_row, to.y);
        told = to.y;
      }
    }
  }

  /// Where a row's 64 columns of a piece go.
  struct Place {
    Element* out;
    float* lse;
    float sink;
    bool live;
    [[no_unique_address]] std::conditional_t<Config::kEdges, sm90::RowEdge, NoEdge> edge;
  };
  __device__ __forceinline__ Place place_of(int piece) const {
    const int row = piece / TeamPart::kPiecesOfEight * 8 + thread_ % 32 / 4;
    const sm90::RowTile& tile = part_.tile;
    const bool live = row < tile.rows;
    const int token = tile.token(args_.query, live ? row : 0), head = tile.head(args_.query, live ? row : 0);
    const int column = piece % TeamPart::kPiecesOfEight * 64;
    return {sm90::output_row<Element>(args_.output, tile, head, token) + column,
            sm90::lse_place(args_.output, tile, head, token), sm90::sink_of(args_.output, head), live,
            edge_of(head, column)};
  }
  __device__ __forceinline__ auto edge_of(int head, int column) const {
    if constexpr (Config::kEdges) {
      return sm90::RowEdge::find(args_, part_.tile, head, column, position_);
    } else {
      return NoEdge();
    }
  }

  /// Waits for what other CTAs send to this CTA, adds it up in the order of ranks, and writes the sum.
  __device__ __forceinline__ void receive() const {
    int piece = part_.first + static_cast<int>(threadIdx.x) / 32;
    if (piece >= part_.end) return;
    Place place = place_of(piece);
    ptx::wait_for_cluster(shared_.team.received, 0);
    constexpr int kStep = Config::kComputeThreads / 32;
    while (true) {
      Place next;
      if constexpr (Config::kEdges) {  // its angles come meanwhile
        if (piece + kStep < part_.end) next = place_of(piece + kStep);
      }
      add_up(piece, place);
      piece += kStep;
      if (piece >= part_.end) return;
      if constexpr (!Config::kEdges) next = place_of(piece);
      place = next;
    }
  }

  __device__ __forceinline__ void add_up(int piece, const Place& place) const {
    const int lane = thread_ % 32, group = piece / TeamPart::kPiecesOfGroup;
    const Statistics* rows = statistics(0, group);
    const auto of_rank = [&](int rank) { return rows[rank * kGroups][lane / 4]; };
    float max = -INFINITY;
#pragma unroll 4
    for (int rank = 0; rank < part_.size; ++rank) max = fmaxf(max, of_rank(rank).x);
    const float base = sm90::finite_or_zero(max);
    const Piece* from = incoming(shared_) + (piece - part_.first);
    float sum = 0;
    float x[2][8] = {};
#pragma unroll 2
    for (int rank = 0; rank < part_.size; ++rank, from += part_.room) {
      const float4 of_row = of_rank(rank);
      const float weight = sm90::exp2_fast(of_row.x - base);
      sum += of_row.y * weight;
      sm90::add_packet(x[0], (*from)[0][lane], weight * of_row.z);
      sm90::add_packet(x[1], (*from)[1][lane], weight * of_row.z);
    }
    const sm90::RowScale scale = sm90::finish_row(max, sum);
    if (piece % TeamPart::kPiecesOfEight == 0 && lane % 4 == 0 && place.live) {
      *place.lse = sm90::final_lse(args_.output.empty_lse, scale.lse);
    }
    const float factor =
        args_.output.sink == nullptr ? scale.factor : scale.factor * sm90::sink_factor(scale.lse, place.sink);
#pragma unroll
    for (auto& of_packet : x) {
#pragma unroll
      for (float& value : of_packet) value *= factor;
    }
    if constexpr (Config::kEdges) {
      place.edge.turn(x);
      if (args_.edges.codes != nullptr) {
        constexpr int kFirstPair = 8;  // a named barrier; warps 2 i and 2 i + 1 have two pieces of an owner
        const int warp = static_cast<int>(threadIdx.x) / 32;
        auto& largest = shared_.team.largest;
        place.edge.write(x, args_.edges, place.live, largest[warp], largest[warp ^ 1], kFirstPair + warp / 2);
      }
      if (args_.output.out == nullptr) return;
    }
    const bool aligned = sm90::is_aligned(place.out);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      std::uint32_t words[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) words[k] = sm90::pack<Element>(x[i][2 * k], x[i][2 * k + 1]);
      sm90::store_words(place.out + 32 * i, words, place.live, aligned);
    }
  }

  const TeamPart& part_;
  std::int64_t position_ = 0;  // of the query token, by which the output is turned back
};

/// Q of a tile whose rows are not in line, by warps 8 to 15.
template <class Config>
__device__ __forceinline__ void load_rows(SharedMemory<Config>& shared, const sm90::DecodeArguments& args,
                                          const sm90::RowTile& tile) {
  constexpr int kUnits = Config::kQkDim / 8;  // of a row, 16 bytes each
  const int thread = threadIdx.x - Config::kComputeThreads;
#pragma unroll 1
  for (int i = thread; i < tile.rows * kUnits; i += Config::kLoaderThreads) {
    const int row = i / kUnits, unit = i % kUnits;
    *reinterpret_cast<uint4*>(shared.q[unit / 8].bytes + sm90::unit_offset(row, unit % 8)) =
        __ldg(sm90::query_unit<typename Config::Element, Config::kQkDim>(args.query, tile, row, unit));
  }
  ptx::fence_for_async_proxy();
  constexpr int kLoaders = 1;  // a named barrier
  ptx::named_sync(kLoaders, Config::kLoaderThreads);
  if (thread == 0) ptx::arrive(shared.q_full);
}

/// Normalises and rotates Q, which comes by boxes, by all warps. Threads then announce tiles of KV, so that
/// whoever waits for all of these finds Q prepared.
template <class Config>
__device__ __forceinline__ void prepare_query(SharedMemory<Config>& shared, const sm90::DecodeArguments& args,
                                              const sm90::RowTile& tile, std::int64_t position) {
  const sm90::EdgeArguments& edges = args.edges;
  if (edges.norm == 0 && edges.query.positions == nullptr) return;
  if (edges.norm == 0) {
    const sm90::RowTurner<Config::kThreads> turner(edges.query, position, tile.rows);
    ptx::wait(shared.q_full, 0);
    turner.turn(ptx::shared_address(shared.q[Config::kQkChunks - 1].bytes));
  } else {
    const sm90::QueryRowEdge edge(edges, position);
    ptx::wait(shared.q_full, 0);
    constexpr int kWarps = Config::kThreads / 32;
#pragma unroll 1
    for (int row = static_cast<int>(threadIdx.x) / 32; row < tile.rows; row += 2 * kWarps) {
      edge.prepare(ptx::shared_address(shared.q), row, kWarps);  // also of rows that are not live
    }
  }
  ptx::fence_for_async_proxy();
}

/// Everything that a CTA does.
template <class Config>
__device__ __forceinline__ void attend_in_team(SharedMemory<Config>& shared,
                                               const sm90::DecodeArguments& args,
                                               const sm90::QueryMaps& query_maps) {
  using Warpgroup = AnyTeamWarpgroup<Config>;
  static_assert(Config::kTeam == kMostTeam && Config::Loader::kMostBlocks == kMostTeamBlocks &&
                Config::kVDim == 512);
  static_assert(Config::kThreads == Config::Loader::kArrivals);
  const TeamPart part(args, Warpgroup::kTogether);
  typename Config::Loader loader(args, part.tile, part.begin, part.blocks);
  if (threadIdx.x == 0) {
    shared.team.part = part;  // not in registers
    ptx::arrive_expecting(shared.team.received, part.piece_bytes);
  }
  if (const int piece = static_cast<int>(threadIdx.x) - Config::kComputeThreads;
      piece >= 0 && piece < TeamPart::kMostPieces) {
    Warpgroup::route(shared, part, piece);
  }
  if constexpr (Config::kEdges) sm90::fetch_constants(args.edges);
  __syncthreads();
  const TeamPart& kept = shared.team.part;
  sm90::wait_for_launch_before();
  if (args.query.rows_in_boxes && threadIdx.x / 32 == Config::kThreads / 32 - 1 && ptx::elect_one()) {
    copy_query(shared, args, query_maps, kept.tile);
  }
  __syncwarp();
  std::int64_t position = 0;
  if constexpr (Config::kEdges) {
    if (args.edges.query.positions != nullptr) {
      position = args.edges.query.position(kept.tile.request, kept.tile.first_token);
    }
  }
  const int blocks = loader.load(shared.kv, shared.state, [&] {
    if constexpr (Config::kEdges) prepare_query(shared, args, kept.tile, position);
  });
  if (threadIdx.x >= Config::kComputeThreads) {
    if (!args.query.rows_in_boxes) load_rows(shared, args, kept.tile);
    return ptx::give_registers<Config::kRegisters.load>();
  }
  ptx::take_registers<Config::kRegisters.compute>();
  Warpgroup warpgroup(shared, args, query_maps, threadIdx.x / 128, kept);
  const sm90::Work work = {{0, kept.item, 0, 0, blocks, -1}, kept.tile};
  warpgroup.attend(work);
  warpgroup.finish(work);
}

/// No role loads.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    team_kernel(const __grid_constant__ sm90::DecodeArguments args, const __grid_constant__ CUtensorMap,
                const __grid_constant__ sm90::QueryMaps query_maps) {
  extern __shared__ __align__(1024) std::uint8_t shared_bytes[];
  auto& shared = *reinterpret_cast<SharedMemory<Config>*>(shared_bytes);
  static_assert(sizeof(SharedMemory<Config>) <= kMaxSharedBytes);
  if (threadIdx.x == Config::kComputeThreads && args.query.rows_in_boxes)
    sm90::prefetch_query_maps<Config::kQkDim>(query_maps);
  set_up<Config>(shared);
  attend_in_team<Config>(shared, args, query_maps);
}

}  // namespace flashlatent::mla_64_pingpong
