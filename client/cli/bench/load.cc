// Load test of a served model.
#include <algorithm>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "client/cli/bench/bench.h"
#include "client/cli/bench/prompts.h"
#include "client/cli/bench/report.h"
#include "client/cli/bench/schedule.h"
#include "client/cli/proto_json.h"
#include "client/terminal/progress.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

// Each running request has a thread.
constexpr int64_t kMaxConcurrency = 4096;

// Adds the delay before sending to the times: the simulated user was already waiting.
void CountFrom(double late, LoadRequestResult* answer) {
  answer->late = late;
  Generation& g = answer->generation;
  if (g.pieces > 0) g.seconds_to_first += late;
  g.seconds += late;
}

// Connects before threads start, as Context's lazy connections are not thread-safe.
absl::Status Connect(Context& context) {
  if (context.flags().Has("http")) return context.gateway().status();
  return context.client().status();
}

absl::StatusOr<LoadResult> Send(Context& context, const BenchPrompts& prompts,
                                const v1::GenerateRequest& base) {
  const ParsedFlags& flags = context.flags();
  const int64_t total = flags.Int("requests", 32);
  const double rate = flags.Number("request-rate", 0);
  LoadResult outcome;
  outcome.answers.resize(static_cast<size_t>(total));
  std::mutex mutex;  // guards the printer and `done`
  ProgressPrinter printer(context.env().out, context.terminal(), context.env().seconds);
  int64_t done = 0;
  const auto schedule =
      RunSchedule(Arrivals(total, rate, flags.Number("burstiness", 1),
                           static_cast<uint64_t>(flags.Int("seed", 0))),
                  flags.Int("max-concurrency", kMaxConcurrency), context.env().seconds,
                  [&](int64_t i, double due) {
                    v1::GenerateRequest request = base;
                    prompts.Fill(i, &request);
                    const double late = rate > 0 ? std::max(0.0, context.env().seconds() - due) : 0;
                    auto got = BenchGenerate(context, request);
                    LoadRequestResult& answer = outcome.answers[static_cast<size_t>(i)];
                    answer.status = got.status();
                    if (got.ok()) answer.generation = *std::move(got);
                    CountFrom(late, &answer);
                    if (context.json()) return;
                    const std::lock_guard<std::mutex> lock(mutex);
                    Progress p;
                    p.unit = "request";
                    p.done = static_cast<double>(++done);
                    p.total = static_cast<double>(total);
                    printer.Update(p);
                  });
  if (!schedule.ok()) return schedule.status();
  outcome.max_concurrent = schedule->max_concurrent;
  outcome.seconds = schedule->seconds;
  if (!context.json()) printer.Finish();
  return outcome;
}

}  // namespace

absl::Status RunLoad(Context& context) {
  const ParsedFlags& flags = context.flags();
  if (flags.Has("burstiness") && !flags.Has("request-rate")) {
    return UsageError("--burstiness needs --request-rate");
  }
  const auto options = LoadReportOptions::Of(flags);
  if (!options.ok()) return options.status();
  auto prompts = BenchPrompts::Create(flags);
  if (!prompts.ok()) return prompts.status();
  // Opened first, so that a bad path fails before the run.
  const std::string path = flags.Has("save-result") ? ResultPath(flags) : "";
  std::ofstream result;
  const absl::Status no_file = UsageError(absl::StrCat("cannot write ", Printable(path)));
  if (!path.empty()) result.open(path);
  if (!result) return no_file;
  if (absl::Status status = Connect(context); !status.ok()) return status;
  if (prompts->random()) {
    auto model = BenchModel(context);
    if (!model.ok()) return model.status();
    prompts->SetVocabulary(model->vocabulary());
  }
  auto base = BenchRequest(flags);
  if (!base.ok()) return base.status();
  base->set_max_tokens(static_cast<int32_t>(flags.Int("max-tokens", 64)));

  const auto outcome = Send(context, *prompts, *base);
  if (!outcome.ok()) return outcome.status();
  const int64_t failed = outcome->failed();
  const absl::Status first = outcome->first_failure();
  if (failed == static_cast<int64_t>(outcome->answers.size())) return first;
  const nlohmann::ordered_json json =
      LoadJson(*outcome, *options, flags, flags.Has("save-detailed"));
  if (context.json()) {
    context.Document(json);
  } else {
    context.out() << LoadText(*outcome, *options, flags, context.terminal()) << std::flush;
  }
  if (!path.empty()) {
    result << Dump(json, 2) << std::endl;
    if (!result) return no_file;
    if (!context.json()) context.out() << "\nwritten to " << Printable(path) << std::endl;
  }
  if (failed == 0) return absl::OkStatus();
  absl::Status some(first.code(),
                    absl::StrCat(failed, " of ", outcome->answers.size(),
                                 " requests failed, the first with: ", first.message()));
  first.ForEachPayload(
      [&](absl::string_view kind, const absl::Cord& payload) { some.SetPayload(kind, payload); });
  return some;
}

}  // namespace espalier
