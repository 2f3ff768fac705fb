// `flashlatent tune` without a GPU: which calls it times, and what it makes of times. A machine is made up
// whose costs are known, and whose times are what they say.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "choose/cutters.h"
#include "cost/device.h"
#include "cost/table_file.h"
#include "runtime/random_value.h"
#include "tools/tune_cases.h"
#include "tools/tune_fit.h"

namespace flashlatent::tools {
namespace {

schedule::Workers workers_of(const char* gpu) {
  return cost::workers_of(*cost::find_gpu(gpu));
}

cost::Table start_of(const char* gpu) {
  return cost::scaled_table(gpu, workers_of(gpu));
}

/// A machine of `costs` is asked for all calls: its times, with an error of `noise`. Calls that it would cut
/// in another way than `start` does are left out, since a table says nothing of cuts that are not its own.
std::vector<MeasuredCall> measured(const char* gpu, const cost::Table& start, const cost::Table& costs,
                                   double noise, const std::string& filter = {}) {
  std::vector<MeasuredCall> calls;
  std::uint64_t number = 0;
  for (const TuneCase& c : tune_cases(workers_of(gpu), start, filter)) {
    for (const KernelCall& call : c.calls) {
      const auto cut = predict(call, workers_of(gpu), &start), here = predict(call, workers_of(gpu), &costs);
      if (!cut || !here || !is_same_cut(cut->cut, here->cut)) continue;
      calls.push_back({call, here->time * (1 + noise * runtime::random_normal(5, number++))});
    }
  }
  return calls;
}

std::uint64_t number_of(const std::string& name) {
  std::uint64_t number = 14695981039346656037U;  // FNV-1a
  for (const char c : name) number = (number ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return number >> 16;
}

/// A table whose constants are `start`'s times a factor of their kernel and one of their own.
cost::Table other(const cost::Table& start, double of_kernels, double of_constants) {
  cost::Table table = start;
  for (const Entry& entry : entries_of(start)) {
    const auto kernel = static_cast<std::size_t>(cost::kPlaces[entry.place].kernel);
    const std::string situation = cost::name_of(cost::kPlaces[entry.place].situation);
    // By names, so that other rows of the table do not change what is drawn for this one.
    const std::uint64_t constant = 100 * number_of(cost::kKernelNames[kernel] + situation) + entry.field;
    const double factor = std::exp(of_kernels * runtime::random_normal(11, kernel) +
                                   of_constants * runtime::random_normal(12, constant));
    entry.in(table) = static_cast<std::int32_t>(std::lround(entry.in(start)*factor));
  }
  return table;
}

/// Workers that have this table, as a GPU whose calls go by it.
schedule::Workers with(schedule::Workers workers, const cost::Table& table) {
  workers.costs = &table;
  return workers;
}

double quantile(std::vector<double> values, double p) {
  std::sort(values.begin(), values.end());
  return values.at(static_cast<std::size_t>(p * static_cast<double>(values.size() - 1)));
}

/// How far what a table says of calls is from what another one says.
std::vector<double> errors(const std::vector<MeasuredCall>& calls, const schedule::Workers& workers,
                           const cost::Table& table, const cost::Table& right) {
  std::vector<double> errors;
  for (const MeasuredCall& call : calls) {
    const auto said = predict(call.call, workers, &table), truth = predict(call.call, workers, &right);
    errors.push_back(std::abs(said->time / truth->time - 1));
  }
  return errors;
}

TEST(Tune, AScaledTableSaysWhatFactorsDo) {
  EXPECT_EQ(cost::to_text(start_of("H200")), cost::to_text(cost::built_in_table()));
  for (const char* gpu : {"H100", "H20", "H100 PCIe"}) {
    const schedule::Workers workers = workers_of(gpu);
    const cost::Table start = start_of(gpu);
    int all = 0, alike = 0;
    std::vector<double> ratios;
    for (const TuneCase& c : tune_cases(workers, start)) {
      for (const KernelCall& call : c.calls) {
        const auto by_factors = predict(call, workers, nullptr), by_table = predict(call, workers, &start);
        ++all;
        if (!by_factors || !by_table || !is_same_cut(by_factors->cut, by_table->cut)) continue;
        ++alike;
        ratios.push_back(std::abs(by_table->time / by_factors->time - 1));
      }
    }
    EXPECT_GT(alike, 0.85 * all) << gpu;
    EXPECT_LT(quantile(ratios, 0.5), 0.02) << gpu;
  }
}

TEST(Tune, TimesEveryKernel) {
  std::set<std::string> timed;
  std::set<std::string> names;
  for (const TuneCase& c : tune_cases(workers_of("H200"), start_of("H200"))) {
    ASSERT_FALSE(c.calls.empty());
    for (const KernelCall& call : c.calls) {
      timed.insert(call.kernel);
      EXPECT_TRUE(names.insert(name_of(c, call)).second) << "twice: " << name_of(c, call);
      EXPECT_TRUE(predict(call, workers_of("H200"), nullptr)) << name_of(c, call);
    }
  }
  for (const choose::Cutter* cutter : choose::cutters()) {
    if (cutter->kernel.backend() == Backend::kCuda) {
      EXPECT_TRUE(timed.contains(cutter->kernel.name)) << cutter->kernel.name;
    }
  }
}

TEST(Tune, FirstCallsTellOfMostConstants) {
  const cost::Table start = start_of("H200");
  const std::vector<TuneCase> cases = tune_cases(workers_of("H200"), start);
  const auto told = [&](std::size_t count) {
    std::set<std::string> entries;
    for (std::size_t i = 0; i < count; ++i) {
      for (const KernelCall& call : cases[i].calls) {
        for (const Entry& entry : entries_of_time(call, workers_of("H200"), start))
          entries.insert(entry.name());
      }
    }
    return entries.size();
  };
  EXPECT_EQ(told(cases.size() / 4), told(cases.size()));
}

class TuneOf : public testing::TestWithParam<const char*> {};

TEST_P(TuneOf, RecoversAnotherMachinesCosts) {
  const char* gpu = GetParam();
  const cost::Table start = start_of(gpu), right = other(start, 0.2, 0.05);
  const schedule::Workers workers = with(workers_of(gpu), start);
  const std::vector<MeasuredCall> calls = measured(gpu, start, right, 0.01);
  ASSERT_GT(calls.size(), 600U);
  const Tuned tuned = tune(start, calls, workers);
  const std::vector<double> before = errors(calls, workers, start, right);
  const std::vector<double> after = errors(calls, workers, tuned.table, right);
  EXPECT_GT(quantile(before, 0.5), 0.05);
  EXPECT_LT(quantile(after, 0.5), 0.01);
  EXPECT_LT(quantile(after, 0.95), 0.03);
  EXPECT_LT(quantile(after, 0.99), 0.08);
  int certain = 0, far = 0;
  for (const TunedEntry& one : tuned.entries) {
    const double truth = one.entry.in(right);
    if (one.origin == Origin::kKept) {
      EXPECT_EQ(one.after, one.before) << one.entry.name();
    }
    if (one.origin != Origin::kMeasured) continue;
    if (one.deviation > 0.04 * std::abs(truth)) continue;
    ++certain;
    far += std::abs(one.after - truth) > 0.12 * std::abs(truth) ? 1 : 0;
  }
  EXPECT_GT(certain, 40);
  EXPECT_LE(far, certain / 25);
}

INSTANTIATE_TEST_SUITE_P(Gpus, TuneOf, testing::Values("H200", "H20"),
                         [](const auto& one) { return std::string(one.param); });

TEST(Tune, ChangesNothingWhereTimesAreThoseOfTheTable) {
  const cost::Table start = start_of("H200");
  const schedule::Workers workers = with(workers_of("H200"), start);
  const Tuned tuned = tune(start, measured("H200", start, start, 0, "fp8"), workers);
  EXPECT_EQ(cost::to_text(tuned.table), cost::to_text(start));
}

TEST(Tune, AFewBadTimesDoNoHarm) {
  const cost::Table start = start_of("H200"), right = other(start, 0.2, 0.05);
  const schedule::Workers workers = with(workers_of("H200"), start);
  const std::vector<MeasuredCall> good = measured("H200", start, right, 0.01, "mla_16");
  std::vector<MeasuredCall> calls = good;
  for (std::size_t i = 0; i < calls.size(); i += 20) calls[i].nanoseconds *= 3;
  const Tuned tuned = tune(start, calls, workers);
  const std::vector<double> after = errors(good, workers, tuned.table, right);
  EXPECT_LT(quantile(after, 0.5), 0.015);
  EXPECT_LT(quantile(after, 0.9), 0.04);
}

TEST(Tune, CutsFollowTimes) {
  // All constants of times of one kernel by half as much again: what only its cuts go by does the same, and a
  // segment is worth as many blocks.
  const cost::Table start = start_of("H200");
  const schedule::Workers workers = with(workers_of("H200"), start);
  std::vector<MeasuredCall> calls = measured("H200", start, start, 0, "mla_64_roles");
  for (MeasuredCall& call : calls) call.nanoseconds *= 1.5;
  const Tuned tuned = tune(start, calls, workers);
  const auto constant = [](const cost::Table& table, cost::Situation situation) {
    return table.constants[cost::place_of(cost::Kernel::kMla64Roles, situation)];
  };
  const cost::Constants before = constant(start, cost::Tile::kRows64);
  const cost::Constants after = constant(tuned.table, cost::Tile::kRows64);
  EXPECT_NEAR(after.per_block_memory, 1.5 * before.per_block_memory, 0.15 * before.per_block_memory);
  EXPECT_NEAR(static_cast<double>(after.per_split) / after.per_block_memory,
              static_cast<double>(before.per_split) / before.per_block_memory, 0.01);
  // Nothing changes for other kernels.
  for (const TunedEntry& one : tuned.entries) {
    const cost::Kernel kernel = cost::kPlaces[one.entry.place].kernel;
    if (kernel == cost::Kernel::kMla64Roles || kernel == cost::Kernel::kLatent) continue;
    EXPECT_EQ(one.after, one.before) << one.entry.name();
  }
}

TEST(Tune, KernelsAreToldApartWhereTheModelErsForAll) {
  // All times of a shape are off by the same factor, as where a model lacks something that all kernels pay.
  // What remains between them is told.
  const cost::Table start = start_of("H200"), right = other(start, 0.05, 0.05);
  const schedule::Workers workers = with(workers_of("H200"), start);
  std::vector<MeasuredCall> calls = measured("H200", start, right, 0.002, "mla");
  for (MeasuredCall& call : calls) {
    const auto& query = call.call.problem.query;
    const auto shape = static_cast<std::uint64_t>(query.batch * 1000 + query.heads * 10 + query.tokens);
    call.nanoseconds *= std::exp(0.1 * runtime::random_normal(6, shape));
  }
  const Tuned tuned = tune(start, calls, workers);
  const auto wrong_picks = [&](auto said_of) {
    int wrong = 0;
    for (std::size_t first = 0, last = 0; first < calls.size(); first = last) {
      std::size_t fastest = first, picked = first;
      for (last = first; last < calls.size() && calls[last].call.problem == calls[first].call.problem;
           ++last) {
        if (calls[last].nanoseconds < calls[fastest].nanoseconds) fastest = last;
        if (said_of(tuned.calls[last]) < said_of(tuned.calls[picked])) picked = last;
      }
      wrong += calls[picked].nanoseconds > 1.03 * calls[fastest].nanoseconds ? 1 : 0;
    }
    return wrong;
  };
  const int before = wrong_picks([](const TunedCall& call) { return call.before; });
  const int after = wrong_picks([](const TunedCall& call) { return call.after; });
  EXPECT_GT(before, 10);
  EXPECT_LT(after, before / 3);
}

TEST(Tune, ConstantsStayWithinTheirBounds) {
  // Calls that merge take no longer than others: a fit without bounds would have merges take less than
  // nothing.
  const cost::Table start = start_of("H200");
  const schedule::Workers workers = with(workers_of("H200"), start);
  std::vector<MeasuredCall> calls = measured("H200", start, start, 0);
  for (MeasuredCall& call : calls) {
    const auto said = predict(call.call, workers, &start);
    if (said->cut.parts > said->cut.requests) call.nanoseconds *= 0.5;
  }
  const Tuned tuned = tune(start, calls, workers);
  const Result<cost::Table> read = cost::parse_table(cost::to_text(tuned.table));
  ASSERT_TRUE(read.ok()) << read.status().message();
  for (const MeasuredCall& call : calls) EXPECT_TRUE(predict(call.call, workers, &tuned.table));
}

TEST(Tune, ATunedTableIsAFileOfCosts) {
  const cost::Table start = start_of("H20");
  const schedule::Workers workers = with(workers_of("H20"), start);
  const Tuned tuned = tune(start, measured("H20", start, other(start, 0.1, 0.1), 0.01, "gqa"), workers);
  const Result<cost::Table> read = cost::parse_table("# comment\n" + cost::to_text(tuned.table));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(cost::to_text(*read), cost::to_text(tuned.table));
  // No constant is lost: one of 0 is none in a file.
  EXPECT_EQ(entries_of(tuned.table), entries_of(start));
}

}  // namespace
}  // namespace flashlatent::tools
