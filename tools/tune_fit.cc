#include "tools/tune_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "cost/model.h"
#include "cost/table_file.h"
#include "cost/times.h"
#include "plan/geometries.h"

namespace flashlatent::tools {

namespace {

// Errors in the sense of least squares: of a time, which is modelled so well; of how much longer a kernel
// takes than the fastest one, by which kernels are picked; and of a constant, which is known so well before
// anything is measured. Chosen by cross-validation over the shapes of an H200's run (docs/log/plans.md).
constexpr double kTimeError = 0.05, kPairError = 0.01, kStartError = 0.05;
constexpr double kNearRival = 1.25;   // Slower kernels are not compared: their estimates need not be close.
constexpr double kLinear = 0.05;      // From here on an error counts in proportion to itself.
constexpr double kLeastScale = 1000;  // Nanoseconds: constants near 0 are no better known than this.
constexpr double kLongestStep = 0.3, kShortestStep = 2e-3;
constexpr double kLeastGain = 1e-3;  // The part of the sum of squares, in a step.
constexpr int kMostSteps = 20, kMostHalvings = 4;
// The fit may shrink and grow the time of a block by these factors at most.
constexpr double kLeastOfBlock = 0.25, kMostOfBlock = 4;
// To see on which constants a time depends.
constexpr double kProbe = 0.03, kLeastProbe = 20;

bool is_block(const Entry& entry) {
  const std::string_view name = cost::fields()[entry.field].name;
  return name.find("block") != std::string_view::npos;
}

/// By how much a constant is changed to see what depends on it. Less where more changes the cut.
std::array<std::int32_t, 4> probes(double constant) {
  const auto most = static_cast<std::int32_t>(std::max(kProbe * std::abs(constant), kLeastProbe));
  return {most, -most, most / 4, -most / 4};
}

/// May costs of this place be those of the kernel?
bool is_of(const cost::Place& place, std::string_view kernel) {
  return place.kernel == cost::Kernel::kLatent ||
         kernel.starts_with(cost::kKernelNames[static_cast<std::size_t>(place.kernel)]);
}

double scale_of(double constant) {
  return std::max(std::abs(constant), kLeastScale);
}

/// What a model says of a call: a time, or what cuts go by.
enum class Said { kTime, kForCut };
double said_by(const Predicted& p, Said said) {
  return said == Said::kTime ? p.time : p.for_cut;
}

/// Solves a x = b for a symmetric positive matrix, by Cholesky; `a` becomes its factor.
class Solver {
 public:
  explicit Solver(std::vector<std::vector<double>> a) : a_(std::move(a)) {
    const std::size_t n = a_.size();
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j <= i; ++j) {
        double sum = a_[i][j];
        for (std::size_t k = 0; k < j; ++k) sum -= a_[i][k] * a_[j][k];
        a_[i][j] = i == j ? std::sqrt(std::max(sum, 1e-12)) : sum / a_[j][j];
      }
    }
  }

  std::vector<double> solve(std::vector<double> x) const {
    const std::size_t n = a_.size();
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t k = 0; k < i; ++k) x[i] -= a_[i][k] * x[k];
      x[i] /= a_[i][i];
    }
    for (std::size_t i = n; i-- > 0;) {
      for (std::size_t k = i + 1; k < n; ++k) x[i] -= a_[k][i] * x[k];
      x[i] /= a_[i][i];
    }
    return x;
  }

  /// The i-th element of the inverse's diagonal.
  double of_inverse(std::size_t i) const {
    std::vector<double> unit(a_.size());
    unit[i] = 1;
    return solve(std::move(unit))[i];
  }

 private:
  std::vector<std::vector<double>> a_;
};

/// A place's time of a block.
double block_of(const cost::Constants& c) {
  return std::max({c.per_block, c.per_block_memory, c.per_block_products, 0});
}

