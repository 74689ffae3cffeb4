// The order in which waiting jobs start. No clock, no threads, no I/O.
//
// Interrupted jobs come first, in the order of their numbers. Then the queued ones: by their
// priority among owners, the highest first; of one such priority, those of the owner with the least
// usage (fair_share.h); of one owner, by priority, then the oldest first.
//
// The first job in this order is the next to start. If too few workers are idle for it, those that
// become idle are kept for it, so that smaller jobs do not starve it; the caller parks a job that
// needs more workers than there are, and those behind it go first until there are enough.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>

#include "absl/strings/string_view.h"

namespace espalier {

struct WaitingJob {
  std::string id;
  std::string owner;
  int64_t number = 0;  // grows with every submission
  int32_t priority = 0;
  int32_t priority_among_owners = 0;
  bool interrupted = false;  // it has run, and is to go on

  bool operator==(const WaitingJob&) const = default;
};

class JobQueue {
 public:
  // Usage of an owner (FairShare::Usage).
  using Usage = std::function<double(const std::string& owner)>;

  // Adds a job, or changes its place.
  void Put(const WaitingJob& job);
  void Remove(const std::string& id);
  bool empty() const { return places_.empty(); }
  int64_t size() const { return static_cast<int64_t>(places_.size()); }

  // Returns the first job that is not parked and not in `skipped`; null: there is none. Valid until
  // the next change. Takes time by the number of owners and of skipped jobs, not of jobs.
  const WaitingJob* First(const Usage& usage, const std::set<std::string>& skipped = {}) const;

  // Leaves a job out until there are so many workers.
  void Park(const std::string& id, int workers);
  // There are so many workers, idle ones and those of jobs: takes back jobs parked for as many.
  void SetWorkers(int workers);

  // How many jobs would start before this one if nothing changed; nothing if it does not wait.
  // Takes time by the number of jobs.
  std::optional<int64_t> Before(const std::string& id, const Usage& usage) const;

  // Jobs that all calls have looked at, for tests of what a call costs.
  int64_t visited() const { return visited_; }

 private:
  using Key = std::tuple<int64_t, int64_t>;  // -priority, number
  using Owned = std::map<Key, WaitingJob>;
  struct Place {
    WaitingJob job;
    std::optional<int> parked_for;
  };

  void Insert(const WaitingJob& job);
  void Erase(const WaitingJob& job);
  void Unpark(const std::string& id, Place* place);
  static Key KeyOf(const WaitingJob& job) { return {-int64_t{job.priority}, job.number}; }

  std::unordered_map<std::string, Place> places_;
  std::map<int64_t, WaitingJob> interrupted_;  // by number
  // Those of a priority among owners, the highest first, by owner.
  std::map<int64_t, std::map<std::string, Owned>> queued_;
  std::set<std::pair<int, std::string>> parked_;  // by workers that they need
  mutable int64_t visited_ = 0;
};

}  // namespace espalier
