// Serving by models whose steps take a known time by a simulated clock, on a machine that may have
// neighbors, to see what tuning chooses and what it yields in tokens per simulated second.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "serving/engine/engine_test_util.h"
#include "serving/testing/simulated_latency_runner.h"

namespace espalier {

inline constexpr int kVocabulary = 16;

// Long enough for what is learned at the beginning not to be what is measured.
inline int AnswerLength(int load) { return std::max(96, 768 / load); }

using Cost = SimulatedLatencyRunner::Cost;

inline FakeModel Llm() { return HashModel(1, kVocabulary, 5); }
// Agrees with the LLM on a share of all paths.
inline FakeModel Ssm(double agreement, FakeModel llm = Llm()) {
  return AgreeingModel(std::move(llm), HashModel(2, kVocabulary, 5), agreement, 7);
}
// Runs in a circle, and out of it now and then.
inline FakeModel Circling() {
  return [](absl::Span<const int> path) {
    if (path.size() % 24 == 0) return Llm()(path);
    std::vector<float> logits(kVocabulary, 0.f);
    logits[static_cast<size_t>(path.back() + 1) % kVocabulary] = 5;
    return logits;
  };
}

// A step reads the weights once, whatever the rows, until arithmetic takes longer.
inline Cost Roofline(double weights_ms, double row_ms) {
  return [=](int rows) { return 1e-3 * std::max(weights_ms, row_ms * rows); };
}
// What the CPU kernels do today: hardly any row is free.
inline Cost Linear(double fixed_ms, double row_ms) {
  return [=](int rows) { return 1e-3 * (fixed_ms + row_ms * rows); };
}
// Kernels in blocks of eight rows.
inline Cost Stairs(double fixed_ms, double block_ms) {
  return [=](int rows) { return 1e-3 * (fixed_ms + block_ms * ((rows + 7) / 8)); };
}

struct Machine {
  const char* name;
  Cost llm, ssm;
  // Seconds by the clock of work that takes `seconds` where nobody else works, from `now` on.
  std::function<double(double now, double seconds)> wall = nullptr;
};

inline std::vector<Machine> Machines() {
  return {{"roofline", Roofline(10, 0.25), Roofline(0.4, 0.01)},
          {"linear", Linear(0.5, 0.09), Linear(0.05, 0.006)},
          {"stairs", Stairs(2, 2), Stairs(0.1, 0.05)},
          {"dear SSM", Roofline(10, 0.25), Roofline(8, 0.1)}};
}

struct Outcome {
  double tokens_per_second = 0;  // of the last half of the rounds
  double at_first = 0;           // of the first round, in which all is to be learned
  double second_quarter = 0;     // of the rounds, where something was learned
  double per_work_second = 0;    // of the last half, had nobody else worked
  EngineStatistics statistics;
  std::vector<std::vector<int>> answers;
};

inline Outcome Serve(const Machine& machine, double agreement, int load, EngineOptions options,
                     const char* expansion, double temperature = 0, int rounds = 1,
                     const FakeModel& model = Llm(), uint64_t seed = 0) {
  RunnerLimits limits = FakeModelRunner::LargeLimits(kVocabulary);
  limits.kv_slots = 64 * 400;
  limits.max_context_slots = 64 * 400;
  limits.max_positions = 1024;
  limits.max_sequences = 512;
  limits.max_rows = 1024;
  limits.max_ancestor_slots = 16384;
  FakeModelRunner llm(limits, model), ssm(limits, Ssm(agreement, model));
  double clock = 0, worked = 0, half_worked = 0;  // seconds
  const auto cost = [&](const Cost& alone) {
    return [&](int rows) {
      const double seconds = alone(rows);
      worked += seconds;
      return machine.wall ? machine.wall(clock, seconds) : seconds;
    };
  };
  SimulatedLatencyRunner costed_llm(&llm, &clock, cost(machine.llm));
  SimulatedLatencyRunner costed_ssm(&ssm, &clock, cost(machine.ssm));
  LetterTokenizer tokenizer(kVocabulary);
  options.expansion = *Expansion::Parse(expansion);
  options.max_requests = 64;
  options.max_tokens_per_batch = 1024;
  options.seconds = [&] { return clock; };
  std::vector<ModelRunner*> ssms;
  if (agreement >= 0) ssms.push_back(&costed_ssm);
  const auto engine = *Engine::Create(&costed_llm, ssms, &tokenizer, options);
  Outcome out;
  const double tokens = static_cast<double>(load) * AnswerLength(load);
  double first_quarter = 0, middle = 0;
  for (int round = 0; round < rounds; ++round) {
    const double start = clock;
    if (round == rounds / 4) first_quarter = clock;
    if (round == rounds / 2) {
      middle = clock;
      half_worked = worked;
    }
    std::map<RequestId, int> index;
    for (int i = 0; i < load; ++i) {
      RequestOptions request{.max_tokens = AnswerLength(load)};
      request.reproducible = options.speculation.sampled == SampledDrafting::kCoupled;
      request.sampling = {.temperature = temperature, .seed = seed + static_cast<uint64_t>(i)};
      index[*engine->Submit({i % kVocabulary, i / kVocabulary, 3}, request)] = i;
    }
    out.answers.assign(load, {});
    while (!engine->idle()) {
      EXPECT_TRUE(engine->Step().ok());
      for (const RequestEvent& event : engine->TakeEvents()) {
        std::vector<int>& answer = out.answers[index[event.id]];
        answer.insert(answer.end(), event.tokens.begin(), event.tokens.end());
      }
    }
    if (round == 0) out.at_first = tokens / (clock - start);
    const double since_middle = tokens * (round + 1 - rounds / 2);
    out.tokens_per_second = since_middle / (clock - middle);
    out.per_work_second = since_middle / (worked - half_worked);
  }
  out.second_quarter = tokens * (rounds / 2 - rounds / 4) / (middle - first_quarter);
  out.statistics = engine->statistics();
  return out;
}

inline EngineOptions Tuned() {
  EngineOptions options;
  options.speculation.tune = true;
  options.speculation.sampled = SampledDrafting::kCoupled;
  return options;
}

struct Fixed {
  double rate;  // tokens per second
  std::string shape;
};

// The fastest of these shapes, and of no drafts.
inline Fixed BestFixed(const Machine& machine, double agreement, int load,
                       const std::vector<const char*>& shapes, const EngineOptions& options = {},
                       double temperature = 0, uint64_t seed = 0) {
  const auto rate = [&](double share, const EngineOptions& how, const char* shape) {
    return Serve(machine, share, load, how, shape, temperature, 1, Llm(), seed).tokens_per_second;
  };
  Fixed best = {rate(-1, {}, ""), "none"};
  for (const char* shape : shapes) {
    if (const double found = rate(agreement, options, shape); found > best.rate) {
      best = {found, shape};
    }
  }
  return best;
}

}  // namespace espalier
