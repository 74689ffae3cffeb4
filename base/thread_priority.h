// Priorities of threads.
#pragma once

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace espalier {

// Lets the calling thread use processors that others leave idle, and about a tenth of one if none
// is. Linux only; without effect where it is not allowed.
inline void LowerThreadPriority() {
  constexpr int kNice = 10;
  // On Linux a thread has its own.
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNice);
}

}  // namespace espalier