/// Segments and merges that no time depends on: they are worth as many blocks as at the start, so that cuts
/// fall where they fell.
struct Followers {
  cost::Table start = {};
  std::vector<Entry> entries = {};

  void follow(cost::Table& table) const {
    for (const Entry& entry : entries) {
      const double before = block_of(start.constants[entry.place]);
      const double after = block_of(table.constants[entry.place]);
      if (before > 0) {
        entry.in(table) = static_cast<std::int32_t>(std::lround(entry.in(start)*after / before));
      }
    }
  }
};

/// A constant that is fitted, and how the model's word of a call changes with it.
struct Slope {
  std::size_t unknown;
  double slope;
};

/// A call, and what the model ought to say of it.
struct Row {
  const KernelCall* call;
  schedule::Geometry cut;  ///< As it was measured.
  double target;
  /// The fastest row of the same shape, if this one is not much slower; itself: none.
  std::size_t rival = 0;
  bool known = false;  ///< Has a table cut it in this way?
  // Where this was so last: what the model said, at these values of the constants with slopes.
  double said = 0;
  std::vector<Slope> slopes = {};
  std::vector<double> at = {};
  std::vector<std::size_t> likely = {};  ///< Unknowns that may have slopes.
};

/// Fits the constants `unknowns` of a table.
class Fit {
 public:
  Fit(cost::Table table, std::vector<Entry> unknowns, std::vector<Row> rows, Said said,
      const schedule::Workers& workers, Followers followers = {})
      : table_(std::move(table)),
        unknowns_(std::move(unknowns)),
        rows_(std::move(rows)),
        said_(said),
        workers_(workers),
        followers_(std::move(followers)) {
    for (const Entry& entry : unknowns_) {
      values_.push_back(entry.in(table_));
      scales_.push_back(scale_of(values_.back()));
    }
    first_ = values_;
  }

  void run() {
    if (unknowns_.empty()) return;
    find_slopes();
    double error = error_of(words());
    for (int step = 0; step < kMostSteps; ++step) {
      std::vector<double> by = direction();
      double longest = 0;
      for (double& x : by) {
        x = std::clamp(x, -kLongestStep, kLongestStep);
        longest = std::max(longest, std::abs(x));
      }
      if (longest < kShortestStep) break;
      const std::vector<double> before = values_;
      bool better = false;
      for (int half = 0; half <= kMostHalvings && !better; ++half) {
        for (std::size_t j = 0; j < values_.size(); ++j) {
          set(j, before[j] + by[j] * scales_[j] / static_cast<double>(1 << half));
        }
        better = error_of(words()) < error;
      }
      if (!better) {
        for (std::size_t j = 0; j < values_.size(); ++j) set(j, before[j]);
        break;
      }
      find_slopes();
      const double then = error_of(words());
      if (then <= error && then > (1 - kLeastGain) * error) break;
      error = then;
    }
  }

  cost::Table table() const {
    cost::Table table = table_;
    followers_.follow(table);
    return table;
  }

  /// For each unknown, how many calls depend on it.
  std::vector<int> uses() const {
    std::vector<int> uses(unknowns_.size());
    for (const Row& row : rows_) {
      for (const Slope& slope : row.slopes) ++uses[slope.unknown];
    }
    return uses;
  }

  std::vector<double> deviations() const {
    std::vector<double> deviations;
    if (unknowns_.empty()) return deviations;
    std::vector<double> unused;
    const Solver solver(normal_matrix(unused));
    for (std::size_t j = 0; j < unknowns_.size(); ++j) {
      deviations.push_back(std::sqrt(solver.of_inverse(j)) * scales_[j]);
    }
    return deviations;
  }

 private:
  void set(std::size_t j, double value) {
    if (is_block(unknowns_[j]) && first_[j] > 0) {
      value = std::clamp(value, kLeastOfBlock * first_[j], kMostOfBlock * first_[j]);
    }
    if (!cost::fields()[unknowns_[j].field].may_be_negative) value = std::max(value, 1.0);
    // 0 is no constant in a table.
    auto rounded = static_cast<std::int32_t>(std::lround(value));
    if (rounded == 0) rounded = first_[j] < 0 ? -1 : 1;
    values_[j] = rounded;
    unknowns_[j].in(table_) = rounded;
  }

