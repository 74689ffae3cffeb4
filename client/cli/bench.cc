#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/bench_stats.h"
#include "client/cli/command.h"
#include "client/cli/generation.h"
#include "client/cli/proto_json.h"
#include "client/terminal/progress.h"
#include "client/terminal/table.h"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kText[] =
    "In the beginning was the word, and all that was made came after it. They went out by the gate "
    "of the city, and "
    "the people asked what had been done and by whom, and it was written down so that others might "
    "read it. ";

absl::StatusOr<std::string> Corpus(const ParsedFlags& flags) {
  if (!flags.Has("prompts-from")) return std::string(kText);
  std::ifstream in(flags.Text("prompts-from"), std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in || text.str().empty())
    return UsageError(absl::StrCat("cannot read ", flags.Text("prompts-from")));
  return text.str();
}

// Prompt `i` is a window of the corpus; consecutive ones begin at places far apart.
std::string PromptOf(const std::string& corpus, size_t length, size_t i) {
  std::string prompt;
  size_t at = i * 7919 % corpus.size();
  while (prompt.size() < length) {
    const size_t take = std::min(length - prompt.size(), corpus.size() - at);
    prompt.append(corpus, at, take);
    at = 0;
  }
  return prompt;
}

Json StatsJson(const Stats& s) {
  Json json;
  json["mean"] = s.mean;
  json["median"] = s.median;
  json["p90"] = s.p90;
  json["p99"] = s.p99;
  return json;
}

absl::Status Run(Context& context) {
  if (absl::Status s = CheckArguments(context, 1, 1, "a model's name"); !s.ok()) return s;
  const ParsedFlags& flags = context.flags();
  auto corpus = Corpus(flags);
  if (!corpus.ok()) return corpus.status();
  auto client = context.client();
  if (!client.ok()) return client.status();

  const int64_t total = flags.Int("requests", 32);
  const int64_t concurrency = std::min(flags.Int("concurrency", 4), total);
  proto::GenerateRequest base;
  base.set_model(flags.positional()[0]);
  base.set_max_tokens(static_cast<int32_t>(flags.Int("max-tokens", 64)));
  base.set_ignore_eos(true);
  if (flags.Has("no-speculation")) base.set_speculation(proto::SPECULATION_OFF);

  std::mutex mutex;  // guards results, failed and the printer
  std::vector<Generation> results;
  std::vector<absl::Status> failed;
  ProgressPrinter printer(context.env().out, context.terminal(), context.env().seconds);
  std::atomic<int64_t> next{0};
  const double start = context.env().seconds();
  const auto work = [&] {
    for (int64_t i = next++; i < total; i = next++) {
      proto::GenerateRequest request = base;
      request.set_text(PromptOf(*corpus, static_cast<size_t>(flags.Int("prompt-length", 64)),
                                static_cast<size_t>(i)));
      auto answer =
          GenerateByGrpc(*client, request, context.env().seconds, [](const std::string&) {});
      const std::lock_guard<std::mutex> lock(mutex);
      if (answer.ok()) {
        results.push_back(*std::move(answer));
      } else {
        failed.push_back(answer.status());
      }
      if (context.json()) continue;
      Progress p;
      p.unit = "request";
      p.done = static_cast<double>(results.size() + failed.size());
      p.total = static_cast<double>(total);
      printer.Update(p);
    }
  };
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < concurrency; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  const double seconds = context.env().seconds() - start;
  if (!context.json()) printer.Finish();
  if (results.empty() && !failed.empty()) return failed[0];

  std::vector<double> first, gap, per_token, whole;
  int64_t prompt_tokens = 0, tokens = 0, accepted = 0, steps = 0;
  for (const Generation& g : results) {
    first.push_back(g.seconds_to_first);
    gap.insert(gap.end(), g.gaps.begin(), g.gaps.end());
    if (g.usage.completion_tokens() > 1) per_token.push_back(g.seconds_per_token());
    whole.push_back(g.seconds);
    prompt_tokens += g.usage.prompt_tokens();
    tokens += g.usage.completion_tokens();
    accepted += g.usage.accepted_tokens();
    steps += g.usage.verification_steps();
  }
  const std::vector<std::pair<std::string, Stats>> rows = {
      {"time to first token", StatsOf(first)},
      {"time per output token", StatsOf(per_token)},
      {"inter-token latency", StatsOf(gap)},
      {"end to end", StatsOf(whole)}};
  const double per_second = seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  const double accepted_mean =
      steps > 0 ? static_cast<double>(accepted) / static_cast<double>(steps) : 0;
  if (context.json()) {
    Json json;
    json["requests"] = results.size();
    json["failed"] = failed.size();
    json["concurrency"] = concurrency;
    json["seconds"] = seconds;
    json["prompt_tokens"] = prompt_tokens;
    json["output_tokens"] = tokens;
    json["requests_per_second"] = seconds > 0 ? static_cast<double>(results.size()) / seconds : 0;
    json["output_tokens_per_second"] = per_second;
    json["accepted_per_verification"] = accepted_mean;
    json["seconds_to_first_token"] = StatsJson(rows[0].second);
    json["seconds_per_output_token"] = StatsJson(rows[1].second);
    json["inter_token_seconds"] = StatsJson(rows[2].second);
    json["end_to_end_seconds"] = StatsJson(rows[3].second);
    context.Document(json);
  } else {
    Table table({{""},
                 {"mean", Align::kRight},
                 {"median", Align::kRight},
                 {"p90", Align::kRight},
                 {"p99", Align::kRight}});
    const bool unicode = context.terminal().unicode;
    for (const auto& [name, s] : rows) {
      table.Row({name, FormatSeconds(s.mean, unicode), FormatSeconds(s.median, unicode),
                 FormatSeconds(s.p90, unicode), FormatSeconds(s.p99, unicode)});
    }
    context.out() << results.size() << " requests, " << failed.size() << " failed, " << concurrency
                  << " at a time, in " << FormatSeconds(seconds, unicode) << "\n"
                  << absl::StrFormat(
                         "%.2f requests/s, %.1f output tokens/s, %d prompt tokens",
                         seconds > 0 ? static_cast<double>(results.size()) / seconds : 0.0,
                         per_second, prompt_tokens);
    if (accepted > 0)
      context.out() << absl::StrFormat(", %.2f drafted tokens accepted per verification",
                                       accepted_mean);
    context.out() << "\n\n" << table.Render(context.terminal()) << std::flush;
  }
  if (failed.empty()) return absl::OkStatus();
  return absl::Status(failed[0].code(),
                      absl::StrCat(failed.size(), " of ", total,
                                   " requests failed, the first with: ", failed[0].message()));
}

}  // namespace

