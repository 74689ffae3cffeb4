#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/file_system.h"
#include "client/cli/command.h"
#include "client/cli/history/exporters.h"
#include "client/cli/history/json_exporter.h"
#include "client/cli/history/no_match.h"
#include "client/cli/history/row_values.h"
#include "client/cli/history/series.h"
#include "client/cli/history/table_view.h"
#include "client/cli/interrupt.h"
#include "client/cli/step_range_flag.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

absl::StatusOr<v1::QueryHistoryRequest> HistoryRequest(const ParsedFlags& flags) {
  v1::QueryHistoryRequest request;
  for (const std::string& pattern : flags.Values("log")) request.add_log(pattern);
  if (flags.Has("steps")) {
    const auto range = StepRangeFlag("steps", flags.Text("steps"));
    if (!range.ok()) return range.status();
    request.set_first_step(range->first);
    request.set_end_step(range->end);
  }
  const std::string source = flags.Text("source");
  if (source == "forward") {
    request.set_source(v1::HistoryRow::FORWARD);
  } else if (source == "replay") {
    request.set_source(v1::HistoryRow::REPLAY);
  } else if (flags.Has("source")) {
    return UsageError(absl::StrCat("--source is \"", Printable(source),
                                   "\"; accepted: forward, which is what was recorded, or replay"));
  }
  return request;
}

// A usage error if the flags that name formats do not go together.
absl::Status CheckExports(const Context& context) {
  std::string streamed = context.json() ? "json" : "";
  for (const ExportFormat& format : ExportFormats()) {
    const std::string& flag = format.flag.name;
    if (!context.flags().Has(flag)) continue;
    const std::string to = context.flags().Text(flag);
    if (to.empty()) return UsageError(absl::StrCat("--", flag, " needs a ", format.flag.value));
    if (to == "-") {
      if (!format.to_stream) {
        return UsageError(absl::StrCat("--", flag, " cannot be written to standard output; name a ",
                                       format.flag.value));
      }
      if (!streamed.empty()) {
        return UsageError(absl::StrCat("--", streamed, " and --", flag,
                                       "=- would mix on standard output; write one to a file"));
      }
      streamed = flag;
    }
  }
  return absl::OkStatus();
}

// The exporters that the flags name, and JSON lines. Sets *elsewhere if one of them does not write
// to standard output. REQUIRES: CheckExports.
absl::StatusOr<std::vector<std::unique_ptr<HistoryExporter>>> MakeExporters(
    Context& context, const ExportEnvironment& environment, bool* elsewhere) {
  std::vector<std::unique_ptr<HistoryExporter>> exporters;
  if (context.json()) {
    exporters.push_back(
        std::make_unique<JsonExporter>(std::make_unique<OutputFile>(environment.out)));
  }
  for (const ExportFormat& format : ExportFormats()) {
    if (!context.flags().Has(format.flag.name)) continue;
    const std::string to = context.flags().Text(format.flag.name);
    *elsewhere |= to != "-";
    auto made = format.make(environment, to);
    if (!made.ok()) return made.status();
    exporters.push_back(*std::move(made));
  }
  return exporters;
}

// Calls `take` with the rows of all runs. Names of runs may overlap; each run counts once.
absl::Status Query(Client* client, v1::QueryHistoryRequest request,
                   const std::vector<std::string>& runs,
                   const std::function<absl::Status(const v1::HistoryRow&)>& take,
                   Canceller* canceller) {
  std::set<std::string> done;
  for (const std::string& run : runs) {
    request.set_run(run);
    std::set<std::string> now;
    absl::Status status = client->QueryHistory(
        request,
        [&](const v1::HistoryRow& row) {
          const std::string& job = row.job_id();
          if (done.count(job) > 0) return absl::OkStatus();
          now.insert(job);
          return take(row);
        },
        canceller);
    if (!status.ok()) return status;
    done.merge(now);
  }
  return absl::OkStatus();
}

// Why nothing matches, to follow "nothing is recorded that matches".
absl::StatusOr<std::string> WhyNothing(Client* client, const v1::QueryHistoryRequest& asked,
                                       const std::vector<std::string>& runs, Canceller* canceller) {
  std::set<std::string> names;
  const absl::Status status = Query(
      client, v1::QueryHistoryRequest(), runs,
      [&](const v1::HistoryRow& row) {
        names.insert(row.name());
        names.insert(LabelOf(row));
        return absl::OkStatus();
      },
      canceller);
  if (!status.ok()) return status;
  return WhyNothingMatches({asked.log().begin(), asked.log().end()}, names);
}

