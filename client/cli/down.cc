#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "client/cli/command.h"
#include "client/cli/daemon.h"
#include "client/terminal/progress.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

// Time after the last request: jobs are stopped, workers have 10 s to leave, and each model served
// on workers leaves them.
constexpr double kLeaveSeconds = 30;
constexpr double kQuietSeconds = 0.5;  // most daemons end at once

absl::Status RunDown(Context& context) {
  if (absl::Status s = CheckArguments(context, 0, 0, ""); !s.ok()) return s;
  const bool unicode = context.terminal().unicode;
  const double drain = DrainSeconds(context.home());
  const double limit = context.flags().Number("timeout", drain + kLeaveSeconds);
  ProgressPrinter printer(context.env().out, context.terminal(), context.env().seconds);
  bool told = false;
  const auto waiting = [&](double seconds) {
    if (context.json() || seconds < kQuietSeconds) return;
    if (!told) {
      printer.Message(absl::StrCat("waiting for running requests, at most ",
                                   FormatSeconds(drain, unicode),
                                   ", and then for workers to leave; espalierd is killed after ",
                                   FormatSeconds(limit, unicode)));
    }
    told = true;
    if (!context.terminal().is_tty) return;  // one line is enough
    Progress p;
    p.unit = "seconds";
    p.done = seconds;
    p.total = limit;
    printer.Update(p);
  };
  bool killed = false;
  const absl::Status stopped = StopDaemon(context.home(), limit, waiting, &killed);
  if (told) printer.Finish();
  if (!stopped.ok()) return stopped;
  if (context.json()) {
    nlohmann::ordered_json json;
    json["stopped"] = true;
    json["killed"] = killed;
    context.Document(json);
  } else {
    context.out() << "espalierd has stopped"
                  << (killed ? ", killed because it took too long (longer: espalier down "
                               "--timeout=SECONDS)"
                             : "")
                  << "; running jobs continue from their last checkpoint at the next `espalier up`"
                  << std::endl;
  }
  return absl::OkStatus();
}

}  // namespace

Command DownCommand() {
  Command c;
  c.name = "down";
  c.summary = "stop the coordinator that `up` started";
  c.usage = "down [--timeout=SECONDS]";
  c.description =
      "Waits until running requests have ended, at most espalierd's --drain-seconds (30), and its\n"
      "workers have left. Ctrl-C ends the waiting alone; a second `espalier down` cuts the "
      "requests "
      "off.";
  c.flags = {{"timeout", FlagType::kNumber, "SECONDS",
              "time before it is killed (30 more than its --drain-seconds)", 0, 0}};
  c.examples = {{"stop it", "espalier down"},
                {"with requests that may take ten minutes",
                 "espalier up -- --drain-seconds=600; espalier down"}};
  c.run = RunDown;
  return c;
}

}  // namespace espalier
