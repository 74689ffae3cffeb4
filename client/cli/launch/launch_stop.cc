#include "client/cli/launch/launch_stop.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/launch/launch_context.h"
#include "client/cli/launch/remote_shell.h"
#include "client/cli/launch/ssh_scripts.h"

namespace espalier {
namespace {

constexpr int kTermSeconds = 40;
constexpr double kStopAnswerSeconds = kTermSeconds + 60;

}  // namespace

ProcessName NameIn(const LaunchRecord& record, const std::string& name) {
  return {record.id, name, record.owner};
}

absl::Status StopLaunch(Context& context, const std::string& home, const LaunchRecord& record) {
  std::vector<RemoteCall> workers, coordinator;
  for (const StartedProcess& process : record.processes) {
    (process.worker.empty() ? coordinator : workers)
        .push_back({process.host, "stop " + process.name,
                    StopScript(NameIn(record, process.name), kTermSeconds,
                               /*ask_twice=*/!process.worker.empty()),
                    ""});
  }
  const RemoteShell shell(record.ssh, [] { return false; });
  // Workers first, so that they can leave.
  auto results = shell.Run(workers, kStopAnswerSeconds);
  for (auto& result : shell.Run(coordinator, kStopAnswerSeconds)) {
    results.push_back(std::move(result));
  }
  int stopped = 0, absent = 0;
  for (const auto& result : results) {
    if (!result.ok()) continue;
    const std::string answer = ReadAnswers(*result)["stopped"];
    stopped += answer == "yes";
    absent += answer == "no";
  }
  Say(context, "stopped",
      absl::StrCat(stopped, stopped == 1 ? " process" : " processes", " stopped",
                   absent > 0 ? absl::StrCat(", ", absent, " had ended before") : ""));
  const absl::Status failed = AllErrors(results);
  if (failed.ok()) {
    RemoveLaunchRecord(home, record.id);
    return failed;
  }
  return absl::Status(
      failed.code(),
      absl::StrCat(failed.message(), "\nwhat was not stopped is remembered: call --stop again"));
}

}  // namespace espalier
