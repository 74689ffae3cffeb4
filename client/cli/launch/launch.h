// `espalier launch`: starts coordinator and workers elsewhere.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/command.h"

namespace espalier {

// `words`: the training command.
absl::Status LaunchSlurm(Context& context, std::vector<std::string> words);

// `words`: the hosts file, and the training command, if any.
absl::Status LaunchSsh(Context& context, const std::vector<std::string>& words);

// `words`: the training command, if any.
absl::Status LaunchKubernetes(Context& context, const std::vector<std::string>& words);

}  // namespace espalier
