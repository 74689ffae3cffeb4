#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/command.h"
#include "client/cli/proto_json.h"
#include "client/cli/run_view.h"
#include "client/cli/time_text.h"
#include "client/terminal/table.h"
#include "client/terminal/text.h"
#include "proto/states.h"

namespace espalier {
namespace {

constexpr int64_t kRunsShown = 50;

std::string LossCell(const v1::Recording& run, double loss) {
  return run.has_losses() ? FormatLoss(loss) : "";
}

// What it computed with; its version if it is not the coordinator's.
std::string DescribeRank(const v1::RecordedAttempt::Rank& rank, const std::string& version) {
  std::string text = Printable(rank.device_model());
  if (!rank.instruction_set().empty()) {
    absl::StrAppend(&text, ", ", Printable(rank.instruction_set()));
  }
  if (rank.threads() > 0) absl::StrAppend(&text, ", threads: ", rank.threads());
  if (!rank.program_version().empty() && rank.program_version() != version) {
    absl::StrAppend(&text, ", version ", Printable(rank.program_version()));
  }
  return text;
}

absl::Status ListRuns(Context& context, Client* client, const std::string& name) {
  auto runs = client->ListRuns(name);
  if (!runs.ok()) return runs.status();
  const int64_t limit = context.flags().Int("limit", context.json() ? 0 : kRunsShown);
  const size_t all = runs->size();
  if (limit > 0 && all > static_cast<size_t>(limit)) {
    // The newest ones, in the order of all.
    std::vector<int64_t> created;
    for (const v1::Recording& run : *runs) created.push_back(run.job().created_unix_ms());
    const auto oldest = created.begin() + static_cast<std::ptrdiff_t>(all) - limit;
    std::nth_element(created.begin(), oldest, created.end());
    const int64_t from = *oldest;
    std::erase_if(*runs,
                  [&](const v1::Recording& run) { return run.job().created_unix_ms() < from; });
  }
  if (context.json()) {
    nlohmann::ordered_json json;
    json["runs"] = nlohmann::ordered_json::array();
    for (const v1::Recording& run : *runs) {
      nlohmann::ordered_json listed = ToJson(run);
      // Only `runs get` has these: empty they would contradict the counts.
      for (const char* field : {"attempts", "checkpoints"}) {
        if (listed[field].empty()) listed.erase(field);
      }
      json["runs"].push_back(std::move(listed));
    }
    context.Document(json);
    return absl::OkStatus();
  }
  Table table({{"run", Align::kLeft, true},
               {"job"},
               {"state"},
               {"steps", Align::kRight},
               {"first loss", Align::kRight},
               {"last", Align::kRight},
               {"best", Align::kRight},
               {"checkpoints", Align::kRight},
               {"size", Align::kRight},
               {.title = "copies", .align = Align::kRight, .optional = true},
               {absl::StrCat("started, ", LocalZone(absl::ToUnixMillis(absl::Now())))},
               {.title = "owner", .optional = true}});
  for (const v1::Recording& run : *runs) {
    const v1::Job& job = run.job();
    const bool recorded = job.spec().record().mode() != v1::RecordOptions::OFF;
    table.Row({absl::StrCat(Printable(run.experiment()), "@", run.version()), Printable(job.id()),
               StateName(job.state()), absl::StrCat(job.steps_done(), "/", job.total_steps()),
               LossCell(run, run.losses().first()), LossCell(run, run.losses().last()),
               LossCell(run, run.losses().best()),
               recorded ? absl::StrCat(run.all_checkpoints()) : "off",
               recorded ? FormatBytes(static_cast<double>(job.recorded_bytes())) : "",
               DescribeCopies(run), LocalTime(job.started_unix_ms()), Printable(job.owner())});
  }
  context.out() << (table.empty() ? "no runs yet; train one: espalier train --name=NAME\n"
                                  : table.Render(context.terminal()));
  if (runs->size() < all) {
    context.out() << all - runs->size()
                  << " older ones are not shown; --limit=N shows more, --limit=0 all\n";
  }
  context.out() << std::flush;
  return absl::OkStatus();
}

// A run with its attempts and checkpoints.
absl::Status ShowRun(Context& context, Client* client, const std::string& name) {
  const auto run = client->GetRun(name);
  if (!run.ok()) return run.status();
  if (context.json()) {
    context.Document(ToJson(*run));
    return absl::OkStatus();
  }
  std::ostream& out = context.out();
  const v1::Job& job = run->job();
  out << context.style().Bold(absl::StrCat(Printable(run->experiment()), "@", run->version()))
      << " is " << Printable(job.id()) << ": " << StateName(job.state()) << ", " << job.steps_done()
      << " of " << job.total_steps() << (job.total_steps() == 1 ? " step done\n" : " steps done\n");
  if (run->has_losses()) {
    const int64_t done = run->losses().best_step() + 1;
    out << "loss " << FormatLoss(run->losses().first()) << " at first, "
        << FormatLoss(run->losses().last()) << " at last, best " << FormatLoss(run->losses().best())
        << " after " << done << (done == 1 ? " step" : " steps") << "\n";
  }
  out << RenderRunFacts(*run, context.terminal());
  for (const v1::RecordedAttempt& attempt : run->attempts()) {
    out << "from step " << attempt.first_step() << " on " << attempt.ranks_size()
        << (attempt.ranks_size() == 1 ? " worker" : " workers") << " by version "
        << Printable(attempt.program_version());
    std::vector<std::string> ranks;
    for (const v1::RecordedAttempt::Rank& rank : attempt.ranks()) {
      ranks.push_back(DescribeRank(rank, attempt.program_version()));
    }
    const bool equal =
        std::equal(ranks.begin() + (ranks.empty() ? 0 : 1), ranks.end(), ranks.begin());
    if (equal && !ranks.empty()) out << ", " << ranks[0];
    out << "\n";
    for (size_t r = 0; !equal && r < ranks.size(); ++r)
      out << "  rank " << r << ": " << ranks[r] << "\n";
  }
  out << RenderCheckpoints(*run, context.terminal()) << std::flush;
  return absl::OkStatus();
}

// What replays of a run can ask for.
absl::Status ShowValues(Context& context, Client* client, const std::string& run,
                        const std::string& pattern) {
  const auto values = client->ListRunValues(run, pattern);
  if (!values.ok()) return values.status();
  if (context.json()) {
    context.Document(ToJson(*values));
    return absl::OkStatus();
  }
  for (const std::string& note : values->notes()) context.out() << Printable(note) << "\n";
  context.out() << RenderRunValues(values->values(), context.terminal()) << std::flush;
  return absl::OkStatus();
}

absl::Status DiffTwoRuns(Context& context, Client* client, const std::string& a,
                         const std::string& b) {
  const auto diff = client->DiffRuns(a, b);
  if (!diff.ok()) return diff.status();
  if (context.json()) {
    context.Document(ToJson(*diff));
    return absl::OkStatus();
  }
  Table table({{"field"}, {Printable(a), Align::kLeft, true}, {Printable(b), Align::kLeft, true}});
  for (const v1::RunDifference& difference : diff->differences()) {
    table.Row(
        {Printable(difference.field()), Printable(difference.a()), Printable(difference.b())});
  }
  std::ostream& out = context.out();
  if (!table.empty()) out << table.Render(context.terminal());
  if (diff->common_steps() == 0) {
    out << "they have no steps in common\n";
  } else if (diff->first_different_step() < 0) {
    out << "the losses of " << diff->common_steps() << " steps are the same to the bit\n";
  } else {
    out << "their losses differ from step " << diff->first_different_step() << " on, of "
        << diff->common_steps() << " that both have\n";
  }
  out << std::flush;
  return absl::OkStatus();
}

absl::Status RunRuns(Context& context) {
  const std::vector<std::string>& arguments = context.flags().positional();
  const std::string verb = arguments.empty() ? "" : arguments[0];
  if (verb == "values") {
    if (absl::Status s = CheckArguments(context, 2, 3, "values, a run, and perhaps a pattern");
        !s.ok()) {
      return s;
    }
  } else if (verb == "diff" || verb == "get") {
    const size_t runs = verb == "diff" ? 2 : 1;
    if (absl::Status s = CheckArguments(context, 1 + runs, 1 + runs,
                                        verb == "diff" ? "diff and two runs" : "get and a run");
        !s.ok()) {
      return s;
    }
  } else if (absl::Status s = CheckArguments(context, 0, 1, "a name"); !s.ok()) {
    return s;
  }
  const bool lists = verb != "values" && verb != "diff" && verb != "get";
  if (context.flags().Has("limit") && !lists) {
    return UsageError(absl::StrCat("--limit goes with a list, not with ", verb));
  }
  auto client = context.client();
  if (!client.ok()) return client.status();
  if (verb == "diff") return DiffTwoRuns(context, *client, arguments[1], arguments[2]);
  if (verb == "get") return ShowRun(context, *client, arguments[1]);
  if (verb == "values") {
    return ShowValues(context, *client, arguments[1], arguments.size() > 2 ? arguments[2] : "");
  }
  return ListRuns(context, *client, verb);
}

}  // namespace

Command RunsCommand() {
  Command c;
  c.name = "runs";
  c.summary = "list the runs of experiments, show one and its values, and say how two differ";
  c.usage = "runs [NAME | get RUN | values RUN [PATTERN] | diff RUN RUN]";
  c.description =
      "Jobs of the same name are runs of one experiment, with versions from 1 on. NAME lists all "
      "of "
      "an experiment; * in it stands for any characters. RUN is NAME@VERSION, NAME, which is its "
      "newest version, or a job's id.\n"
      "values lists what a replay can log of a run: names as probes write them, kind, type, and "
      "whether grad(NAME) and update(NAME) can be logged, too. What is recomputed is not in the "
      "programs, as rewrites made one operator of several. PATTERN is a name, * in it for any "
      "characters, or a probe such as 'param(*)' or 'grad(*)' for these only.\n"
      "diff compares specification, model and data by their hashes, plan, program, devices, and "
      "the "
      "losses to the bit.";
  c.flags = {{"limit", FlagType::kInt, "N", "list: only the newest N (50; with --json all); 0: all",
              0, 0, 1e9}};
  c.examples = {{"list all runs", "espalier runs"},
                {"list those of experiments", "espalier runs 'lm*'"},
                {"show attempts and checkpoints of the newest", "espalier runs get lm"},
                {"list what a replay can log of layer 0", "espalier runs values lm 'layers.0.*'"},
                {"say how two runs differ", "espalier runs diff lm@3 lm@5"}};
  c.run = RunRuns;
  return c;
}

}  // namespace espalier