Stats StatsOf(std::vector<double> values) {
  Stats s;
  if (values.empty()) return s;
  std::sort(values.begin(), values.end());
  s.mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  const auto percentile = [&](double p) {
    const double at = p * static_cast<double>(values.size() - 1);
    const auto low = static_cast<size_t>(at);
    const size_t high = std::min(low + 1, values.size() - 1);
    return values[low] + (values[high] - values[low]) * (at - static_cast<double>(low));
  };
  s.median = percentile(0.5);
  s.p90 = percentile(0.9);
  s.p99 = percentile(0.99);
  return s;
}

Command BenchCommand() {
  Command c;
  c.name = "bench";
  c.summary = "load a served model with concurrent requests and print latencies and throughput";
  c.usage = "bench MODEL [--requests=N] [--concurrency=N] [flags]";
  c.flags = {
      {"requests", FlagType::kInt, "N", "in all (32)", 0, 1, 1 << 24},
      {"concurrency", FlagType::kInt, "N", "at a time (4)", 0, 1, 4096},
      {"prompt-length", FlagType::kInt, "BYTES", "of each prompt (64)", 0, 1, 1 << 24},
      {"prompts-from", FlagType::kText, "FILE", "windows of this text"},
      {"max-tokens", FlagType::kInt, "N", "of each answer; an end of sequence does not end it (64)",
       0, 1, 1 << 20},
      {"no-speculation", FlagType::kSwitch, "", "without token trees"},
  };
  c.examples = {{"sixteen at a time", "espalier bench llm --requests=64 --concurrency=16"},
                {"incrementally, for scripts", "espalier bench llm --no-speculation --json"}};
  c.run = Run;
  return c;
}

}  // namespace espalier
