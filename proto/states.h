// What both sides of the wire say of the states of jobs, boost-tunings and workers.
#pragma once

#include <string>

#include "espalier/v1/cluster.pb.h"
#include "espalier/v1/distillation.pb.h"
#include "espalier/v1/training.pb.h"

namespace espalier {

// "queued", "running", ...; "unknown" for a value that this version does not have.
std::string StateName(v1::JobState state);
std::string StateName(v1::DistillationState state);

// Whether only a resume moves it on.
bool IsOver(v1::JobState state);
bool IsOver(v1::DistillationState state);

// Whether a worker of this state has left or is dead: it is listed for a while, and does nothing.
bool IsGone(v1::WorkerInfo::State state);

}  // namespace espalier
