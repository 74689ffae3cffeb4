#include "planner/plan/operator_search.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "planner/search/elimination.h"
#include "planner/search/search.h"

namespace espalier {
namespace {

constexpr int kRounds = 3;
// Budget of placements lowered when memory is short, as the sum of their squared instruction
// counts: offload planning goes over all instructions for each decision.
constexpr double kSquares = 5e6;
constexpr size_t kFewest = 3, kMost = 64;
// The same for points of the Pareto front (ParetoPlacements), which come first.
constexpr int kParetoPoints = 12;

// Of candidates that cannot run, prefers one that lacks memory: it says by how much.
bool IsFaster(const Candidate& a, const Candidate& b) {
  if (a.refused.empty() != b.refused.empty()) return a.refused.empty();
  if (a.lacks_memory != b.lacks_memory) return a.lacks_memory;
  return a.prediction.step_seconds() < b.prediction.step_seconds();
}

bool FitsAsItIs(const Candidate& c) { return c.refused.empty() && c.memory.empty(); }

class OperatorSearch {
 public:
  OperatorSearch(const PlanProblem& problem, const v1::SearchOptions& options,
                 std::vector<Placement> starts, const SearchSpace& space, Planning& planning,
                 v1::SearchSummary* summary)
      : problem_(problem),
        options_(options),
        starts_(std::move(starts)),
        space_(space),
        planning_(planning),
        summary_(*summary) {
    if (options.alpha() > 0) mcmc_.alpha = options.alpha();
    mcmc_.seed = options.seed();
    mcmc_.budget = planning.num_devices() == 1 ? 0
                   : options.has_budget()      ? options.budget()
                                               : DefaultBudget(space);
    mcmc_.progress = problem.progress;
    mcmc_.stop = problem.stop;
    summary_.set_alpha(options.alpha());
    summary_.set_seed(mcmc_.seed);
    summary_.set_budget(mcmc_.budget);
    const double instructions = planning.Instructions(starts_[0]);
    most_ =
        static_cast<size_t>(std::clamp(kSquares / (instructions * instructions),
                                       static_cast<double>(kFewest), static_cast<double>(kMost)));
  }

  absl::StatusOr<SearchedPlans> Run() {
    SearchedPlans plans;
    double fraction = 1.0;
    absl::Status status;
    for (int round = 0; round < kRounds && status.ok(); ++round) {
      // If the memory estimate was too low, the search repeats with a correspondingly lower limit.
      if (round > 0 && problem_.stop && problem_.stop()) break;
      if (round > 0) planning_.LimitMemory(fraction);
      status = SearchOnce(&plans);
      if (!status.ok() || !plans.best.lacks_memory) break;
      double least = 1.0;
      for (int d = 0; d < planning_.num_devices(); ++d) {
        const double memory = static_cast<double>(planning_.machine().devices[d].memory_bytes());
        const double needed = static_cast<double>(plans.best.prediction.peak_bytes(d));
        if (memory > 0 && needed > memory) least = std::min(least, memory / needed);
      }
      fraction *= least * 0.99;
    }
    planning_.LimitMemory(1.0);
    if (!status.ok()) return status;
    return plans;
  }

 private:
  Simulator MakeSimulator() {
    return Simulator(planning_.structure(), planning_.table(), planning_.costs(),
                     options_.only_full_simulation());
  }

  absl::StatusOr<Placement> Find(TopPlacements* top_placements, Simulator* simulator) {
    McmcOptions mcmc = mcmc_;
    mcmc.top_placements = top_placements;
    if (searches_++ > 0) mcmc.progress = nullptr;  // progress would start over
    absl::StatusOr<McmcResult> result =
        FindPlacement(space_, planning_.table(), planning_.costs(), starts_, mcmc, simulator);
    if (!result.ok()) return result.status();
    summary_.set_proposals(summary_.proposals() + result->proposals);
    summary_.set_accepted(summary_.accepted() + result->accepted);
    return std::move(result->best);
  }

  absl::Status SearchOnce(SearchedPlans* plans) {
    Simulator simulator = MakeSimulator();
    const bool priced = planning_.PriceMemory(starts_[0], &simulator);
    TopPlacements top_placements(most_);
    absl::StatusOr<Placement> found = Find(&top_placements, &simulator);
    if (!found.ok()) return found.status();
    // Nothing faster was ruled out by size.
    const bool ample =
        simulator.cost() == simulator.time() &&
        std::none_of(top_placements.all().begin(), top_placements.all().end(),
                     [&](const RankedPlacement& r) { return r.time < simulator.time(); });
    absl::StatusOr<Candidate> first = planning_.Evaluate("searched", *found);
    if (!first.ok()) return first.status();
    plans->best = *std::move(first);
    if (ample && FitsAsItIs(plans->best)) return absl::OkStatus();
    plans->memory_is_short = true;
    return Weigh(*found, top_placements, priced, &simulator, plans);
  }

  // Placements of a search within the limit, if the first exceeded it, and of the Pareto front.
  absl::Status AddOthers(bool priced, Placement* within, std::vector<Placement>* all) {
    if (priced) {
      Simulator strict = MakeSimulator();
      absl::StatusOr<Placement> found = Find(nullptr, &strict);
      if (!found.ok()) return found.status();
      all->push_back(*within = *std::move(found));
    }
    if (space_.has_pins()) return absl::OkStatus();
    absl::StatusOr<std::vector<ParetoPlacement>> front = ParetoPlacements(
        space_, planning_.table(), planning_.costs(), starts_[0], kParetoPoints, problem_.stop);
    if (!front.ok()) return front.status();
    for (ParetoPlacement& point : *front) all->push_back(std::move(point.placement));
    return absl::OkStatus();
  }

