// Benchmark of a single request: prompt processing (pp), token generation (tg) and both (pg), in
// llama-bench's rows.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/cli/bench/bench.h"
#include "client/cli/bench/row_formats.h"
#include "client/cli/bench/stats.h"
#include "client/terminal/progress.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

struct Test {
  int64_t prompt = 0;    // tokens to process; 0: none
  int64_t generate = 0;  // tokens to generate after the first one; 0: none
  int64_t depth = 0;     // tokens of preceding context

  std::string name() const {
    std::string name;
    if (prompt > 0) absl::StrAppend(&name, "pp", prompt);
    if (generate > 0) absl::StrAppend(&name, name.empty() ? "" : "+", "tg", generate);
    if (depth > 0) absl::StrAppend(&name, " @ d", depth);
    return name;
  }
};

// One run: the tokens that llama-bench counts, and their time.
struct Sample {
  double tokens = 0;
  double seconds = 0;
};

class Bench {
 public:
  Bench(Context* context, v1::ServedModel model, v1::GenerateRequest base)
      : context_(*context), model_(std::move(model)), base_(std::move(base)) {}

  // Each run has a fresh prompt, so that prefix caches do not help.
  absl::StatusOr<Sample> Once(const Test& test) {
    v1::GenerateRequest request = base_;
    ++seed_;
    request.set_cache_salt(absl::StrCat(base_.cache_salt(), "bench ", seed_));
    if (test.prompt > 0 && test.depth > 0) {
      // The context is then served from the prefix cache, which this request fills.
      SetRandomPrompt(seed_, test.depth, model_.vocabulary(), &request);
      request.set_max_tokens(1);
      if (auto filled = BenchGenerate(context_, request); !filled.ok()) return filled.status();
    }
    const int64_t tokens =
        test.prompt > 0 ? test.depth + test.prompt : std::max<int64_t>(1, test.depth);
    SetRandomPrompt(seed_, tokens, model_.vocabulary(), &request);
    request.set_max_tokens(static_cast<int32_t>(test.generate + 1));
    auto answer = BenchGenerate(context_, request);
    if (!answer.ok()) return answer.status();
    const v1::Usage& usage = answer->usage;
    Sample sample;
    if (test.prompt > 0) {
      const int64_t computed = usage.prompt_tokens() - usage.cached_tokens();
      if (computed != test.prompt) {
        return absl::FailedPreconditionError(
            absl::StrCat(test.name(), ": the context was not found in the prefix cache; serve '",
                         model_.name(), "' without --no-prefix-cache, or leave --depth out"));
      }
      sample.tokens += static_cast<double>(computed);
      sample.seconds += usage.seconds_to_first_token() - usage.seconds_queued();
    }
    if (test.generate > 0) {
      sample.tokens += static_cast<double>(usage.completion_tokens() - 1);
      sample.seconds += usage.seconds() - usage.seconds_to_first_token();
    }
    if (sample.tokens > 0 && sample.seconds > 0) return sample;
    return absl::InternalError(absl::StrCat("the coordinator reports ", sample.tokens,
                                            " tokens in ", sample.seconds,
                                            " s, which gives no rate"));
  }

 private:
  Context& context_;
  const v1::ServedModel model_;
  const v1::GenerateRequest base_;
  uint64_t seed_ = (uint64_t{std::random_device()()} << 32) | std::random_device()();
};

constexpr int64_t kMostRequestTokens = 1 << 20;

// Parses "N", or "P,N" for both; untested counts stay 0.
bool ReadTest(const std::string& kind, const std::string& value, Test* test) {
  const std::vector<std::string> parts = absl::StrSplit(value, ',');
  const auto read = [](const std::string& text, int64_t* out) {
    return absl::SimpleAtoi(text, out) && *out >= 1 && *out <= kMostRequestTokens;
  };
  if (kind == "pg") {
    return parts.size() == 2 && read(parts[0], &test->prompt) && read(parts[1], &test->generate);
  }
  return parts.size() == 1 && read(value, kind == "pp" ? &test->prompt : &test->generate);
}

absl::StatusOr<std::vector<Test>> TestsOf(const ParsedFlags& flags) {
  std::vector<Test> tests;
  std::vector<std::string> depths = flags.Values("depth");
  if (depths.empty()) depths.push_back("0");
  for (const std::string& text : depths) {
    Test test;
    if (!absl::SimpleAtoi(text, &test.depth)) return UsageError("--depth: a number is wanted");
    for (const char* kind : {"pp", "tg", "pg"}) {
      for (const std::string& value : flags.Values(kind)) {
        Test one = test;
        if (!ReadTest(kind, value, &one)) {
          return UsageError(absl::StrCat("--", kind, " is \"", Printable(value),
                                         "\"; accepted: numbers of tokens, for --pg two, as "
                                         "512,128"));
        }
        tests.push_back(one);
      }
    }
  }
  return tests;
}

// Where the LLM runs, for the corresponding columns.
struct Place {
  std::string backends;  // "CPU", "CUDA", "CPU,CUDA"
  std::string cpus, gpus;
  int64_t threads = 0;  // CPU threads of its workers; 0: unknown or none
};

