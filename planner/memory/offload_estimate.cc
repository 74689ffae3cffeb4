#include "planner/memory/offload_estimate.h"

#include <algorithm>
#include <limits>

namespace espalier {
namespace {

// As in offload_recompute.cc: of two candidates that cost nothing, prefer the larger.
constexpr double kMinSeconds = 1e-7;  // seconds
// A candidate whose cost has grown by this factor, through others taken since, is compared again.
constexpr double kRecompareFactor = 1.2;

class Estimator {
 public:
  Estimator(const OffloadEstimateProblem& problem, const OffloadSettings& settings)
      : problem_(problem),
        settings_(settings),
        steps_(static_cast<int>(problem.seconds.size())),
        live_(problem.live),
        state_(problem.idle.size(), kResident),
        before_(problem.idle.size()) {
    for (size_t i = 0; i < before_.size(); ++i) before_[i] = problem.idle[i].before;
    starts_.resize(steps_ + 1, 0);
    for (int k = 0; k < steps_; ++k) starts_[k + 1] = starts_[k] + problem.seconds[k];
  }

  OffloadEstimate Run() {
    OffloadEstimate offload;
    for (int worst = FullestStep(); worst >= 0; worst = FullestStep()) {
      if (!EvictOne(worst)) {
        offload.bytes_left = live_[worst] - problem_.limit;
        break;
      }
      Schedule();
    }
    offload.seconds = Delay();
    return offload;
  }

 private:
  static constexpr double kImpossible = std::numeric_limits<double>::max();

  enum State { kResident, kSwapped, kRecomputed };
  struct Taken {
    int idle = 0;
    int away = 0, back = 0;          // as in Eviction
    int must_from = 0, must_to = 0;  // steps in which its memory must be free, inclusive
  };
  struct Candidate {
    int idle = -1;
    int extends = -1;  // or an index into taken_
    bool recomputes = false;
    double price = 0;  // seconds per byte
  };

  const IdleTensor& Idle(int i) const { return problem_.idle[i]; }
  double CopySeconds(int i) const {
    return settings_.host_latency + static_cast<double>(Idle(i).bytes) / settings_.host_bandwidth;
  }
  double EndOf(int step) const { return starts_[step + 1]; }

  int FullestStep() const {
    int worst = -1;
    for (int k = 0; k < steps_; ++k) {
      if (live_[k] > problem_.limit && (worst < 0 || live_[k] > live_[worst])) worst = k;
    }
    return worst;
  }

  bool CanRecompute(int i) const {
    if (!settings_.recompute || Idle(i).recompute_seconds < 0) return false;
    return std::all_of(Idle(i).from.begin(), Idle(i).from.end(),
                       [this](int f) { return state_[f] == kResident; });
  }
  bool CanSwap(int i) const {
    return settings_.swap && Idle(i).can_swap &&
           (settings_.host_bytes <= 0 || on_host_ + Idle(i).bytes <= settings_.host_bytes);
  }

  // Estimates the time that copying it out before `worst` and back adds, given the streams' present
  // load.
  double SwapSeconds(int i, int worst) const {
    const IdleTensor& tensor = Idle(i);
    const double copy = CopySeconds(i);
    const double begin = EndOf(tensor.after), end = starts_[before_[i]];
    if (settings_.wait_for_swapout || settings_.wait_for_swapin) return 2 * copy;
    const double alone = std::max(0.0, 2 * copy - (end - begin));
    // All copies of a stream lie between the earliest start and the latest end.
    const auto late = [](double seconds, double from, double to) {
      return std::max(0.0, seconds - std::max(0.0, to - from));
    };
    const double out =
        late(out_seconds_ + copy, std::min(out_from_, begin), std::max(out_to_, starts_[worst])) -
        late(out_seconds_, out_from_, out_to_);
    const double in =
        late(in_seconds_ + copy, std::min(in_from_, EndOf(worst)), std::max(in_to_, end)) -
        late(in_seconds_, in_from_, in_to_);
    return std::max(alone, std::max(0.0, out) + std::max(0.0, in));
  }

