// The cases of `flashlatent check`.
#pragma once

#include <string>
#include <vector>

#include "runtime/random_case.h"

namespace flashlatent::tools {

/// `suite` is small, quick, full or sparse_prefill, or a random one (is_random_suite()), which is of so many
/// cases; each name is unique and tells what is in the case.
std::vector<runtime::CaseSpec> check_cases(const std::string& suite, int random, std::uint64_t seed);

/// Those of each suite with fp8_656 caches or indices; full has the quick ones, too.
void add_small_fp8_cases(std::vector<runtime::CaseSpec>& cases);
void add_quick_fp8_cases(std::vector<runtime::CaseSpec>& cases);
void add_full_fp8_cases(std::vector<runtime::CaseSpec>& cases);

/// The same with separate or packed keys and values.
void add_small_paged_cases(std::vector<runtime::CaseSpec>& cases);
void add_quick_paged_cases(std::vector<runtime::CaseSpec>& cases);
void add_full_paged_cases(std::vector<runtime::CaseSpec>& cases);

/// The same with fp8_584 caches, extra caches, windows of latent caches, and fp8_656 without RoPE.
void add_small_two_cache_cases(std::vector<runtime::CaseSpec>& cases);
void add_quick_two_cache_cases(std::vector<runtime::CaseSpec>& cases);
void add_full_two_cache_cases(std::vector<runtime::CaseSpec>& cases);

/// The same with e4m3 latent caches.
void add_small_e4m3_cases(std::vector<runtime::CaseSpec>& cases);
void add_quick_e4m3_cases(std::vector<runtime::CaseSpec>& cases);
void add_full_e4m3_cases(std::vector<runtime::CaseSpec>& cases);
/// Sparse prefill, alone or in small and full.
void add_small_prefill_cases(std::vector<runtime::CaseSpec>& cases);
void add_full_prefill_cases(std::vector<runtime::CaseSpec>& cases);
/// The same of contexts that ranks share.
void add_small_shard_cases(std::vector<runtime::CaseSpec>& cases);
void add_quick_shard_cases(std::vector<runtime::CaseSpec>& cases);

/// Shapes and options drawn at random; a case depends on the seed and its number alone.
std::vector<runtime::CaseSpec> random_cases(int count, std::uint64_t seed);

/// The same with separate or packed keys and values alone, and more query rows a KV head than one has heads.
std::vector<runtime::CaseSpec> random_separate_cases(int count, std::uint64_t seed);
/// The same of sparse prefill alone.
std::vector<runtime::CaseSpec> random_prefill_cases(int count, std::uint64_t seed);
/// Those of `random` and `random_separate` in turns, of contexts that ranks share.
std::vector<runtime::CaseSpec> random_shard_cases(int count, std::uint64_t seed);
/// Is a suite one of these random ones?
bool is_random_suite(const std::string& suite);

/// Lengths of which large batches' kernels split one, and merge it themselves.
std::vector<int> one_long_of_many();

}  // namespace flashlatent::tools