absl::Status RunHistory(Context& context) {
  const std::vector<std::string>& runs = context.flags().positional();
  if (runs.empty()) return UsageError("missing: a run, as NAME@VERSION, NAME, or a job's id");
  auto request = HistoryRequest(context.flags());
  if (!request.ok()) return request.status();
  if (absl::Status s = CheckExports(context); !s.ok()) return s;
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  const ExportEnvironment environment = {files.get(), &context.out(), context.env().getenv,
                                         absl::SleepFor};
  auto client = context.client();
  if (!client.ok()) return client.status();
  bool elsewhere = false;
  auto exporters = MakeExporters(context, environment, &elsewhere);
  if (!exporters.ok()) return exporters.status();

  Canceller canceller;
  const InterruptWatch watch([&] { canceller.Cancel(); });
  SeriesCollector collector;
  int64_t rows = 0;
  absl::Status status = Query(
      *client, *request, runs,
      [&](const v1::HistoryRow& row) {
        if (watch.interrupted()) return absl::CancelledError("interrupted");
        ++rows;
        if (exporters->empty()) collector.Add(row);
        for (const auto& exporter : *exporters) {
          if (absl::Status s = exporter->Add(row); !s.ok()) return s;
        }
        return absl::OkStatus();
      },
      &canceller);
  if (watch.interrupted()) return InterruptedError("interrupted before the history was complete");
  if (!status.ok()) return status;
  if (rows == 0) {
    const absl::StatusOr<std::string> why = WhyNothing(*client, *request, runs, &canceller);
    if (watch.interrupted()) return InterruptedError("interrupted while looking for names");
    if (!why.ok()) return why.status();
    // Not on standard output if that may be data.
    std::ostream& out = exporters->empty() ? context.out() : *context.env().err;
    out << "nothing is recorded that matches" << *why << "\n" << std::flush;
    if (exporters->empty()) return absl::OkStatus();
  }
  for (const auto& exporter : *exporters) {
    if (absl::Status s = exporter->Finish(); !s.ok()) return s;
  }
  if (exporters->empty()) {
    const std::vector<HistorySeries> series = collector.Take();
    context.out() << RenderHistoryTable(series, context.terminal());
    if (context.terminal().is_tty) context.out() << RenderHistoryPlots(series, context.terminal());
    context.out() << std::flush;
    return absl::OkStatus();
  }
  if (!elsewhere) return absl::OkStatus();
  // Not on standard output, which may be data.
  *context.env().err << rows << (rows == 1 ? " row" : " rows") << " written\n";
  for (const auto& exporter : *exporters) {
    for (const std::string& note : exporter->Notes()) *context.env().err << Printable(note) << "\n";
  }
  context.env().err->flush();
  return absl::OkStatus();
}

}  // namespace

Command HistoryCommand() {
  Command c;
  c.name = "history";
  c.summary = "show or export what runs have recorded, and the answers to replays of them";
  c.usage = "history RUN... [flags]";
  c.description =
      "RUN is NAME@VERSION, NAME, which is its newest version, or a job's id; * in NAME stands for "
      "any characters, and NAME@* is all versions.\n"
      "Without a format it shows a table, and on a terminal plots. --json writes an object per "
      "row, "
      "one per line. Numbers read back to the same bits; those that JSON does not have are "
      "\"NaN\", "
      "\"Infinity\" and \"-Infinity\". Several formats can be written at once.";
  c.flags = {{.name = "log",
              .type = FlagType::kText,
              .value = "PATTERN",
              .doc = "only values of this name or probe; * stands for any characters; repeatable",
              .repeated = true},
             {"steps", FlagType::kText, "A:B", "only steps from A on, below B; also A:, :B and A"},
             {"source", FlagType::kText, "SOURCE",
              "only what was recorded (forward) or answered later (replay)"}};
  for (const ExportFormat& format : ExportFormats()) c.flags.push_back(format.flag);
  c.examples = {
      {"show all series of the newest version", "espalier history lm"},
      {"plot the losses of all versions in one picture", "espalier history 'lm@*' --log=loss"},
      {"write a table", "espalier history lm@3 --csv=lm.csv"},
      {"draw how gradients are spread over time",
       "espalier history lm --log='histogram(grad(*), 64)' --svg=gradients.svg"},
      {"compare runs in TensorBoard", "espalier history 'lm*' --tensorboard=logs"}};
  c.run = RunHistory;
  return c;
}

}  // namespace espalier
