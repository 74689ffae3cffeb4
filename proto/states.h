// What both sides of the wire say of the states of jobs and of boost-tunings.
#pragma once

#include <string>

#include "proto/boosting.pb.h"
#include "proto/training.pb.h"

namespace espalier {

// "queued", "running", ...; "unknown" for a value that this version does not have.
std::string StateName(proto::JobState state);
std::string StateName(proto::BoostState state);

// Whether only a resume moves it on.
bool IsOver(proto::JobState state);
bool IsOver(proto::BoostState state);

}  // namespace espalier
