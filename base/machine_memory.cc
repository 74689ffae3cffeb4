#include "base/machine_memory.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace espalier {
namespace {

// A folder of the memory controller, of version 1 or 2.
struct MemoryGroup {
  std::string folder;
  bool version2 = false;

  // Returns the integer in a file; nullopt: there is none ("max" is no limit).
  std::optional<int64_t> Read(const char* name) const {
    std::ifstream file(absl::StrCat(folder, "/", name));
    std::string text;
    int64_t value = 0;
    if (!(file >> text) || !absl::SimpleAtoi(text, &value) || value <= 0) return std::nullopt;
    return value;
  }
  std::optional<int64_t> Limit() const {
    return Read(version2 ? "memory.max" : "memory.limit_in_bytes");
  }
  // Memory in use, without pages of files that were not used lately.
  int64_t Used() const {
    int64_t used = Read(version2 ? "memory.current" : "memory.usage_in_bytes").value_or(0);
    std::ifstream stat(absl::StrCat(folder, "/memory.stat"));
    const std::string wanted = version2 ? "inactive_file" : "total_inactive_file";
    std::string name;
    int64_t value = 0;
    while (stat >> name >> value) {
      if (name == wanted) used -= value;
    }
    return std::max<int64_t>(0, used);
  }
};

// The cgroup of this process and its ancestors.
std::vector<MemoryGroup> MemoryGroups(const std::string& root) {
  std::vector<MemoryGroup> all;
  const std::string mounts = root + "/sys/fs/cgroup";
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // "0::/group" is version 2, "4:memory:/group" version 1. Both may be present.
    const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const bool version2 = fields[1].empty();
    if (!version2 && !absl::c_linear_search(absl::StrSplit(fields[1], ','), "memory")) continue;
    const std::string hierarchy = version2 ? mounts : mounts + "/memory";
    // Without a cgroup namespace, a container's path is that of the host, which it cannot see: only
    // the mount's root is visible, where this ends.
    for (absl::string_view group = fields[2];; group = group.substr(0, group.rfind('/'))) {
      all.push_back({absl::StrCat(hierarchy, group), version2});
      if (group.rfind('/') == absl::string_view::npos) break;
    }
  }
  return all;
}

}  // namespace

int64_t MachineMemory(const std::string& root) {
  int64_t bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  for (const MemoryGroup& group : MemoryGroups(root)) {
    bytes = std::min(bytes, group.Limit().value_or(bytes));
  }
  return bytes;
}

int64_t AvailableMemory(const std::string& root) {
  int64_t bytes = 0;
  std::ifstream info(root + "/proc/meminfo");
  for (std::string line; std::getline(info, line);) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, ' ', absl::SkipWhitespace());
    int64_t kib = 0;
    if (fields.size() < 2 || fields[0] != "MemAvailable:") continue;
    if (absl::SimpleAtoi(fields[1], &kib)) bytes = kib << 10;
  }
  for (const MemoryGroup& group : MemoryGroups(root)) {
    const std::optional<int64_t> limit = group.Limit();
    if (limit.has_value()) bytes = std::min(bytes, *limit - group.Used());
  }
  return std::max<int64_t>(0, bytes);
}

int64_t DefaultMemoryLimit() { return MachineMemory() / 4 * 3; }

void LimitFreeMemory() {
  constexpr int kLargeBlock = 4 << 20;
  mallopt(M_MMAP_THRESHOLD, kLargeBlock);
  mallopt(M_TRIM_THRESHOLD, kLargeBlock);
}

void ReturnFreeMemory() { malloc_trim(0); }

}  // namespace espalier
