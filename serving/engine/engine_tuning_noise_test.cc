// Tuning on a machine with neighbours: what is chosen there must be about what is best where nobody
// else works. Rates are by the time that the steps would have taken alone, so that only choices
// count.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "serving/engine/tuning_test_util.h"
#include "serving/testing/busy_machine.h"

namespace espalier {
namespace {

constexpr int kSeeds = 20;

struct Case {
  Machine machine;
  double agreement;
  int load, rounds;
  double worst, middle;  // shares of the best fixed shape's rate
};

TEST(TuningOnABusyMachine, ChoosesAboutWhatIsBestOnAQuietOne) {
  // As the quickstart's pair on two cores; and an LLM whose weights stream in from the host, whose
  // steps are so long that there are few of them.
  const Machine quick = {"quick", Linear(0.35, 0.048), Linear(0.10, 0.008)};
  const Machine streams = {"streams", Linear(60, 0.6), Linear(0.15, 0.01)};
  for (const Case& c : {Case{quick, 0.6, 1, 12, 0.95, 0.99}, Case{quick, 0.9, 1, 12, 0.95, 0.98},
                        Case{quick, 0.6, 4, 24, 0.95, 0.98}, Case{quick, 0.9, 4, 24, 0.93, 0.98},
                        Case{quick, 0.9, 16, 24, 0.93, 0.98}, Case{streams, 0.6, 1, 2, 0.92, 0.97},
                        Case{streams, 0.9, 1, 2, 0.88, 0.97}}) {
    const Fixed best =
        BestFixed(c.machine, c.agreement, c.load, {"1", "1,1", "1,1,1,1", "1,1,1,1,1,1,1,1"});
    std::vector<double> shares;
    for (int seed = 0; seed < kSeeds; ++seed) {
      Machine busy = c.machine;
      BusyMachine::Options options;
      options.interruption = 5 * busy.llm(c.load);
      busy.wall = BusyMachine(options, static_cast<uint64_t>(seed));
      shares.push_back(Serve(busy, c.agreement, c.load, Tuned(), "", 0, c.rounds).per_work_second /
                       best.rate);
    }
    std::sort(shares.begin(), shares.end());
    const double middle = shares[kSeeds / 2];
    std::printf("%-8s agreement %.1f load %2d: of the best fixed <%s>: median %.3f, worst %.3f\n",
                c.machine.name, c.agreement, c.load, best.shape.c_str(), middle, shares[0]);
    EXPECT_GT(shares[0], c.worst) << c.machine.name << " " << c.agreement << " " << c.load;
    EXPECT_GT(middle, c.middle) << c.machine.name << " " << c.agreement << " " << c.load;
  }
}

}  // namespace
}  // namespace espalier
