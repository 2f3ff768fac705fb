#include "flashlatent/costs.h"

#include "cost/table_file.h"

namespace flashlatent {

std::string costs_text(std::string_view gpu) {
  const cost::Table* table = cost::table_of(gpu);
  return cost::to_text(table == nullptr ? cost::built_in_table() : *table);
}

Status set_costs(std::string_view text) {
  Result<cost::Table> table = cost::parse_table(text);
  return table.ok() ? cost::set_table(std::move(*table)) : table.status();
}

Status load_costs(const std::string& path) {
  return cost::load_table(path);
}

}  // namespace flashlatent
