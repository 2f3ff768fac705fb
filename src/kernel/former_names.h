// Kernel names of version 0.1 and of kept results. An executor that asks for one is told the present name.
// scripts/kernel_names.py reads this file.
#pragma once

#include <string>
#include <string_view>

namespace flashlatent {

struct FormerName {
  std::string_view former, now;
};

inline constexpr FormerName kFormerNames[] = {
    {"direct", "fp8_32"},
    {"direct_team8", "fp8_16_team8"},
    {"etap", "mla_16_transposed"},
    {"mma16", "mla_16"},
    {"mma16_team4", "mla_16_team4"},
    {"mma16_team8", "mla_16_team8"},
    {"mma16_team16", "mla_16_team16"},
    {"paged", "gqa_16"},
    {"paged_128", "gqa_128_split"},
    {"prefill", "gqa_128"},
    {"quartet", "fp8_64"},
    {"seesaw", "mla_64_pingpong"},
    {"trio", "mla_64_roles"},
};

/// What an error says behind a former name: ", which is called mla_64_roles now"; empty for other names.
inline std::string renamed(std::string_view name) {
  for (const FormerName& row : kFormerNames) {
    if (row.former == name) return ", which is called " + std::string(row.now) + " now";
  }
  return {};
}

}  // namespace flashlatent
