// The one place that assembles espalierd of its components.
#pragma once

#include <signal.h>

#include "absl/status/status.h"
#include "server/daemon_options.h"

namespace espalier {

// Runs the coordinator with its gRPC and HTTP servers, its models and its local workers until a
// signal of `signals` arrives, which all threads of the process must block. Then lets running
// requests finish for options.drain; a second signal ends that. Prints one line on stdout, and
// writes options.ready_file, once requests are served. Returns what CheckDaemonOptions says, or why
// the daemon could not start. Ends the process with quick_exit if a model still loads at the end.
absl::Status RunDaemon(const DaemonOptions& options, const sigset_t& signals);

}  // namespace espalier
