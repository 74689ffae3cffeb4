// The batch file of `espalier slurm script`.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/command.h"
#include "client/cli/launch/sbatch_options.h"

namespace espalier {

struct SlurmScript {
  int nodes = 1;
  int gpus = 0;           // of each node
  int tasks = 0;          // workers of each node; 0: one per GPU, at least one
  int cpus_per_task = 0;  // 0: not said
  std::string memory;     // the next are as sbatch takes them; empty: not said
  std::string time;
  std::string account;
  std::string partition;
  std::string name = "espalier";
  std::string output = "%x-%j.out";
  int signal_seconds = 120;  // before the time limit
  std::vector<SbatchOption> more;
  std::string program = "espalier";
  std::vector<std::string> train;  // "train" and its arguments
};

// Flags of commands that make a batch file.
std::vector<FlagSpec> SlurmScriptFlags();
// Reads them. `words`: the training command.
absl::StatusOr<SlurmScript> ReadSlurmScript(const Context& context, std::vector<std::string> words);

// Returns a usage error unless the words are a command `train`, without a coordinator of its own.
// `batch`: that a batch job can follow.
absl::Status CheckTrainWords(const std::vector<std::string>& words, bool batch);

// Returns a usage error if a flag of `specs`, which are `wanted`'s ("launch slurm"), is given to
// another command: it would do nothing there.
absl::Status CheckOwner(const ParsedFlags& flags, const std::vector<FlagSpec>& specs,
                        const std::string& wanted, const std::string& command);

std::string RenderSlurmScript(const SlurmScript& script);

}  // namespace espalier
