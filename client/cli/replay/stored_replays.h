// Replays that the coordinator keeps: lists them, shows, cancels and deletes some.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/command.h"
#include "espalier/v1/replay.pb.h"

namespace espalier {

// "lm@3", "lm@1-3,5 and other@2": what was replayed, by experiment.
std::string RunsInShort(const v1::ReplayInfo& replay);

// All of the runs that `run` names; empty: of all runs.
absl::Status ListStoredReplays(Context& context, Client* client, const std::string& run);
// What it was asked, how far it is or how it ended, and its segments.
absl::Status ShowStoredReplay(Context& context, Client* client, const std::string& id);
absl::Status CancelStoredReplay(Context& context, Client* client, const std::string& id);
// Goes on after one that cannot be deleted; the first error is the command's.
absl::Status DeleteStoredReplays(Context& context, Client* client,
                                 const std::vector<std::string>& ids);

}  // namespace espalier
