#include "planner/memory/offload_recompute.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

// Number of candidates of each kind to simulate before taking one. Long programs get fewer: each
// simulation takes longer and each tensor matters less.
constexpr size_t kShortlist = 4;
constexpr int kLong = 2000;  // steps

class Planner {
 public:
  Planner(const OffloadProblem& problem, const OffloadSettings& settings)
      : settings_(settings),
        seconds_(problem.seconds),
        tensors_(problem.tensors),
        fixed_(problem.fixed_bytes),
        limit_(problem.limit),
        steps_(static_cast<int>(problem.seconds.size())),
        on_host_(problem.tensors.size(), false),
        gaps_(problem.tensors.size()) {}

  OffloadPlan Run() {
    OffloadPlan plan;
    Simulate();
    while (true) {
      const int worst = FullestStep();
      if (worst < 0) break;
      if (!EvictOne(worst)) {
        ReportFailure(worst, /*all=*/true, &plan);
        break;
      }
    }
    plan.peak_bytes = steps_ == 0 ? fixed_ : *std::max_element(live_.begin(), live_.end());
    plan.seconds = total_;
    for (Decision& d : decisions_) plan.evictions.push_back(d.eviction);
    std::stable_sort(plan.evictions.begin(), plan.evictions.end(),
                     [](const Eviction& a, const Eviction& b) { return a.before < b.before; });
    for (size_t t = 0; t < tensors_.size(); ++t) {
      if (on_host_[t]) plan.host_bytes += tensors_[t].bytes;
    }
    return plan;
  }

  OffloadPlan LargestStep() const {
    OffloadPlan plan;
    std::vector<int64_t> bytes(steps_, fixed_);
    for (const OffloadTensor& t : tensors_) {
      for (int k : t.uses) bytes[k] += t.bytes;
    }
    const auto most = std::max_element(bytes.begin(), bytes.end());
    plan.peak_bytes = most == bytes.end() ? fixed_ : *most;
    if (plan.peak_bytes > limit_ && most != bytes.end()) {
      ReportFailure(static_cast<int>(most - bytes.begin()), /*all=*/false, &plan);
    }
    return plan;
  }

 private:
  struct Decision {
    Eviction eviction;
    int must_from = 0, must_to = 0;  // steps in which its memory must be free, inclusive
  };

  // Reports the tensors that step `failing_step` uses and, if `all`, everything else resident in
  // it.
  void ReportFailure(int failing_step, bool all, OffloadPlan* plan) const {
    std::vector<int>& resident = plan->resident;
    int64_t bytes = fixed_;
    for (int t = 0; t < static_cast<int>(tensors_.size()); ++t) {
      const std::vector<int>& uses = tensors_[t].uses;
      const bool used = std::binary_search(uses.begin(), uses.end(), failing_step);
      if (!used && !(all && IsResident(t, failing_step))) continue;
      resident.push_back(t);
      bytes += tensors_[t].bytes;
    }
    std::stable_sort(resident.begin(), resident.end(),
                     [&](int a, int b) { return tensors_[a].bytes > tensors_[b].bytes; });
    plan->failing_step = failing_step;
    plan->problem = absl::StrCat(
        "step ", failing_step, " needs ", all ? live_[failing_step] : bytes, " bytes of ", limit_,
        ", and nothing more of it can be evicted: its operands, and what is always resident (",
        fixed_, " bytes), must be there at once");
  }

  double CopySeconds(int tensor) const {
    return settings_.host_latency +
           static_cast<double>(tensors_[tensor].bytes) / settings_.host_bandwidth;
  }

  // Returns the fullest step over the limit, or -1.
  int FullestStep() {
    std::vector<int64_t> change(steps_ + 1, 0);
    for (const OffloadTensor& t : tensors_) {
      if (t.uses.empty()) continue;
      change[t.uses.front()] += t.bytes;
      change[t.uses.back() + 1] -= t.bytes;
    }
    for (const Decision& d : decisions_) {
      change[d.eviction.away] -= tensors_[d.eviction.tensor].bytes;
      change[d.eviction.back] += tensors_[d.eviction.tensor].bytes;
    }
    live_.assign(steps_, 0);
    int64_t now = fixed_;
    int worst = -1;
    for (int k = 0; k < steps_; ++k) {
      now += change[k];
      live_[k] = now;
      if (now > limit_ && (worst < 0 || now > live_[worst])) worst = k;
    }
    return worst;
  }

  // Whether tensor `t` is alive and not evicted in step `k`.
  bool IsResident(int t, int k) const {
    const std::vector<int>& uses = tensors_[t].uses;
    if (uses.empty() || k < uses.front() || k > uses.back()) return false;
    return std::none_of(gaps_[t].begin(), gaps_[t].end(), [&](const std::pair<int, int>& gap) {
      return gap.first < k && k < gap.second;
    });
  }

  int Gap() const { return std::max(settings_.swapout_threshold, settings_.swapin_groupby); }