  std::optional<double> word(const Row& row, const cost::Table& table) const {
    cost::Table followed = table;
    followers_.follow(followed);
    const auto predicted = predict(*row.call, workers_, &followed);
    if (!predicted || !is_same_cut(predicted->cut, row.cut)) return std::nullopt;
    return said_by(*predicted, said_);
  }

  /// What the model says of each call. Where the table now cuts it in another way: in a straight line from
  /// the last one that did not. Negative: nothing is known.
  std::vector<double> words() const {
    std::vector<double> words;
    for (const Row& row : rows_) {
      double said = row.known ? row.said : -1;
      if (!row.known) {
        // Not yet: an error that comes and goes with the cut would stop steps.
      } else if (const auto now = word(row, table_)) {
        said = *now;
      } else {
        for (std::size_t k = 0; k < row.slopes.size(); ++k) {
          said += row.slopes[k].slope * (values_[row.slopes[k].unknown] - row.at[k]);
        }
        said = std::max(said, 1.0);
      }
      words.push_back(said);
    }
    return words;
  }

  /// How the model's word of a call changes with an unknown; 0: it does not, or the cut changes, too.
  double slope_of(const Row& row, double now, std::size_t j, cost::Table& probe) const {
    std::int32_t& constant = unknowns_[j].in(probe);
    const std::int32_t kept = constant;
    double slope = 0;
    for (const std::int32_t by : probes(values_[j])) {
      constant = kept + by;
      const auto then = word(row, probe);
      if (then) slope = (*then - now) / by;
      if (slope != 0) break;
    }
    constant = kept;
    return slope;
  }

  void find_slopes() {
    cost::Table probe = table_;
    for (Row& row : rows_) {
      const auto now = word(row, table_);
      if (!now) continue;
      if (!row.known) {
        for (std::size_t j = 0; j < unknowns_.size(); ++j) {
          if (is_of(cost::kPlaces[unknowns_[j].place], row.call->kernel)) row.likely.push_back(j);
        }
      }
      row.said = *now;
      row.slopes.clear();
      row.at.clear();
      std::vector<std::size_t> likely;
      for (const std::size_t j : row.likely) {
        const double slope = slope_of(row, *now, j, probe);
        if (slope != 0) {
          row.slopes.push_back({j, slope});
          row.at.push_back(values_[j]);
        }
        // A block has several times, and another one of them may become the longest.
        if (slope != 0 || is_block(unknowns_[j])) likely.push_back(j);
      }
      if (!row.known) row.likely = std::move(likely);
      row.known = true;
    }
  }

