// Stops what a launch by ssh has started, from its record alone.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "client/cli/command.h"
#include "client/cli/launch/launch_record.h"
#include "client/cli/launch/ssh_scripts.h"

namespace espalier {

// A process of the launch.
ProcessName NameIn(const LaunchRecord& record, const std::string& name);

// Stops workers, then the coordinator, and removes the record if all have ended. Signals do not
// interrupt it.
absl::Status StopLaunch(Context& context, const std::string& home, const LaunchRecord& record);

}  // namespace espalier
