#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "client/cli/proto_json.h"
#include "client/terminal/table.h"
#include "proto/states.h"

namespace espalier {
namespace {

std::string State(v1::WorkerInfo::State state, const Style& style) {
  switch (state) {
    case v1::WorkerInfo::IDLE:
      return "idle";
    case v1::WorkerInfo::BUSY:
      return style.Green("busy");
    case v1::WorkerInfo::DEAD:
      return style.Red("dead");
    case v1::WorkerInfo::DRAINING:
      return style.Yellow("leaving");
    case v1::WorkerInfo::LEFT:
      return "left";
    default:
      return "unknown";
  }
}

std::string Rate(double per_second, const char* unit) {
  return per_second > 0 ? absl::StrCat(FormatCount(per_second), unit) : "";
}

// Of the workers that the coordinator still lists, and the table does not.
std::string GoneLine(int left, int dead) {
  if (left + dead == 0) return "";
  const auto count = [](int workers) {
    return absl::StrCat(workers, workers == 1 ? " worker has " : " workers have ");
  };
  return absl::StrCat(
      left == 0 ? absl::StrCat(count(dead), "died")
      : dead == 0
          ? absl::StrCat(count(left), "left in order")
          : absl::StrCat(count(left + dead), "left in order (", left, ") or died (", dead, ")"),
      " in the last 10 minutes: --all shows ", left + dead == 1 ? "it" : "them", "\n");
}

absl::Status RunStatus(Context& context) {
  if (absl::Status s = CheckArguments(context, 0, 0, ""); !s.ok()) return s;
  auto client = context.client();
  if (!client.ok()) return client.status();
  auto reply = (*client)->Status();
  auto tls = context.tls();  // both ports use TLS, or neither
  if (!tls.ok()) return tls.status();
  if (!reply.ok()) return reply.status();
  if (context.json()) {
    context.Document(ToJson(*reply));
    return absl::OkStatus();
  }
  const Style style = context.style();
  std::ostream& out = context.out();
  out << "espalierd " << Printable(reply->version()) << " at " << (*client)->address()
      << ", up for " << FormatSeconds(reply->uptime_seconds(), context.terminal().unicode);
  if (!reply->http_address().empty())
    out << ", HTTP at " << (tls->wanted ? "https://" : "http://")
        << Printable(reply->http_address());
  const std::map<std::string, int> jobs(reply->jobs_by_state().begin(),
                                        reply->jobs_by_state().end());
  out << "\njobs: "
      << (jobs.empty() ? "none"
                       : absl::StrJoin(jobs, ", ",
                                       [](std::string* s, const auto& j) {
                                         absl::StrAppend(s, j.second, " ",
                                                         absl::AsciiStrToLower(Printable(j.first)));
                                       }))
      << "\nserved: "
      << (reply->served_models().empty() ? "none"
                                         : Printable(absl::StrJoin(reply->served_models(), ", ")))
      << "\n\n";
  Table table({{"worker"},
               {"id"},
               {"state"},
               {"device", Align::kLeft, true},
               {"memory", Align::kRight},
               {"matmul", Align::kRight},
               {"bandwidth", Align::kRight},
               {"address"},
               {"job"}});
  const bool all = context.flags().Has("all");
  int left = 0, dead = 0;  // not shown
  for (const v1::WorkerInfo& w : reply->workers()) {
    if (!all && IsGone(w.state())) {
      ++(w.state() == v1::WorkerInfo::LEFT ? left : dead);
      continue;
    }
    table.Row({Printable(w.name().empty() ? w.worker_id() : w.name()), Printable(w.worker_id()),
               State(w.state(), style), Printable(w.device().model()),
               FormatBytes(static_cast<double>(w.device().memory_bytes())),
               Rate(w.device().matmul_flops(), "FLOP/s"),
               Rate(w.device().memory_bandwidth(), "B/s"), Printable(w.address()),
               Printable(w.job_id())});
  }
  const std::string how =
      tls->wanted ? "`espalier token create --role=worker` makes a token, with which they start: "
                    "espalier-worker --join=TOKEN"
                  : absl::StrCat("espalier-worker --coordinator=", (*client)->address());
  out << (table.empty() ? absl::StrCat(left + dead > 0 ? "no workers are there any more"
                                                       : "no workers have joined",
                                       "; start some: ", how, "\n")
                        : table.Render(context.terminal()))
      << GoneLine(left, dead) << std::flush;
  return absl::OkStatus();
}

}  // namespace

Command StatusCommand() {
  Command c;
  c.name = "status";
  c.summary = "show the coordinator, its workers, jobs and served models";
  c.usage = "status [--all]";
  c.flags = {{"all", FlagType::kSwitch, "",
              "also the workers that have left or died in the last 10 minutes; --json has them "
              "always"}};
  c.examples = {{"for people", "espalier status"},
                {"for scripts", "espalier status --json | jq '.workers[].state'"}};
  c.run = RunStatus;
  return c;
}

}  // namespace espalier
