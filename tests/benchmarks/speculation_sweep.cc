// Speculation over the load: tokens/s of 1 to 64 requests at once, decoded incrementally, with
// chains, with trees of a fixed shape, and with speculation that tunes itself. The engines live
// through all rounds, as a server does: what the tuned ones learn stays. Each mode's run stands
// between two of incremental decoding and is compared with their mean; from round to round the
// modes change places. What slows the machine for longer than that slows both alike.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
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
#include "tests/benchmarks/workload.h"

ABSL_FLAG(bool, json, false, "print JSON instead of tables");
ABSL_FLAG(std::string, json_file, "", "also write the JSON here");
ABSL_FLAG(int, threads, 2, "of the models");
ABSL_FLAG(int, train_steps, 100, "of the LLM and of the SSM before; 0: random weights");
ABSL_FLAG(int, rounds, 15, "turns that count");
ABSL_FLAG(int, warm_rounds, 3,
          "turns before: learning from nothing happens once in a server's life");
ABSL_FLAG(int, tokens, 96, "of each answer");
ABSL_FLAG(double, temperature, 0, "of all requests");
ABSL_FLAG(std::string, loads, "1,2,4,8,16,32,64", "requests at once");
ABSL_FLAG(std::string, llm, "", "folder of the LLM; empty: the quickstart's sizes, trained here");
ABSL_FLAG(std::string, ssm, "", "folder of the SSM, likewise");
ABSL_FLAG(std::string, text, "", "file whose last tenth the prompts are from; empty: Genesis");
ABSL_FLAG(std::vector<std::string>, shapes,
          std::vector<std::string>({"1-1-1-1", "1-1-3-1-1", "2-1-1"}),
          "fixed trees, their widths with '-' between them");
ABSL_FLAG(std::vector<std::string>, modes, {},
          "only these, by the first words of their names; always incremental");

