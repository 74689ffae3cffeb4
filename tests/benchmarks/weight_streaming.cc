// Decoding with weights streamed from host memory, with and without token tree speculation, where
// one transfer of the weights verifies a whole tree. The LLM is the quickstart's trained one, so
// that the acceptance rate is realistic, enlarged by MLP neurons whose outputs have weight 0.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "ops/operators/register_all.h"
#include "serving/engine/engine.h"
#include "serving/tokenizer/byte_tokenizer.h"
#include "tests/benchmarks/report.h"
#include "tests/benchmarks/serving_models.h"
#include "tests/benchmarks/workload.h"

ABSL_FLAG(bool, json, false, "print JSON instead of tables");
ABSL_FLAG(std::string, json_file, "", "also write the JSON here");
ABSL_FLAG(int, threads, 2, "of the models");
ABSL_FLAG(int, train_steps, 100, "of the LLM and of the SSM before; 0: random weights");
ABSL_FLAG(int, intermediate, 8192, "neurons of each of the LLM's MLPs");
ABSL_FLAG(double, resident_fraction, 0.2, "fraction of the LLM's weights kept on the device");
ABSL_FLAG(std::string, swap_folder, "", "where streamed weights lie; empty: in memory");
ABSL_FLAG(int, rounds, 5, "turns");
ABSL_FLAG(int, tokens, 64, "of each answer");
ABSL_FLAG(int, requests, 1, "at once");

