#include "server/jobs/cut_off_hosts.h"

#include <algorithm>
#include <set>

namespace espalier {
namespace {

constexpr int kFailuresOfALoss = 2;

// All workers of a host share its network.
std::string HostOfAddress(const Member& member) {
  return member.address.substr(0, member.address.rfind(':'));
}

std::pair<std::string, std::string> PairOf(const Member& a, const Member& b) {
  return std::minmax({HostOfAddress(a), HostOfAddress(b)});
}

}  // namespace

void CutOffHosts::Add(absl::Span<const std::pair<Member, Member>> pairs, absl::Time now) {
  std::set<Pair> different;  // both of a pair may have reported it
  for (const auto& [a, b] : pairs) different.insert(PairOf(a, b));
  for (const Pair& pair : different) {
    if (pair.first == pair.second) continue;
    Failure& failure = failed_[pair];
    if (now - failure.last > kMemory) failure.attempts = 0;
    ++failure.attempts;
    failure.last = now;
  }
}

void CutOffHosts::Remove(absl::Span<const Member> members) {
  for (size_t i = 0; i < members.size() && !failed_.empty(); ++i) {
    for (size_t j = 0; j < i; ++j) failed_.erase(PairOf(members[i], members[j]));
  }
}

void CutOffHosts::Part(int failures, size_t least, absl::Time now,
                       std::vector<Member>* members) const {
  const auto apart = [&](const Member& a, const Member& b) {
    const auto found = failed_.find(PairOf(a, b));
    return found != failed_.end() && found->second.attempts >= failures &&
           now - found->second.last <= kMemory;
  };
  while (members->size() > least) {
    size_t worst = 0;
    int64_t most = 0;
    for (size_t i = 0; i < members->size(); ++i) {
      const int64_t unreached =
          std::count_if(members->begin(), members->end(),
                        [&](const Member& m) { return apart((*members)[i], m); });
      if (unreached < most || unreached == 0) continue;
      worst = i;
      most = unreached;
    }
    if (most == 0) return;
    members->erase(members->begin() + static_cast<std::ptrdiff_t>(worst));
  }
}

std::vector<Member> CutOffHosts::LeaveOut(std::vector<Member> members, size_t wanted, size_t least,
                                          absl::Time now) const {
  if (failed_.empty()) return members;
  Part(1, wanted, now, &members);
  Part(kFailuresOfALoss, least, now, &members);
  return members;
}

}  // namespace espalier
