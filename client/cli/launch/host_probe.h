// The hosts of a launch by ssh before anything is started there: what they are, and the programs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/launch/host_file.h"
#include "client/cli/launch/remote_shell.h"

namespace espalier {

struct ProbedHost {
  LaunchHost given;
  std::string own_address;    // of the host, as this one reaches it
  std::string asker_address;  // of this one, as the host sees it
  bool systemd = false;
  bool has_bundle = false;
  int64_t memory = 0;  // bytes
  int cpus = 1;
  std::vector<std::string> devices;  // of its workers
};

// Asks all hosts. `bundle_key`: of the programs that are looked for; empty: none.
absl::StatusOr<std::vector<ProbedHost>> ProbeHosts(const RemoteShell& shell,
                                                   const std::vector<LaunchHost>& hosts,
                                                   const std::string& bundle_key);

}  // namespace espalier
