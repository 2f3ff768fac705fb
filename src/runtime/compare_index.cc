#include "runtime/compare_index.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/index_check.h"
#include "core/message.h"
#include "cpu/index_reference.h"
#include "cpu/parallel.h"

namespace flashlatent::runtime {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kOfMagnitude = 1e-3, kOfProducts = 2e-5;

struct Bounds {
  double low, high;
};

/// What is known of one place of a query token.
struct Place {
  bool exists = false;
  double score = 0, tolerance = 0;

  /// Scores beyond fp32 are infinite there.
  Bounds bounds() const {
    if (!std::isfinite(score) || !std::isfinite(tolerance)) return {score, score};
    return {score - tolerance, score + tolerance};
  }
};

class Row {
 public:
  Row(const IndexCall& call, const IndexRow& row, std::vector<Place> places)
      : call_(call), row_(row), places_(std::move(places)) {}

  /// What is wrong; empty if nothing is.
  std::string check() {
    existing_ = static_cast<int>(
        std::count_if(places_.begin(), places_.end(), [](const Place& p) { return p.exists; }));
    std::string wrong = check_all_scores();
    if (wrong.empty()) wrong = check_indices();
    if (wrong.empty() && call_.best_blocks > 0) wrong = check_best_blocks();
    return wrong;
  }
  double worst_ratio() const { return worst_ratio_; }

 private:
  bool right(double got, const Place& place) {
    if (!std::isfinite(place.score)) return got == place.score;
    if (std::fabs(place.score) > 3.4e38 && std::isinf(got)) return got * place.score > 0;
    const double error = std::fabs(got - place.score);
    if (error > 0) worst_ratio_ = std::max(worst_ratio_, error / place.tolerance);
    return error <= place.tolerance;
  }

  std::string check_all_scores() {
    if (call_.all_scores.data == nullptr) return "";
    const float* all = call_.all_scores.at(row_.request, row_.token);
    for (std::size_t i = 0; i < places_.size(); ++i) {
      if (!places_[i].exists) {
        if (all[i] != -kInfinity)
          return message("all_scores of token ", i, ", which is not there, is ", all[i]);
      } else if (!right(all[i], places_[i])) {
        return message("the score of token ", i, " is ", all[i], ", expected ", places_[i].score, " +- ",
                       places_[i].tolerance);
      }
    }
    return "";
  }

  std::string check_indices() {
    const std::int32_t* indices = call_.indices.at(row_.request, row_.token);
    const int count = std::min(existing_, call_.topk);
    if (call_.counts.data != nullptr && *call_.counts.at(row_.request, row_.token) != count) {
      return message("counts is ", *call_.counts.at(row_.request, row_.token), ", expected ", count);
    }
    const float* scores = call_.scores.data != nullptr ? call_.scores.at(row_.request, row_.token) : nullptr;
    const std::int32_t* blocks = call_.candidates > 0 ? call_.blocks.at(row_.request, row_.token) : nullptr;
    std::vector<bool> chosen(places_.size());
    int place = -1;
    for (int i = 0; i < count; ++i) {
      do {
        ++place;
      } while (place < call_.span &&
               (!places_[place].exists ||
                call_.result(row_.request, static_cast<int>(call_.position(blocks, place))) != indices[i]));
      if (place >= call_.span) {
        return message("indices[", i, "] is ", indices[i],
                       ", which no token behind those before it has for a result");
      }
      chosen[place] = true;
      if (scores != nullptr && !right(scores[i], places_[place])) {
        return message("scores[", i, "] is ", scores[i], ", expected ", places_[place].score, " +- ",
                       places_[place].tolerance);
      }
      if (scores != nullptr && call_.all_scores.data != nullptr &&
          scores[i] != call_.all_scores.at(row_.request, row_.token)[place]) {
        return message("scores[", i, "] differs from the same token's all_scores");
      }
    }
    for (int i = count; i < call_.topk; ++i) {
      if (indices[i] != -1) return message("indices[", i, "] is ", indices[i], " behind ", count, " chosen");
      if (scores != nullptr && scores[i] != -kInfinity) return message("scores[", i, "] is ", scores[i]);
    }
    std::string wrong = check_set("token", chosen, places_);
    if (wrong.empty() && call_.all_scores.data != nullptr) {
      const float* all = call_.all_scores.at(row_.request, row_.token);
      std::vector<std::uint32_t> keys;
      keys.reserve(call_.span);
      for (int i = 0; i < call_.span; ++i) keys.push_back(places_[i].exists ? sortable(all[i]) : kNoToken);
      wrong = check_exact("token", chosen, keys);
    }
    return wrong;
  }

