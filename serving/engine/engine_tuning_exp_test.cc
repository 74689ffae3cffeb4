#include <gtest/gtest.h>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>
#include "serving/engine/tuning_test_util.h"
#include "serving/testing/busy_machine.h"
namespace espalier {
namespace {
Cost Table(std::vector<double> ms, double more) {
  return [=](int rows) {
    const int n = static_cast<int>(ms.size());
    return 1e-3 * (rows <= n ? ms[std::max(rows, 1) - 1] : ms[n - 1] + more * (rows - n));
  };
}
TEST(Exp, Sampled) {
  const int seeds = getenv("SEEDS") ? atoi(getenv("SEEDS")) : 20;
  const double temperature = 1;
  const bool busy_machine = !getenv("QUIET");
  const Machine pair = {"pair", Table({.31, .40, .48, .54, .72, .75, .84, .93}, 0.11),
                        Linear(0.050, 0.009)};
  EngineOptions options = Tuned();
  options.speculation.sampled = SampledDrafts::kBySeed;
  EngineOptions fixed;
  fixed.speculation.sampled = SampledDrafts::kWithoutReplacement;
  for (double agreement : {0.5, 0.7, 0.9}) {
    for (int load : {1, 4}) {
      const int rounds = load == 1 ? 12 : 24;
      double best = 0; std::string shape;
      double plain = 0;
      for (const char* s : {"", "1", "1,1", "1,1,1", "1,1,1,1,1"}) {
        double sum = 0;
        for (int k = 0; k < 8; ++k) sum += Serve(pair, *s ? agreement : -1, load, fixed, s, temperature, 2, Llm(), 1000 * k).tokens_per_second / 8;
        if (!*s) plain = sum;
        if (sum > best) best = sum, shape = s;
        std::printf("   <%s> %.0f\n", s, sum);
      }
      std::vector<double> shares;
      for (int seed = 0; seed < seeds; ++seed) {
        Machine busy = pair;
        BusyMachine::Options o;
        o.interruption = 5 * busy.llm(load);
        if (busy_machine) busy.wall = BusyMachine(o, static_cast<uint64_t>(seed));
        const Outcome out = Serve(busy, agreement, load, options, "", temperature, rounds, Llm(), 77 * seed);
        shares.push_back(out.per_work_second / best);
      }
      std::vector<double> sorted = shares;
      std::sort(sorted.begin(), sorted.end());
      double mean = 0; for (double x : shares) mean += x / seeds;
      std::printf("agreement %.1f load %d: best <%s> %.3f of plain; tuned mean %.3f median %.3f worst", agreement, load, shape.c_str(), best / plain, mean, sorted[seeds / 2]);
      for (int i = 0; i < 4; ++i) {
        std::printf(" %.3f(%d)", sorted[i], (int)(std::find(shares.begin(), shares.end(), sorted[i]) - shares.begin()));
      }
      std::printf("\n");
    }
  }
}
}  // namespace
}  // namespace espalier