namespace espalier {
namespace {

constexpr int kPrompt = 64;
constexpr int kRows = 320;
constexpr int kMostRequests = 16;
constexpr int kNgram = 6;  // tokens, as served by default

// Returns the LLM's parameters with added neurons in each MLP. Their gate and up rows are random,
// their down columns 0.
Parameters Widen(const Parameters& given, const LlamaConfig& from, const LlamaConfig& to) {
  const auto more = static_cast<size_t>(to.intermediate_size - from.intermediate_size);
  const auto hidden = static_cast<size_t>(from.hidden_size);
  const auto inner = static_cast<size_t>(from.intermediate_size);
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.05f);
  std::vector<float> rows(more * hidden);
  for (float& value : rows) value = normal(random);
  Parameters wide = given;
  for (auto& [name, bytes] : wide) {
    if (absl::StrContains(name, "gate_proj") || absl::StrContains(name, "up_proj")) {
      const char* begin = reinterpret_cast<const char*>(rows.data());
      bytes.insert(bytes.end(), begin, begin + rows.size() * sizeof(float));
    } else if (absl::StrContains(name, "down_proj")) {
      std::vector<char> wider(hidden * (inner + more) * sizeof(float), 0);
      for (size_t row = 0; row < hidden; ++row) {
        std::memcpy(wider.data() + row * (inner + more) * sizeof(float),
                    bytes.data() + row * inner * sizeof(float), inner * sizeof(float));
      }
      bytes = std::move(wider);
    }
  }
  return wide;
}

struct Run {
  double tokens = 0, seconds = 0, steps = 0, step_seconds = 0, rows = 0;
};

struct Mode {
  std::string name;
  CountingRunner* llm;
  std::unique_ptr<Engine> engine;
  std::vector<Run> runs;
};

// Prefills untimed, then times until the first output is complete, and finishes the rest untimed.
absl::StatusOr<Run> Decode(Mode& mode, const Tokenizer& tokenizer, const std::string& text,
                           int round) {
  const int requests = absl::GetFlag(FLAGS_requests), wanted = absl::GetFlag(FLAGS_tokens);
  std::map<RequestId, int> emitted;
  for (int i = 0; i < requests; ++i) {
    const size_t tail = text.size() / 10 - kPrompt;
    const size_t at = text.size() - text.size() / 10 + (round * kMostRequests + i) * 977 % tail;
    RequestOptions request;
    request.max_tokens = wanted;
    auto id = mode.engine->Submit(tokenizer.Encode(text.substr(at, kPrompt)), request);
    if (!id.ok()) return id.status();
    emitted[*id] = 0;
  }
  Run run;
  double start = 0;
  bool over = false;
  while (!mode.engine->idle()) {
    if (absl::Status s = mode.engine->Step(); !s.ok()) return s;
    const double now = Seconds();
    const bool counts = start > 0 && !over;
    for (const RequestEvent& event : mode.engine->TakeEvents()) {
      emitted[event.id] += static_cast<int>(event.tokens.size());
      if (counts) run.tokens += static_cast<double>(event.tokens.size());
      over = over || event.finished;
    }
    if (counts) {
      run.seconds = now - start;
      run.steps = mode.llm->steps;
      run.step_seconds = mode.llm->seconds;
      run.rows = mode.llm->rows;
    }
    int least = wanted;
    for (const auto& [id, count] : emitted) least = std::min(least, count);
    if (start == 0 && least > 0) {
      start = Seconds();
      mode.llm->Clear();
    }
  }
  return run;
}

absl::Status Measure(Report* report) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  const int steps = absl::GetFlag(FLAGS_train_steps), threads = absl::GetFlag(FLAGS_threads);
  const int requests = absl::GetFlag(FLAGS_requests);
  if (requests < 1 || requests > kMostRequests) {
    return absl::InvalidArgumentError(absl::StrCat("--requests: expected 1 to ", kMostRequests));
  }
  ServingShape shape;
  shape.max_rows = shape.max_output_rows = kRows;
  shape.kv_slots = shape.max_context_slots = 8192;
  shape.max_sequences = 2 * kMostRequests;
  shape.max_ancestor_slots = kRows * 16;
  const LlamaConfig trained = LlamaOf("llm");
  LlamaConfig wide = trained;
  wide.intermediate_size =
      std::max<int64_t>(absl::GetFlag(FLAGS_intermediate), trained.intermediate_size);
  absl::StatusOr<Parameters> llm_weights = TrainForServing(registry, "llm", steps, threads);
  if (!llm_weights.ok()) return llm_weights.status();
  absl::StatusOr<Parameters> ssm_weights = TrainForServing(registry, "ssm", steps, threads);
  if (!ssm_weights.ok()) return ssm_weights.status();
  const Parameters weights = Widen(*llm_weights, trained, wide);
  const double bytes = 4.0 * static_cast<double>(CountParameters(wide));
  const auto budget = static_cast<int64_t>(bytes * absl::GetFlag(FLAGS_resident_fraction));
  absl::StatusOr<ServedModel> resident =
      LoadForServing(registry, wide, weights, shape, threads, {});
  if (!resident.ok()) return resident.status();
  absl::StatusOr<ServedModel> streaming =
      LoadForServing(registry, wide, weights, shape, threads, {.resident_weight_bytes = budget},
                     absl::GetFlag(FLAGS_swap_folder));
  if (!streaming.ok()) return streaming.status();
  absl::StatusOr<ServedModel> ssm = LoadForServing(registry, "ssm", *ssm_weights, shape, threads);
  if (!ssm.ok()) return ssm.status();
  auto tokenizer = ByteTokenizer::Create();
  if (!tokenizer.ok()) return tokenizer.status();
  const std::string text = ServingText();

