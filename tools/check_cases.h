// The cases of `flashlatent check`.
#pragma once

#include <string>
#include <vector>

#include "core/formats/formats.h"
#include "runtime/random_case.h"

namespace flashlatent::tools {

/// `suite`: small, quick, full or sparse_prefill, or a random one (is_random_suite()) of `random` cases. Each
/// name is unique and says what is in the case.
std::vector<runtime::CaseSpec> check_cases(const std::string& suite, int random, std::uint64_t seed);

/// Adds each suite's cases with fp8_656 caches or indices; full has the quick ones, too.
void add_small_fp8_cases(std::vector<runtime::CaseSpec>& cases);
void add_quick_fp8_cases(std::vector<runtime::CaseSpec>& cases);
void add_full_fp8_cases(std::vector<runtime::CaseSpec>& cases);

/// Adds those with separate or packed keys and values.
void add_small_paged_cases(std::vector<runtime::CaseSpec>& cases);
void add_quick_paged_cases(std::vector<runtime::CaseSpec>& cases);
void add_full_paged_cases(std::vector<runtime::CaseSpec>& cases);

/// Adds those with formats whose row is all value, extra caches, windows over latent caches, and fp8_656
/// without RoPE.
void add_small_two_cache_cases(std::vector<runtime::CaseSpec>& cases);
void add_quick_two_cache_cases(std::vector<runtime::CaseSpec>& cases);
void add_full_two_cache_cases(std::vector<runtime::CaseSpec>& cases);

/// Adds those with e4m3 latent caches.
void add_small_e4m3_cases(std::vector<runtime::CaseSpec>& cases);
void add_quick_e4m3_cases(std::vector<runtime::CaseSpec>& cases);
void add_full_e4m3_cases(std::vector<runtime::CaseSpec>& cases);
/// Adds sparse prefill, which is a suite of its own, and part of small and full.
void add_small_prefill_cases(std::vector<runtime::CaseSpec>& cases);
void add_full_prefill_cases(std::vector<runtime::CaseSpec>& cases);
/// Adds cases of contexts that ranks share.
void add_small_shard_cases(std::vector<runtime::CaseSpec>& cases);
void add_quick_shard_cases(std::vector<runtime::CaseSpec>& cases);

/// Shapes and options drawn at random. A case depends on the seed and its number only.
std::vector<runtime::CaseSpec> random_cases(int count, std::uint64_t seed);

/// The same with separate or packed keys and values only, and more query rows of a KV head.
std::vector<runtime::CaseSpec> random_separate_cases(int count, std::uint64_t seed);
/// The same for sparse prefill only.
std::vector<runtime::CaseSpec> random_prefill_cases(int count, std::uint64_t seed);
/// Cases of `random` and `random_separate` alternately, of contexts that ranks share.
std::vector<runtime::CaseSpec> random_shard_cases(int count, std::uint64_t seed);
/// Gives two of three cases of a random suite whose rows are 512 elements in bytes another such format.
/// The other draws of a seed are as if there were none.
void draw_records(std::uint64_t seed, int number, runtime::CaseSpec& spec);
/// Gives one of three cases of a random suite edges of the layer, and says so in its name; likewise.
void draw_edges(std::uint64_t seed, int number, runtime::CaseSpec& spec);
/// Is it one of these random suites?
bool is_random_suite(const std::string& suite);

/// The arrangements of kFormats whose row is all value: every suite reads each of them alone.
std::vector<const LatentFormat*> value_records();
/// A cache of fp8_656, with RoPE.
runtime::CaseSpec fp8(runtime::CaseSpec spec);
/// DeepSeek V4's: fp8_584.
runtime::CaseSpec v4(runtime::CaseSpec spec);
/// A cache in one of value_records().
runtime::CaseSpec alone(const LatentFormat& format, runtime::CaseSpec spec);

/// Lengths of which the kernels for large batches split one, and merge it themselves.
std::vector<int> one_long_of_many();

}  // namespace flashlatent::tools
