#include "client/cli/bench/report.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/cli/bench/stats.h"
#include "client/terminal/table.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

struct TimeName {
  const char* key;
  const char* shown;
  const char* meaning;
  bool limited;  // allowed in --goodput
};
constexpr TimeName kTimes[] = {{"ttft", "TTFT", "time to first token", true},
                               {"tpot", "TPOT", "time per output token", true},
                               {"itl", "ITL", "inter-token latency", false},
                               {"e2el", "E2EL", "end-to-end latency", true}};

int TimeAt(absl::string_view key) {
  for (size_t i = 0; i < std::size(kTimes); ++i) {
    if (key == kTimes[i].key) return static_cast<int>(i);
  }
  return -1;
}

// "p99", "p99.9".
std::string PercentileName(double percent) { return absl::StrCat("p", percent); }

struct Figures {
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  int64_t drafted = 0, accepted = 0, steps = 0;
  int64_t completed = 0;
  int64_t in_time = 0;       // requests within the goodput limits
  int64_t late = 0;          // requests that waited for others to end
  double latest = 0;         // seconds
  std::vector<Stats> times;  // indexed as kTimes

  double accepted_per_step() const {
    return steps > 0 ? static_cast<double>(accepted) / static_cast<double>(steps) : 0;
  }
};

// Tolerance for thread wake-up.
constexpr double kOnTimeSeconds = 0.001;

