// A served model under load.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/cli/bench.h"
#include "client/cli/bench_prompts.h"
#include "client/cli/bench_stats.h"
#include "client/cli/proto_json.h"
#include "client/terminal/progress.h"
#include "client/terminal/table.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

// What users of vLLM call these times.
constexpr const char* kTimes[] = {"TTFT", "TPOT", "ITL", "E2EL"};
constexpr const char* kTimeNames[] = {"time to first token", "time per output token",
                                      "inter-token latency", "end-to-end latency"};
constexpr const char* kTimeFields[] = {"seconds_to_first_token", "seconds_per_output_token",
                                       "inter_token_seconds", "end_to_end_seconds"};

// Limits in seconds by the index of kTimes; infinity where there is none.
absl::StatusOr<std::vector<double>> GoodputLimits(const ParsedFlags& flags) {
  std::vector<double> limits(std::size(kTimes), INFINITY);
  for (const std::string& entry : flags.Values("goodput")) {
    const size_t colon = entry.find(':');
    const std::string name = entry.substr(0, colon);
    double milliseconds = 0;
    const int index = name == "ttft" ? 0 : name == "tpot" ? 1 : name == "e2el" ? 3 : -1;
    if (index < 0 || colon == std::string::npos ||
        !absl::SimpleAtod(entry.substr(colon + 1), &milliseconds) || !(milliseconds > 0)) {
      return UsageError(absl::StrCat("--goodput is \"", Printable(entry),
                                     "\"; accepted: ttft:MS, tpot:MS, e2el:MS, as ttft:500"));
    }
    limits[index] = milliseconds / 1000;
  }
  return limits;
}

// When each request begins, in seconds from the start: at once, or by a Poisson process.
std::vector<double> Arrivals(const ParsedFlags& flags, int64_t count) {
  std::vector<double> arrivals(static_cast<size_t>(count), 0.0);
  if (!flags.Has("request-rate")) return arrivals;
  std::mt19937_64 random(1);
  std::exponential_distribution<double> gap(flags.Number("request-rate", 1));
  double at = 0;
  for (double& arrival : arrivals) {
    arrival = at;
    at += gap(random);
  }
  return arrivals;
}

struct Outcome {
  std::vector<Generation> answers;
  std::vector<absl::Status> failed;
  int64_t concurrency = 0;
  double seconds = 0;
};

struct Figures {
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  int64_t drafted = 0, accepted = 0, steps = 0;
  int64_t in_time = 0;       // requests within the limits of goodput
  std::vector<Stats> times;  // as kTimes

  double accepted_per_step() const {
    return steps > 0 ? static_cast<double>(accepted) / static_cast<double>(steps) : 0;
  }
};

Figures FiguresOf(const Outcome& outcome, const std::vector<double>& limits) {
  Figures f;
  std::vector<double> times[std::size(kTimes)];
  for (const Generation& g : outcome.answers) {
    const double each = g.seconds_per_token();
    times[0].push_back(g.seconds_to_first);
    if (g.usage.completion_tokens() > 1) times[1].push_back(each);
    times[2].insert(times[2].end(), g.gaps.begin(), g.gaps.end());
    times[3].push_back(g.seconds);
    f.in_time += g.seconds_to_first <= limits[0] && each <= limits[1] && g.seconds <= limits[3];
    f.prompt_tokens += g.usage.prompt_tokens();
    f.cached_tokens += g.usage.cached_tokens();
    f.output_tokens += g.usage.completion_tokens();
    f.drafted += g.usage.drafted_tokens();
    f.accepted += g.usage.accepted_tokens();
    f.steps += g.usage.verification_steps();
  }
  for (std::vector<double>& sample : times) f.times.push_back(StatsOf(std::move(sample)));
  return f;
}