  /// What ought to be 0, over how well it is known: of a row, or of a row beside its rival.
  struct Residual {
    double error, deviation;
    std::size_t row, rival;  ///< The same: of a row alone.
  };
  std::vector<Residual> residuals(const std::vector<double>& words) const {
    std::vector<Residual> all;
    const auto error = [&](std::size_t i) { return words[i] / rows_[i].target - 1; };
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (words[i] < 0) continue;
      all.push_back({error(i), kTimeError, i, i});
      const std::size_t rival = rows_[i].rival;
      if (rival != i && words[rival] >= 0) all.push_back({error(i) - error(rival), kPairError, i, rival});
    }
    return all;
  }

  /// How the error of a row changes with each unknown over its scale.
  void add_slopes(std::size_t row, double factor, std::vector<std::pair<std::size_t, double>>& slopes) const {
    for (const Slope& s : rows_[row].slopes) {
      slopes.emplace_back(s.unknown, factor * s.slope * scales_[s.unknown] / rows_[row].target);
    }
  }

  static double weight_of(double error) { return std::min(1.0, kLinear / std::max(std::abs(error), 1e-9)); }

  double error_of(const std::vector<double>& words) const {
    double sum = 0;
    for (const Residual& r : residuals(words)) {
      const double far = std::abs(r.error);
      sum += (far <= kLinear ? far * far : kLinear * (2 * far - kLinear)) / (r.deviation * r.deviation);
    }
    for (std::size_t j = 0; j < values_.size(); ++j) {
      const double moved = (values_[j] - first_[j]) / scales_[j] / kStartError;
      sum += moved * moved;
    }
    return sum;
  }

  /// The normal matrix, in constants over their scales; `right`: what the matrix times a step should be.
  std::vector<std::vector<double>> normal_matrix(std::vector<double>& right) const {
    const std::size_t n = unknowns_.size();
    std::vector<std::vector<double>> matrix(n, std::vector<double>(n));
    right.assign(n, 0);
    for (std::size_t j = 0; j < n; ++j) {
      matrix[j][j] = 1 / (kStartError * kStartError);
      right[j] = -(values_[j] - first_[j]) / scales_[j] / (kStartError * kStartError);
    }
    std::vector<std::pair<std::size_t, double>> slopes;
    for (const Residual& r : residuals(words())) {
      slopes.clear();
      add_slopes(r.row, 1, slopes);
      if (r.rival != r.row) add_slopes(r.rival, -1, slopes);
      const double weight = weight_of(r.error) / (r.deviation * r.deviation);
      for (const auto& [a, of_a] : slopes) {
        right[a] -= weight * of_a * r.error;
        for (const auto& [b, of_b] : slopes) matrix[a][b] += weight * of_a * of_b;
      }
    }
    return matrix;
  }

  std::vector<double> direction() const {
    std::vector<double> right;
    const Solver solver(normal_matrix(right));
    return solver.solve(std::move(right));
  }

  cost::Table table_;
  const std::vector<Entry> unknowns_;
  std::vector<Row> rows_;
  const Said said_;
  const schedule::Workers workers_;
  const Followers followers_;
  std::vector<double> values_, first_, scales_;
};

/// The table with each kernel's constants `entries` times one factor, by which its calls took longer in the
/// middle. So the fit begins near another machine's costs, and its constants need not be far from where they
/// began.
cost::Table level(cost::Table table, const std::vector<Entry>& entries, const std::vector<Row>& rows,
                  const schedule::Workers& workers) {
  std::map<std::string_view, std::vector<double>> ratios;
  for (const Row& row : rows) {
    const auto said = predict(*row.call, workers, &table);
    if (said && is_same_cut(said->cut, row.cut)) ratios[row.call->kernel].push_back(row.target / said->time);
  }
  for (auto& [kernel, all] : ratios) {
    const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
    std::nth_element(all.begin(), middle, all.end());
    for (const Entry& entry : entries) {
      if (kernel != cost::kKernelNames[static_cast<std::size_t>(cost::kPlaces[entry.place].kernel)]) continue;
      std::int32_t& constant = entry.in(table);
      const auto scaled = static_cast<std::int32_t>(std::lround(constant * *middle));
      constant = scaled != 0 ? scaled : constant;
    }
  }
  return table;
}

/// Pairs rows with the fastest of their shape.
void set_rivals(std::vector<Row>& rows) {
  const auto same_shape = [](const KernelCall& a, const KernelCall& b) {
    return a.problem == b.problem && a.purpose == b.purpose;
  };
  for (std::size_t first = 0, last = 0; first < rows.size(); first = last) {
    std::size_t fastest = first;
    for (last = first; last < rows.size() && same_shape(*rows[first].call, *rows[last].call); ++last) {
      if (rows[last].target < rows[fastest].target) fastest = last;
    }
    for (std::size_t i = first; i < last; ++i) {
      if (rows[i].target < kNearRival * rows[fastest].target) rows[i].rival = fastest;
    }
  }
}