Figures FiguresOf(const LoadResult& outcome, const std::vector<double>& limits) {
  Figures f;
  std::vector<double> times[std::size(kTimes)];
  for (const LoadRequestResult& answer : outcome.answers) {
    f.late += answer.late > kOnTimeSeconds;
    f.latest = std::max(f.latest, answer.late);
    if (!answer.status.ok()) continue;
    const Generation& g = answer.generation;
    ++f.completed;
    const double each = g.seconds_per_token();
    // Over HTTP, an answer without text has no first piece: it arrives at the end.
    const double first = g.pieces > 0 ? g.seconds_to_first : g.seconds;
    if (g.pieces > 0) times[0].push_back(first);
    if (g.pieces > 0 && g.usage.completion_tokens() > 1) times[1].push_back(each);
    times[2].insert(times[2].end(), g.gaps.begin(), g.gaps.end());
    times[3].push_back(g.seconds);
    f.in_time += first <= limits[0] && each <= limits[1] && g.seconds <= limits[3];
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

void AddTimes(const Figures& f, const LoadReportOptions& options, Json* json) {
  for (const int i : options.times) {
    const Stats& s = f.times[static_cast<size_t>(i)];
    const std::string end = absl::StrCat("_", kTimes[i].key, "_ms");
    (*json)["mean" + end] = 1000 * s.mean;
    (*json)["median" + end] = 1000 * s.median;
    (*json)["std" + end] = 1000 * s.spread;
    for (const double percent : options.percentiles) {
      (*json)[PercentileName(percent) + end] = 1000 * s.Percentile(percent);
    }
  }
}

// Adds per-request lists, including failed requests.
void AddDetails(const LoadResult& outcome, Json* json) {
  for (const char* name :
       {"input_lens", "output_lens", "ttfts", "itls", "e2els", "generated_texts", "errors"}) {
    (*json)[name] = Json::array();
  }
  for (const LoadRequestResult& answer : outcome.answers) {
    const Generation& g = answer.generation;
    (*json)["input_lens"].push_back(g.usage.prompt_tokens());
    (*json)["output_lens"].push_back(g.usage.completion_tokens());
    (*json)["ttfts"].push_back(g.seconds_to_first);
    (*json)["itls"].push_back(g.gaps);
    (*json)["e2els"].push_back(g.seconds);
    (*json)["generated_texts"].push_back(g.text);
    (*json)["errors"].push_back(std::string(answer.status.message()));
  }
}

}  // namespace

int64_t LoadResult::failed() const {
  return std::count_if(answers.begin(), answers.end(),
                       [](const LoadRequestResult& answer) { return !answer.status.ok(); });
}

absl::Status LoadResult::first_failure() const {
  for (const LoadRequestResult& answer : answers) {
    if (!answer.status.ok()) return answer.status;
  }
  return absl::OkStatus();
}

absl::StatusOr<LoadReportOptions> LoadReportOptions::Of(const ParsedFlags& flags) {
  LoadReportOptions options;
  const std::string metrics = flags.Text("percentile-metrics", "ttft,tpot,itl,e2el");
  for (const absl::string_view name : absl::StrSplit(metrics, ',')) {
    const int index = TimeAt(name);
    if (index < 0) {
      return UsageError(absl::StrCat("--percentile-metrics is \"", Printable(metrics),
                                     "\"; accepted: ttft, tpot, itl, e2el, separated by commas"));
    }
    options.times.push_back(index);
  }
  std::sort(options.times.begin(), options.times.end());
  options.times.erase(std::unique(options.times.begin(), options.times.end()), options.times.end());
  const std::string percentiles = flags.Text("metric-percentiles", "90,99");
  for (const absl::string_view text : absl::StrSplit(percentiles, ',')) {
    double percent = 0;
    if (!absl::SimpleAtod(text, &percent) || !(percent >= 0 && percent <= 100)) {
      return UsageError(absl::StrCat("--metric-percentiles is \"", Printable(percentiles),
                                     "\"; accepted: numbers from 0 to 100, as 50,99,99.9"));
    }
    options.percentiles.push_back(percent);
  }
  options.limits.assign(std::size(kTimes), INFINITY);
  options.goodput = flags.Has("goodput");
  for (const std::string& entry : flags.Values("goodput")) {
    const size_t colon = entry.find(':');
    double milliseconds = 0;
    const int index = TimeAt(entry.substr(0, colon));
    if (index < 0 || !kTimes[index].limited || colon == std::string::npos ||
        !absl::SimpleAtod(entry.substr(colon + 1), &milliseconds) || !(milliseconds > 0)) {
      return UsageError(absl::StrCat("--goodput is \"", Printable(entry),
                                     "\"; accepted: ttft:MS, tpot:MS, e2el:MS, as ttft:500"));
    }
    options.limits[static_cast<size_t>(index)] = milliseconds / 1000;
  }
  return options;
}

Json LoadJson(const LoadResult& outcome, const LoadReportOptions& options, const ParsedFlags& flags,
              bool detailed) {
  const Figures f = FiguresOf(outcome, options.limits);
  Json json;
  json["date"] = absl::FormatTime("%Y%m%d-%H%M%S", absl::Now(), absl::LocalTimeZone());
  json["endpoint_type"] = flags.Has("http") ? "openai" : "grpc";
  json["backend"] = "espalier";
  json["model_id"] = flags.positional()[0];
  json["num_prompts"] = outcome.answers.size();
  if (flags.Has("request-rate")) {
    json["request_rate"] = flags.Number("request-rate", 0);
  } else {
    json["request_rate"] = "inf";
  }
  json["burstiness"] = flags.Number("burstiness", 1);
  json["max_concurrency"] =
      flags.Has("max-concurrency") ? Json(flags.Int("max-concurrency", 0)) : Json(nullptr);
  json["duration"] = outcome.seconds;
  json["completed"] = f.completed;
  json["failed"] = outcome.failed();
  json["total_input_tokens"] = f.prompt_tokens;
  json["total_output_tokens"] = f.output_tokens;
  json["request_throughput"] = PerSecond(f.completed, outcome.seconds);
  json["request_goodput"] =
      options.goodput ? Json(PerSecond(f.in_time, outcome.seconds)) : Json(nullptr);
  json["output_throughput"] = PerSecond(f.output_tokens, outcome.seconds);
  json["total_token_throughput"] = PerSecond(f.prompt_tokens + f.output_tokens, outcome.seconds);
  json["max_concurrent_requests"] = outcome.max_concurrent;
  AddTimes(f, options, &json);
  // Fields that vLLM does not have.
  json["cached_input_tokens"] = f.cached_tokens;
  json["late_requests"] = f.late;
  json["longest_wait_ms"] = 1000 * f.latest;
  json["drafted_tokens"] = f.drafted;
  json["accepted_tokens"] = f.accepted;
  json["accepted_per_verification"] = f.accepted_per_step();
  if (detailed) AddDetails(outcome, &json);
  return json;
}

std::string LoadText(const LoadResult& outcome, const LoadReportOptions& options,
                     const ParsedFlags& flags, const Terminal& terminal) {
  const Figures f = FiguresOf(outcome, options.limits);
  Table totals({{"load"}, {"", Align::kRight}});
  const auto row = [&](const char* name, const std::string& value) { totals.Row({name, value}); };
  const auto rate = [&](int64_t count) {
    return absl::StrFormat("%.2f", PerSecond(count, outcome.seconds));
  };
  row("successful requests", absl::StrCat(f.completed));
  row("failed requests", absl::StrCat(outcome.failed()));
  row("max concurrent requests", absl::StrCat(outcome.max_concurrent));
  if (flags.Has("request-rate")) {
    row("sent later than due", absl::StrCat(f.late));
    if (f.late > 0) row("longest wait to be sent (ms)", absl::StrFormat("%.2f", 1000 * f.latest));
  }
  row("duration (s)", absl::StrFormat("%.2f", outcome.seconds));
  row("input tokens", absl::StrCat(f.prompt_tokens));
  if (f.cached_tokens > 0) row("of those, cached", absl::StrCat(f.cached_tokens));
  row("generated tokens", absl::StrCat(f.output_tokens));
  row("request throughput (req/s)", rate(f.completed));
  if (options.goodput) row("request goodput (req/s)", rate(f.in_time));
  row("output token throughput (tok/s)", rate(f.output_tokens));
  row("total token throughput (tok/s)", rate(f.prompt_tokens + f.output_tokens));
  if (f.drafted > 0) {
    row("accepted draft tokens per verification", absl::StrFormat("%.2f", f.accepted_per_step()));
    row("accepted share of draft tokens (%)",
        absl::StrFormat("%.1f",
                        100.0 * static_cast<double>(f.accepted) / static_cast<double>(f.drafted)));
  }
  std::vector<Table::Column> columns = {
      {"in ms"}, {""}, {"mean", Align::kRight}, {"std", Align::kRight}, {"median", Align::kRight}};
  for (const double percent : options.percentiles) {
    columns.push_back({PercentileName(percent), Align::kRight});
  }
  Table table(std::move(columns));
  for (const int i : options.times) {
    const Stats& s = f.times[static_cast<size_t>(i)];
    std::vector<double> values = {s.mean, s.spread, s.median};
    for (const double percent : options.percentiles) values.push_back(s.Percentile(percent));
    std::vector<std::string> cells = {kTimes[i].shown, kTimes[i].meaning};
    for (const double seconds : values) cells.push_back(absl::StrFormat("%.2f", 1000 * seconds));
    table.Row(std::move(cells));
  }
  return absl::StrCat(totals.Render(terminal), "\n", table.Render(terminal));
}

std::string ResultPath(const ParsedFlags& flags) {
  std::string name = flags.Text("result-filename");
  if (name.empty()) {
    std::string model = flags.positional()[0];
    for (char& c : model) {
      if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.' && c != '-') c = '_';
    }
    name = absl::StrCat(
        "espalier-",
        flags.Has("request-rate") ? absl::StrCat(flags.Number("request-rate", 0)) : "inf", "qps-",
        flags.Has("max-concurrency")
            ? absl::StrCat("concurrency", flags.Int("max-concurrency", 0), "-")
            : "",
        model, "-", absl::FormatTime("%Y%m%d-%H%M%S", absl::Now(), absl::LocalTimeZone()), ".json");
  }
  const std::string folder = flags.Text("result-dir");
  return folder.empty() ? name : absl::StrCat(folder, "/", name);
}

}  // namespace espalier
