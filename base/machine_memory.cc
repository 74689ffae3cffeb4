#include "base/machine_memory.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace espalier {
namespace {

// Returns the minimum of `bytes` and `file` in the cgroup and its ancestors.
int64_t Tightest(const std::string& hierarchy, absl::string_view group, const char* file,
                 int64_t bytes) {
  while (true) {
    std::ifstream limit(absl::StrCat(hierarchy, group, "/", file));
    std::string text;
    int64_t value = 0;
    // "max" is not a number. Without a cgroup namespace, a container's path is that of the host,
    // which it cannot see: only the mount's root is visible, where this stops.
    if (limit >> text && absl::SimpleAtoi(text, &value) && value > 0) {
      bytes = std::min(bytes, value);
    }
    const size_t slash = group.rfind('/');
    if (slash == absl::string_view::npos) return bytes;
    group = group.substr(0, slash);
  }
}

}  // namespace

int64_t MachineMemory(const std::string& root) {
  int64_t bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  const std::string mounts = root + "/sys/fs/cgroup";
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // "0::/group" is version 2, "4:memory:/group" version 1. Both may be present.
    const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    if (fields[1].empty()) {
      bytes = Tightest(mounts, fields[2], "memory.max", bytes);
    } else if (absl::c_linear_search(absl::StrSplit(fields[1], ','), "memory")) {
      bytes = Tightest(mounts + "/memory", fields[2], "memory.limit_in_bytes", bytes);
    }
  }
  return bytes;
}

int64_t DefaultMemoryLimit() { return MachineMemory() / 4 * 3; }

void LimitFreeMemory() {
  constexpr int kLargeBlock = 4 << 20;
  mallopt(M_MMAP_THRESHOLD, kLargeBlock);
  mallopt(M_TRIM_THRESHOLD, kLargeBlock);
}

void ReturnFreeMemory() { malloc_trim(0); }

}  // namespace espalier
