// Checks and plans a job without queueing it.
#pragma once

#include "absl/status/status.h"
#include "espalier/v1/training.pb.h"
#include "server/jobs/attempt.h"

namespace espalier {

// Fills in the plan that a first attempt would make on the live workers, busy ones included.
// Everything that prevents the job is listed in `reply->problems()`; nothing is an error of this
// call.
void DryRun(const AttemptTools& tools, const v1::TrainingSpec& spec, v1::DryRunReply* reply);

}  // namespace espalier
