#include "server/jobs/large_members.h"

#include <algorithm>

namespace espalier {

WorkerMemory MemoryOfMembers(absl::Span<const Member> members) {
  std::vector<proto::Device> devices;
  for (const Member& member : members) devices.push_back(member.device);
  return MemoryOf(devices);
}

std::vector<Member> LargestMembers(std::vector<Member> members, const WorkerMemory& enough) {
  const auto bytes = [](const Member& member) { return member.device.memory_bytes(); };
  std::stable_sort(members.begin(), members.end(),
                   [&](const Member& a, const Member& b) { return bytes(a) > bytes(b); });
  const auto small = std::find_if(members.begin(), members.end(),
                                  [&](const Member& m) { return bytes(m) < enough.smallest; });
  const auto large = absl::MakeConstSpan(members).first(small - members.begin());
  if (!IsLessInAny(MemoryOfMembers(large), enough)) members.erase(small, members.end());
  return members;
}

}  // namespace espalier