absl::StatusOr<Place> PlaceOf(Context& context, const v1::ServedModel& model) {
  Place place;
  if (model.workers_size() == 0) {
    // The coordinator's process computes on its CPU and does not report its number of threads.
    place.backends = "CPU";
    return place;
  }
  auto client = context.client();
  if (!client.ok()) return client.status();
  const auto status = (*client)->Status();
  if (!status.ok()) return status.status();
  std::set<std::string> backends, cpus, gpus;
  for (const v1::WorkerInfo& worker : status->workers()) {
    const auto& held = model.workers();
    if (std::find(held.begin(), held.end(), worker.worker_id()) == held.end()) continue;
    const v1::Device& device = worker.device();
    const bool gpu = device.kind() == v1::Device::CUDA;
    backends.insert(gpu ? "CUDA" : "CPU");
    (gpu ? gpus : cpus).insert(device.model());
    place.threads += device.threads();
  }
  place.backends = absl::StrJoin(backends, ",");
  place.cpus = absl::StrJoin(cpus, ",");
  place.gpus = absl::StrJoin(gpus, ",");
  return place;
}

// Returns the size of the LLM's artifact in bytes; 0 if it no longer exists.
absl::StatusOr<int64_t> SizeOf(Context& context, const std::string& artifact) {
  auto client = context.client();
  if (!client.ok()) return client.status();
  const auto artifacts = (*client)->ListArtifacts();
  if (!artifacts.ok()) return artifacts.status();
  for (const v1::Artifact& one : *artifacts) {
    // A version is named, which an artifact with only one does not show.
    if (one.name() == artifact || absl::StrCat(one.name(), "@1") == artifact) return one.bytes();
  }
  return 0;
}

std::string DraftsOf(const ParsedFlags& flags, const v1::ServedModel& model) {
  if (model.ssm_artifacts_size() == 0 && model.ngram_depth() == 0) return "none";
  return flags.Has("no-speculation") ? "off" : "on";
}

// Returns the columns common to all rows of a model, under llama-bench's names where it has them.
absl::StatusOr<Json> ModelColumns(Context& context, const v1::ServedModel& model) {
  const auto place = PlaceOf(context, model);
  if (!place.ok()) return place.status();
  // Coordinators of an earlier version give no version.
  const std::string& version = model.artifact_version();
  const auto size = SizeOf(context, version.empty() ? model.artifact() : version);
  if (!size.ok()) return size.status();
  Json row;
  row["cpu_info"] = place->cpus;
  row["gpu_info"] = place->gpus;
  row["backends"] = place->backends;
  row["model"] = model.name();
  row["model_filename"] = model.artifact();
  row["model_size"] = *size > 0 ? Json(*size) : Json(nullptr);
  row["model_n_params"] = model.parameters();
  row["weights"] = model.weights();
  row["type_kv"] = model.kv_cache();
  row["n_threads"] = place->threads > 0 ? Json(place->threads) : Json(nullptr);
  row["drafts"] = DraftsOf(context.flags(), model);
  return row;
}

void AddSamples(const Test& test, const std::vector<Sample>& samples, Json* row) {
  std::vector<double> nanoseconds, rates;
  for (const Sample& sample : samples) {
    nanoseconds.push_back(1e9 * sample.seconds);
    rates.push_back(sample.tokens / sample.seconds);
  }
  const Stats times = StatsOf(nanoseconds), speeds = StatsOf(rates);
  (*row)["test"] = test.name();
  (*row)["n_prompt"] = test.prompt;
  (*row)["n_gen"] = test.generate;
  (*row)["n_depth"] = test.depth;
  (*row)["test_time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(), absl::UTCTimeZone());
  (*row)["avg_ns"] = static_cast<int64_t>(times.mean);
  (*row)["stddev_ns"] = static_cast<int64_t>(times.deviation);
  (*row)["avg_ts"] = speeds.mean;
  (*row)["stddev_ts"] = speeds.deviation;
  (*row)["samples_ns"] = Json::array();
  for (const double value : nanoseconds) {
    (*row)["samples_ns"].push_back(static_cast<int64_t>(value));
  }
  (*row)["samples_ts"] = rates;
}

}  // namespace

absl::Status RunSingleRequest(Context& context) {
  const ParsedFlags& flags = context.flags();
  const auto tests = TestsOf(flags);
  if (!tests.ok()) return tests.status();
  const std::string format = flags.Text("output", "table");
  if (std::find(std::begin(kRowFormats), std::end(kRowFormats), format) == std::end(kRowFormats)) {
    return UsageError(absl::StrCat("--output is \"", Printable(format),
                                   "\"; accepted: ", absl::StrJoin(kRowFormats, ", ")));
  }
  auto model = BenchModel(context);
  if (!model.ok()) return model.status();
  const int64_t repetitions = flags.Int("repetitions", 5);
  auto base = BenchRequest(flags);
  if (!base.ok()) return base.status();
  const auto columns = ModelColumns(context, *model);
  if (!columns.ok()) return columns.status();
  Bench bench(&context, *model, *std::move(base));
  ProgressPrinter printer(context.env().out, context.terminal(), context.env().seconds);
  const bool quiet = context.json() || format != "table";  // standard output is read by a program
  std::vector<Json> rows;
  for (const Test& test : *tests) {
    std::vector<Sample> samples;
    for (int64_t i = -1; i < repetitions; ++i) {  // run -1 is the warm-up
      auto sample = bench.Once(test);
      if (!sample.ok()) return sample.status();
      if (i >= 0) samples.push_back(*sample);
      if (quiet) continue;
      Progress p;
      p.unit = test.name();
      p.done = static_cast<double>(i + 1);
      p.total = static_cast<double>(repetitions);
      printer.Update(p);
    }
    Json row = *columns;
    AddSamples(test, samples, &row);
    rows.push_back(std::move(row));
  }
  if (context.json()) {
    context.Document(Json(rows));
    return absl::OkStatus();
  }
  if (!quiet) printer.Finish();
  context.out() << FormatRows(format, rows, context.terminal()) << std::flush;
  return absl::OkStatus();
}

}  // namespace espalier