  std::vector<Mode> modes;
  const auto add = [&](const std::string& name, ServedModel& llm, const char* expansion, bool tune,
                       int ngram = 0) -> absl::Status {
    EngineOptions options;
    absl::StatusOr<Expansion> shape_of_trees = Expansion::Parse(expansion);
    if (!shape_of_trees.ok()) return shape_of_trees.status();
    options.expansion = *shape_of_trees;
    options.max_requests = kMostRequests;
    options.max_tokens_per_batch = kRows;
    options.prefix_cache = false;  // the engines share the runners
    options.speculation.tune = tune;
    options.speculation.ngram.depth = ngram;
    if (tune) options.speculation.sampled = SampledDrafting::kCoupled;
    options.seconds = Seconds;
    std::vector<ModelRunner*> ssms;
    if (tune || expansion[0] != '\0') ssms.push_back(ssm->counting.get());
    auto engine = Engine::Create(llm.counting.get(), ssms, tokenizer->get(), options);
    if (!engine.ok()) return engine.status();
    modes.push_back({name, llm.counting.get(), *std::move(engine), {}});
    return absl::OkStatus();
  };
  absl::Status status = add("offload", *streaming, "", false);
  status.Update(add("offload, sequence <1,1,1,1>", *streaming, "1,1,1,1", false));
  status.Update(add("offload, tree <1,1,3,1,1>", *streaming, "1,1,3,1,1", false));
  status.Update(add("offload, tuned", *streaming, "", true));
  const char* longest = "1,1,1,1,1,1,1,1";
  status.Update(add("offload, sequence of 8", *streaming, longest, false));
  status.Update(
      add("offload, sequence of 8 and n-gram drafts", *streaming, longest, false, kNgram));
  status.Update(add("offload, tuned with n-gram drafts", *streaming, "", true, kNgram));
  status.Update(add("resident", *resident, "", false));
  status.Update(add("resident, tree <1,1,3,1,1>", *resident, "1,1,3,1,1", false));
  status.Update(add("resident, tuned", *resident, "", true));
  if (!status.ok()) return status;
  // One untimed round for the tuned engines to learn. Random order, because the preceding mode
  // affects CPU caches.
  std::vector<Mode*> order;
  for (Mode& mode : modes) order.push_back(&mode);
  std::mt19937 random(1);
  for (int round = -1; round < absl::GetFlag(FLAGS_rounds); ++round) {
    std::shuffle(order.begin(), order.end(), random);
    for (Mode* mode : order) {
      absl::StatusOr<Run> run = Decode(*mode, **tokenizer, text, round + 1);
      if (!run.ok()) return run.status();
      if (round >= 0) mode->runs.push_back(*run);
    }
  }
  const auto copied = static_cast<double>(streaming->runner->executor().program().host_bytes());
  report->Table(absl::StrFormat("LLM of %.0f MB, %.0f MB of it copied in every step, %d threads, "
                                "%d requests at once",
                                bytes / 1e6, copied / 1e6, threads, requests),
                {"mode", "tokens/s", "against offload", "against offload, least and most",
                 "ms per LLM step", "rows per LLM step", "tokens per LLM step", "copied GB/s"});
  for (const Mode& mode : modes) {
    const auto median = [&](auto value) {
      std::vector<double> values;
      for (const Run& run : mode.runs) values.push_back(value(run));
      return Median(values);
    };
    // Ratios within a round: disturbances affect both modes.
    std::vector<double> ratios;
    for (size_t i = 0; i < mode.runs.size(); ++i) {
      const Run &a = mode.runs[i], &b = modes[0].runs[i];
      ratios.push_back(a.tokens / a.seconds / (b.tokens / b.seconds));
    }
    const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
    const double step = median([](const Run& r) { return r.step_seconds / r.steps; });
    const bool streams = mode.llm == streaming->counting.get();
    report->Row(
        {Text(mode.name), Number(median([](const Run& r) { return r.tokens / r.seconds; }), 1),
         Number(Median(ratios), 2), Text(absl::StrFormat("%.2f to %.2f", *least, *most)),
         Number(step * 1e3, 2), Number(median([](const Run& r) { return r.rows / r.steps; }), 1),
         Number(median([](const Run& r) { return r.tokens / r.steps; }), 2),
         Number(streams ? copied / step / 1e9 : 0, 1)});
  }
  report->Note(absl::StrCat(
      "Greedy answers of ", absl::GetFlag(FLAGS_tokens), " tokens to prompts of ", kPrompt,
      " bytes from the held-out tail; medians of ", absl::GetFlag(FLAGS_rounds),
      " rounds in turns; both models trained for ", steps, " steps. Streamed weights lie ",
      absl::GetFlag(FLAGS_swap_folder).empty() ? "in memory" : "in a file", "."));
  return absl::OkStatus();
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  espalier::Report report("weight_streaming");
  if (absl::Status status = espalier::Measure(&report); !status.ok()) {
    std::fprintf(stderr, "offload: %s\n", status.ToString().c_str());
    return 1;
  }
  return report.Print(absl::GetFlag(FLAGS_json), absl::GetFlag(FLAGS_json_file));
}