  // Takes the decision with the least time per byte freed. Returns false if there is none.
  bool EvictOne(int worst) {
    struct Candidate {
      Decision decision;
      int extends = -1;  // or: the decision to extend
      double guess = 0;  // estimated seconds added, ignoring other copies
    };
    std::vector<Candidate> swaps, recomputes, extensions;
    for (size_t i = 0; i < decisions_.size(); ++i) {
      const Eviction& a = decisions_[i].eviction;
      if (a.after < worst && worst < a.before && (worst < a.away || worst >= a.back)) {
        Candidate c{decisions_[i], static_cast<int>(i), CopySeconds(a.tensor)};
        c.decision.must_from = std::min(c.decision.must_from, worst);
        c.decision.must_to = std::max(c.decision.must_to, worst);
        extensions.push_back(c);
      }
    }
    for (int t = 0; t < static_cast<int>(tensors_.size()); ++t) {
      const OffloadTensor& tensor = tensors_[t];
      if (tensor.bytes == 0 || !IsResident(t, worst)) continue;
      const auto next = std::lower_bound(tensor.uses.begin(), tensor.uses.end(), worst);
      if (next == tensor.uses.begin() || next == tensor.uses.end() || *next == worst) continue;
      Decision d;
      d.eviction = {t, *std::prev(next), *next};
      d.must_from = d.must_to = worst;
      const double room =
          starts_[d.eviction.before] - (starts_[d.eviction.after] + seconds_[d.eviction.after]);
      if (settings_.swap && tensor.can_swap && HostHasSpace(t) &&
          d.eviction.before - d.eviction.after > Gap()) {
        swaps.push_back({d, -1, std::max(0.0, 2 * CopySeconds(t) - room)});
      }
      if (settings_.recompute && CanRecompute(tensor, d.eviction)) {
        d.eviction.recompute = true;
        recomputes.push_back({d, -1, seconds_[tensor.producer]});
      }
    }
    std::vector<Candidate> best;
    for (std::vector<Candidate>* kind : {&swaps, &recomputes, &extensions}) {
      const auto per_byte = [&](const Candidate& c) {
        return c.guess / static_cast<double>(tensors_[c.decision.eviction.tensor].bytes);
      };
      std::stable_sort(kind->begin(), kind->end(), [&](const Candidate& a, const Candidate& b) {
        const double x = per_byte(a), y = per_byte(b);
        if (x != y) return x < y;
        return tensors_[a.decision.eviction.tensor].bytes >
               tensors_[b.decision.eviction.tensor].bytes;
      });
      const size_t shortlist = steps_ > kLong ? 1 : kShortlist;
      if (kind->size() > shortlist) kind->resize(shortlist);
      best.insert(best.end(), kind->begin(), kind->end());
    }
    const double before = total_;
    const std::vector<Decision> decisions = decisions_;
    const std::vector<double> starts = starts_;
    int chosen = -1;
    double chosen_cost = 0;
    for (size_t i = 0; i < best.size(); ++i) {
      Take(best[i].decision, best[i].extends);
      // Only bytes still over the limit count. Of two candidates that cost nothing, prefer the
      // larger.
      const double bytes = static_cast<double>(tensors_[best[i].decision.eviction.tensor].bytes);
      const double cost = (total_ - before + 1e-7) / bytes;
      if (chosen < 0 || cost < chosen_cost) {
        chosen = static_cast<int>(i);
        chosen_cost = cost;
      }
      decisions_ = decisions;
      starts_ = starts;
    }
    total_ = before;
    if (chosen < 0) return false;
    const Candidate& c = best[chosen];
    Take(c.decision, c.extends);
    if (c.extends < 0) AddUses(c.decision.eviction);
    return true;
  }

