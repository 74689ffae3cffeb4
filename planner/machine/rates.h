// Times of computation and transfers on a machine, from its measured rates. Seconds, bytes.
//
// A transfer of b bytes takes latency + b / bandwidth. Collectives are the bandwidth-optimal ring
// algorithms (Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in
// MPICH", 2005).
#pragma once

#include <cstdint>

#include "espalier/v1/program.pb.h"
#include "planner/planner.h"

namespace espalier {

// Accepted ranges of machine rates and measurements. Values beyond them lack a unit, and times
// would overflow (planner/simulator/task.h).
inline constexpr double kMinRate = 1e6;           // bytes/s of memory, flop/s
inline constexpr double kMinLinkRate = 1e5;       // bytes/s: 1 Mbit/s is a link
inline constexpr double kMaxLatencySeconds = 10;  // of a message; of starting an operator
inline constexpr double kMaxTaskSeconds = 1e4;    // of one operator, message or collective

// Replaces rates of 0 (not measured) by conservative ones: a small CPU, a loopback link.
v1::Device WithDefaults(v1::Device device);
v1::Link WithDefaults(v1::Link link);

double TransferSeconds(const v1::Link& link, double bytes);

// `bytes` is one rank's input; n is the number of ranks.
double CollectiveSeconds(const v1::Link& link, v1::CollectiveInstruction::Kind kind, int n,
                         double bytes);

// Time of a memory-bound operator that reads and writes `bytes` in total.
double MemorySeconds(const v1::Device& device, double bytes);

}  // namespace espalier
