// Names of jobs on the command line.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/lib/client.h"

namespace espalier {

// Returns the id of the job that is meant: by its id, or by its name, if exactly one job that is
// not over has it, or else exactly one job. FailedPrecondition with the ids if several have it.
// What is nobody's name comes back as it is, for the coordinator to refuse.
absl::StatusOr<std::string> JobIdOf(Client* client, const std::string& job);

}  // namespace espalier