  // The cheaper of swap and recomputation.
  double SecondsOf(int i, int worst) const {
    double seconds = kImpossible;
    if (state_[i] != kResident || worst <= Idle(i).after || worst >= before_[i]) return seconds;
    if (CanSwap(i)) seconds = SwapSeconds(i, worst);
    if (CanRecompute(i)) seconds = std::min(seconds, Idle(i).recompute_seconds);
    return seconds;
  }

  // Takes the cheapest candidates until the step should fit. Returns false if there is none.
  bool EvictOne(int worst) {
    std::vector<Candidate>& all = candidates_;
    all.clear();
    const auto add = [&](int idle, int extends, double seconds) {
      const bool recomputes =
          extends < 0 && CanRecompute(idle) && seconds == Idle(idle).recompute_seconds;
      all.push_back({idle, extends, recomputes,
                     (seconds + kMinSeconds) / static_cast<double>(Idle(idle).bytes)});
    };
    for (size_t t = 0; t < taken_.size(); ++t) {
      const Taken& taken = taken_[t];
      const IdleTensor& tensor = Idle(taken.idle);
      if (tensor.after < worst && worst < before_[taken.idle] &&
          (worst < taken.away || worst >= taken.back)) {
        add(taken.idle, static_cast<int>(t), CopySeconds(taken.idle));
      }
    }
    for (int i = 0; i < static_cast<int>(problem_.idle.size()); ++i) {
      if (Idle(i).bytes <= 0) continue;
      const double seconds = SecondsOf(i, worst);
      if (seconds < kImpossible) add(i, -1, seconds);
    }
    std::stable_sort(all.begin(), all.end(), [this](const Candidate& a, const Candidate& b) {
      if (a.price != b.price) return a.price < b.price;
      return Idle(a.idle).bytes > Idle(b.idle).bytes;
    });
    int64_t over = live_[worst] - problem_.limit;
    bool took = false;
    for (const Candidate& c : all) {
      if (over <= 0) break;
      if (!Take(c, worst)) continue;
      over -= Idle(c.idle).bytes;
      took = true;
    }
    return took;
  }

  // Returns false if candidates taken since make it impossible or more expensive.
  bool Take(const Candidate& c, int worst) {
    if (c.extends >= 0) {
      Taken& taken = taken_[c.extends];
      taken.must_from = std::min(taken.must_from, worst);
      taken.must_to = std::max(taken.must_to, worst);
      return true;
    }
    const int i = c.idle;
    const IdleTensor& tensor = Idle(i);
    const double seconds = SecondsOf(i, worst);
    if (seconds == kImpossible || (c.recomputes && !CanRecompute(i))) return false;
    if (settings_.recompute &&
        seconds + kMinSeconds > kRecompareFactor * c.price * static_cast<double>(tensor.bytes))
      return false;
    taken_.push_back({i, tensor.after + 1, before_[i], worst, worst});
    if (CanRecompute(i) && seconds == tensor.recompute_seconds) {
      state_[i] = kRecomputed;
      for (int f : tensor.from) before_[f] = std::min(before_[f], before_[i]);
      return true;
    }
    state_[i] = kSwapped;
    on_host_ += tensor.bytes;
    const double copy = CopySeconds(i);
    out_seconds_ += copy;
    in_seconds_ += copy;
    out_from_ = std::min(out_from_, EndOf(tensor.after));
    out_to_ = std::max(out_to_, starts_[worst]);
    in_from_ = std::min(in_from_, EndOf(worst));
    in_to_ = std::max(in_to_, starts_[before_[i]]);
    return true;
  }

