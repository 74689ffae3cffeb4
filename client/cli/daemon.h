// The background coordinator of `espalier up`: its files, start and stop.
//
// <home>/espalierd.pid, espalierd.log, espalierd.ready (see ReadAddresses), data/ and, of `espalier
// login`, connection.json.
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
  std::string ca_file, token_file;  // empty: there is none
};

std::string PidFile(const std::string& home);
std::string LogFile(const std::string& home);
std::string ReadyFile(const std::string& home);
std::string ConnectionFile(const std::string& home);

// Reads the ready file, a JSON object {"grpc": "host:port", "http": "host:port", "ca_file": PATH,
// "token_file": PATH, ...} that espalierd writes once it answers, or else the file of the same form
// that `espalier login` and espalierd --tls=auto write. Returns the defaults if there is none.
Addresses ReadAddresses(const std::string& home);

// Returns the process id in the pid file if that process is alive and is this home's espalierd;
// otherwise 0.
int RunningDaemon(const std::string& home);

// Finds `name` next to `program` (as installed) or in Bazel's output folder of `package`. NotFound
// lists the paths tried.
absl::StatusOr<std::string> FindProgram(const std::string& program, const std::string& package,
                                        const std::string& name);

// The last lines of a log, of its last 64 KiB; all but the first are indented. Empty if there is no
// such file.
std::string LastLines(const std::string& path, size_t count);

// Starts `command` detached, with output to the log file, writes the pid file and waits for the
// ready file. Returns Unavailable with the log's last lines if the process ends or
// `timeout_seconds` pass.
absl::StatusOr<int> StartDaemon(const std::vector<std::string>& command, const std::string& home,
                                double timeout_seconds);

// Returns how long the daemon lets running requests continue after SIGTERM: from its ready file;
// before there is one, from --drain-seconds on its command line or espalierd's default.
double DrainSeconds(const std::string& home);

// Sends SIGTERM, and SIGKILL after `timeout_seconds`. Removes pid and ready file. Calls `waiting`
// from time to time with the seconds passed. Sets `killed` if SIGKILL was needed.
absl::Status StopDaemon(const std::string& home, double timeout_seconds,
                        const std::function<void(double seconds)>& waiting, bool* killed);

}  // namespace espalier
