#include "client/cli/launch/host_probe.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/cli/flags.h"
#include "client/cli/launch/ssh_scripts.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

constexpr double kProbeSeconds = 60;

absl::StatusOr<ProbedHost> Understand(const LaunchHost& given, Answers answers) {
  ProbedHost host;
  host.given = given;
  if (answers["machine"] != "Linux x86_64") {
    return absl::FailedPreconditionError(absl::StrCat(given.address, " is \"",
                                                      Printable(answers["machine"]),
                                                      "\"; Espalier runs on Linux x86_64"));
  }
  host.own_address = answers["here"];
  host.asker_address = answers["there"];
  host.systemd = answers["runner"] == "systemd";
  host.has_bundle = answers["bundle"] == "yes";
  int gpus = 0;
  if (!absl::SimpleAtoi(answers["gpus"], &gpus)) gpus = 0;
  if (!absl::SimpleAtoi(answers["cpus"], &host.cpus)) host.cpus = 1;
  if (!absl::SimpleAtoi(answers["memory"], &host.memory)) host.memory = 0;
  host.memory *= 1024;
  if (host.own_address.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        given.address, ": its sshd does not say at which address it was reached (SSH_CONNECTION)"));
  }
  // fe80::1%eth0: of one network, and with a zone that means something on this host alone.
  if (absl::StrContains(host.own_address, '%')) {
    return absl::FailedPreconditionError(absl::StrCat(
        given.address, " was reached at ", Printable(host.own_address),
        ", where other hosts do not reach it; name it in the hosts file by another address"));
  }
  auto devices = DevicesOf(given, gpus);
  if (!devices.ok()) return UsageError(std::string(devices.status().message()));
  host.devices = *std::move(devices);
  return host;
}

}  // namespace

absl::StatusOr<std::vector<ProbedHost>> ProbeHosts(const RemoteShell& shell,
                                                   const std::vector<LaunchHost>& hosts,
                                                   const std::string& bundle_key) {
  std::vector<RemoteCall> calls;
  for (const LaunchHost& host : hosts) {
    calls.push_back({host.address, "look at it", ProbeScript(bundle_key), ""});
  }
  const auto results = shell.Run(calls, kProbeSeconds);
  if (absl::Status s = AllErrors(results); !s.ok()) return s;
  std::vector<ProbedHost> probed;
  for (size_t i = 0; i < hosts.size(); ++i) {
    auto host = Understand(hosts[i], ReadAnswers(*results[i]));
    if (!host.ok()) return host.status();
    probed.push_back(*std::move(host));
  }
  return probed;
}

}  // namespace espalier
