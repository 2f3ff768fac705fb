#include "plan/describe.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <type_traits>

#include "core/message.h"
#include "plan/block_cost.h"
#include "plan/plan_memory.h"
#include "plan/walker.h"

namespace flashlatent {

std::int64_t PlanDescription::largest() const {
  std::int64_t most = 0;
  for (const PlanPart& part : parts) most = std::max(most, part.cost);
  return most;
}

double PlanDescription::ideal() const {
  return parts.empty() ? 0 : static_cast<double>(total_cost) / static_cast<double>(parts.size());
}

double PlanDescription::imbalance() const {
  return total_cost == 0 ? 1 : static_cast<double>(largest()) / ideal();
}

namespace {

std::vector<PlanGroup> groups_of(const prefix::View& view) {
  std::vector<PlanGroup> groups(view.header->groups);
  for (std::int32_t t = 0; t < view.header->tiles; ++t) {
    const prefix::Tile& tile = view.tiles[t];
    PlanGroup& group = groups[tile.group];
    group.tokens = tile.tokens;
    group.splits = tile.splits;
    ++group.tiles;
    const std::int32_t* members = view.members + tile.member_begin;
    group.requests.insert(group.requests.end(), members, members + tile.members);
  }
  return groups;
}

Status other_plan() {
  return invalid_argument("plan was not made for this problem and executor");
}

/// Fills everything but the kernel's name and the groups. `plan` must have the geometry's fingerprint.
template <class Lengths>
PlanDescription describe(const schedule::Geometry& g, const Lengths& lengths,
                         const schedule::PlanView& view) {
  PlanDescription description;
  description.partition = schedule::name_of(g.partition);
  description.lanes = g.lanes;
  description.rounds = g.rounds;
  description.team = g.team;
  description.block_tokens = g.block_tokens;
  const bool whole = g.partition != schedule::Partition::kFixedSplits && view.header->partials == 0;
  description.cost_per_block = whole ? schedule::whole_block_cost(g) : g.cost.per_block;
  description.cost_per_split = g.cost.per_split;
  description.total_cost = view.header->total_cost;
  description.merges = view.header->merges;
  description.partials = view.header->partials;
  // teams merge in the kernel, so the header counts no merges
  if (g.partition == schedule::Partition::kTeamShares) {
    description.partials = 0;
    for (std::int32_t p = 0; p < g.parts; ++p) {
      const schedule::ShareCut cut = schedule::share_cut(view.cuts[p]);
      description.partials += cut.shares > 1;
      description.merges += cut.shares > 1 && cut.share == 0;
    }
  }
  for (std::int32_t p = 0; p < g.parts; ++p) {
    PlanPart part;
    schedule::Walker<schedule::Walks::kAll, true, Lengths> walker(g, view.cuts[p], view.cuts[p + 1],
                                                                  view.successors, lengths);
    for (schedule::Segment s; walker.next(s);) {
      if constexpr (std::is_same_v<Lengths, schedule::RaggedLengths>) {
        if (!schedule::has_query_token(g, lengths, s.request)) continue;
      }
      part.segments.push_back({s.request, s.round, s.block_begin, s.block_end, s.partial});
      part.cost += g.cost.per_split + std::int64_t{s.block_end - s.block_begin} * description.cost_per_block;
    }
    description.parts.push_back(std::move(part));
  }
  return description;
}

}  // namespace

Result<PlanDescription> describe_plan(const schedule::Geometry& g, const std::int32_t* lengths, Memory plan,
                                      const std::string& kernel, const prefix::Shape& shape) {
  const schedule::PlanView view = schedule::plan_view(g, plan.data);
  if (view.header->fingerprint != schedule::fingerprint(g)) return other_plan();
  std::vector<PlanGroup> groups;
  std::vector<std::int32_t> own_lengths;
  if (shape.requests > 0) {
    const prefix::View prefixes =
        prefix::view(shape, static_cast<std::uint8_t*>(plan.data) + prefix::offset(g));
    if (prefixes.header->fingerprint != prefix::fingerprint(shape)) return other_plan();
    groups = groups_of(prefixes);
    for (std::int32_t r = 0; r < shape.requests; ++r) {
      own_lengths.push_back(prefix::own_length(shape, lengths[r], prefixes.shares[r]));
    }
    lengths = own_lengths.data();
  }
  PlanDescription description = describe(g, lengths, view);
  description.kernel = kernel;
  description.groups = std::move(groups);
  return description;
}

namespace {

template <class Lengths>
Result<PlanDescription> describe_items(const schedule::Geometry& g, const Lengths& lengths, Memory plan,
                                       const std::string& kernel) {
  const schedule::PlanView view = schedule::plan_view(g, plan.data);
  if (view.header->fingerprint != schedule::fingerprint(g)) return other_plan();
  PlanDescription description = describe(g, lengths, view);
  description.kernel = kernel;
  return description;
}

}  // namespace

Result<PlanDescription> describe_plan(const schedule::Geometry& g, const schedule::UnionLengths& lengths,
                                      Memory plan, const std::string& kernel) {
  return describe_items(g, lengths, plan, kernel);
}

Result<PlanDescription> describe_plan(const schedule::Geometry& g, const schedule::RaggedLengths& lengths,
                                      Memory plan, const std::string& kernel) {
  return describe_items(g, lengths, plan, kernel);
}

namespace {

/// printf into a string, up to 255 characters.
template <class... Values>
std::string format(const char* pattern, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

/// Numbers as ranges: "0-3, 7".
std::string list_of(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += message(i == 0 ? "" : ", ", numbers[i]);
    if (last > i) text += message("-", numbers[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace

std::string to_string(const PlanDescription& plan) {
  std::string text =
      message("kernel ", plan.kernel, ": ", plan.parts.size(), " parts x ", plan.lanes, " lanes",
              plan.team > 1 ? message(" x teams of ", plan.team) : "", ", ", plan.rounds,
              " rounds, blocks of ", plan.block_tokens, " tokens, partition: ", plan.partition, "\n");
  text += message("cost: ", plan.cost_per_block, " a block, ", plan.cost_per_split,
                  " a segment; largest part ", plan.largest(), ", ideal ", format("%.1f", plan.ideal()),
                  ", imbalance ", format("%.3f", plan.imbalance()), "\n");
  text += message("splits: ", plan.partials, " partial results, merged into ", plan.merges, "\n");
  for (const PlanGroup& group : plan.groups) {
    text +=
        message("shared prefix: ", group.requests.size(), " requests (", list_of(group.requests), "), ",
                group.tokens, " tokens, ", group.tiles, " row tiles a KV head, ", group.splits, " splits\n");
  }
  text += format("%5s %8s %8s %8s %8s  %s\n", "part", "segments", "blocks", "partial", "cost", "load");
  constexpr int kBar = 40;
  const double largest = static_cast<double>(std::max<std::int64_t>(plan.largest(), 1));
  for (std::size_t p = 0; p < plan.parts.size(); ++p) {
    const PlanPart& part = plan.parts[p];
    long long blocks = 0, partial = 0;
    for (const PlanSegment& segment : part.segments) {
      blocks += segment.block_end - segment.block_begin;
      partial += segment.partial >= 0;
    }
    const int filled = static_cast<int>(std::lround(static_cast<double>(part.cost) / largest * kBar));
    text += format("%5zu %8zu %8lld %8lld %8lld  ", p, part.segments.size(), blocks, partial,
                   static_cast<long long>(part.cost)) +
            std::string(filled, '#') + "\n";
  }
  return text;
}

std::string to_svg(const PlanDescription& plan) {
  constexpr double kWidth = 1000, kRow = 10, kTop = 40, kLeft = 50;
  const double scale = kWidth / static_cast<double>(std::max<std::int64_t>(plan.largest(), 1));
  const double height = kTop + kRow * static_cast<double>(plan.parts.size()) + 30;
  std::string svg = format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" font-family=\"sans-serif\" "
      "font-size=\"9\">\n",
      kLeft + kWidth + 20, height);
  svg += "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
  svg += format(
      "<text x=\"%.0f\" y=\"18\" font-size=\"13\">%s: %zu parts (%s), largest %lld, ideal %.1f, "
      "%d splits</text>\n",
      kLeft, plan.kernel.c_str(), plan.parts.size(), plan.partition.c_str(),
      static_cast<long long>(plan.largest()), plan.ideal(), plan.partials);
  for (std::size_t p = 0; p < plan.parts.size(); ++p) {
    const double y = kTop + kRow * static_cast<double>(p);
    svg += format("<text x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">%zu</text>\n", kLeft - 6, y + 8, p);
    double x = kLeft;
    for (const PlanSegment& s : plan.parts[p].segments) {
      const double cost = static_cast<double>(
          plan.cost_per_split + std::int64_t{s.block_end - s.block_begin} * plan.cost_per_block);
      // The golden angle keeps neighbouring requests' hues apart.
      const double hue = static_cast<double>(s.request) * 137.508;
      svg += format(
          "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"hsl(%.0f,60%%,%d%%)\" "
          "stroke=\"%s\" stroke-width=\"0.7\">",
          x, y, cost * scale, kRow - 2, hue - 360.0 * static_cast<int>(hue / 360), s.partial >= 0 ? 60 : 75,
          s.partial >= 0 ? "black" : "none");
      svg += format("<title>request %d, round %d, blocks %d to %d%s</title></rect>\n", s.request, s.round,
                    s.block_begin, s.block_end, s.partial >= 0 ? ", partial" : "");
      x += cost * scale;
    }
  }
  const double ideal = kLeft + plan.ideal() * scale;
  svg += format(
      "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.0f\" y2=\"%.0f\" stroke=\"black\" stroke-dasharray=\"4 3\"/>\n",
      ideal, ideal, kTop - 8, height - 25);
  svg += format(
      "<text x=\"%.0f\" y=\"%.0f\">cost of a part; the dashed line is the ideal; outlined segments are "
      "splits</text>\n</svg>\n",
      kLeft, height - 8);
  return svg;
}

}  // namespace flashlatent
