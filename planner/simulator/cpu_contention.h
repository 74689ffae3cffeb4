// Steps on hosts whose devices have more to run than the host has cores.
//
// What runs on a host at one time shares its cores evenly (processor sharing): with work for n
// threads on c < n cores all of it goes on at c / n of its speed. An operator is work for the
// device's threads, a collective for one thread of each rank, a message for one on each side. What
// was measured as it runs alone is no slower for its own threads. Speeds change whenever something
// begins or ends, so this is simulated event by event, and whole: a change of one operator moves
// all that runs beside it, and what that moves.
#pragma once

#include <vector>

#include "planner/simulator/task.h"
#include "espalier/v1/cluster.pb.h"

namespace espalier {

class CpuContention {
 public:
  explicit CpuContention(const std::vector<v1::Device>& devices);

  // Whether on some host more operators may run at one time than it has cores for.
  bool needed() const { return needed_; }

  // Runs tasks, given in the order of the program, from 0 on. Returns the end of the last; `spans`,
  // if not null, gets one for each task. Without two things that share cores at one time: exactly
  // what RunTask gives.
  Picoseconds Run(const std::vector<const Task*>& tasks, std::vector<TaskSpan>* spans) const;

 private:
  friend class CpuContentionRun;
  std::vector<int> host_;        // by device, -1: shares with nobody
  std::vector<double> threads_;  // by device
  std::vector<double> cores_;    // by host
  bool needed_ = false;
};

}  // namespace espalier