double PerSecond(int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

Json StatsJson(const Stats& s) {
  Json json;
  json["mean"] = s.mean;
  json["deviation"] = s.deviation;
  json["median"] = s.median;
  json["p90"] = s.p90;
  json["p99"] = s.p99;
  return json;
}

Json ToJson(const Outcome& outcome, const Figures& f, bool goodput) {
  const int64_t answers = static_cast<int64_t>(outcome.answers.size());
  Json json;
  json["requests"] = answers;
  json["failed"] = outcome.failed.size();
  json["concurrency"] = outcome.concurrency;
  json["seconds"] = outcome.seconds;
  json["prompt_tokens"] = f.prompt_tokens;
  json["cached_tokens"] = f.cached_tokens;
  json["output_tokens"] = f.output_tokens;
  json["requests_per_second"] = PerSecond(answers, outcome.seconds);
  json["output_tokens_per_second"] = PerSecond(f.output_tokens, outcome.seconds);
  json["total_tokens_per_second"] = PerSecond(f.prompt_tokens + f.output_tokens, outcome.seconds);
  if (goodput) json["goodput_requests_per_second"] = PerSecond(f.in_time, outcome.seconds);
  json["drafted_tokens"] = f.drafted;
  json["accepted_tokens"] = f.accepted;
  json["accepted_per_verification"] = f.accepted_per_step();
  for (size_t i = 0; i < std::size(kTimes); ++i) json[kTimeFields[i]] = StatsJson(f.times[i]);
  return json;
}

void Print(Context& context, const Outcome& outcome, const Figures& f, bool goodput) {
  const int64_t answers = static_cast<int64_t>(outcome.answers.size());
  Table totals({{"load"}, {"", Align::kRight}});
  const auto row = [&](const char* name, const std::string& value) { totals.Row({name, value}); };
  const auto rate = [&](int64_t count) {
    return absl::StrFormat("%.2f", PerSecond(count, outcome.seconds));
  };
  row("successful requests", absl::StrCat(answers));
  row("failed requests", absl::StrCat(outcome.failed.size()));
  row("concurrency", absl::StrCat(outcome.concurrency));
  row("duration (s)", absl::StrFormat("%.2f", outcome.seconds));
  row("input tokens", absl::StrCat(f.prompt_tokens));
  if (f.cached_tokens > 0) row("of those, cached", absl::StrCat(f.cached_tokens));
  row("generated tokens", absl::StrCat(f.output_tokens));
  row("request throughput (req/s)", rate(answers));
  if (goodput) row("request goodput (req/s)", rate(f.in_time));
  row("output token throughput (tok/s)", rate(f.output_tokens));
  row("total token throughput (tok/s)", rate(f.prompt_tokens + f.output_tokens));
  if (f.drafted > 0) {
    row("accepted draft tokens per verification", absl::StrFormat("%.2f", f.accepted_per_step()));
    row("accepted share of draft tokens (%)",
        absl::StrFormat("%.1f",
                        100.0 * static_cast<double>(f.accepted) / static_cast<double>(f.drafted)));
  }
  Table table({{"in ms"},
               {""},
               {"mean", Align::kRight},
               {"std", Align::kRight},
               {"median", Align::kRight},
               {"p90", Align::kRight},
               {"p99", Align::kRight}});
  for (size_t i = 0; i < std::size(kTimes); ++i) {
    const Stats& s = f.times[i];
    std::vector<std::string> cells = {kTimes[i], kTimeNames[i]};
    for (const double seconds : {s.mean, s.deviation, s.median, s.p90, s.p99}) {
      cells.push_back(absl::StrFormat("%.2f", 1000 * seconds));
    }
    table.Row(std::move(cells));
  }
  context.out() << totals.Render(context.terminal()) << "\n"
                << table.Render(context.terminal()) << std::flush;
}

}  // namespace

absl::Status RunLoad(Context& context) {
  const ParsedFlags& flags = context.flags();
  auto limits = GoodputLimits(flags);
  if (!limits.ok()) return limits.status();
  // Made before any thread asks for it.
  if (flags.Has("http")) {
    if (auto gateway = context.gateway(); !gateway.ok()) return gateway.status();
  } else if (auto client = context.client(); !client.ok()) {
    return client.status();
  }
  int vocabulary = 0;
  if (BenchPrompts::Random(flags)) {
    auto model = BenchModel(context);
    if (!model.ok()) return model.status();
    vocabulary = model->vocabulary();
  }

  const int64_t total = flags.Int("requests", 32);
  const std::vector<double> arrivals = Arrivals(flags, total);
  auto base = BenchRequest(flags);
  if (!base.ok()) return base.status();
  base->set_max_tokens(static_cast<int32_t>(flags.Int("max-tokens", 64)));
  auto prompts = BenchPrompts::Create(flags, vocabulary, std::random_device()());
  if (!prompts.ok()) return prompts.status();

  Outcome outcome;
  outcome.concurrency = std::min(flags.Int("concurrency", 4), total);
  std::mutex mutex;  // guards what comes back and the printer
  ProgressPrinter printer(context.env().out, context.terminal(), context.env().seconds);
  std::atomic<int64_t> next{0};
  const double start = context.env().seconds();
  const auto work = [&] {
    for (int64_t i = next++; i < total; i = next++) {
      proto::GenerateRequest request = *base;
      prompts->Fill(i, &request);
      if (arrivals[static_cast<size_t>(i)] > 0) {
        const double wait = start + arrivals[static_cast<size_t>(i)] - context.env().seconds();
        if (wait > 0) absl::SleepFor(absl::Seconds(wait));
      }
      auto answer = BenchGenerate(context, request);
      const std::lock_guard<std::mutex> lock(mutex);
      if (answer.ok()) {
        outcome.answers.push_back(*std::move(answer));
      } else {
        outcome.failed.push_back(answer.status());
      }
      if (context.json()) continue;
      Progress p;
      p.unit = "request";
      p.done = static_cast<double>(outcome.answers.size() + outcome.failed.size());
      p.total = static_cast<double>(total);
      printer.Update(p);
    }
  };
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < outcome.concurrency; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  outcome.seconds = context.env().seconds() - start;
  if (!context.json()) printer.Finish();
  const std::vector<absl::Status>& failed = outcome.failed;
  if (outcome.answers.empty() && !failed.empty()) return failed[0];

  const Figures figures = FiguresOf(outcome, *limits);
  if (context.json()) {
    context.Document(ToJson(outcome, figures, flags.Has("goodput")));
  } else {
    Print(context, outcome, figures, flags.Has("goodput"));
  }
  if (failed.empty()) return absl::OkStatus();
  return absl::Status(failed[0].code(),
                      absl::StrCat(failed.size(), " of ", total,
                                   " requests failed, the first with: ", failed[0].message()));
}

}  // namespace espalier
