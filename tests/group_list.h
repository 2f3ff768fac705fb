// Groups of requests that own their numbers, to write and to compare.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/prefix_groups.h"

namespace flashlatent::prefix {

struct GroupList {
  std::vector<std::int32_t> requests;
  std::int32_t tokens;
};

inline std::vector<GroupList> to_lists(const Groups& groups) {
  std::vector<GroupList> lists;
  for (const Group& group : groups.list) {
    lists.push_back({{group.requests.begin(), group.requests.end()}, group.tokens});
  }
  return lists;
}

/// Views, which are good as long as the lists.
inline std::vector<Group> views_of(const std::vector<GroupList>& lists) {
  std::vector<Group> groups;
  for (const GroupList& list : lists) groups.push_back({list.requests, list.tokens});
  return groups;
}

}  // namespace flashlatent::prefix
