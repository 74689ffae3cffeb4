// Speculative decoding by load: tokens/s of 1 to 64 concurrent requests, decoded incrementally,
// with draft chains, with trees of fixed shape, and with self-tuning speculation. Engines persist
// over all rounds, as in a server, so tuned modes keep what they learned.
//
// In a round all modes decode the same prompts and alternate after every few tokens, so that
// disturbances longer than some milliseconds affect all modes equally. Rates are compared with the
// same round's incremental rate. Requests do not end within a round, so the load is constant.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "ops/operators/register_all.h"
#include "serving/engine/engine.h"
#include "serving/tokenizer/byte_tokenizer.h"
#include "tests/benchmarks/report.h"
#include "tests/benchmarks/serving_models.h"
#include "tests/benchmarks/slot_range_runner.h"
#include "tests/benchmarks/step_times.h"
#include "tests/benchmarks/workload.h"

ABSL_FLAG(bool, json, false, "print JSON instead of tables");
ABSL_FLAG(std::string, json_file, "", "also write the JSON here");
ABSL_FLAG(int, threads, 2, "of the models");
ABSL_FLAG(int, train_steps, 100, "of the LLM and of the SSM before; 0: random weights");
ABSL_FLAG(int, rounds, 15, "that count");
ABSL_FLAG(int, warmup_steps, 2000,
          "warmup steps of the tuned modes at each load, since a server learns from nothing only "
          "once");
ABSL_FLAG(int, tokens, 96, "of each answer");
ABSL_FLAG(double, temperature, 0, "of all requests");
ABSL_FLAG(bool, reproducible, false,
          "requests must be reproducible: tuned drafts share the sampling noise of the LLM");
ABSL_FLAG(std::string, concurrency, "1,2,4,8,16,32,64", "numbers of concurrent requests");
ABSL_FLAG(std::string, llm, "", "folder of the LLM; empty: the quickstart's sizes, trained here");
ABSL_FLAG(std::string, ssm, "", "folder of the SSM; empty: the quickstart's sizes, trained here");
ABSL_FLAG(std::string, text, "", "file whose last tenth the prompts are from; empty: Genesis");
ABSL_FLAG(std::vector<std::string>, tree_shapes,
          std::vector<std::string>({"1-1-1-1", "1-1-3-1-1", "2-1-1"}),
          "fixed trees, their widths with '-' between them");
ABSL_FLAG(std::vector<std::string>, modes, {},
          "only these, by the first words of their names; always incremental");

namespace espalier {
namespace {

constexpr int kPrompt = 64;
constexpr int kMostRequests = 64;
constexpr int kRows = 832;                     // 64 trees of <1,1,3,1,1>
constexpr int kSlots = 16384;                  // of each engine's KV cache
constexpr int kNgram = 6;                      // tokens
constexpr int kFirst = 8;                      // untimed first tokens of each request
constexpr int kTurnTokens = 64;                // tokens per turn, over all requests
constexpr int kLeastTurn = 8, kMostTurn = 32;  // limits per request
constexpr int kLongest = 4;   // times the mean output length: acceptance differs by text
constexpr int kAnswers = 32;  // minimum number of outputs per round

struct Run {
  double tokens = 0, seconds = 0, llm_steps = 0, llm_rows = 0;
  double ssm_steps = 0, ssm_rows = 0;
  double llm_seconds = 0, ssm_seconds = 0;  // in the models' own steps
};

// A model, and one engine's range of its KV cache.
struct Share {
  Share(ServedModel& model, int number)
      : range(model.runner.get(), number * kSlots, kSlots), counting(&range) {}

