// What the launches share: how they report, and how commands reach the coordinator of a launch.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/command.h"

namespace espalier {

// A line for people; with --json {"event": EVENT, "text": TEXT}.
void Say(Context& context, const std::string& event, const std::string& text);

// Variables with which a command uses the coordinator that a --home knows, whatever the environment
// says of another one. An empty value counts as not set.
std::map<std::string, std::string> VariablesOfHome(const std::string& home);

// `before` with these variables.
Environment WithVariables(const Environment& before, std::map<std::string, std::string> variables);

// Runs a training command ("train" and its arguments) in this environment.
absl::Status RunTrain(const Context& context, const Environment& environment,
                      const std::vector<std::string>& words);

}  // namespace espalier