/// The entries on which the model's word of a call depends.
std::vector<bool> used_by(const KernelCall& call, const schedule::Workers& workers, const cost::Table& table,
                          std::span<const Entry> entries, Said said) {
  std::vector<bool> used(entries.size());
  const auto now = predict(call, workers, &table);
  if (!now) return used;
  cost::Table probe = table;
  for (std::size_t j = 0; j < entries.size(); ++j) {
    if (!is_of(cost::kPlaces[entries[j].place], call.kernel)) continue;
    std::int32_t& constant = entries[j].in(probe);
    const std::int32_t kept = constant;
    for (const std::int32_t by : probes(kept)) {
      if (used[j]) break;
      constant = kept + by;
      const auto then = predict(call, workers, &probe);
      if (then && is_same_cut(then->cut, now->cut)) {
        used[j] = said_by(*then, said) != said_by(*now, said);
      }
    }
    constant = kept;
  }
  return used;
}

}  // namespace

std::string Entry::name() const {
  return cost::name_of(cost::kPlaces[place]) + " " + cost::fields()[field].name;
}

std::int32_t& Entry::in(cost::Table& table) const {
  return table.constants[place].*cost::fields()[field].member;
}

std::int32_t Entry::in(const cost::Table& table) const {
  return table.constants[place].*cost::fields()[field].member;
}

std::vector<Entry> entries_of(const cost::Table& table) {
  std::vector<Entry> entries;
  for (std::size_t place = 0; place < cost::kPlaces.size(); ++place) {
    for (std::size_t field = 0; field < cost::fields().size(); ++field) {
      const Entry entry = {place, field};
      if (entry.in(table) != 0) entries.push_back(entry);
    }
  }
  return entries;
}

std::vector<Entry> entries_of_time(const KernelCall& call, const schedule::Workers& workers,
                                   const cost::Table& table) {
  const std::vector<Entry> all = entries_of(table);
  const std::vector<bool> used = used_by(call, workers, table, all, Said::kTime);
  std::vector<Entry> entries;
  for (std::size_t j = 0; j < all.size(); ++j) {
    if (used[j]) entries.push_back(all[j]);
  }
  return entries;
}

const char* to_string(Origin origin) {
  switch (origin) {
    case Origin::kMeasured:
      return "measured";
    case Origin::kFollowed:
      return "followed";
    case Origin::kKept:
      break;
  }
  return "kept";
}

std::optional<Predicted> predict(const KernelCall& call, const schedule::Workers& workers,
                                 const cost::Table* table) {
  schedule::Workers own = workers;
  own.costs = table;
  Executor executor;
  executor.backend = Backend::kCuda;
  executor.kernel = call.kernel;
  const Result<std::vector<Candidate>> list = candidates(call.problem, executor, own, call.purpose);
  if (!list.ok()) return std::nullopt;
  const Candidate* one = cheapest(*list);
  if (one == nullptr || one->geometry.cost.per_call >= cost::kNever.per_call) return std::nullopt;
  return Predicted{.cut = one->geometry,
                   .time = static_cast<double>(one->times.equal),
                   .for_cut = static_cast<double>(schedule::estimate(one->geometry))};
}

bool is_same_cut(const schedule::Geometry& a, const schedule::Geometry& b) {
  const auto key = [](const schedule::Geometry& g) {
    return std::tuple(g.partition, g.requests, g.parts, g.lanes, g.rounds, g.tile_rows, g.block_tokens,
                      g.fixed_split, g.team, schedule::stays_whole(g),
                      g.requests > 0 ? cost::single_shares(g) : 0);
  };
  return key(a) == key(b);
}