  SlotRangeRunner range;
  CountingRunner counting;
};

struct Mode {
  std::string name;
  bool tuned = false, drafts = false;
  std::unique_ptr<Share> llm, ssm;
  std::unique_ptr<Engine> engine;
  std::map<int, std::vector<Run>> runs;       // by load
  std::map<int, std::vector<double>> ratios;  // rate over that of incremental decoding, by load
  // The current round.
  std::vector<RequestId> requests;
  Run run;
};

double Rate(const Run& run) { return run.tokens / run.seconds; }

// Half the width of a box plot's notch (McGill, Tukey and Larsen 1978): medians whose notches do
// not overlap differ with about 95 % confidence.
double NotchHalfWidth(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  const auto quantile = [&](double share) {
    const double at = share * static_cast<double>(n - 1);
    const size_t low = static_cast<size_t>(at), high = std::min(low + 1, n - 1);
    return values[low] + (at - static_cast<double>(low)) * (values[high] - values[low]);
  };
  return 1.57 * (quantile(0.75) - quantile(0.25)) / std::sqrt(static_cast<double>(n));
}

// Starts requests with the round's prompts and runs them until each has a few tokens: tuned SSMs
// prefill when they begin to draft, other SSMs together with the LLM.
absl::Status Begin(Mode& mode, const Tokenizer& tokenizer, const std::string& text, int load,
                   int round) {
  for (int i = 0; i < load; ++i) {
    const uint32_t number = static_cast<uint32_t>(round * kMostRequests + i);
    // Prompts come from the held-out tail.
    const size_t tail = text.size() / 10 - kPrompt;
    const size_t at = text.size() - text.size() / 10 + static_cast<size_t>(number) * 977 % tail;
    RequestOptions request;
    request.max_tokens = kLongest * absl::GetFlag(FLAGS_tokens);
    request.ignore_eos = true;
    request.sampling.temperature = absl::GetFlag(FLAGS_temperature);
    request.sampling.seed = number;
    request.reproducible = absl::GetFlag(FLAGS_reproducible);
    auto id = mode.engine->Submit(tokenizer.Encode(text.substr(at, kPrompt)), request);
    if (!id.ok()) return id.status();
    mode.requests.push_back(*id);
  }
  std::map<RequestId, int> waiting;  // tokens left
  for (const RequestId id : mode.requests) waiting[id] = kFirst;
  while (!waiting.empty()) {
    if (absl::Status s = mode.engine->Step(); !s.ok()) return s;
    for (const RequestEvent& event : mode.engine->TakeEvents()) {
      const auto at = waiting.find(event.id);
      if (at == waiting.end()) continue;
      at->second -= static_cast<int>(event.tokens.size());
      if (at->second <= 0) waiting.erase(at);
    }
  }
  return absl::OkStatus();
}

// Steps until the mode's requests have generated `tokens` tokens in this round.
absl::Status Decode(Mode& mode, double tokens) {
  mode.llm->counting.Clear();
  mode.ssm->counting.Clear();
  const double start = Seconds();
  for (double yielded = 0; yielded < tokens - mode.run.tokens;) {
    if (absl::Status s = mode.engine->Step(); !s.ok()) return s;
    for (const RequestEvent& event : mode.engine->TakeEvents()) {
      yielded += static_cast<double>(event.tokens.size());
      if (event.finished) return absl::InternalError("an answer ended before its round");
    }
    if (yielded >= tokens - mode.run.tokens) {
      mode.run.tokens += yielded;
      break;
    }
  }
  mode.run.seconds += Seconds() - start;
  mode.run.llm_steps += mode.llm->counting.steps;
  mode.run.llm_rows += mode.llm->counting.rows;
  mode.run.llm_seconds += mode.llm->counting.seconds;
  mode.run.ssm_steps += mode.ssm->counting.steps;
  mode.run.ssm_rows += mode.ssm->counting.rows;
  mode.run.ssm_seconds += mode.ssm->counting.seconds;
  return absl::OkStatus();
}

absl::Status End(Mode& mode) {
  for (const RequestId id : mode.requests) mode.engine->Cancel(id);
  mode.requests.clear();
  mode.engine->TakeEvents();
  return mode.engine->idle() ? absl::OkStatus() : absl::InternalError("cancelled, but not idle");
}

// Runs one round of these modes at one load, and adds to their runs.
absl::Status Round(absl::Span<Mode* const> modes, const Tokenizer& tokenizer,
                   const std::string& text, int load, int round) {
  for (Mode* mode : modes) {
    if (absl::Status s = Begin(*mode, tokenizer, text, load, round); !s.ok()) return s;
  }
  const double before = modes[0]->run.tokens;
  const int tokens = absl::GetFlag(FLAGS_tokens);
  const int turn = std::clamp(kTurnTokens / load, kLeastTurn, kMostTurn);
  // Random order, because the preceding mode affects CPU caches.
  std::vector<Mode*> order(modes.begin(), modes.end());
  std::mt19937 random(static_cast<uint32_t>(round));
  for (int end = turn; end < tokens + turn; end += turn) {
    std::shuffle(order.begin(), order.end(), random);
    for (Mode* mode : order) {
      absl::Status s = Decode(*mode, before + 1.0 * load * std::min(end, tokens));
      if (!s.ok()) return s;
    }
  }
  for (Mode* mode : modes) {
    if (absl::Status s = End(*mode); !s.ok()) return s;
  }
  return absl::OkStatus();
}

using Models = std::map<std::string, ServedModel>;

absl::StatusOr<Models> MakeModels(const OpRegistry& registry, int modes) {
  const int threads = absl::GetFlag(FLAGS_threads);
  ServingShape shape;
  shape.max_rows = kRows;
  shape.max_output_rows = kRows;
  shape.kv_slots = kSlots * modes;
  shape.max_sequences = 2 * kMostRequests;
  shape.max_context_slots = kSlots;
  shape.max_ancestor_slots = kRows * 8;
  Models models;
  const std::map<std::string, std::string> folders = {{"llm", absl::GetFlag(FLAGS_llm)},
                                                      {"ssm", absl::GetFlag(FLAGS_ssm)}};
  for (const auto& [name, folder] : folders) {
    absl::StatusOr<Parameters> weights = Parameters();
    if (folder.empty()) {
      weights = TrainForServing(registry, name, absl::GetFlag(FLAGS_train_steps), threads);
    }
    if (!weights.ok()) return weights.status();
    absl::StatusOr<ServedModel> model =
        folder.empty() ? LoadForServing(registry, name, *weights, shape, threads)
                       : LoadFolderForServing(registry, folder, shape, threads);
    if (!model.ok()) return model.status();
    models.emplace(name, *std::move(model));
  }
  return models;
}

// How a mode drafts. The shape is appended to `name`.
struct Way {
  std::string name, expansion;
  bool ssm = false, tuned = false;
  int ngram = 0;
};

// Returns the requested modes, incremental decoding first.
std::vector<Way> RequestedModes() {
  std::vector<Way> ways = {{"incremental", "", false, false, 0}};
  for (const std::string& widths : absl::GetFlag(FLAGS_tree_shapes)) {
    const std::string expansion = absl::StrReplaceAll(widths, {{"-", ","}});
    const bool chain = expansion.find_first_not_of("1,") == std::string::npos;
    const std::string name = absl::StrCat(chain ? "sequence <" : "tree <", expansion, ">");
    ways.push_back({name, expansion, true, false, 0});
    if (chain) ways.push_back({absl::StrCat("n-gram and ", name), expansion, true, false, kNgram});
  }
  for (const int depth : {kNgram / 2, kNgram}) {
    ways.push_back({absl::StrCat("n-gram of ", depth, ", always"), "", false, false, depth});
  }
  ways.push_back({"auto", "", true, true, 0});
  ways.push_back({"n-gram and auto", "", true, true, kNgram});
  ways.push_back({"n-gram alone", "", false, true, kNgram});
  // A second incremental mode, to measure the effect of order and noise.
  ways.push_back({"incremental, again", "", false, false, 0});
  const std::vector<std::string> only = absl::GetFlag(FLAGS_modes);
  if (only.empty()) return ways;
  std::vector<Way> wanted = {ways[0]};
  for (size_t i = 1; i < ways.size(); ++i) {
    const auto starts = [&](const std::string& start) {
      return absl::StartsWith(ways[i].name, start);
    };
    if (std::any_of(only.begin(), only.end(), starts)) wanted.push_back(ways[i]);
  }
  return wanted;
}

absl::StatusOr<Mode> MakeMode(const Way& way, int number, Models& models,
                              const Tokenizer& tokenizer) {
  Mode mode;
  mode.name = way.name;
  mode.tuned = way.tuned;
  mode.drafts = way.ssm || way.ngram > 0;
  mode.llm = std::make_unique<Share>(models.at("llm"), number);
  mode.ssm = std::make_unique<Share>(models.at("ssm"), number);
  EngineOptions options;
  absl::StatusOr<Expansion> shape = Expansion::Parse(way.expansion);
  if (!shape.ok()) return shape.status();
  options.expansion = *shape;
  options.max_requests = kMostRequests;
  options.max_tokens_per_batch = kRows;
  options.prefix_cache = false;  // prompts repeat in other rounds
  options.speculation.tune = way.tuned;
  options.speculation.ngram.depth = way.ngram;
  options.speculation.sampled =
      way.tuned ? SampledDrafting::kCoupledIfSeeded : SampledDrafting::kWithoutReplacement;
  options.seconds = Seconds;
  std::vector<ModelRunner*> ssms;
  if (way.ssm) ssms.push_back(&mode.ssm->counting);
  auto engine = Engine::Create(&mode.llm->counting, ssms, &tokenizer, options);
  if (!engine.ok()) return engine.status();
  mode.engine = *std::move(engine);
  return mode;
}

absl::StatusOr<std::vector<int>> Loads() {
  std::vector<int> loads;
  for (const absl::string_view text : absl::StrSplit(absl::GetFlag(FLAGS_concurrency), ',')) {
    int load = 0;
    if (!absl::SimpleAtoi(text, &load) || load < 1 || load > kMostRequests) {
      return absl::InvalidArgumentError(
          absl::StrCat("--concurrency has \"", text, "\", expected 1 to ", kMostRequests));
    }
    loads.push_back(load);
  }
  return loads;
}

// Warms up the tuned modes at every load, alternating as in timed rounds, because a model that runs
// alone finds other CPU cache contents.
absl::Status Warm(std::vector<Mode>& modes, const std::vector<int>& loads,
                  const Tokenizer& tokenizer, const std::string& text) {
  std::vector<Mode*> all;
  for (Mode& mode : modes) all.push_back(&mode);
  const auto steps = [&] {
    double least = absl::GetFlag(FLAGS_warmup_steps);
    for (const Mode& mode : modes) {
      if (mode.tuned) least = std::min(least, mode.run.llm_steps);
    }
    return least;
  };
  for (const int load : loads) {
    for (Mode& mode : modes) mode.run = {};
    for (int round = 0; steps() < absl::GetFlag(FLAGS_warmup_steps); ++round) {
      std::fprintf(stderr, "\r%d requests, learning: %.0f steps   ", load, steps());
      absl::Status status = Round(all, tokenizer, text, load, -1 - round);
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

absl::Status Rounds(std::vector<Mode>& modes, const std::vector<int>& loads,
                    const Tokenizer& tokenizer, const std::string& text) {
  std::vector<Mode*> all;
  for (Mode& mode : modes) all.push_back(&mode);
  const int rounds = absl::GetFlag(FLAGS_rounds);
  int prompts = 0;
  for (int round = 0; round < rounds; ++round) {
    for (const int load : loads) {
      std::fprintf(stderr, "\rround %d of %d, %d requests   ", round + 1, rounds, load);
      for (Mode& mode : modes) mode.run = {};
      // Equally many outputs at every load, up to a bound: few tokens are noisy.
      for (int i = 0; i < std::max(1, kAnswers / load); ++i) {
        absl::Status status = Round(all, tokenizer, text, load, prompts++);
        if (!status.ok()) return status;
      }
      for (Mode& mode : modes) {
        mode.runs[load].push_back(mode.run);
        mode.ratios[load].push_back(Rate(mode.run) / Rate(modes[0].run));
      }
    }
  }
  std::fprintf(stderr, "\n");
  return absl::OkStatus();
}

// Returns the fixed mode with the highest median in the rounds whose number is `parity` modulo 2,
// or in all rounds if there are none or `parity` is -1.
const Mode& BestFixed(const std::vector<Mode>& modes, int load, int parity) {
  const auto median = [&](const Mode& mode) {
    const std::vector<double>& all = mode.ratios.at(load);
    std::vector<double> some;
    for (size_t i = 0; i < all.size(); ++i) {
      if (parity < 0 || static_cast<int>(i % 2) == parity) some.push_back(all[i]);
    }
    return Median(some.empty() ? all : some);
  };
  const Mode* best = &modes[0];
  for (const Mode& mode : modes) {
    if (!mode.tuned && mode.drafts && median(mode) > median(*best)) best = &mode;
  }
  return *best;
}

// Compares even rounds with the best fixed mode of odd rounds and vice versa, to avoid selection
// bias.
void CompareWithFixedShapes(const std::vector<Mode>& modes, const std::vector<int>& loads,
                            Report* report) {
  std::vector<std::string> columns = {"requests", "best fixed"};
  for (const Mode& mode : modes) {
    if (mode.tuned) columns.insert(columns.end(), {mode.name, "+-"});
  }
  report->Table("Tuned modes against the best fixed one in the same rounds", columns);
  for (const int load : loads) {
    const Mode* rivals[] = {&BestFixed(modes, load, 1), &BestFixed(modes, load, 0)};
    std::vector<Cell> row = {Number(load, 0), Text(BestFixed(modes, load, -1).name)};
    for (const Mode& mode : modes) {
      if (!mode.tuned) continue;
      std::vector<double> ratios = mode.ratios.at(load);
      for (size_t i = 0; i < ratios.size(); ++i) ratios[i] /= rivals[i % 2]->ratios.at(load)[i];
      row.push_back(Number(Median(ratios), 3));
      row.push_back(Number(NotchHalfWidth(ratios), 3));
    }
    report->Row(row);
  }
}

void ReportResults(const std::vector<Mode>& modes, const std::vector<int>& loads, Report* report) {
  std::vector<std::string> columns = {"requests"};
  for (const Mode& mode : modes) columns.push_back(mode.name);
  const auto table = [&](const std::string& title, int digits, auto value) {
    report->Table(title, columns);
    for (const int load : loads) {
      std::vector<Cell> row = {Number(load, 0)};
      for (const Mode& mode : modes) row.push_back(Number(value(mode, load), digits));
      report->Row(row);
    }
  };
  const auto runs = [&](const std::string& title, int digits, auto value) {
    table(title, digits, [&](const Mode& mode, int load) {
      std::vector<double> values;
      for (const Run& run : mode.runs.at(load)) values.push_back(value(run, load));
      return Median(values);
    });
  };
  runs(absl::StrCat("Decoding by load, tokens/s, ", absl::GetFlag(FLAGS_threads), " threads"), 0,
       [](const Run& run, int) { return Rate(run); });
  report->Note(absl::StrCat(
      "Prompts of ", kPrompt, " bytes from the held-out tail, ", absl::GetFlag(FLAGS_tokens),
      " tokens each, temperature ", absl::GetFlag(FLAGS_temperature), "; medians of ",
      absl::GetFlag(FLAGS_rounds), " rounds; tuned modes have seen ",
      absl::GetFlag(FLAGS_warmup_steps), " steps of each load before; ",
      absl::GetFlag(FLAGS_llm).empty()
          ? absl::StrCat("models trained for ", absl::GetFlag(FLAGS_train_steps), " steps.")
          : "models from folders."));
  table("Against incremental decoding in the same rounds", 3,
        [](const Mode& mode, int load) { return Median(mode.ratios.at(load)); });
  table("Uncertainty of these medians, +-", 3,
        [](const Mode& mode, int load) { return NotchHalfWidth(mode.ratios.at(load)); });
  CompareWithFixedShapes(modes, loads, report);
  runs("Rows of an LLM step", 1, [](const Run& r, int) { return r.llm_rows / r.llm_steps; });
  runs("SSM steps per LLM step", 2, [](const Run& r, int) { return r.ssm_steps / r.llm_steps; });
  runs("Rows of an SSM step", 1,
       [](const Run& r, int) { return r.ssm_rows / std::max(1.0, r.ssm_steps); });
  runs("Share of the time in the LLM's steps", 2,
       [](const Run& r, int) { return r.llm_seconds / r.seconds; });
  runs("Share of the time in the SSM's steps", 2,
       [](const Run& r, int) { return r.ssm_seconds / r.seconds; });
  runs("Tokens per LLM step and request", 2,
       [](const Run& r, int load) { return r.tokens / r.llm_steps / load; });
}

absl::Status Measure(Report* report) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  absl::StatusOr<std::vector<int>> loads = Loads();
  if (!loads.ok()) return loads.status();
  std::string text = ServingText();
  if (const std::string path = absl::GetFlag(FLAGS_text); !path.empty()) {
    std::ifstream file(path, std::ios::binary);
    text.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  if (text.size() < 20 * kPrompt) {
    return absl::InvalidArgumentError("--text cannot be read, or is too short for prompts");
  }
  auto tokenizer = ByteTokenizer::Create();
  if (!tokenizer.ok()) return tokenizer.status();
  const std::vector<Way> ways = RequestedModes();
  absl::StatusOr<Models> models = MakeModels(registry, static_cast<int>(ways.size()));
  if (!models.ok()) return models.status();
  absl::Status status = ReportStepTimes(
      {{"LLM", models->at("llm").runner.get()}, {"SSM", models->at("ssm").runner.get()}}, report);
  std::vector<Mode> modes;
  for (const Way& way : ways) {
    absl::StatusOr<Mode> mode = MakeMode(way, static_cast<int>(modes.size()), *models, **tokenizer);
    if (!mode.ok()) return mode.status();
    modes.push_back(*std::move(mode));
  }
  if (status.ok()) status = Warm(modes, *loads, **tokenizer, text);
  if (status.ok()) status = Rounds(modes, *loads, **tokenizer, text);
  if (status.ok()) ReportResults(modes, *loads, report);
  return status;
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  espalier::Report report("speculation_sweep");
  if (absl::Status status = espalier::Measure(&report); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  return report.Print(absl::GetFlag(FLAGS_json), absl::GetFlag(FLAGS_json_file));
}