  bool HostHasSpace(int t) const {
    if (settings_.host_bytes <= 0 || on_host_[t]) return true;
    int64_t bytes = tensors_[t].bytes;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (on_host_[i]) bytes += tensors_[i].bytes;
    }
    return bytes <= settings_.host_bytes;
  }

  // Everything that the producer reads must be resident and unchanged before `before`, without its
  // lifetime being extended.
  bool CanRecompute(const OffloadTensor& tensor, const Eviction& eviction) const {
    if (tensor.producer < 0 || tensor.last_write != tensor.producer ||
        eviction.before >= tensor.inputs_valid_until) {
      return false;
    }
    return std::all_of(tensor.from.begin(), tensor.from.end(),
                       [&](int t) { return IsResident(t, eviction.before); });
  }

  void Take(const Decision& decision, int extends) {
    if (extends >= 0) {
      decisions_[extends] = decision;
    } else {
      decisions_.push_back(decision);
    }
    Schedule();
    Simulate();
  }

  // A decision is final: its inputs get one more use.
  void AddUses(const Eviction& eviction) {
    gaps_[eviction.tensor].emplace_back(eviction.after, eviction.before);
    if (!eviction.recompute) {
      on_host_[eviction.tensor] = true;
      return;
    }
    for (int t : tensors_[eviction.tensor].from) {
      std::vector<int>& uses = tensors_[t].uses;
      const auto at = std::lower_bound(uses.begin(), uses.end(), eviction.before);
      if (at == uses.end() || *at != eviction.before) uses.insert(at, eviction.before);
    }
  }

  // Schedules copies where they delay nothing, from the last simulation's times: out as soon as the
  // stream is free, in as late as possible. Sets `away` and `back`.
  void Schedule() {
    std::vector<Decision*> order;
    for (Decision& d : decisions_) {
      Eviction& a = d.eviction;
      if (a.recompute) {
        a.away = a.after + 1;
        a.back = a.before;
      } else {
        order.push_back(&d);
      }
    }
    std::stable_sort(order.begin(), order.end(), [](const Decision* a, const Decision* b) {
      return a->eviction.after < b->eviction.after;
    });
    std::vector<bool> host_has(tensors_.size(), false);
    double free = 0;
    for (Decision* d : order) {
      Eviction& a = d->eviction;
      a.copies_out = !host_has[a.tensor];
      if (a.after >= tensors_[a.tensor].last_write) host_has[a.tensor] = true;
      a.away = a.after + 1;
      if (!a.copies_out || settings_.wait_for_swapout) continue;
      free = std::max(free, starts_[a.after] + seconds_[a.after]) + CopySeconds(a.tensor);
      const auto at = std::lower_bound(starts_.begin() + a.away, starts_.end(), free);
      a.away = std::min(static_cast<int>(at - starts_.begin()), d->must_from);
    }
    std::stable_sort(order.begin(), order.end(), [](const Decision* a, const Decision* b) {
      return a->eviction.before > b->eviction.before;
    });
    double deadline = std::numeric_limits<double>::max();
    for (Decision* d : order) {
      Eviction& a = d->eviction;
      a.back = a.before;
      if (!settings_.wait_for_swapin) {
        deadline = std::min(deadline, starts_[a.before]) - CopySeconds(a.tensor);
        const auto at = std::upper_bound(starts_.begin(), starts_.begin() + a.before, deadline);
        a.back = std::max(static_cast<int>(at - starts_.begin()) - 1, a.after + 1);
        if (settings_.swapin_ahead > 0) {
          a.back = std::max(a.before - settings_.swapin_ahead, a.after + 1);
        }
      }
      a.back = std::max(a.back, d->must_to + 1);
      // Nothing is gained between the end of one copy and the start of the other.
      a.away = std::min(a.away, a.back);
    }
  }

  // Simulates the steps with both copy streams: sets total_ and the start of each step.
  void Simulate() {
    std::vector<std::vector<const Eviction*>> leaving(steps_), reused(steps_), returning(steps_),
        needed(steps_);
    std::vector<double> out_done(tensors_.size(), 0), in_done(tensors_.size(), 0);
    for (const Decision& d : decisions_) {
      const Eviction& a = d.eviction;
      needed[a.before].push_back(&a);
      if (a.recompute) continue;
      if (a.copies_out) {
        leaving[a.after].push_back(&a);
        reused[a.away].push_back(&a);
      }
      returning[a.back].push_back(&a);
    }
    starts_.assign(steps_ + 1, 0);
    double now = 0, out_free = 0, in_free = 0;
    for (int k = 0; k < steps_; ++k) {
      for (const Eviction* a : reused[k]) now = std::max(now, out_done[a->tensor]);
      for (const Eviction* a : returning[k]) {
        const double start = std::max({now, in_free, out_done[a->tensor]});
        in_free = in_done[a->tensor] = start + CopySeconds(a->tensor);
      }
      for (const Eviction* a : needed[k]) {
        if (a->recompute) {
          now += seconds_[tensors_[a->tensor].producer];
        } else {
          now = std::max(now, in_done[a->tensor]);
        }
      }
      starts_[k] = now;
      now += seconds_[k];
      for (const Eviction* a : leaving[k]) {
        out_free = out_done[a->tensor] = std::max(now, out_free) + CopySeconds(a->tensor);
        if (settings_.wait_for_swapout) now = out_free;
      }
    }
    starts_[steps_] = now;
    total_ = now;
  }

  const OffloadSettings settings_;
  const std::vector<double> seconds_;
  std::vector<OffloadTensor> tensors_;
  const int64_t fixed_, limit_;
  const int steps_;
  std::vector<bool> on_host_;  // by tensor: it has space on the host
  // by tensor: its evictions, as (after, before)
  std::vector<std::vector<std::pair<int, int>>> gaps_;
  std::vector<Decision> decisions_;
  std::vector<int64_t> live_;   // by step, set by FullestStep
  std::vector<double> starts_;  // by step, and the end
  double total_ = 0;
};

}  // namespace

OffloadPlan PlanOffload(const OffloadProblem& problem, const OffloadSettings& settings) {
  return Planner(problem, settings).Run();
}

OffloadPlan LargestStep(const OffloadProblem& problem) {
  return Planner(problem, {}).LargestStep();
}

}  // namespace espalier
