// Times of work and of transfers on a machine, from its measured rates. Seconds, bytes.
//
// Model: a transfer of b bytes takes latency + b / bandwidth; collectives are the bandwidth-optimal
// ring algorithms (Thakur, Rabenseifner, Gropp, "Optimization of collective communication
// operations in MPICH", 2005).
#pragma once

#include <cstdint>

#include "planner/planner.h"
#include "espalier/v1/program.pb.h"

namespace espalier {

// What is accepted of machines and measurements: beyond it a unit was left out, and times would not
// add up (planner/simulator/task.h).
inline constexpr double kMinRate = 1e6;          // bytes/s of memory, flop/s
inline constexpr double kMinLinkRate = 1e5;      // bytes/s: 1 Mbit/s is a link
inline constexpr double kMaxLatencySeconds = 10;  // of a message; of starting an operator
inline constexpr double kMaxTaskSeconds = 1e4;    // of one operator, message or collective

// A device or link with 0 where nobody has measured yet gets a cautious rate of a small CPU on
// loopback.
v1::Device WithDefaults(v1::Device device);
v1::Link WithDefaults(v1::Link link);

double TransferSeconds(const v1::Link& link, double bytes);

// `bytes` is one rank's input. n: number of ranks.
double CollectiveSeconds(const v1::Link& link, v1::CollectiveInstruction::Kind kind, int n,
                         double bytes);

// Reads and writes `bytes` altogether in one memory-bound operator.
double MemorySeconds(const v1::Device& device, double bytes);

}  // namespace espalier
