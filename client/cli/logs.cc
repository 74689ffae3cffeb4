#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cli/command.h"
#include "client/cli/daemon.h"
#include "client/cli/job_id.h"
#include "client/cli/job_view.h"
#include "client/cli/proto_json.h"
#include "client/cli/time_text.h"
#include "client/terminal/text.h"
#include "proto/states.h"

namespace espalier {
namespace {

std::string ReportLine(const char* what, const v1::StepReport& step, bool unicode) {
  std::string line =
      absl::StrCat(what, " ", step.step(), "  ", FormatSeconds(step.seconds(), unicode));
  const std::map<std::string, double> values(step.values().begin(), step.values().end());
  for (const auto& [name, value] : values)
    absl::StrAppend(&line, "  ", Printable(name), " ", FormatLoss(value));
  return line;
}

// Prints a job's reports (every `n`th step) and messages; with --follow, new ones too.
absl::Status JobLog(Context& context, const std::string& job) {
  auto client = context.client();
  if (!client.ok()) return client.status();
  const absl::StatusOr<std::string> id = JobIdOf(*client, job);
  if (!id.ok()) return id.status();
  const int64_t every = context.flags().Int("print-freq", 1);
  const bool unicode = context.terminal().unicode;
  LogTimes times;
  const auto print_line = [&](int64_t unix_ms, const std::string& line) {
    context.out() << times.ZoneLine(unix_ms) << times.Of(unix_ms) << line << "\n";
  };
  const auto print_step = [&](const v1::StepReport& step) {
    if (step.step() % every != 0) return;
    if (context.json()) {
      nlohmann::ordered_json line;
      line["step"] = ToJson(step);
      context.Line(line);
    } else {
      print_line(step.unix_ms(), ReportLine("step", step, unicode));
    }
  };
  const auto print_validation = [&](const v1::StepReport& validation) {
    if (context.json()) {
      nlohmann::ordered_json line;
      line["validation"] = ToJson(validation);
      context.Line(line);
    } else {
      print_line(validation.unix_ms(), ReportLine("validation after step", validation, unicode));
    }
  };
  const bool follow = context.flags().Has("follow");
  const auto print_message = [&](const v1::JobMessage& message) {
    if (context.json()) {
      nlohmann::ordered_json line;
      line["message"] = ToJson(message);
      context.Line(line);
    } else {
      print_line(message.unix_ms(), RenderMessage(message, context.style()));
      context.out().flush();
    }
  };
  // What only the job's record says.
  v1::Job record;
  const auto print_text = [&](const std::string& text) {
    v1::JobMessage message;
    message.set_text(text);
    message.set_unix_ms(record.finished_unix_ms());
    print_message(message);
  };
  const auto print_event = [&](const v1::JobEvent& event) {
    if (event.has_step()) print_step(event.step());
    if (event.has_validation()) print_validation(event.validation());
    if (event.has_job()) record = event.job();
    if (event.has_job() && follow) print_text(absl::StrCat("job is ", StateName(record.state())));
    if (event.has_message()) print_message(event.message());
    if (follow) context.out().flush();
    return context.out().good();
  };
  absl::Status status = (*client)->Watch(*id, 0, print_event, follow);
  if (!follow && status.ok() && !record.error().empty()) print_text("error: " + record.error());
  return status;
}

absl::Status DaemonLog(Context& context) {
  const std::string path = LogFile(context.home());
  std::ifstream in(path);
  if (!in) {
    return absl::NotFoundError(
        absl::StrCat("no log at ", path, "; start the coordinator: espalier up, or give a job id"));
  }
  std::ostringstream text;
  text << in.rdbuf();
  std::vector<std::string> lines = absl::StrSplit(text.str(), '\n', absl::SkipEmpty());
  const auto count = static_cast<size_t>(context.flags().Int("lines", 50));
  if (lines.size() > count) lines.erase(lines.begin(), lines.end() - static_cast<long>(count));
  for (const std::string& line : lines) {
    if (context.json()) {
      nlohmann::ordered_json json;
      json["line"] = line;
      context.Line(json);
    } else {
      context.out() << Printable(line) << "\n";
    }
  }
  context.out().flush();
  return absl::OkStatus();
}

absl::Status RunLogs(Context& context) {
  if (absl::Status s = CheckArguments(context, 0, 1, "a job's id or name"); !s.ok()) return s;
  const auto& args = context.flags().positional();
  const ParsedFlags& flags = context.flags();
  if (!args.empty()) {
    if (!flags.Has("lines")) return JobLog(context, args[0]);
    return UsageError("--lines applies to the coordinator's log; for a job's use --print-freq");
  }
  for (const char* name : {"follow", "print-freq"}) {
    if (flags.Has(name)) return UsageError(absl::StrCat("--", name, " needs a job id"));
  }
  return DaemonLog(context);
}

}  // namespace

Command LogsCommand() {
  Command c;
  c.name = "logs";
  c.summary = "show a job's reports, or the log of the coordinator started by `up`";
  c.usage = "logs [JOB] [--follow]";
  c.description = "JOB is a job's id, or its name, as for `espalier jobs`.";
  c.flags = {{"follow", FlagType::kSwitch, "", "follow until the job is over", 'f'},
             {"print-freq", FlagType::kInt, "N", "every N-th step (1)", 'p', 1, 1e12},
             {"lines", FlagType::kInt, "N", "lines of the coordinator's log (50)", 'n', 1, 1e9}};
  c.examples = {{"every tenth step of a job", "espalier logs job-1 -p 10"},
                {"the coordinator's last lines", "espalier logs -n 100"}};
  c.run = RunLogs;
  return c;
}

}  // namespace espalier
