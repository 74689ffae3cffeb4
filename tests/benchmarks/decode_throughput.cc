// Decode tokens/s of the quickstart's LLM, incrementally and with token tree speculation, compared
// with the memory bandwidth of the same threads. The models are trained first, in this process, so
// that the acceptance rate of drafts is realistic.
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "ops/operators/register_all.h"
#include "serving/engine/engine.h"
#include "serving/tokenizer/byte_tokenizer.h"
#include "tests/benchmarks/memory_bandwidth.h"
#include "tests/benchmarks/report.h"
#include "tests/benchmarks/serving_models.h"
#include "tests/benchmarks/workload.h"

ABSL_FLAG(bool, json, false, "print JSON instead of tables");
ABSL_FLAG(std::string, json_file, "", "also write the JSON here");
ABSL_FLAG(int, threads, 2, "for the models and for the bandwidth");
ABSL_FLAG(int, train_steps, 100, "of the LLM and of the SSM before; 0: random weights");
ABSL_FLAG(int, rounds, 5, "turns");
ABSL_FLAG(int, tokens, 96, "of each answer");
ABSL_FLAG(std::string, expansion, "1,1,3,1,1", "of the token trees");

namespace espalier {
namespace {

constexpr int kPrompt = 64;
constexpr int kMaxBatch = 8;
constexpr int kWarmTokens = 4;  // tokens of each output before timing starts, to exclude prefill

struct Run {
  double tokens_per_second = 0;
  double tokens = 0, seconds = 0;
  double llm_steps = 0, llm_seconds = 0, llm_rows = 0, ssm_seconds = 0, ssm_steps = 0;
  double accepted = 0;  // per verification
};

absl::StatusOr<Run> Decode(ServedModel& llm, ServedModel* ssm, const std::string& text, int batch,
                           int round) {
  auto tokenizer = ByteTokenizer::Create();
  EngineOptions options;
  absl::StatusOr<Expansion> expansion = Expansion::Parse(absl::GetFlag(FLAGS_expansion));
  if (!expansion.ok()) return expansion.status();
  options.expansion = *expansion;
  options.max_requests = kMaxBatch;
  options.max_tokens_per_batch = 320;
  std::vector<ModelRunner*> ssms;
  if (ssm != nullptr) ssms.push_back(ssm->counting.get());
  auto engine = Engine::Create(llm.counting.get(), ssms, tokenizer->get(), options);
  if (!engine.ok()) return engine.status();
  std::map<RequestId, int> emitted;
  for (int i = 0; i < batch; ++i) {
    // Prompts come from the held-out tail.
    const size_t tail = text.size() / 10 - kPrompt;
    const size_t at = text.size() - text.size() / 10 + (round * kMaxBatch + i) * 977 % tail;
    RequestOptions request;
    request.max_tokens = absl::GetFlag(FLAGS_tokens);
    auto id = (*engine)->Submit((*tokenizer)->Encode(text.substr(at, kPrompt)), request);
    if (!id.ok()) return id.status();
    emitted[*id] = 0;
  }
  Run run;
  double start = 0;
  EngineStatistics before;
  bool finished = false;
  // Stops when the first output is complete, so that every step has all requests.
  while (!finished) {
    if (absl::Status s = (*engine)->Step(); !s.ok()) return s;
    const double now = Seconds();
    int least = absl::GetFlag(FLAGS_tokens);
    for (const RequestEvent& event : (*engine)->TakeEvents()) {
      emitted[event.id] += static_cast<int>(event.tokens.size());
      if (start > 0) run.tokens += static_cast<double>(event.tokens.size());
      finished = finished || event.finished;
    }
    for (const auto& [id, count] : emitted) least = std::min(least, count);
    if (start > 0) {
      run.seconds = now - start;
    } else if (least >= kWarmTokens) {
      start = Seconds();
      before = (*engine)->statistics();
      llm.counting->Clear();
      if (ssm != nullptr) ssm->counting->Clear();
    }
  }
  const EngineStatistics after = (*engine)->statistics();
  run.tokens_per_second = run.tokens / run.seconds;
  run.llm_steps = llm.counting->steps;
  run.llm_seconds = llm.counting->seconds;
  run.llm_rows = llm.counting->rows;
  if (ssm != nullptr) {
    run.ssm_seconds = ssm->counting->seconds;
    run.ssm_steps = ssm->counting->steps;
    run.accepted =
        static_cast<double>(after.accepted_tokens - before.accepted_tokens) /
        static_cast<double>(std::max<int64_t>(1, after.verifications - before.verifications));
  }
  return run;
}

// Profiles by operator the largest batch that the runner has run.
absl::Status AddProfile(ServedModel& model, const std::string& title, Report* report) {
  constexpr int kTimes = 30;
  const RunnerBatch& batch = model.counting->widest;
  RunnerOutput logits;
  if (absl::Status s = model.runner->Step(batch, &logits); !s.ok()) return s;
  const DynamicSizes sizes{batch.rows(), static_cast<int64_t>(batch.logit_rows.size())};
  std::map<std::string, std::pair<double, int>> by_op;
  double total = 0;
  for (int i = 0; i < kTimes; ++i) {
    absl::StatusOr<StepResult> result = model.runner->executor().Step(0, /*profile=*/true, sizes);
    if (!result.ok()) return result.status();
    for (const InstructionTime& time : result->profile) {
      by_op[time.op].first += time.seconds / kTimes;
      by_op[time.op].second += i == 0;
      total += time.seconds / kTimes;
    }
  }
  std::vector<std::pair<double, std::string>> order;
  for (const auto& [op, time] : by_op) order.emplace_back(-time.first, op);
  std::sort(order.begin(), order.end());
  report->Table(title, {"instruction", "ms per step", "%", "instructions"});
  for (const auto& [minus, op] : order) {
    report->Row({Text(op), Number(-1e3 * minus, 3), Number(-100 * minus / total, 1),
                 Number(by_op[op].second, 0)});
  }
  return absl::OkStatus();
}

absl::Status Measure(Report* report) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  const int steps = absl::GetFlag(FLAGS_train_steps), threads = absl::GetFlag(FLAGS_threads);
  absl::StatusOr<Parameters> llm_weights = TrainForServing(registry, "llm", steps, threads);
  if (!llm_weights.ok()) return llm_weights.status();
  absl::StatusOr<Parameters> ssm_weights = TrainForServing(registry, "ssm", steps, threads);
  if (!ssm_weights.ok()) return ssm_weights.status();
  ServingShape shape;
  shape.max_rows = 320;
  shape.max_output_rows = 320;
  shape.kv_slots = 4096;
  shape.max_sequences = 16;
  shape.max_context_slots = 4096;
  shape.max_ancestor_slots = 320 * 16;
  absl::StatusOr<ServedModel> llm = LoadForServing(registry, "llm", *llm_weights, shape, threads);
  if (!llm.ok()) return llm.status();
  absl::StatusOr<ServedModel> ssm = LoadForServing(registry, "ssm", *ssm_weights, shape, threads);
  if (!ssm.ok()) return ssm.status();
  const std::string text = ServingText();

