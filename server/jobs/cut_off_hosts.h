// Remembers hosts between which ranks did not reach each other, so that the next attempts do
// without one of them instead of taking the same pair again.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/membership/worker_registry.h"

namespace espalier {

// Not thread-safe.
class CutOffHosts {
 public:
  // An attempt ended because ranks on these workers did not reach each other.
  void Add(absl::Span<const std::pair<Member, Member>> pairs, absl::Time now);
  // All of these have met.
  void Remove(absl::Span<const Member> members);

  // Returns the members without some of those that may not reach each other, in their order: as
  // many as can be left out with at least `wanted` remaining. A pair that has failed twice is
  // parted even if only `least` remain, as if one of the two were lost. Of a pair the worker that
  // fewest others reach goes. Pairs are forgotten after kMemory.
  std::vector<Member> LeaveOut(std::vector<Member> members, size_t wanted, size_t least,
                               absl::Time now) const;

  static constexpr absl::Duration kMemory = absl::Minutes(10);

 private:
  struct Failure {
    int attempts = 0;
    absl::Time last;
  };
  using Pair = std::pair<std::string, std::string>;  // sorted

  // Parts pairs that have failed so often until only `least` members remain.
  void Part(int failures, size_t least, absl::Time now, std::vector<Member>* members) const;

  std::map<Pair, Failure> failed_;
};

}  // namespace espalier
