// Simulates a shared machine: how long work takes by the wall clock. Noisy neighbors start and stop
// at random, for milliseconds or seconds, and slow the work down meanwhile; now and then, a step is
// interrupted. Deterministic for a seed.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace espalier {

struct NoisyNeighbor {
  double slower = 1.4;  // slowdown while it is active
  double idle = 1;      // mean seconds
  double busy = 1;      // mean seconds
};

class NoisyMachine {
 public:
  struct Options {
    std::vector<NoisyNeighbor> neighbors = {{1.3, 0.06, 0.02}, {1.4, 3, 3}};
    double jitter = 0.03;         // standard deviation of the logarithm of each time
    double interrupted = 0.005;   // probability per step
    double interruption = 0.005;  // seconds
  };

  NoisyMachine(const Options& options, uint64_t seed) : options_(options), random_(seed) {
    for (const NoisyNeighbor& neighbor : options_.neighbors) {
      busy_.push_back(Uniform() < neighbor.busy / (neighbor.busy + neighbor.idle));
      until_.push_back(Wait(busy_.size() - 1));
    }
  }

  // Returns the seconds until work is done that starts at `now` and takes `seconds` on an idle
  // machine. `now` never decreases.
  double operator()(double now, double seconds) {
    double left = seconds * std::exp(options_.jitter * std::normal_distribution<double>()(random_));
    double at = now;
    while (true) {
      double slower = 1, next = at + 1e9;
      for (size_t i = 0; i < busy_.size(); ++i) {
        while (until_[i] <= at) {
          busy_[i] = !busy_[i];
          until_[i] += Wait(i);
        }
        if (busy_[i]) slower *= options_.neighbors[i].slower;
        next = std::min(next, until_[i]);
      }
      if (at + left * slower <= next) {
        at += left * slower;
        break;
      }
      left -= (next - at) / slower;
      at = next;
    }
    if (Uniform() < options_.interrupted) at += options_.interruption * Uniform();
    return at - now;
  }

 private:
  double Uniform() { return std::uniform_real_distribution<double>()(random_); }
  double Wait(size_t i) {
    const NoisyNeighbor& of = options_.neighbors[i];
    return std::exponential_distribution<double>(1 / (busy_[i] ? of.busy : of.idle))(random_);
  }

  Options options_;
  std::mt19937_64 random_;
  std::vector<bool> busy_;
  std::vector<double> until_;  // time of the next change
};

}  // namespace espalier
