// Profile files: what a cluster has measured, so that plans for it can be made elsewhere. JSON:
//
//   {
//     "espalier_profile": 1,
//     "operators": {...},      // measured_cost.h
//     "communication": [
//       {"between": "2 x Intel Xeon x1",
//        "messages": [{"bytes": 64, "send_seconds": 2e-6, "receive_seconds": 3e-5}],
//        "collectives": [{"kind": "ALL_REDUCE", "ranks": 2, "bytes": 64, "seconds": 6e-5}]}
//     ]
//   }
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/cluster.pb.h"
#include "planner/cost/measured_cost.h"

namespace espalier {

// Keyed by the communicating devices; see CommunicationKey.
using CommunicationProfiles = std::map<std::string, v1::CommunicationProfile>;

// Groups devices by host, model and threads and leaves out the hosts' names: "2 x Intel Xeon x1"
// for two on one host, "1 x Intel Xeon x1 | 1 x Intel Xeon x1" for two hosts. A device without a
// host counts as a host of its own.
std::string CommunicationKey(const std::vector<v1::Device>& devices);

std::string SaveProfile(const MeasuredCost& operators, const CommunicationProfiles& communication);

// Adds the profile in `text` to both. Returns InvalidArgument, with the bad place and what would be
// accepted, and then adds nothing.
absl::Status LoadProfile(const std::string& text, MeasuredCost* operators,
                         CommunicationProfiles* communication);

}  // namespace espalier
