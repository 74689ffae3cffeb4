#include "base/child_descriptors.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace espalier {

void CloseOnExecFrom(int first) {
  if (syscall(SYS_close_range, static_cast<unsigned>(first), ~0u, CLOSE_RANGE_CLOEXEC) == 0) return;
  // Kernels before 5.11.
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  for (int fd = first; fd < static_cast<int>(files.rlim_cur); ++fd) fcntl(fd, F_SETFD, FD_CLOEXEC);
}

}  // namespace espalier
