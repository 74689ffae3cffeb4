// What `espalier slurm` does inside a batch job.
#pragma once

#include "absl/status/status.h"
#include "client/cli/command.h"

namespace espalier {

// `slurm run`, on the first node: coordinator, workers, training, until it ends.
absl::Status RunSlurmJob(Context& context, const std::vector<std::string>& train);

// `slurm worker`, in each task: becomes the worker. Returns only on failure.
absl::Status RunSlurmWorker(Context& context);

}  // namespace espalier
