#include "server/jobs/job_queue.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace espalier {

void JobQueue::Insert(const WaitingJob& job) {
  if (job.interrupted) {
    interrupted_[job.number] = job;
  } else {
    queued_[-int64_t{job.priority_among_owners}][job.owner][KeyOf(job)] = job;
  }
}

void JobQueue::Erase(const WaitingJob& job) {
  if (job.interrupted) {
    interrupted_.erase(job.number);
    return;
  }
  const auto level = queued_.find(-int64_t{job.priority_among_owners});
  if (level == queued_.end()) return;
  const auto owned = level->second.find(job.owner);
  if (owned == level->second.end()) return;
  owned->second.erase(KeyOf(job));
  if (owned->second.empty()) level->second.erase(owned);
  if (level->second.empty()) queued_.erase(level);
}

void JobQueue::Put(const WaitingJob& job) {
  if (const auto known = places_.find(job.id); known != places_.end()) {
    if (known->second.job == job) return;
    Remove(job.id);
  }
  places_[job.id] = {job, std::nullopt};
  Insert(job);
}

void JobQueue::Remove(const std::string& id) {
  const auto known = places_.find(id);
  if (known == places_.end()) return;
  if (known->second.parked_for.has_value()) {
    parked_.erase({*known->second.parked_for, id});
  } else {
    Erase(known->second.job);
  }
  places_.erase(known);
}

const WaitingJob* JobQueue::First(const Usage& usage, const std::set<std::string>& skipped) const {
  const auto first_of = [&](const auto& jobs) -> const WaitingJob* {
    for (const auto& [key, job] : jobs) {
      ++visited_;
      if (!skipped.contains(job.id)) return &job;
    }
    return nullptr;
  };
  if (const WaitingJob* job = first_of(interrupted_); job != nullptr) return job;
  for (const auto& [level, owners] : queued_) {
    const WaitingJob* best = nullptr;
    double least = 0;
    for (const auto& [owner, jobs] : owners) {
      const double used = usage(owner);
      if (best != nullptr && used > least) continue;
      const WaitingJob* job = first_of(jobs);
      if (job == nullptr) continue;
      // Of owners with equal usage, the one whose job is the oldest.
      if (best != nullptr && used == least && job->number > best->number) continue;
      best = job;
      least = used;
    }
    if (best != nullptr) return best;
  }
  return nullptr;
}

void JobQueue::Park(const std::string& id, int workers) {
  const auto known = places_.find(id);
  if (known == places_.end() || known->second.parked_for.has_value()) return;
  Erase(known->second.job);
  known->second.parked_for = workers;
  parked_.insert({workers, id});
}

void JobQueue::SetWorkers(int workers) {
  while (!parked_.empty() && parked_.begin()->first <= workers) {
    ++visited_;
    Place& place = places_.at(parked_.begin()->second);
    parked_.erase(parked_.begin());
    place.parked_for.reset();
    Insert(place.job);
  }
}

std::optional<int64_t> JobQueue::Before(const std::string& id, const Usage& usage) const {
  const auto known = places_.find(id);
  if (known == places_.end()) return std::nullopt;
  const WaitingJob& job = known->second.job;
  int64_t before = 0;
  if (job.interrupted) {
    for (const auto& [number, other] : interrupted_) before += number < job.number ? 1 : 0;
    return before;
  }
  before = static_cast<int64_t>(interrupted_.size());
  const double used = usage(job.owner);
  const int64_t own_level = -int64_t{job.priority_among_owners};
  std::vector<std::pair<Owned::const_iterator, Owned::const_iterator>> equal;  // usage
  for (const auto& [level, owners] : queued_) {
    if (level > own_level) break;
    for (const auto& [owner, jobs] : owners) {
      const double others = usage(owner);
      if (level == own_level && (owner == job.owner || others == used)) {
        equal.emplace_back(jobs.begin(), jobs.end());
      } else if (level < own_level || others < used) {
        before += static_cast<int64_t>(jobs.size());
      }
    }
  }
  // As First: of these owners, the one whose next job is the oldest. A parked job stands nowhere;
  // it comes after those that would come before it.
  while (true) {
    auto* next = static_cast<decltype(&equal[0])>(nullptr);
    for (auto& jobs : equal) {
      if (jobs.first == jobs.second) continue;
      if (next == nullptr || jobs.first->second.number < next->first->second.number) next = &jobs;
    }
    if (next == nullptr || next->first->second.id == id) return before;
    const WaitingJob& other = next->first->second;
    if (known->second.parked_for.has_value() && other.owner == job.owner &&
        KeyOf(other) > KeyOf(job)) {
      return before;
    }
    ++before;
    ++next->first;
  }
}

}  // namespace espalier
