// Tuning on a machine with neighbors: what is chosen there must be about what is best where nobody
// else works. Rates are by the time that the steps would have taken alone, so that only choices
// count.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "serving/engine/tuning_test_util.h"
#include "serving/testing/noisy_machine.h"

namespace espalier {
namespace {

constexpr int kSeeds = 8;

struct Case {
  Machine machine;
  double agreement;
  int load, rounds;
  double worst, middle;  // shares of the best fixed shape's rate
};

// Shares of `best` by seed, the smallest first.
std::vector<double> Shares(const Machine& machine, double agreement, int load, int rounds,
                           const EngineOptions& options, double temperature, double best) {
  std::vector<double> shares;
  for (int seed = 0; seed < kSeeds; ++seed) {
    Machine busy = machine;
    NoisyMachine::Options neighbors;
    neighbors.interruption = 5 * busy.llm(load);
    busy.wall = NoisyMachine(neighbors, static_cast<uint64_t>(seed));
    const Outcome out = Serve(busy, agreement, load, options, "", temperature, rounds, Llm(),
                              static_cast<uint64_t>(seed * load));
    shares.push_back(out.per_work_second / best);
  }
  std::sort(shares.begin(), shares.end());
  return shares;
}

TEST(TuningOnABusyMachine, ChoosesAboutWhatIsBestOnAQuietOne) {
  // As the quickstart's pair on two cores; and an LLM whose weights stream in from the host, whose
  // steps are so long that there are few of them.
  const Machine quick = {"quick", Linear(0.35, 0.048), Linear(0.10, 0.008)};
  const Machine streams = {"streams", Linear(60, 0.6), Linear(0.15, 0.01)};
  for (const Case& c : {Case{quick, 0.6, 1, 12, 0.94, 0.96}, Case{quick, 0.9, 1, 12, 0.94, 0.96},
                        Case{quick, 0.6, 4, 24, 0.93, 0.95}, Case{quick, 0.9, 4, 24, 0.92, 0.96},
                        Case{quick, 0.9, 16, 24, 0.92, 0.94}, Case{streams, 0.6, 1, 2, 0.92, 0.97},
                        Case{streams, 0.9, 1, 2, 0.88, 0.97}}) {
    const Fixed best =
        BestFixed(c.machine, c.agreement, c.load, {"1", "1,1", "1,1,1,1", "1,1,1,1,1,1,1,1"});
    const std::vector<double> shares =
        Shares(c.machine, c.agreement, c.load, c.rounds, Tuned(), 0, best.rate);
    const double middle = shares[kSeeds / 2];
    std::printf("%-8s agreement %.1f load %2d: of the best fixed <%s>: median %.3f, worst %.3f\n",
                c.machine.name, c.agreement, c.load, best.shape.c_str(), middle, shares[0]);
    EXPECT_GT(shares[0], c.worst) << c.machine.name << " " << c.agreement << " " << c.load;
    EXPECT_GT(middle, c.middle) << c.machine.name << " " << c.agreement << " " << c.load;
  }
}

// Of requests of which only the distribution matters; what is drawn is luck, so rates of fixed
// shapes are means.
TEST(TuningOnABusyMachine, DrawsAboutAsManyTokensAsIsBestOnAQuietOne) {
  constexpr int kDraws = 8;
  // The quickstart's pair: milliseconds of the LLM by rows, as they were measured.
  const Cost llm = [](int rows) {
    constexpr std::array<double, 8> kMs = {.31, .40, .48, .54, .72, .75, .84, .93};
    return 1e-3 * (rows <= 8 ? kMs[rows - 1] : kMs[7] + 0.11 * (rows - 8));
  };
  const Machine pair = {"pair", llm, Linear(0.05, 0.009)};
  EngineOptions tuned = Tuned(), fixed;
  tuned.speculation.sampled = SampledDrafting::kCoupledIfSeeded;
  fixed.speculation.sampled = SampledDrafting::kWithoutReplacement;
  for (const Case& c : {Case{pair, 0.5, 1, 12, 0.93, 0.96}, Case{pair, 0.7, 1, 12, 0.94, 0.96},
                        Case{pair, 0.9, 1, 12, 0.93, 0.95}, Case{pair, 0.7, 4, 24, 0.90, 0.92}}) {
    Fixed best = {0, ""};
    for (const char* shape : {"", "1", "1,1", "1,1,1", "1,1,1,1,1"}) {
      double rate = 0;
      for (uint64_t seed = 0; seed < kDraws; ++seed) {
        rate += Serve(pair, *shape == 0 ? -1 : c.agreement, c.load, fixed, shape, 1, 2, Llm(),
                      1000 * seed)
                    .tokens_per_second /
                kDraws;
      }
      if (rate > best.rate) best = {rate, shape};
    }
    const std::vector<double> shares =
        Shares(c.machine, c.agreement, c.load, c.rounds, tuned, 1, best.rate);
    const double middle = shares[kSeeds / 2];
    std::printf("%-8s agreement %.1f load %2d: of the best fixed <%s>: median %.3f, worst %.3f\n",
                c.machine.name, c.agreement, c.load, best.shape.c_str(), middle, shares[0]);
    EXPECT_GT(shares[0], c.worst) << c.agreement << " " << c.load;
    EXPECT_GT(middle, c.middle) << c.agreement << " " << c.load;
  }
}

}  // namespace
}  // namespace espalier