Tuned tune(const cost::Table& start, std::span<const MeasuredCall> calls, const schedule::Workers& workers) {
  const std::vector<Entry> entries = entries_of(start);
  std::vector<Row> rows;
  std::vector<bool> by_time(entries.size()), by_cut(entries.size());
  for (const MeasuredCall& measured : calls) {
    const auto held = predict(measured.call, workers, workers.costs);
    if (!held) continue;
    rows.push_back(
        {.call = &measured.call, .cut = held->cut, .target = measured.nanoseconds, .rival = rows.size()});
    for (const Said said : {Said::kTime, Said::kForCut}) {
      const std::vector<bool> used = used_by(measured.call, workers, start, entries, said);
      std::vector<bool>& all = said == Said::kTime ? by_time : by_cut;
      for (std::size_t j = 0; j < used.size(); ++j) all[j] = all[j] || used[j];
    }
  }
  set_rivals(rows);
  // A block takes the longest of several constants: each of these may come to be it.
  const std::vector<bool> times_now = by_time, cuts_now = by_cut;
  for (std::size_t j = 0; j < entries.size(); ++j) {
    for (std::size_t k = 0; k < entries.size(); ++k) {
      if (entries[j].place != entries[k].place || !is_block(entries[j]) || !is_block(entries[k])) continue;
      by_time[j] = by_time[j] || times_now[k];
      by_cut[j] = by_cut[j] || cuts_now[k];
    }
  }
  // First what times depend on.
  Tuned tuned;
  std::vector<Entry> of_times, of_cuts;
  for (std::size_t j = 0; j < entries.size(); ++j) {
    if (by_time[j]) of_times.push_back(entries[j]);
    if (!by_time[j] && by_cut[j] && is_block(entries[j])) of_cuts.push_back(entries[j]);
  }
  Fit times(level(start, of_times, rows, workers), of_times, rows, Said::kTime, workers);
  times.run();
  // Then blocks that only cuts go by: an estimate for cuts changes as the time did.
  for (Row& row : rows) {
    const auto before = predict(*row.call, workers, &start);
    if (before && is_same_cut(before->cut, row.cut)) row.target *= before->for_cut / before->time;
  }
  Followers followers = {.start = start};
  for (std::size_t j = 0; j < entries.size(); ++j) {
    const std::string_view field = cost::fields()[entries[j].field].name;
    if (by_time[j] || (field != "per_split" && field != "per_merge")) continue;
    if (block_of(start.constants[entries[j].place]) > 0) followers.entries.push_back(entries[j]);
  }
  Fit cuts(times.table(), of_cuts, rows, Said::kForCut, workers, followers);
  cuts.run();
  tuned.table = cuts.table();
  std::vector<Entry> followed = of_cuts;
  followed.insert(followed.end(), followers.entries.begin(), followers.entries.end());
  const std::vector<int> uses = times.uses();
  const std::vector<double> deviations = times.deviations();
  for (std::size_t j = 0; j < entries.size(); ++j) {
    TunedEntry one = {.entry = entries[j],
                      .before = entries[j].in(start),
                      .after = entries[j].in(std::as_const(tuned.table))};
    const auto at = std::find(of_times.begin(), of_times.end(), entries[j]);
    if (at != of_times.end() && (one.after != one.before || uses[at - of_times.begin()] > 0)) {
      one.origin = Origin::kMeasured;
      one.calls = uses[at - of_times.begin()];
      one.deviation = deviations[at - of_times.begin()];
    } else if (std::find(followed.begin(), followed.end(), entries[j]) != followed.end() &&
               (one.after != one.before || cuts_now[j])) {
      one.origin = Origin::kFollowed;
    }
    tuned.entries.push_back(one);
  }
  for (const MeasuredCall& measured : calls) {
    TunedCall call;
    const auto held = predict(measured.call, workers, workers.costs);
    const auto before = predict(measured.call, workers, &start);
    const auto after = predict(measured.call, workers, &tuned.table);
    if (held && before && is_same_cut(held->cut, before->cut)) call.before = before->time;
    if (held && after && is_same_cut(held->cut, after->cut)) call.after = after->time;
    tuned.calls.push_back(call);
  }
  return tuned;
}

}  // namespace flashlatent::tools
