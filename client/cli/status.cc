#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "client/cli/proto_json.h"
#include "client/terminal/table.h"

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
    default:
      return "unknown";
  }
}

std::string Rate(double per_second, const char* unit) {
  return per_second > 0 ? absl::StrCat(FormatCount(per_second), unit) : "";
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
  for (const v1::WorkerInfo& w : reply->workers()) {
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
  out << (table.empty() ? absl::StrCat("no workers have joined; start some: ", how, "\n")
                        : table.Render(context.terminal()))
      << std::flush;
  return absl::OkStatus();
}

}  // namespace

Command StatusCommand() {
  Command c;
  c.name = "status";
  c.summary = "show the coordinator, its workers, jobs and served models";
  c.usage = "status";
  c.examples = {{"for people", "espalier status"},
                {"for scripts", "espalier status --json | jq '.workers[].state'"}};
  c.run = RunStatus;
  return c;
}

}  // namespace espalier