namespace espalier {
namespace {

constexpr int kPrompt = 64;
constexpr int kMostRequests = 64;
constexpr int kRows = 832;      // 64 trees of <1,1,3,1,1>
constexpr int kWarmTokens = 4;  // of each answer, before the clock starts

struct Run {
  double tokens = 0, seconds = 0, llm_steps = 0, llm_rows = 0;
  double llm_seconds = 0, ssm_seconds = 0;  // in the models' own steps
};

struct Mode {
  std::string name;
  std::unique_ptr<Engine> engine;
  std::map<int, std::vector<Run>> runs;       // by load
  std::map<int, std::vector<double>> ratios;  // rate over that of the neighbours in time, by load
};

double Rate(const Run& run) { return run.tokens / run.seconds; }

// Half the width of a notch (McGill, Tukey and Larsen 1978): medians whose notches do not meet
// differ, at about 95 %.
double Notch(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  const auto quantile = [&](double share) {
    const double at = share * static_cast<double>(n - 1);
    const size_t low = static_cast<size_t>(at), high = std::min(low + 1, n - 1);
    return values[low] + (at - static_cast<double>(low)) * (values[high] - values[low]);
  };
  return 1.57 * (quantile(0.75) - quantile(0.25)) / std::sqrt(static_cast<double>(n));
}

// All requests at once, until the first answer is complete: then the load changes. The rest is
// run to its end, untimed.
absl::StatusOr<Run> Decode(Engine& engine, CountingRunner& llm, CountingRunner& ssm,
                           const Tokenizer& tokenizer, const std::string& text, int load,
                           int round) {
  std::map<RequestId, int> emitted;
  for (int i = 0; i < load; ++i) {
    // From the held-out tail.
    const size_t tail = text.size() / 10 - kPrompt;
    const size_t at = text.size() - text.size() / 10 + (round * kMostRequests + i) * 977 % tail;
    RequestOptions request;
    request.max_tokens = absl::GetFlag(FLAGS_tokens);
    request.sampling.temperature = absl::GetFlag(FLAGS_temperature);
    request.sampling.seed = static_cast<uint64_t>(round * kMostRequests + i);
    auto id = engine.Submit(tokenizer.Encode(text.substr(at, kPrompt)), request);
    if (!id.ok()) return id.status();
    emitted[*id] = 0;
  }
  Run run;
  double start = 0;
  bool finished = false;
  while (!engine.idle()) {
    if (absl::Status s = engine.Step(); !s.ok()) return s;
    const double now = Seconds();
    int tokens = 0;
    bool over = finished;
    for (const RequestEvent& event : engine.TakeEvents()) {
      emitted[event.id] += static_cast<int>(event.tokens.size());
      tokens += static_cast<int>(event.tokens.size());
      finished = finished || event.finished;
    }
    if (over) continue;
    int least = absl::GetFlag(FLAGS_tokens);
    for (const auto& [id, count] : emitted) least = std::min(least, count);
    if (start > 0) {
      run.tokens += tokens;
      run.seconds = now - start;
      run.llm_steps = llm.steps;
      run.llm_rows = llm.rows;
      run.llm_seconds = llm.seconds;
      run.ssm_seconds = ssm.seconds;
    } else if (least >= kWarmTokens) {
      start = Seconds();
      llm.Clear();
      ssm.Clear();
    }
  }
  return run;
}

// `rows` sequences of one token each.
RunnerBatch OneTokenEach(int rows) {
  RunnerBatch batch;
  batch.ancestor_start.assign(static_cast<size_t>(rows) + 1, 0);
  batch.sequence_start.push_back(0);
  for (int r = 0; r < rows; ++r) {
    batch.tokens.push_back(r);
    batch.positions.push_back(0);
    batch.slots.push_back(r);
    batch.row_sequence.push_back(r);
    batch.row_prefix.push_back(1);
    batch.sequence_slots.push_back(r);
    batch.sequence_start.push_back(r + 1);
    batch.logit_rows.push_back(r);
  }
  return batch;
}

// What the tuner has to know: a step's time by its rows, in runs of the same size and with other
// sizes between them.
absl::Status StepTimes(std::map<std::string, ServedModel>& models, Report* report) {
  constexpr int kRowCounts[] = {1, 2, 3, 4, 5, 6, 8, 12, 16, 20, 24, 32, 48, 64, 96, 128};
  constexpr int kRepeats = 15;
  report->Table("A step by its rows, ms",
                {"rows", "LLM, repeated", "LLM, mixed", "SSM, repeated", "SSM, mixed"});
  std::map<int, std::vector<double>> cells;
  for (const char* name : {"llm", "ssm"}) {
    ModelRunner& runner = *models.at(name).runner;
    RunnerLogits logits;
    std::map<int, std::vector<double>> repeated, mixed;
    const auto time = [&](int rows, std::vector<double>* out) {
      const RunnerBatch batch = OneTokenEach(rows);
      const double start = Seconds();
      absl::Status status = runner.Step(batch, &logits);
      out->push_back((Seconds() - start) * 1e3);
      return status;
    };
    for (const int rows : kRowCounts) {
      for (int i = 0; i < kRepeats; ++i) {
        if (absl::Status s = time(rows, &repeated[rows]); !s.ok()) return s;
      }
    }
    for (int i = 0; i < kRepeats; ++i) {
      for (const int rows : kRowCounts) {
        if (absl::Status s = time(rows, &mixed[rows]); !s.ok()) return s;
      }
    }
    for (const int rows : kRowCounts) {
      cells[rows].push_back(Median(repeated[rows]));
      cells[rows].push_back(Median(mixed[rows]));
    }
  }
  for (const auto& [rows, values] : cells) {
    std::vector<Cell> row = {Number(rows, 0)};
    for (const double value : values) row.push_back(Number(value, 3));
    report->Row(row);
  }
  return absl::OkStatus();
}

absl::Status Measure(Report* report) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  const int steps = absl::GetFlag(FLAGS_train_steps), threads = absl::GetFlag(FLAGS_threads);
  ServingShape shape;
  shape.max_rows = kRows;
  shape.max_output_rows = kRows;
  shape.kv_slots = 16384;
  shape.max_sequences = 2 * kMostRequests;
  shape.max_context_slots = 16384;
  shape.max_ancestor_slots = kRows * 8;
  std::map<std::string, ServedModel> models;
  const std::map<std::string, std::string> folders = {{"llm", absl::GetFlag(FLAGS_llm)},
                                                      {"ssm", absl::GetFlag(FLAGS_ssm)}};
  for (const auto& [name, folder] : folders) {
    absl::StatusOr<Parameters> weights = Parameters();
    if (folder.empty()) weights = TrainForServing(registry, name, steps, threads);
    if (!weights.ok()) return weights.status();
    absl::StatusOr<ServedModel> model =
        folder.empty() ? LoadForServing(registry, name, *weights, shape, threads)
                       : LoadFolderForServing(registry, folder, shape, threads);
    if (!model.ok()) return model.status();
    models.emplace(name, *std::move(model));
  }
  if (absl::Status status = StepTimes(models, report); !status.ok()) return status;
  CountingRunner& llm = *models.at("llm").counting;
  CountingRunner& small = *models.at("ssm").counting;
  auto tokenizer = ByteTokenizer::Create();
  if (!tokenizer.ok()) return tokenizer.status();
  std::string text = ServingText();
  if (const std::string path = absl::GetFlag(FLAGS_text); !path.empty()) {
    std::ifstream file(path, std::ios::binary);
    text.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  if (text.size() < 20 * kPrompt) {
    return absl::InvalidArgumentError("--text cannot be read, or is too short for prompts");
  }

  std::vector<Mode> modes;
  const auto add = [&](const std::string& name, const char* expansion, bool ssm, bool tune,
                       int lookup) -> absl::Status {
    const std::vector<std::string> wanted = absl::GetFlag(FLAGS_modes);
    bool take = wanted.empty() || modes.empty();
    for (const std::string& start : wanted) take = take || absl::StartsWith(name, start);
    if (!take) return absl::OkStatus();
    EngineOptions options;
    absl::StatusOr<Expansion> shape = Expansion::Parse(expansion);
    if (!shape.ok()) return shape.status();
    options.expansion = *shape;
    options.max_requests = kMostRequests;
    options.max_tokens_per_batch = kRows;
    // The engines share the runners, so none may count on what it left in their KV caches.
    options.prefix_cache = false;
    options.speculation.tune = tune;
    options.speculation.lookup.depth = lookup;
    options.speculation.sampled = tune ? SampledDrafts::kShared : SampledDrafts::kDraws;
    options.seconds = Seconds;
    std::vector<ModelRunner*> ssms;
    if (ssm) ssms.push_back(models.at("ssm").counting.get());
    auto engine = Engine::Create(&llm, ssms, tokenizer->get(), options);
    if (!engine.ok()) return engine.status();
    modes.push_back({name, *std::move(engine), {}});
    return absl::OkStatus();
  };
  absl::Status status = add("incremental", "", false, false, 0);
  for (const std::string& widths : absl::GetFlag(FLAGS_shapes)) {
    const std::string expansion = absl::StrReplaceAll(widths, {{"-", ","}});
    const bool chain = expansion.find_first_not_of("1,") == std::string::npos;
    status.Update(add(absl::StrCat(chain ? "sequence <" : "tree <", expansion, ">"),
                      expansion.c_str(), true, false, 0));
  }
  status.Update(add("auto", "", true, true, 0));
  status.Update(add("auto, lookup", "", true, true, 6));
  status.Update(add("auto, lookup, no SSM", "", false, true, 6));
  // What the place in the turn does, and chance.
  status.Update(add("incremental, again", "", false, false, 0));
  if (!status.ok()) return status;

  std::vector<int> loads;
  for (const absl::string_view text_load : absl::StrSplit(absl::GetFlag(FLAGS_loads), ',')) {
    int load = 0;
    if (!absl::SimpleAtoi(text_load, &load) || load < 1 || load > kMostRequests) {
      return absl::InvalidArgumentError(
          absl::StrCat("--loads has \"", text_load, "\", expected 1 to ", kMostRequests));
    }
    loads.push_back(load);
  }
  const int warm = absl::GetFlag(FLAGS_warm_rounds);
  for (int round = 0; round < warm + absl::GetFlag(FLAGS_rounds); ++round) {
    for (const int load : loads) {
      const auto decode = [&](Mode& mode) {
        return Decode(*mode.engine, llm, small, **tokenizer, text, load, round);
      };
      absl::StatusOr<Run> before = decode(modes[0]);
      if (!before.ok()) return before.status();
      const size_t others = modes.size() - 1;
      for (size_t i = 0; i < others; ++i) {
        Mode& mode = modes[1 + (i + static_cast<size_t>(round)) % others];
        absl::StatusOr<Run> run = decode(mode);
        if (!run.ok()) return run.status();
        absl::StatusOr<Run> after = decode(modes[0]);
        if (!after.ok()) return after.status();
        if (round >= warm) {
          mode.runs[load].push_back(*run);
          mode.ratios[load].push_back(2 * Rate(*run) / (Rate(*before) + Rate(*after)));
          modes[0].runs[load].push_back(*after);
          modes[0].ratios[load].push_back(1);
        }
        before = std::move(after);
      }
    }
  }

  std::vector<std::string> columns = {"requests"};
  for (const Mode& mode : modes) columns.push_back(mode.name);
  const auto median = [](const std::vector<Run>& runs, auto value) {
    std::vector<double> values;
    for (const Run& run : runs) values.push_back(value(run));
    return Median(values);
  };
  const auto table = [&](const std::string& title, int digits, auto value) {
    report->Table(title, columns);
    for (const int load : loads) {
      std::vector<Cell> row = {Number(load, 0)};
      for (const Mode& mode : modes) row.push_back(Number(value(mode.runs.at(load), load), digits));
      report->Row(row);
    }
  };
  table(absl::StrCat("Decoding by load, tokens/s, ", threads, " threads"), 0,
        [&](const std::vector<Run>& runs, int) { return median(runs, Rate); });
  report->Note(absl::StrCat(
      "Prompts of ", kPrompt, " bytes from the held-out tail, ", absl::GetFlag(FLAGS_tokens),
      " tokens each, temperature ", absl::GetFlag(FLAGS_temperature), "; medians of ",
      absl::GetFlag(FLAGS_rounds), " rounds in turns after ", warm, " that do not count; ",
      absl::GetFlag(FLAGS_llm).empty() ? absl::StrCat("models trained for ", steps, " steps.")
                                       : "models from folders."));
  report->Table("Against incremental decoding just before and after", columns);
  for (const int load : loads) {
    std::vector<Cell> row = {Number(load, 0)};
    for (const Mode& mode : modes) row.push_back(Number(Median(mode.ratios.at(load)), 3));
    report->Row(row);
  }
  report->Table("Uncertainty of these medians, +-", columns);
  for (const int load : loads) {
    std::vector<Cell> row = {Number(load, 0)};
    for (const Mode& mode : modes) row.push_back(Number(Notch(mode.ratios.at(load)), 3));
    report->Row(row);
  }
  table("Rows of an LLM step", 1, [&](const std::vector<Run>& runs, int) {
    return median(runs, [](const Run& r) { return r.llm_rows / r.llm_steps; });
  });
  table("Share of the time in the LLM's steps", 2, [&](const std::vector<Run>& runs, int) {
    return median(runs, [](const Run& r) { return r.llm_seconds / r.seconds; });
  });
  table("Share of the time in the SSM's steps", 2, [&](const std::vector<Run>& runs, int) {
    return median(runs, [](const Run& r) { return r.ssm_seconds / r.seconds; });
  });
  table("Tokens per LLM step and request", 2, [&](const std::vector<Run>& runs, int load) {
    return median(runs, [&](const Run& r) { return r.tokens / r.llm_steps / load; });
  });
  return absl::OkStatus();
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
