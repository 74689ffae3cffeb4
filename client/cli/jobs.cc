#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/nearest.h"
#include "client/cli/choice_flag.h"
#include "client/cli/command.h"
#include "client/cli/delete_each.h"
#include "client/cli/job_id.h"
#include "client/cli/job_view.h"
#include "client/cli/plan_view.h"
#include "client/cli/proto_json.h"
#include "client/cli/time_flags.h"
#include "client/cli/time_text.h"
#include "client/terminal/table.h"
#include "proto/states.h"

namespace espalier {
namespace {

constexpr int64_t kJobsShown = 50;
// Flags that select the jobs of a list.
constexpr const char* kListFlags[] = {"state", "owner", "name",  "model",
                                      "since", "until", "limit", "newest-first"};

std::string StateCell(v1::JobState state, const Style& style) {
  const std::string name = StateName(state);
  if (state == v1::SUCCEEDED) return style.Green(name);
  if (state == v1::FAILED) return style.Red(name);
  if (state == v1::RECOVERING) return style.Yellow(name);
  return name;
}

// Which jobs the flags of list select.
absl::StatusOr<v1::ListJobsRequest> JobListRequestOf(const ParsedFlags& flags) {
  v1::ListJobsRequest request;
  for (const std::string& text : flags.Values("state")) {
    for (const absl::string_view name : absl::StrSplit(text, ',')) {
      auto state = OneOf<v1::JobState>("state", std::string(name),
                                       {{"queued", v1::QUEUED},
                                        {"planning", v1::PLANNING},
                                        {"running", v1::RUNNING},
                                        {"recovering", v1::RECOVERING},
                                        {"succeeded", v1::SUCCEEDED},
                                        {"failed", v1::FAILED},
                                        {"cancelled", v1::CANCELLED}});
      if (!state.ok()) return state.status();
      request.add_states(*state);
    }
  }
  request.set_owner(flags.Text("owner"));
  request.set_name(flags.Text("name"));
  request.set_model(flags.Text("model"));
  const absl::Status times = ReadTimeRange(
      flags, [&](int64_t ms) { request.set_submitted_from_unix_ms(ms); },
      [&](int64_t ms) { request.set_submitted_before_unix_ms(ms); });
  if (!times.ok()) return times;
  return request;
}

bool IsFiltered(const v1::ListJobsRequest& request) {
  return request.states_size() > 0 || !request.owner().empty() || !request.name().empty() ||
         !request.model().empty() || request.submitted_from_unix_ms() != 0 ||
         request.submitted_before_unix_ms() != 0;
}

absl::Status ListJobs(Context& context, Client* client) {
  const ParsedFlags& flags = context.flags();
  const bool newest_first = flags.Has("newest-first");
  auto request = JobListRequestOf(flags);
  if (!request.ok()) return request.status();
  // Scripts get all, unless they want fewer.
  const int64_t limit = flags.Int("limit", context.json() ? 0 : kJobsShown);
  // The newest ones, of which the last line is the newest unless they are to come first.
  request->set_newest_first(limit > 0 || newest_first);
  auto reply = client->ListJobs(*request, limit);
  if (!reply.ok()) return reply.status();
  if (request->newest_first() && !newest_first) {
    std::reverse(reply->mutable_jobs()->pointer_begin(), reply->mutable_jobs()->pointer_end());
  }
  if (context.json()) {
    nlohmann::ordered_json json;
    json["jobs"] = nlohmann::ordered_json::array();
    for (const v1::Job& job : reply->jobs()) json["jobs"].push_back(ToJson(job));
    json["matching"] = reply->matching();
    context.Document(json);
    return absl::OkStatus();
  }
  Table table({{"job"},
               {"name", Align::kLeft, true},
               {"state"},
               {.title = "priority", .align = Align::kRight, .optional = true},
               {"steps", Align::kRight},
               {"step time", Align::kRight},
               {.title = "best step", .align = Align::kRight, .optional = true},
               {absl::StrCat("created, ", LocalZone(absl::ToUnixMillis(absl::Now())))},
               {"model"},
               {.title = "owner", .optional = true},
               {"error", Align::kLeft, true}});
  for (const v1::Job& job : reply->jobs()) {
    table.Row(
        {Printable(job.id()), Printable(job.spec().name()), StateCell(job.state(), context.style()),
         job.priority() != 0 ? absl::StrCat(job.priority()) : "",
         absl::StrCat(job.steps_done(), "/", job.total_steps()),
         job.median_step_seconds() > 0
             ? FormatSeconds(job.median_step_seconds(), context.terminal().unicode)
             : "",
         job.best_step() > 0 ? absl::StrCat(job.best_step()) : "", LocalTime(job.created_unix_ms()),
         Printable(job.output_model()), Printable(job.owner()), Printable(job.error())});
  }
  const bool all = !IsFiltered(*request);
  context.out() << (!table.empty() ? table.Render(context.terminal())
                    : all          ? "no jobs yet; submit one: espalier train\n"
                                   : "no such jobs\n");
  if (const int64_t more = reply->matching() - reply->jobs_size(); more > 0) {
    context.out() << more << " older ones are not shown; --limit=N shows more, --limit=0 all\n";
  }
  context.out() << std::flush;
  return absl::OkStatus();
}

// The place in the queue, and the times that count for the limit.
void ShowQueueAndTimes(std::ostream& out, const v1::Job& job) {
  std::vector<std::string> parts;
  if (job.queue_position() > 0)
    parts.push_back(absl::StrCat("number ", job.queue_position(), " in the queue"));
  if (job.priority() != 0) {
    parts.push_back(absl::StrCat("priority ", job.priority()));
    if (job.priority_among_owners() != job.priority()) {
      absl::StrAppend(&parts.back(), " (", job.priority_among_owners(),
                      " among other owners' jobs)");
    }
  }
  const auto text = [](double seconds) {
    return absl::FormatDuration(absl::Trunc(absl::Seconds(seconds), absl::Milliseconds(100)));
  };
  if (job.running_seconds() > 0 || job.time_limit_seconds() > 0) {
    parts.push_back(absl::StrCat(
        "had workers for ", text(job.running_seconds()),
        job.time_limit_seconds() > 0 ? absl::StrCat(" of ", text(job.time_limit_seconds())) : ""));
  }
  if (!parts.empty()) out << absl::StrJoin(parts, ", ") << "\n";
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
      << job.total_steps() << ", "
      << (job.checkpoint_step() > 0 ? absl::StrCat("checkpoint at ", job.checkpoint_step())
                                    : std::string("no checkpoint"))
      << ", attempt " << job.attempts() << "\n"
      << "created " << LocalTime(job.created_unix_ms())
      << (job.started_unix_ms() != 0 ? ", started " : "") << LocalTime(job.started_unix_ms())
      << (job.finished_unix_ms() != 0 ? ", finished " : "") << LocalTime(job.finished_unix_ms())
      << "; times are in " << LocalZone(job.created_unix_ms()) << "\n";
  ShowQueueAndTimes(out, job);
  if (!job.checkpoints_paused().empty()) {
    out << context.style().Yellow("checkpoints are paused: ")
        << Printable(job.checkpoints_paused(), true) << "\n";
  }
  if (!job.error().empty())
    out << context.style().Red("error: ") << Printable(job.error(), true) << "\n";
  for (const v1::JobMessage& message : reply->messages()) {
    const std::string time = LocalTime(message.unix_ms());
    out << "  " << time << (time.empty() ? "" : "  ") << RenderMessage(message, context.style())
        << "\n";
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

// Says what a cancelled job loses: no resume brings it back.
absl::Status Cancel(Context& context, Client* client, const std::string& id) {
  const absl::StatusOr<v1::Job> job = client->CancelJob(id);
  if (absl::Status s = ShowJob(context, job); !s.ok() || context.json()) return s;
  const int64_t lost = job->steps_done() - job->checkpoint_step();
  if (lost <= 0) return absl::OkStatus();
  context.out() << lost << (lost == 1 ? " step" : " steps")
                << (job->checkpoint_step() == 0
                        ? std::string(", of which there is no checkpoint,")
                        : absl::StrCat(" since its checkpoint of step ", job->checkpoint_step()))
                << (lost == 1 ? " is" : " are") << " lost; `espalier jobs checkpoint "
                << Printable(job->id()) << "` before a cancel keeps what is trained" << std::endl;
  return absl::OkStatus();
}

absl::Status CheckpointNow(Context& context, Client* client, const std::string& id) {
  const double seconds = context.flags().Number("timeout", 600);
  const absl::StatusOr<v1::Job> job = client->CheckpointJob(id, absl::Seconds(seconds));
  if (!job.ok()) return job.status();
  if (context.json()) {
    context.Document(ToJson(*job));
  } else {
    context.out() << "job " << Printable(job->id()) << " has a checkpoint of step "
                  << job->checkpoint_step() << std::endl;
  }
  return absl::OkStatus();
}

absl::Status SetJob(Context& context, Client* client, const std::string& id) {
  const ParsedFlags& flags = context.flags();
  v1::UpdateJobRequest request;
  request.set_job_id(id);
  if (flags.Has("priority")) request.set_priority(static_cast<int32_t>(flags.Int("priority", 0)));
  if (flags.Has("time-limit")) {
    const auto limit = DurationFlag("time-limit", flags.Text("time-limit"));
    if (!limit.ok()) return limit.status();
    request.set_time_limit_seconds(absl::ToDoubleSeconds(*limit));
  }
  const absl::StatusOr<v1::Job> job = client->UpdateJob(std::move(request));
  if (absl::Status s = ShowJob(context, job); !s.ok() || context.json()) return s;
  ShowQueueAndTimes(context.out(), *job);
  context.out() << std::flush;
  return absl::OkStatus();
}

absl::Status DeleteJobs(Context& context, Client* client, const std::vector<std::string>& jobs) {
  return DeleteEach(context, "job ", jobs,
                    [client](const std::string& job) -> absl::StatusOr<std::string> {
                      absl::StatusOr<std::string> id = JobIdOf(client, job);
                      if (!id.ok()) return id;
                      if (absl::Status s = client->DeleteJob(*id); !s.ok()) return s;
                      return id;
                    });
}

// Checks that the flags go with the subcommand.
absl::Status CheckFlagsOf(const ParsedFlags& flags, const std::string& verb) {
  const auto goes_with = [&](const std::string& flag, const std::string& wanted) {
    if (!flags.Has(flag) || verb == wanted) return absl::OkStatus();
    return UsageError(
        absl::StrCat("--", flag, " applies to jobs ", wanted, ", not to jobs ", verb));
  };
  for (const char* flag : kListFlags) {
    if (absl::Status s = goes_with(flag, "list"); !s.ok()) return s;
  }
  for (const auto& [flag, wanted] : {std::pair<std::string, std::string>{"print-freq", "watch"},
                                     {"timeout", "checkpoint"},
                                     {"priority", "set"},
                                     {"time-limit", "set"}}) {
    if (absl::Status s = goes_with(flag, wanted); !s.ok()) return s;
  }
  if (verb == "set" && !flags.Has("priority") && !flags.Has("time-limit")) {
    return UsageError("jobs set needs --priority=N or --time-limit=TIME");
  }
  return absl::OkStatus();
}

absl::Status RunJobs(Context& context) {
  const auto& args = context.flags().positional();
  const std::string verb = args.empty() ? "list" : args[0];
  const std::vector<std::string> verbs = {"list",   "get", "watch",  "cancel",
                                          "resume", "set", "delete", "checkpoint"};
  if (std::find(verbs.begin(), verbs.end(), verb) == verbs.end()) {
    const std::string near = Nearest(verb, verbs);
    return UsageError(absl::StrCat("jobs ", Printable(verb), ": accepted are ",
                                   absl::StrJoin(verbs, ", "),
                                   near.empty() ? "" : absl::StrCat("; did you mean ", near, "?")));
  }
  const bool list = verb == "list";
  constexpr size_t kMostDeleted = 10'000;
  if (absl::Status s = CheckArguments(context, list ? 0 : 2,
                                      list               ? 1
                                      : verb == "delete" ? kMostDeleted
                                                         : 2,
                                      list ? "" : "a job's id or name");
      !s.ok()) {
    return s;
  }
  if (absl::Status s = CheckFlagsOf(context.flags(), verb); !s.ok()) return s;
  auto client = context.client();
  if (!client.ok()) return client.status();
  if (list) return ListJobs(context, *client);
  if (verb == "delete") return DeleteJobs(context, *client, {args.begin() + 1, args.end()});
  const absl::StatusOr<std::string> id = JobIdOf(*client, args[1]);
  if (!id.ok()) return id.status();
  if (verb == "get") return Get(context, *client, *id);
  if (verb == "checkpoint") return CheckpointNow(context, *client, *id);
  if (verb == "set") return SetJob(context, *client, *id);
  if (verb == "watch") return WatchJob(&context, *id, context.flags().Int("print-freq", 0));
  return verb == "cancel" ? Cancel(context, *client, *id)
                          : ShowJob(context, (*client)->ResumeJob(*id));
}

}  // namespace

Command JobsCommand() {
  Command c;
  c.name = "jobs";
  c.summary = "list, get, watch, cancel, resume, change, delete and checkpoint training jobs";
  c.usage =
      "jobs [list | get JOB | watch JOB | cancel JOB | resume JOB | set JOB | delete JOB... | "
      "checkpoint JOB]";
  c.description =
      "JOB is a job's id, or its name, if one job that is not over has it, or else one job at "
      "all.\n"
      "cancel loses the steps since the last checkpoint; checkpoint, before it, keeps them.";
  c.flags = {
      {.name = "state",
       .type = FlagType::kText,
       .value = "STATE",
       .doc = "list: only jobs in this state, or states with commas between: queued, planning, "
              "running, recovering, succeeded, failed, cancelled",
       .repeated = true},
      {"name", FlagType::kText, "NAME",
       "list: only jobs of this name or id; * stands for any characters"},
      {"model", FlagType::kText, "NAME",
       "list: only jobs that make this model, or start from it; * as for --name"},
      {"owner", FlagType::kText, "NAME", "list: only jobs of this owner"},
      {"since", FlagType::kText, "TIME",
       "list: submitted at this time or later: 2h, 7d, 2026-11-29"},
      {"until", FlagType::kText, "TIME", "list: submitted before this time"},
      {"limit", FlagType::kInt, "N", "list: only the newest N (50; with --json all); 0: all", 0, 0,
       1e9},
      {"newest-first", FlagType::kSwitch, "", "list: the newest in the first line"},
      {"priority", FlagType::kInt, "N", "set: place in the queue, as of espalier train", 0, -1000,
       1000},
      {"time-limit", FlagType::kText, "TIME", "set: as of espalier train; 0: none"},
      {"print-freq", FlagType::kInt, "N", "watch without a terminal: a line every N steps", 'p', 1,
       1e12},
      {"timeout", FlagType::kNumber, "SECONDS", "how long checkpoint waits (600)", 0, 0}};
  c.examples = {
      {"list the newest", "espalier jobs"},
      {"list what waits and runs", "espalier jobs --state=queued,running"},
      {"follow a running job", "espalier jobs watch job-1"},
      {"the same by its name", "espalier jobs watch llm"},
      {"resume from the last checkpoint after a failure", "espalier jobs resume job-1"},
      {"let a queued job start earlier", "espalier jobs set job-1 --priority=10"},
      {"delete what is over", "espalier jobs delete job-1 job-2"},
      {"make what a running job has trained durable now", "espalier jobs checkpoint job-1"}};
  c.run = RunJobs;
  return c;
}

}  // namespace espalier
