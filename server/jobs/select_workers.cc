#include "server/jobs/select_workers.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace espalier {

WorkerMemory MemoryOfMembers(absl::Span<const Member> members) {
  std::vector<v1::Device> devices;
  for (const Member& member : members) devices.push_back(member.device);
  return MemoryOf(devices);
}

std::vector<Member> SelectLargestWorkers(const std::vector<Member>& members,
                                         const WorkerMemory& enough, size_t most) {
  const auto bytes = [&members](size_t i) { return members[i].device.memory_bytes(); };
  const auto of = [&members](const std::vector<size_t>& chosen) {
    std::vector<Member> out;
    for (const size_t i : chosen) out.push_back(members[i]);
    return out;
  };
  std::vector<size_t> chosen(members.size());
  std::iota(chosen.begin(), chosen.end(), size_t{0});
  std::stable_sort(chosen.begin(), chosen.end(),
                   [&](size_t a, size_t b) { return bytes(a) > bytes(b); });
  const auto small = std::find_if(chosen.begin(), chosen.end(),
                                  [&](size_t i) { return bytes(i) < enough.smallest; });
  std::vector<size_t> large(chosen.begin(), small);
  if (!IsLessInAny(MemoryOfMembers(of(large)), enough)) chosen = std::move(large);
  if (chosen.size() > most) chosen.resize(most);
  std::sort(chosen.begin(), chosen.end());
  return of(chosen);
}

}  // namespace espalier