  struct Mode {
    std::string name;
    ServedModel* ssm;
    int batch;
    std::vector<Run> runs;
  };
  const std::string tree = absl::StrCat("tree <", absl::GetFlag(FLAGS_expansion), ">");
  std::vector<Mode> modes = {{"incremental", nullptr, 1, {}},
                             {tree, &*ssm, 1, {}},
                             {"incremental", nullptr, kMaxBatch, {}},
                             {tree, &*ssm, kMaxBatch, {}}};
  std::vector<double> memory, cache;
  for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
    memory.push_back(ReadBandwidth(threads, int64_t{1} << 30));
    cache.push_back(ReadBandwidth(threads, static_cast<int64_t>(llm->weight_bytes)));
    for (Mode& mode : modes) {
      absl::StatusOr<Run> run = Decode(*llm, mode.ssm, text, mode.batch, round);
      if (!run.ok()) return run.status();
      mode.runs.push_back(*run);
    }
  }
  const double from_memory = Median(memory), from_cache = Median(cache);
  report->Table(absl::StrCat("Reading memory, ", threads, " threads"), {"array MB", "GB/s"});
  report->Row({Number(static_cast<double>(1 << 30) / 1e6, 1), Number(from_memory / 1e9, 1)});
  report->Row({Number(llm->weight_bytes / 1e6, 1), Number(from_cache / 1e9, 1)});
  report->Note("The second array is as large as the LLM's weights: what a cache may keep of them.");

