#include <nlohmann/json.hpp>

#include "client/cli/command.h"
#include "client/cli/daemon.h"

namespace espalier {
namespace {

absl::Status Run(Context& context) {
  if (absl::Status s = CheckArguments(context, 0, 0, ""); !s.ok()) return s;
  bool killed = false;
  if (absl::Status s = StopDaemon(context.home(), context.flags().Number("timeout", 30), &killed);
      !s.ok()) {
    return s;
  }
  if (context.json()) {
    nlohmann::ordered_json json;
    json["stopped"] = true;
    json["killed"] = killed;
    context.Document(json);
  } else {
    context.out() << "espalierd has stopped" << (killed ? ", killed because it took too long" : "")
                  << "; running jobs go on from their last checkpoint at the next `espalier up`"
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
  c.flags = {{"timeout", FlagType::kNumber, "SECONDS", "before it is killed (30)", 0, 0}};
  c.examples = {{"stop it", "espalier down"}};
  c.run = Run;
  return c;
}

}  // namespace espalier
