// Learning from a run: what collectives and messages took in the steps of its programs, next to
// what the profile of these devices says.
//
// A rank is in a collective from when it comes to it, so most of what a rank tells may be waiting
// for the others. Whoever comes last waits for nobody: the least that any rank of the group tells
// is taken. Of several collectives of one operator a rank tells the mean, and another rank may be
// last in each; then a rest of the waiting is learnt with them, which is why a run counts for half.
// A receiver cannot tell waiting apart, but no message takes longer than that: receiving only gets
// faster. Sending, where it is buffered, waits for nobody.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "planner/plan/calibrate_operators.h"
#include "espalier/v1/cluster.pb.h"
#include "espalier/v1/program.pb.h"

namespace espalier {

// Corrects `profile` by a run: the times of each kind of collective over so many ranks, and those
// of sending and receiving, are multiplied by half way to what was measured over what was
// predicted. `programs` are by rank, as they ran, and so are `times`; those that are not finite or
// negative are left out, and so is a collective of which some rank tells nothing. Returns what was
// compared, named by operator, kind and ranks, those first that are furthest off. Nothing is learnt
// where `devices`, by rank, share cores, nor by a profile without messages: the next job measures
// one. InvalidArgument for a profile that is wrong, or a program whose instructions name no buffer
// or group.
absl::StatusOr<std::vector<PredictionError>> CalibrateCommunication(
    const std::vector<v1::Program>& programs,
    const std::vector<std::vector<OperatorTime>>& times, const std::vector<v1::Device>& devices,
    v1::CommunicationProfile* profile);

}  // namespace espalier
