// A machine that others use, too: how long work takes by the clock. Neighbours come and go at
// random, some for milliseconds, some for seconds, and take a part of the speed while they are
// there; now and then a step is interrupted. The same seed, the same neighbours.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace espalier {

struct NoisyNeighbor {
  double slower = 1.4;  // times longer, while it works
  double idle = 1;      // seconds, on average
  double busy = 1;
};

class NoisyMachine {
 public:
  struct Options {
    std::vector<NoisyNeighbor> neighbours = {{1.3, 0.06, 0.02}, {1.4, 3, 3}};
    double jitter = 0.03;         // standard deviation of each time's logarithm
    double interrupted = 0.005;   // steps that are
    double interruption = 0.005;  // seconds
  };

  NoisyMachine(const Options& options, uint64_t seed) : options_(options), random_(seed) {
    for (const NoisyNeighbor& neighbour : options_.neighbours) {
      busy_.push_back(Uniform() < neighbour.busy / (neighbour.busy + neighbour.idle));
      until_.push_back(Wait(busy_.size() - 1));
    }
  }

  // Seconds until work is done that begins at `now` and takes `seconds` alone. `now` never falls.
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
        if (busy_[i]) slower *= options_.neighbours[i].slower;
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
    const NoisyNeighbor& of = options_.neighbours[i];
    return std::exponential_distribution<double>(1 / (busy_[i] ? of.busy : of.idle))(random_);
  }

  Options options_;
  std::mt19937_64 random_;
  std::vector<bool> busy_;
  std::vector<double> until_;  // each stays as it is
};

}  // namespace espalier
