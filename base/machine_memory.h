// Memory available to this process.
#pragma once

#include <cstdint>
#include <string>

namespace espalier {

// Returns the machine's memory or, if less, the tightest limit of this process's cgroup (version 1
// or 2) and its visible ancestors; beyond it the kernel kills the process. A container cannot see
// the cgroups above its own. `root` replaces the root of /proc and /sys, for tests.
int64_t MachineMemory(const std::string& root = "");

// Returns the default memory limit of programs: three quarters of it.
int64_t DefaultMemoryLimit();

// Gives the heap's free pages back to the system. glibc keeps most of them, in an arena for each
// thread that ever allocated; call this after work that took much memory.
void ReturnFreeMemory();

}  // namespace espalier
