// The coordinator that `espalier up` starts in the background: its files, its life.
//
// <home>/espalierd.pid, espalierd.log, espalierd.ready (see AddressesOf) and data/.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace espalier {

struct Addresses {
  std::string grpc = "127.0.0.1:7070";
  std::string http = "127.0.0.1:8080";
};

std::string PidFile(const std::string& home);
std::string LogFile(const std::string& home);
std::string ReadyFile(const std::string& home);

// The ready file is one JSON object {"grpc": "host:port", "http": "host:port", ...} that espalierd
// writes once it answers. The defaults where there is none.
Addresses ReadAddresses(const std::string& home);

// The process of the pid file, if it lives and is the espalierd of this home; 0 otherwise.
int RunningDaemon(const std::string& home);

// `name` beside `program` (as installed) or where Bazel puts it. NotFound lists where it was looked
// for.
absl::StatusOr<std::string> FindProgram(const std::string& program, const std::string& package,
                                        const std::string& name);

// Starts `command` detached, with its output in the log file, and writes the pid file. Waits for
// the ready file. Unavailable with the last lines of the log if the process ends or
// `timeout_seconds` pass.
absl::StatusOr<int> StartDaemon(const std::vector<std::string>& command, const std::string& home,
                                double timeout_seconds);

// How long the daemon lets running requests go on after SIGTERM: as its ready file says; before
// there is one, --drain_seconds on its command line, or what espalierd has without it.
double DrainSeconds(const std::string& home);

// SIGTERM, and SIGKILL if it is still there after `timeout_seconds`. Removes pid and ready file.
// Calls `waiting` now and then with the seconds that have passed. `killed` says whether it had to
// be killed.
absl::Status StopDaemon(const std::string& home, double timeout_seconds,
                        const std::function<void(double seconds)>& waiting, bool* killed);

}  // namespace espalier
