// Limits from which one way to cut a call gives way to another, for each kernel, where no cost decides. Each
// limit says what was measured, or follows from the hardware.
#pragma once

namespace flashlatent::choose {

/// Tokens of a split with batch_invariant, the same for every batch.
inline constexpr int kFixedSplitTokens = 2048;

/// Multiprocessors that are left over, since clusters lie within GPCs: an H200's have 16 or 18
/// multiprocessors each, minus those that are switched off, so that it holds 15 teams of 8 and 7 of 16.
inline constexpr int kUnusedByTeams = 12;

/// Shares of one request each in place of a line, where several requests may differ in length.
struct ShareLimits {
  /// Up to so many blocks a CTA requests are fastest with equally many parts each, even if they differ in
  /// length. If they do not differ, equal parts take 0.4 us less, since no plan is read.
  int few_blocks = 2;
  /// With more blocks a CTA a line balances varied lengths better.
  int most_blocks = 1 << 30;
  /// The same with several row tiles, where further segments cost a line's CTAs less, since tiles find blocks
  /// in L2.
  int most_blocks_of_tiles = 8;
};
inline constexpr ShareLimits kShareLimits;

struct Mla64E4m3Limits {
  ShareLimits shares = {.most_blocks = 16, .most_blocks_of_tiles = 16};
};
inline constexpr Mla64E4m3Limits kMla64E4m3Limits;

struct Mla64PingpongLimits {
  /// With more blocks a CTA, teams lose a quarter with requests of varied lengths, and gain a twentieth with
  /// equal ones.
  int most_team_blocks = 8;
  int few_rows = 16;  ///< A share of a tile with so few rows costs less.
  /// A whole item of so few blocks, which shapes tell, takes less than an item of a line: it asks for Q
  /// at once, and reads no plan (docs/log/mla_64_pingpong.md).
  int few_whole_blocks = 8;
  /// Nobody balances the lengths of whole items that a part has in turn, so they have at most so many blocks.
  int most_blocks_in_turn = 8;
};
inline constexpr Mla64PingpongLimits kMla64PingpongLimits;

/// Shares are mostly 2 to 22 % faster than a line, but not if a few of many requests are much longer than the
/// others, since each request has at least one CTA.
struct Mla64RolesLimits {
  /// So many requests get shares whatever their lengths (one of 131,072 tokens takes 5 % longer with 7
  /// requests of 512 beside it; it would take 9 % with 15 and 31 % with 31).
  int few_requests = 8;
  int most_blocks = 32;  ///< A CTA, of more requests than that, if lengths are equal.
  int most_lanes = 8;
  /// With more than two lanes shares must give work to so many fifths of the parts: 12 requests (24 of 33
  /// parts) take 4 to 5 % longer by shares, with two tiles (48 of 66 parts) 7 to 11 % less.
  int least_fifths = 4;
};
inline constexpr Mla64RolesLimits kMla64RolesLimits;

/// Teams whose CTAs share a segment's blocks.
struct TeamLimits {
  /// Teams of up to `small_team` CTAs are not shared between two requests up to so many blocks a CTA. Teams
  /// of 16, of which there are few, were no faster (4 requests of 4,096 tokens: 11.2 us, by teams of 8 10.5).
  int few_blocks = 4;
  int small_team = 8;
  int few_tokens_a_cta = 256;  ///< Up to so many, teams of 16 have costs of their own.
};
inline constexpr TeamLimits kTeamLimits;

/// Teams of any size, by lists.
struct AnyTeamLimits {
  static constexpr int kMostTeam = 16;
  /// Teams of 1, 2, ... CTAs that are resident at the same time on the multiprocessors of an H200, as
  /// cudaOccupancyMaxActiveClusters() says.
  int resident[kMostTeam] = {132, 66, 39, 30, 22, 17, 15, 15, 9, 7, 7, 7, 7, 7, 7, 7};
  int multiprocessors = 132;
};
inline constexpr AnyTeamLimits kAnyTeamLimits;

struct Fp8Rows64Limits {
  int few_requests = 2;
};
inline constexpr Fp8Rows64Limits kFp8Rows64Limits;

struct Gqa16Limits {
  int most_rows_of_times = 128;  ///< Rows of a KV head; prompts have more, and no measured times.
  /// Requests are few if each has this many parts or more: their merges run at the same time, and each part
  /// is one or two segments.
  int parts_of_few = 4;
  int most_team = 8;  ///< A cluster of 8 fits into any GPC.
  /// Row tiles a CTA. With 4, calls of equal lengths take 1 % longer and calls of varied lengths 2 % less;
  /// with 8, a tile a warp, all take longer.
  int most_tiles = 2;
  /// After a shared prefix own tokens are few, and with more tiles a CTA has fewer segments (64 requests with
  /// 512 own tokens: 0.070 ms including the prefix, with 2 tiles 0.075).
  int most_tiles_sharing = 4;
  int least_tenths = 9;  ///< So many tenths of the parts must have a request if a CTA has several tiles.
  /// An estimate only knows how far the page table reaches. So with several query tokens a block counts for
  /// so much more: long requests take 3 to 6 % less than by gqa_128_split, short ones up to twice as long.
  int more_by_query_tokens = 8;  ///< An eighth.
};
inline constexpr Gqa16Limits kGqa16Limits;

/// A near kernel beside the one for the page table's reach (near_kernel.h).
struct NearKernelLimits {
  /// Tables that reach less far are often as long as their requests, for which the second launch gains
  /// nothing.
  int least_reach = 16384;
  int most_requests = 64;                     ///< With more no kernel gains what the second launch costs.
  int lengths[4] = {512, 2048, 8192, 32768};  ///< Kernels that are fastest at these are tried.
  int least_tokens = 256;  ///< Times are compared at this length, and at each twice as long.
  /// Nanoseconds that the launch which leaves takes: 1,000 to 2,700 where the other one has few requests
  /// (docs/log/plans.md).
  double second_launch = 1800;
  double gain = 0.96;  ///< Both together must take at most so many times as long as the far one alone.
};
inline constexpr NearKernelLimits kNearKernelLimits;

}  // namespace flashlatent::choose