  report->Table(
      absl::StrCat("Decoding, LLM of ", CountParameters(LlamaOf("llm")), " parameters (",
                   absl::StrFormat("%.1f", llm->weight_bytes / 1e6), " MB read per step), SSM of ",
                   CountParameters(LlamaOf("ssm")), ", ", threads, " threads"),
      {"mode", "batch", "tokens/s", "tokens per LLM step and request", "LLM step ms",
       "rows per LLM step", "SSM ms per LLM step", "engine ms per LLM step", "weights GB/s",
       "% of memory", "% of weights-sized array"});
  for (const Mode& mode : modes) {
    auto median = [&](auto value) {
      std::vector<double> values;
      for (const Run& run : mode.runs) values.push_back(value(run));
      return Median(values);
    };
    const double rate =
        median([&](const Run& r) { return llm->weight_bytes * r.llm_steps / r.llm_seconds; });
    report->Row(
        {Text(mode.name), Number(mode.batch, 0),
         Number(median([](const Run& r) { return r.tokens_per_second; }), 1),
         Number(median([&](const Run& r) { return r.tokens / r.llm_steps / mode.batch; }), 2),
         Number(median([](const Run& r) { return 1e3 * r.llm_seconds / r.llm_steps; }), 3),
         Number(median([](const Run& r) { return r.llm_rows / r.llm_steps; }), 1),
         Number(median([](const Run& r) { return 1e3 * r.ssm_seconds / r.llm_steps; }), 3),
         Number(median([](const Run& r) {
                  return 1e3 * (r.seconds - r.llm_seconds - r.ssm_seconds) / r.llm_steps;
                }),
                3),
         Number(rate / 1e9, 2), Number(100 * rate / from_memory, 1),
         Number(100 * rate / from_cache, 1)});
  }
  report->Note(absl::StrCat("Prompts of ", kPrompt, " bytes from the held-out tail, greedy, ",
                            absl::GetFlag(FLAGS_tokens), " tokens each; medians of ",
                            absl::GetFlag(FLAGS_rounds), " rounds in turns. ",
                            steps > 0
                                ? absl::StrCat("Both models were trained for ", steps, " steps.")
                                : "Random weights: drafts are hardly ever accepted.",
                            " Weights GB/s counts the time inside the LLM's steps alone."));

  for (const Mode& mode : modes) {
    absl::StatusOr<Run> run = Decode(*llm, mode.ssm, text, mode.batch, 0);
    if (!run.ok()) return run.status();
    absl::Status s = AddProfile(*llm,
                                absl::StrCat("One LLM step, ", mode.name, ", batch ", mode.batch,
                                             ", ", llm->counting->widest.rows(), " rows"),
                                report);
    if (s.ok() && mode.ssm != nullptr) {
      s = AddProfile(*ssm,
                     absl::StrCat("One SSM step, batch ", mode.batch, ", ",
                                  ssm->counting->widest.rows(), " rows"),
                     report);
    }
    if (!s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  espalier::Report report("decode_throughput");
  if (absl::Status status = espalier::Measure(&report); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  return report.Print(absl::GetFlag(FLAGS_json), absl::GetFlag(FLAGS_json_file));
}
