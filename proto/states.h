// What both sides of the wire say of the states of jobs and of boost-tunings.
#pragma once

#include <string>

#include "espalier/v1/distillation.pb.h"
#include "espalier/v1/training.pb.h"

namespace espalier {

// "queued", "running", ...; "unknown" for a value that this version does not have.
std::string StateName(v1::JobState state);
std::string StateName(v1::DistillationState state);

// Whether only a resume moves it on.
bool IsOver(v1::JobState state);
bool IsOver(v1::DistillationState state);

}  // namespace espalier