  // Lowers the top placements and takes the fastest. `first` is lowered already.
  absl::Status Weigh(const Placement& first, const TopPlacements& found, bool priced,
                     Simulator* simulator, SearchedPlans* plans) {
    std::vector<Placement> others;
    Placement within;
    if (mcmc_.budget > 0) {
      if (absl::Status s = AddOthers(priced, &within, &others); !s.ok()) return s;
    }
    TopPlacements all(most_ + others.size());
    for (const RankedPlacement& runner : found.all()) {
      all.Offer(runner.cost, runner.time, runner.placement);
    }
    for (const Placement& placement : others) {
      if (absl::Status s = simulator->Reset(placement); !s.ok()) return s;
      all.Offer(simulator->cost(), simulator->time(), placement);
    }
    lowered_ = {first};
    std::optional<Candidate> strict;
    for (const RankedPlacement& runner : all.all()) {
      const bool is_strict = runner.placement == within;
      // The memory penalty adds to the time.
      if (!is_strict && (Enough(most_) || ToSeconds(runner.time) >= Fastest(*plans))) continue;
      absl::StatusOr<std::optional<Candidate>> made = Lower(runner.placement, plans);
      if (!made.ok()) return made.status();
      if (is_strict && made->has_value() && FitsAsItIs(**made)) strict = **made;
    }
    if (absl::Status s = Refine(simulator, plans); !s.ok()) return s;
    plans->others.clear();
    if (strict.has_value() && IsFaster(plans->best, *strict)) {
      strict->name = "without swaps and recomputation";
      plans->others.push_back(*std::move(strict));
    }
    return absl::OkStatus();
  }

  // For small graphs: local search from the best by lowered time, one operator at a time.
  absl::Status Refine(Simulator* simulator, SearchedPlans* plans) {
    if (most_ < kMost || mcmc_.budget == 0) return absl::OkStatus();
    for (bool improved = true; improved && !Enough(2 * most_);) {
      improved = false;
      const Placement best = plans->best.placement;
      if (absl::Status s = simulator->Reset(best); !s.ok()) return s;
      TopPlacements near(most_);
      for (NodeId n : space_.nodes()) {
        for (const NodeConfig& config : space_.All(n)) {
          const ConfigEntry* entry = planning_.table().Get(n, config);
          if (entry == best[n]) continue;
          absl::StatusOr<Picoseconds> cost = simulator->Propose({{n, entry}});
          if (!cost.ok()) return cost.status();
          if (ToSeconds(simulator->time()) < Fastest(*plans)) {
            near.Offer(*cost, simulator->time(), simulator->placement());
          }
          simulator->Reject();
        }
      }
      for (const RankedPlacement& runner : near.all()) {
        if (Enough(2 * most_)) break;
        const double before = Fastest(*plans);
        absl::StatusOr<std::optional<Candidate>> made = Lower(runner.placement, plans);
        if (!made.ok()) return made.status();
        improved = Fastest(*plans) < before;
        if (improved) break;
      }
    }
    return absl::OkStatus();
  }

  bool Enough(size_t most) const {
    return lowered_.size() >= most || (problem_.stop && problem_.stop());
  }

  static double Fastest(const SearchedPlans& plans) {
    return plans.best.refused.empty() ? plans.best.prediction.step_seconds()
                                      : std::numeric_limits<double>::max();
  }

  // Skips placements lowered before; keeps the faster as the best.
  absl::StatusOr<std::optional<Candidate>> Lower(const Placement& placement, SearchedPlans* plans) {
    if (!lowered_.insert(placement).second) return std::optional<Candidate>();
    absl::StatusOr<Candidate> made = planning_.Evaluate("searched", placement);
    if (!made.ok()) return made.status();
    if (IsFaster(*made, plans->best)) plans->best = *made;
    return std::optional<Candidate>(*std::move(made));
  }

  const PlanProblem& problem_;
  const v1::SearchOptions& options_;
  const std::vector<Placement> starts_;
  const SearchSpace& space_;
  Planning& planning_;
  v1::SearchSummary& summary_;
  McmcOptions mcmc_;
  size_t most_ = 0;  // placements that are lowered
  int searches_ = 0;
  std::set<Placement> lowered_;  // in one round
};

}  // namespace

absl::StatusOr<SearchedPlans> SearchOperators(const PlanProblem& problem,
                                              const v1::SearchOptions& options,
                                              std::vector<Placement> starts,
                                              const std::vector<NodeConfig>& pinned,
                                              Planning& planning, v1::SearchSummary* summary) {
  for (Placement& start : starts) {
    for (size_t n = 0; n < pinned.size(); ++n) {
      if (pinned[n].devices.empty()) continue;
      start[n] = planning.table().Get(static_cast<NodeId>(n), pinned[n]);
    }
  }
  SpaceOptions space_options;
  space_options.pinned = pinned;
  space_options.num_devices = planning.num_devices();
  space_options.parameter_parallel = !options.disable_parameter_parallel();
  space_options.attribute_parallel = !options.disable_attribute_parallel();
  const SearchSpace space(planning.structure(), space_options);
  return OperatorSearch(problem, options, std::move(starts), space, planning, summary).Run();
}

}  // namespace espalier
