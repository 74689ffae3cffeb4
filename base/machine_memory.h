// How much memory there is for this process.
#pragma once

#include <cstdint>
#include <string>

namespace espalier {

// The machine's memory, or the tightest limit of this process's cgroup (version 1 or 2) and the
// cgroups above it, where that is less: beyond it the kernel ends the process. Of a container the
// cgroups above it cannot be seen. `root`: of /proc and /sys, for tests.
int64_t MachineMemory(const std::string& root = "");

// What programs may use of it unless it is said: three quarters.
int64_t DefaultMemoryLimit();

}  // namespace espalier