  std::string check_best_blocks() {
    const int size = call_.candidate_block;
    const int visible = row_.count == 0 ? 0 : call_.visible(row_.request, row_.token, row_.own, row_.count);
    const int blocks = (visible + size - 1) / size;
    std::vector<Place> best(blocks);
    std::vector<std::uint32_t> keys(blocks, kNoToken);
    int newest = -1, there = 0;
    for (int i = 0; i < visible; ++i) {
      const Place& place = places_[i];
      if (!place.exists) continue;
      Place& block = best[i / size];
      block.score = block.exists ? std::max(block.score, place.score) : place.score;
      block.tolerance = std::max(block.tolerance, place.tolerance);
      there += !block.exists;
      block.exists = true;
      newest = i / size;
      if (call_.all_scores.data != nullptr) {
        keys[newest] = std::max(keys[newest], sortable(call_.all_scores.at(row_.request, row_.token)[i]));
      }
    }
    if (newest >= 0) {
      best[newest].score = kInfinity;
      keys[newest] = 0xFFFFFFFFU;
    }
    const int count = std::min(there, call_.best_blocks);
    const std::int32_t* got = call_.best.at(row_.request, row_.token);
    std::vector<bool> chosen(blocks);
    int before = -1;
    for (int i = 0; i < call_.best_blocks; ++i) {
      if (i >= count) {
        if (got[i] != -1) return message("best_blocks[", i, "] is ", got[i], " behind ", count, " blocks");
        continue;
      }
      if (got[i] <= before || got[i] >= blocks || !best[got[i]].exists) {
        return message("best_blocks[", i, "] is ", got[i], " behind ", before, "; there are ", blocks);
      }
      before = got[i];
      chosen[before] = true;
    }
    std::string wrong = check_set("block", chosen, best);
    if (wrong.empty() && call_.all_scores.data != nullptr) wrong = check_exact("block", chosen, keys);
    return wrong;
  }

  /// Is no chosen place below one that is not chosen, by more than tolerances?
  static std::string check_set(const char* what, const std::vector<bool>& chosen,
                               const std::vector<Place>& places) {
    int worst = -1, best = -1;
    for (int i = 0; i < static_cast<int>(places.size()); ++i) {
      if (!places[i].exists) continue;
      if (chosen[i]) {
        if (worst < 0 || places[i].bounds().high < places[worst].bounds().high) worst = i;
      } else if (best < 0 || places[i].bounds().low > places[best].bounds().low) {
        best = i;
      }
    }
    if (worst < 0 || best < 0 || places[worst].bounds().high >= places[best].bounds().low) return "";
    return message(what, " ", worst, " of score ", places[worst].score, " is chosen, and ", what, " ", best,
                   " of score ", places[best].score, " is not");
  }

  /// The same of the call's own scores: exactly the largest, of equal ones the first.
  static std::string check_exact(const char* what, const std::vector<bool>& chosen,
                                 const std::vector<std::uint32_t>& keys) {
    std::uint32_t least = 0xFFFFFFFFU;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (chosen[i]) least = std::min(least, keys[i]);
    }
    bool tie_left_out = false;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (keys[i] == kNoToken) continue;
      if (!chosen[i] && keys[i] > least)
        return message(what, " ", i, " is left out, though its score is higher");
      if (keys[i] != least) continue;
      if (chosen[i] && tie_left_out) return message(what, " ", i, " is chosen before an equal, earlier one");
      tie_left_out |= !chosen[i];
    }
    return "";
  }

  const IndexCall& call_;
  const IndexRow row_;
  std::vector<Place> places_;
  int existing_ = 0;
  double worst_ratio_ = 0;
};

std::vector<Place> places_of(const IndexCall& call, std::int64_t row, const float* reference) {
  const std::vector<cpu::IndexScore> scores = cpu::index_scores(call, row);
  std::vector<Place> places(scores.size());
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const auto& [exists, score, magnitude, products] = scores[i];
    places[i] = {exists, reference != nullptr ? double{reference[i]} : score,
                 kOfMagnitude * std::fabs(magnitude) + kOfProducts * std::fabs(products) + 1e-37};
    if (std::isnan(places[i].tolerance)) places[i].tolerance = kInfinity;
  }
  return places;
}

}  // namespace

IndexComparison compare_index(const IndexTopkInputs& inputs, const IndexTopkOptions& options,
                              const IndexTopkOutputs& results, const ConstTensorView& scores_ref) {
  IndexComparison comparison;
  const Result<IndexCall> made = index_call(inputs, results, options, Device{});
  if (!made.ok()) {
    comparison.wrong_rows = 1;
    comparison.worst = made.status().message();
    return comparison;
  }
  const IndexCall& call = *made;
  comparison.rows = call.rows();
  std::vector<std::string> wrong(call.rows());
  std::vector<double> ratios(call.rows());
  cpu::parallel_for_dynamic(call.rows(), cpu::hardware_threads(), [&](std::int64_t i) {
    const float* reference =
        scores_ref.present() ? static_cast<const float*>(scores_ref.data) + i * call.span : nullptr;
    Row row(call, row_of(call, static_cast<int>(i)), places_of(call, i, reference));
    wrong[i] = row.check();
    ratios[i] = row.worst_ratio();
  });
  for (std::int64_t i = 0; i < call.rows(); ++i) {
    comparison.worst_ratio = std::max(comparison.worst_ratio, ratios[i]);
    if (wrong[i].empty()) continue;
    if (comparison.wrong_rows++ == 0) comparison.worst = message("query token ", i, ": ", wrong[i]);
  }
  return comparison;
}

std::string to_string(const IndexComparison& comparison) {
  if (comparison.ok()) {
    return message(comparison.rows, " query tokens right; largest error of a score ", comparison.worst_ratio,
                   " of its tolerance");
  }
  return message(comparison.wrong_rows, " of ", comparison.rows, " query tokens wrong; ", comparison.worst);
}

}  // namespace flashlatent::runtime
