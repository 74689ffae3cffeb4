// Simulates steps on hosts whose devices run more threads than the host has cores.
//
// Tasks that run on a host at the same time share its cores evenly (processor sharing): with work
// for n threads on c < n cores, all of it runs at c / n of its speed. An operator is work for the
// device's threads, a collective for one thread per rank, a message for one thread on each side. A
// task's measured time already includes contention among its own threads. Speeds change whenever a
// task begins or ends, so the step is simulated event by event and always in full.
#pragma once

#include <vector>

#include "espalier/v1/cluster.pb.h"
#include "planner/simulator/task.h"

namespace espalier {

class CpuContention {
 public:
  explicit CpuContention(const std::vector<v1::Device>& devices);

  // Whether some host may run more operator threads at a time than it has cores.
  bool needed() const { return needed_; }

  // Runs the tasks, given in program order, from time 0. Returns the end of the last one. If
  // `spans` is not null, it gets one span per task. Without contention the result equals RunTask's.
  Picoseconds Run(const std::vector<const Task*>& tasks, std::vector<TaskSpan>* spans) const;

 private:
  friend class CpuContentionRun;
  std::vector<int> host_;        // by device; -1: shares with no other device
  std::vector<double> threads_;  // by device
  std::vector<double> cores_;    // by host
  bool needed_ = false;
};

}  // namespace espalier
