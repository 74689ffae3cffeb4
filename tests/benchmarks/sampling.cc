// Host time per row of logits by vocabulary size: sampling a token, and choosing draft candidates.
// One thread; the fastest of several runs, to exclude other load.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "serving/sampling/distribution.h"
#include "serving/sampling/gumbel_coupling.h"
#include "serving/sampling/logprobs.h"
#include "serving/sampling/sampler.h"
#include "tests/benchmarks/report.h"
#include "tests/benchmarks/seconds.h"

ABSL_FLAG(bool, json, false, "print JSON instead of tables");
ABSL_FLAG(std::string, json_file, "", "also write the JSON here");
ABSL_FLAG(int, runs, 200, "of each");

namespace espalier {
namespace {

// Returns logits like a language model's: normal, with some likely tokens.
std::vector<float> Logits(int vocabulary) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(static_cast<size_t>(vocabulary));
  for (float& logit : logits) logit = normal(random);
  for (int i = 0; i < 20; ++i) logits[random() % logits.size()] += 12;
  return logits;
}

double Best(const std::function<double()>& run) {
  double best = 1e9;
  volatile double kept = 0;
  for (int i = 0; i < absl::GetFlag(FLAGS_runs); ++i) {
    const double start = Seconds();
    kept = kept + run();
    best = std::min(best, Seconds() - start);
  }
  return best;
}

void Measure(Report* report) {
  const SamplingParameters plain = {.temperature = 1};
  const SamplingParameters top_p = {.temperature = 1, .top_p = 0.9};
  const SamplingParameters hot = {.temperature = 2, .top_p = 0.9};
  const SamplingParameters both = {.temperature = 1, .top_p = 0.9, .top_k = 40};
  const SamplingParameters min_p = {.temperature = 1, .min_p = 0.05};
  const std::vector<int> sizes = {32000, 128256, 262144};
  std::vector<std::string> columns = {"microseconds"};
  for (const int size : sizes) columns.push_back(std::to_string(size) + " tokens");
  report->Table("One row of logits on the host", columns);
  using Work = std::function<double(const std::vector<float>&)>;
  const auto sample = [](const SamplingParameters& how) -> Work {
    return [how](const std::vector<float>& logits) {
      const auto p = SamplingDistribution(logits.data(), static_cast<int>(logits.size()), how);
      return static_cast<double>(CoupledSample(*p, 7, 99));
    };
  };
  const auto serve = [](const SamplingParameters& how) -> Work {
    return [how](const std::vector<float>& logits) {
      return static_cast<double>(*SampleToken(logits, how, /*coupled=*/true, 99));
    };
  };
  const std::pair<const char*, Work> works[] = {
      {"greedy choice",
       [](const std::vector<float>& logits) {
         return static_cast<double>(*Argmax(logits.data(), static_cast<int>(logits.size())));
       }},
      {"choice, temperature 1", sample(plain)},
      {"the same, as served", serve(plain)},
      {"the same, drawn",
       [&](const std::vector<float>& logits) {
         return static_cast<double>(*SampleToken(logits, plain, /*coupled=*/false, 99));
       }},
      {"choice, top_p 0.9", serve(top_p)},
      {"choice, top_p 0.9, temperature 2", serve(hot)},
      {"choice, top_k 40, top_p 0.9", serve(both)},
      {"choice, min_p 0.05", serve(min_p)},
      {"five log-probabilities",
       [](const std::vector<float>& logits) {
         return static_cast<double>(
             LogprobsOf(logits.data(), static_cast<int>(logits.size()), 5, 5).logprob);
       }},
      {"four candidates of a draft, greedy",
       [](const std::vector<float>& logits) { return (*TopTokens(logits, 4))[0].probability; }},
      {"four candidates of a draft, temperature 1", [&](const std::vector<float>& logits) {
         return (*CoupledTopTokens(logits, 4, plain, 99))[0].probability;
       }}};
  for (const auto& [name, work] : works) {
    std::vector<Cell> row = {Text(name)};
    for (const int size : sizes) {
      const std::vector<float> logits = Logits(size);
      row.push_back(Number(1e6 * Best([&] { return work(logits); }), 0));
    }
    report->Row(row);
  }
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  espalier::Report report("sampling");
  espalier::Measure(&report);
  return report.Print(absl::GetFlag(FLAGS_json), absl::GetFlag(FLAGS_json_file));
}
