#include "cost/table.h"

#include <algorithm>
#include <cmath>

#include "core/message.h"
#include "cost/model.h"

namespace flashlatent::cost {

std::int32_t as_blocks(std::int32_t nanoseconds, std::int32_t block, std::int32_t block_of_h200) {
  return scaled(nanoseconds, block == 0 ? 1 : static_cast<float>(block) / static_cast<float>(block_of_h200));
}

namespace {

/// The workers whose factors scale a table's constants: none if the table is the device's own.
const schedule::Workers& scale_of(int place, const schedule::Workers& workers) {
  static const schedule::Workers kAsMeasured = 1;
  return workers.costs != nullptr && place >= 0 ? kAsMeasured : workers;
}

}  // namespace

Costs Costs::in(const schedule::Workers& workers) const {
  return workers.costs == nullptr || place < 0 ? *this : costs_of(workers.costs->constants[place], place);
}

std::int32_t Costs::lone_share_on(const schedule::Workers& workers) const {
  return scaled(in(workers).lone_share, scale_of(place, workers).clock);
}

std::int32_t Costs::segment_on(const schedule::Workers& workers) const {
  return scaled(in(workers).beside.per_split, scale_of(place, workers).clock);
}

std::int32_t Costs::per_member_on(const schedule::Workers& workers) const {
  return scaled(in(workers).per_member, scale_of(place, workers).clock);
}

schedule::CostModel Costs::on(const schedule::Workers& given) const {
  if (beside.per_call >= kNever.per_call) return beside;
  const schedule::Workers& workers = scale_of(place, given);
  const Costs costs = in(given);
  const float clock = workers.clock;
  const std::int32_t products = scaled(costs.block_products, workers.products);
  const std::int32_t block =
      std::max({scaled(costs.beside.per_block, clock), scaled(costs.block_memory, workers.memory), products});
  const std::int32_t block_of_h200 =
      std::max({costs.beside.per_block, costs.block_memory, costs.block_products, 1});
  const std::int32_t near =
      std::max({scaled(costs.beside.per_block, clock), scaled(costs.block_memory, clock), products});
  return {.per_block = block,
          .per_split = as_blocks(costs.beside.per_split, block, block_of_h200),
          .per_call = scaled(costs.beside.per_call, clock),
          .per_merge = scaled(costs.beside.per_merge, clock),
          .per_block_alone = costs.beside.per_block_alone == 0
                                 ? 0
                                 : std::max(scaled(costs.beside.per_block_alone, clock), products),
          .per_block_near = costs.beside.per_block_alone == 0 ? 0 : std::min(near, block)};
}

TeamCosts TeamCosts::on(const schedule::Workers& workers) const {
  if (workers.costs != nullptr && place >= 0) return team_costs_of(workers.costs->constants[place], place);
  const float clock = workers.clock;
  const bool by_bytes = block_memory == 0;
  const float alone = by_bytes ? clock * std::sqrt(std::sqrt(std::max(workers.memory / clock, 1.0F))) : clock;
  return {.call = scaled(call, clock),
          .shared_merge = scaled(shared_merge, clock),
          .lone_merge = scaled(lone_merge, clock),
          .block_here = scaled(block_here, clock),
          .block_alone = scaled(block_alone, alone),
          .block_streaming =
              by_bytes ? scaled(block_streaming, workers.memory)
                       : std::max(scaled(block_streaming, clock), scaled(block_memory, workers.memory)),
          .block_memory = scaled(block_memory, workers.memory),
          .lone_request = scaled(lone_request, clock)};
}

std::string to_string(const schedule::CostModel& costs) {
  return message("per_block ", costs.per_block, ", per_split ", costs.per_split, ", per_call ",
                 costs.per_call, ", per_merge ", costs.per_merge, ", per_block_alone ", costs.per_block_alone,
                 ", per_block_near ", costs.per_block_near, " ns");
}

std::string to_string(const TeamCosts& costs) {
  return message("call ", costs.call, ", shared_merge ", costs.shared_merge, ", lone_merge ",
                 costs.lone_merge, ", block_here ", costs.block_here, ", block_alone ", costs.block_alone,
                 ", block_streaming ", costs.block_streaming, ", lone_request ", costs.lone_request, " ns");
}

std::string to_string(const Rates& rates) {
  return message("a multiprocessor's share ", rates.share / 10.0, " bytes/ns, the most ", rates.most / 10.0,
                 "; L2 ", rates.l2, " TB/s; products ", rates.products, " TFLOP/s");
}

}  // namespace flashlatent::cost
