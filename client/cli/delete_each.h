// Deleting several things by one command.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/command.h"

namespace espalier {

// Deletes each and says so: "job job-3 deleted", where "job " is `prefix`, with --json {"deleted":
// [ID, ...]}. Goes on after one that cannot be deleted; the first error is returned, later ones are
// printed. `remove` returns the id of what a name means.
absl::Status DeleteEach(
    Context& context, const std::string& prefix, const std::vector<std::string>& names,
    const std::function<absl::StatusOr<std::string>(const std::string& name)>& remove);

}  // namespace espalier
