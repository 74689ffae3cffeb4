// Calibrates the communication profile of devices by the collectives and messages of a real run.
//
// A rank's time in a collective starts when the rank enters it, so most of that time may be waiting
// for other ranks. The last rank to enter does not wait, so the smallest time of any rank of the
// group is taken. A rank reports the mean over the collectives of one operator, and a different
// rank may be last in each; some waiting then remains in the estimate, which is why one run moves
// the profile only half way. A receiver cannot separate waiting from transfer, but no message takes
// longer than reported, so receive times are only ever lowered. A buffered send waits for nobody.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/cluster.pb.h"
#include "espalier/v1/program.pb.h"
#include "planner/plan/calibrate_operators.h"

namespace espalier {

// Corrects `profile` by one run: multiplies the time of each kind of collective at each group size,
// and of sends and receives, by a factor half way to measured over predicted. `programs` and
// `times` are by rank. Ignores times that are negative or not finite, and collectives that some
// rank does not report. Returns what was compared, named by operator, kind and ranks, largest error
// first. Leaves the profile unchanged if `devices` (by rank) share cores or the profile has no
// messages; the next job then measures one. Returns InvalidArgument for an invalid profile or a
// program whose instructions name no buffer or group.
absl::StatusOr<std::vector<PredictionError>> CalibrateCommunication(
    const std::vector<v1::Program>& programs, const std::vector<std::vector<OperatorTime>>& times,
    const std::vector<v1::Device>& devices, v1::CommunicationProfile* profile);

}  // namespace espalier
