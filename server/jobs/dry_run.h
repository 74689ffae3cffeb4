// What would come of a job, without queueing it.
#pragma once

#include "absl/status/status.h"
#include "espalier/v1/training.pb.h"
#include "server/jobs/attempt.h"

namespace espalier {

// Fills in all that can be said for the workers that are alive, busy ones included: everything that
// stands in the way is in `reply->problems()`, and none of it is an error of this call. The plan is
// the one that a first attempt would make on them.
void DryRun(const AttemptTools& tools, const v1::TrainingSpec& spec, v1::DryRunReply* reply);

}  // namespace espalier