  // Schedules copies where they delay nothing, as in offload_recompute.cc, then updates live_.
  void Schedule() {
    order_.clear();
    for (size_t t = 0; t < taken_.size(); ++t) {
      if (state_[taken_[t].idle] == kSwapped) order_.push_back(static_cast<int>(t));
    }
    std::stable_sort(order_.begin(), order_.end(), [this](int a, int b) {
      return Idle(taken_[a].idle).after < Idle(taken_[b].idle).after;
    });
    double free = 0;
    for (int t : order_) {
      Taken& taken = taken_[t];
      const int after = Idle(taken.idle).after;
      taken.away = after + 1;
      if (settings_.wait_for_swapout) continue;
      free = std::max(free, EndOf(after)) + CopySeconds(taken.idle);
      const auto at = std::lower_bound(starts_.begin() + taken.away, starts_.end(), free);
      taken.away = std::min(static_cast<int>(at - starts_.begin()), taken.must_from);
    }
    std::stable_sort(order_.begin(), order_.end(), [this](int a, int b) {
      return before_[taken_[a].idle] > before_[taken_[b].idle];
    });
    double deadline = std::numeric_limits<double>::max();
    for (int t : order_) {
      Taken& taken = taken_[t];
      const int after = Idle(taken.idle).after, before = before_[taken.idle];
      taken.back = before;
      if (!settings_.wait_for_swapin) {
        deadline = std::min(deadline, starts_[before]) - CopySeconds(taken.idle);
        const auto at = std::upper_bound(starts_.begin(), starts_.begin() + before, deadline);
        taken.back = std::max(static_cast<int>(at - starts_.begin()) - 1, after + 1);
      }
      taken.back = std::max(taken.back, taken.must_to + 1);
      taken.away = std::min(taken.away, taken.back);
    }
    change_.assign(steps_ + 1, 0);
    for (const Taken& taken : taken_) {
      change_[taken.away] -= Idle(taken.idle).bytes;
      change_[taken.back] += Idle(taken.idle).bytes;
    }
    int64_t away = 0;
    for (int k = 0; k < steps_; ++k) live_[k] = problem_.live[k] + (away += change_[k]);
  }

  // Simulates the steps with both copy streams. Returns by how much the end is delayed.
  double Delay() {
    enum Phase { kReused, kReturning, kNeeded, kLeaving };
    struct Event {
      int step;
      Phase phase;
      int taken;
    };
    std::vector<Event> events;
    for (int t = 0; t < static_cast<int>(taken_.size()); ++t) {
      const Taken& taken = taken_[t];
      const IdleTensor& tensor = Idle(taken.idle);
      events.push_back({before_[taken.idle], kNeeded, t});
      if (state_[taken.idle] != kSwapped) continue;
      events.push_back({tensor.after, kLeaving, t});
      events.push_back({taken.away, kReused, t});
      events.push_back({taken.back, kReturning, t});
    }
    std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
      return a.step != b.step ? a.step < b.step : a.phase < b.phase;
    });
    double delay = 0, out_free = 0, in_free = 0;
    std::vector<double> out_done(taken_.size(), 0), in_done(taken_.size(), 0);
    for (const Event& e : events) {
      const int i = taken_[e.taken].idle;
      const double start = starts_[e.step];
      switch (e.phase) {
        case kReused:
          delay = std::max(delay, out_done[e.taken] - start);
          break;
        case kReturning:
          in_free = in_done[e.taken] =
              std::max({start + delay, in_free, out_done[e.taken]}) + CopySeconds(i);
          break;
        case kNeeded:
          if (state_[i] == kRecomputed) {
            delay += Idle(i).recompute_seconds;
          } else {
            delay = std::max(delay, in_done[e.taken] - start);
          }
          break;
        case kLeaving:
          out_free = out_done[e.taken] = std::max(EndOf(e.step) + delay, out_free) + CopySeconds(i);
          if (settings_.wait_for_swapout) delay = out_free - EndOf(e.step);
          break;
      }
    }
    return delay;
  }

  const OffloadEstimateProblem& problem_;
  const OffloadSettings& settings_;
  const int steps_;
  std::vector<double> starts_;  // by step, and the end
  std::vector<int64_t> live_;   // by step
  std::vector<State> state_;    // by idle tensor
  // By idle tensor: the next use, which may be the recomputation of another.
  std::vector<int> before_;
  std::vector<Taken> taken_;
  int64_t on_host_ = 0;
  // The load of each stream, and its time window.
  double out_seconds_ = 0, in_seconds_ = 0;
  double out_from_ = std::numeric_limits<double>::max(), out_to_ = 0;
  double in_from_ = std::numeric_limits<double>::max(), in_to_ = 0;
  std::vector<Candidate> candidates_;  // scratch
  std::vector<int> order_;             // scratch
  std::vector<int64_t> change_;        // scratch
};

}  // namespace

OffloadEstimate EstimateOffload(const OffloadEstimateProblem& problem,
                                const OffloadSettings& settings) {
  return Estimator(problem, settings).Run();
}

}  // namespace espalier
