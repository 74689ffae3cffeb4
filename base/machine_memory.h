// Memory available to this process.
#pragma once

#include <cstdint>
#include <string>

namespace espalier {

// Returns the machine's memory or, if less, the tightest limit of this process's cgroup (version 1
// or 2) and its visible ancestors; beyond it the kernel kills the process. A container cannot see
// the cgroups above its own. `root` replaces the root of /proc and /sys, for tests.
int64_t MachineMemory(const std::string& root = "");

// Returns the memory that this process can still take without pushing others out: what the machine
// has available or, if less, what is left of the tightest limit as above. Pages of files that were
// not used lately count as available. 0 if that cannot be told.
int64_t AvailableMemory(const std::string& root = "");

// Returns the default memory limit of programs: three quarters of it.
int64_t DefaultMemoryLimit();

// Makes the heap give back what is freed in blocks of more than 4 MiB, and at its ends, at once.
// glibc raises its limits (to 32 and 64 MiB, for each arena) when such blocks are freed often. Call
// before any thread starts. Not for processes that need large blocks in every step.
void LimitFreeMemory();

// Gives the heap's free pages back to the system. glibc keeps most of them, in an arena for each
// thread that ever allocated; call this after work that took much memory. The end of an arena
// stays, up to the limit of LimitFreeMemory.
void ReturnFreeMemory();

}  // namespace espalier
