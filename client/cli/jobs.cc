#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/nearest.h"
#include "client/cli/command.h"
#include "client/cli/job_view.h"
#include "client/cli/plan_view.h"
#include "client/cli/proto_json.h"
#include "client/terminal/table.h"
#include "proto/states.h"

namespace espalier {
namespace {

std::string Time(int64_t unix_ms) {
  if (unix_ms == 0) return "";
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixMillis(unix_ms),
                          absl::LocalTimeZone());
}

std::string StateCell(v1::JobState state, const Style& style) {
  const std::string name = StateName(state);
  if (state == v1::SUCCEEDED) return style.Green(name);
  if (state == v1::FAILED) return style.Red(name);
  if (state == v1::RECOVERING) return style.Yellow(name);
  return name;
}

absl::Status ListJobs(Context& context, Client* client) {
  auto jobs = client->ListJobs();
  if (!jobs.ok()) return jobs.status();
  if (context.json()) {
    nlohmann::ordered_json json;
    json["jobs"] = nlohmann::ordered_json::array();
    for (const v1::Job& job : *jobs) json["jobs"].push_back(ToJson(job));
    context.Document(json);
    return absl::OkStatus();
  }
  Table table({{"job"},
               {"name", Align::kLeft, true},
               {"state"},
               {"steps", Align::kRight},
               {"step time", Align::kRight},
               {.title = "best step", .align = Align::kRight, .optional = true},
               {"created"},
               {"model"},
               {.title = "owner", .optional = true},
               {"error", Align::kLeft, true}});
  for (const v1::Job& job : *jobs) {
    table.Row(
        {Printable(job.id()), Printable(job.spec().name()), StateCell(job.state(), context.style()),
         absl::StrCat(job.steps_done(), "/", job.total_steps()),
         job.median_step_seconds() > 0
             ? FormatSeconds(job.median_step_seconds(), context.terminal().unicode)
             : "",
         job.best_step() > 0 ? absl::StrCat(job.best_step()) : "", Time(job.created_unix_ms()),
         Printable(job.output_model()), Printable(job.owner()), Printable(job.error())});
  }
  context.out() << (table.empty() ? "no jobs yet; submit one: espalier train\n"
                                  : table.Render(context.terminal()))
                << std::flush;
  return absl::OkStatus();
}

absl::Status Get(Context& context, Client* client, const std::string& id) {
  auto reply = client->GetJob(id, /*with_reports=*/true);
  if (!reply.ok()) return reply.status();
  if (context.json()) {
    context.Document(ToJson(*reply));
    return absl::OkStatus();
  }
  const v1::Job& job = reply->job();
  std::ostream& out = context.out();
  out << context.style().Bold(Printable(job.id())) << " " << Printable(job.spec().name()) << ": "
      << StateCell(job.state(), context.style()) << ", step " << job.steps_done() << " of "
      << job.total_steps() << ", checkpoint at " << job.checkpoint_step() << ", attempt "
      << job.attempts() << "\n"
      << "created " << Time(job.created_unix_ms())
      << (job.started_unix_ms() != 0 ? ", started " : "") << Time(job.started_unix_ms())
      << (job.finished_unix_ms() != 0 ? ", finished " : "") << Time(job.finished_unix_ms()) << "\n";
  if (!job.checkpoints_paused().empty()) {
    out << context.style().Yellow("checkpoints are paused: ")
        << Printable(job.checkpoints_paused(), true) << "\n";
  }
  if (!job.error().empty())
    out << context.style().Red("error: ") << Printable(job.error(), true) << "\n";
  for (const v1::JobMessage& message : reply->messages()) {
    out << "  " << RenderMessage(message, context.style()) << "\n";
  }
  if (job.plan().operators_size() > 0) out << RenderPlanSummary(job.plan(), context.terminal());
  out << RenderOutcome(job, context.terminal()) << std::flush;
  return absl::OkStatus();
}

absl::Status ShowJob(Context& context, const absl::StatusOr<v1::Job>& job) {
  if (!job.ok()) return job.status();
  if (context.json()) {
    context.Document(ToJson(*job));
  } else {
    context.out() << "job " << Printable(job->id()) << " is " << StateName(job->state())
                  << std::endl;
  }
  return absl::OkStatus();
}

absl::Status RunJobs(Context& context) {
  const auto& args = context.flags().positional();
  const std::string verb = args.empty() ? "list" : args[0];
  const std::vector<std::string> verbs = {"list", "get", "watch", "cancel", "resume"};
  if (std::find(verbs.begin(), verbs.end(), verb) == verbs.end()) {
    const std::string near = Nearest(verb, verbs);
    return UsageError(absl::StrCat("jobs ", Printable(verb),
                                   ": accepted are list, get, watch, cancel, resume",
                                   near.empty() ? "" : absl::StrCat("; did you mean ", near, "?")));
  }
  const bool list = verb == "list";
  if (absl::Status s = CheckArguments(context, list ? 0 : 2, list ? 1 : 2, list ? "" : "a job id");
      !s.ok()) {
    return s;
  }
  if (context.flags().Has("print-freq") && verb != "watch") {
    return UsageError(absl::StrCat("--print-freq applies to jobs watch, not to jobs ", verb));
  }
  auto client = context.client();
  if (!client.ok()) return client.status();
  if (list) return ListJobs(context, *client);
  if (verb == "get") return Get(context, *client, args[1]);
  if (verb == "watch") return WatchJob(&context, args[1], context.flags().Int("print-freq", 0));
  return ShowJob(context,
                 verb == "cancel" ? (*client)->CancelJob(args[1]) : (*client)->ResumeJob(args[1]));
}

}  // namespace

Command JobsCommand() {
  Command c;
  c.name = "jobs";
  c.summary = "list, get, watch, cancel and resume training jobs";
  c.usage = "jobs [list | get ID | watch ID | cancel ID | resume ID]";
  c.flags = {{"print-freq", FlagType::kInt, "N", "watch without a terminal: a line every N steps",
              'p', 1, 1e12}};
  c.examples = {{"list all", "espalier jobs"},
                {"follow a running job", "espalier jobs watch job-1"},
                {"resume from the last checkpoint after a failure", "espalier jobs resume job-1"}};
  c.run = RunJobs;
  return c;
}

}  // namespace espalier
