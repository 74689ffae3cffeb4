#include "server/store/etcd/etcd_log.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

using etcd_records::LogBatch;
using etcd_records::LogEntry;

constexpr int kMerged = 32;                   // batches of a level that become one of the next
constexpr size_t kLargestMerged = 512 << 10;  // bytes of batches that are merged

bool IsReport(const LogEntry& entry) { return entry.kind_case() == LogEntry::kReport; }
bool IsValidation(const LogEntry& entry) { return entry.kind_case() == LogEntry::kValidation; }

absl::StatusOr<LogBatch> Parsed(const GuardedEtcd::Named& value) {
  LogBatch batch;
  if (batch.ParseFromString(value.bytes)) return batch;
  return absl::DataLossError(
      absl::StrCat("job store: the log ", value.name, " in etcd does not parse"));
}

}  // namespace

void EtcdLog::Steps::Add(int64_t step) {
  least = std::min(least, step);
  greatest = std::max(greatest, step);
}

EtcdLog::Batch EtcdLog::Describe(const LogBatch& batch, size_t bytes) {
  Batch described;
  described.level = batch.level();
  described.bytes = bytes;
  for (const LogEntry& entry : batch.entries()) {
    if (IsReport(entry)) described.reports.Add(entry.step());
    if (IsValidation(entry)) described.validations.Add(entry.step());
  }
  return described;
}

absl::Status EtcdLog::Load() {
  int64_t revision = 0;
  return etcd_->ReadRange(folder_, EndOfPrefix(folder_), &revision,
                          [&](const GuardedEtcd::Named& value) -> absl::StatusOr<bool> {
                            absl::StatusOr<LogBatch> batch = Parsed(value);
                            if (!batch.ok()) return batch.status();
                            batches_[EtcdKeys::SequenceOf(value.name)] =
                                Describe(*batch, value.bytes.size());
                            return true;
                          });
}

EtcdLog::Batches::const_iterator EtcdLog::FirstChanged(std::optional<int64_t> drop_from,
                                                       const std::vector<LogEntry>& entries) const {
  return std::find_if(batches_.begin(), batches_.end(), [&](const auto& named) {
    const Batch& batch = named.second;
    if (drop_from.has_value() &&
        (batch.reports.greatest >= *drop_from || batch.validations.greatest >= *drop_from)) {
      return true;
    }
    return std::any_of(entries.begin(), entries.end(), [&](const LogEntry& entry) {
      return (IsReport(entry) && batch.reports.Has(entry.step())) ||
             (IsValidation(entry) && batch.validations.Has(entry.step()));
    });
  });
}

EtcdLog::Batches::const_iterator EtcdLog::FirstMerged(size_t bytes, int32_t* level) const {
  auto first = batches_.end();
  *level = 0;
  while (true) {
    int count = 1;  // with the new one, or what is merged into it
    auto begin = first;
    size_t sum = bytes;
    while (begin != batches_.begin() && std::prev(begin)->second.level == *level) {
      --begin;
      ++count;
      sum += begin->second.bytes;
    }
    if (count < kMerged || sum > kLargestMerged) return first;
    first = begin;
    bytes = sum;
    ++*level;
  }
}

absl::StatusOr<std::vector<LogEntry>> EtcdLog::EntriesFrom(uint64_t sequence) const {
  std::vector<LogEntry> entries;
  int64_t revision = 0;
  absl::Status status =
      etcd_->ReadRange(EtcdKeys::Batch(folder_, sequence), EndOfPrefix(folder_), &revision,
                       [&](const GuardedEtcd::Named& value) -> absl::StatusOr<bool> {
                         absl::StatusOr<LogBatch> batch = Parsed(value);
                         if (!batch.ok()) return batch.status();
                         for (LogEntry& entry : *batch->mutable_entries()) {
                           entries.push_back(std::move(entry));
                         }
                         return true;
                       });
  if (!status.ok()) return status;
  return entries;
}

absl::Status EtcdLog::Change(std::optional<int64_t> drop_from, std::vector<LogEntry> entries,
                             EtcdChange* change) {
  next_ = batches_;
  // Of several entries of a step, the last one counts.
  std::set<int64_t> reports, validations;
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    if (!IsReport(*entry) && !IsValidation(*entry)) continue;
    auto& steps = IsReport(*entry) ? reports : validations;
    if (!steps.insert(entry->step()).second) entry->set_sequence(0);
  }
  entries.erase(std::remove_if(entries.begin(), entries.end(),
                               [](const LogEntry& entry) { return entry.sequence() == 0; }),
                entries.end());
  LogBatch batch;
  size_t bytes = 0;
  for (const LogEntry& entry : entries) bytes += entry.ByteSizeLong();
  auto first = FirstChanged(drop_from, entries);
  int32_t level = 0;
  if (first != batches_.end()) {
    for (auto it = first; it != batches_.end(); ++it) level = std::max(level, it->second.level);
  } else {
    if (entries.empty()) return absl::OkStatus();
    first = FirstMerged(bytes, &level);
  }
  if (first != batches_.end()) {
    absl::StatusOr<std::vector<LogEntry>> old = EntriesFrom(first->first);
    if (!old.ok()) return old.status();
    const auto goes = [&](const LogEntry& entry) {
      if (!IsReport(entry) && !IsValidation(entry)) return false;
      if (drop_from.has_value() && entry.step() >= *drop_from) return true;
      return (IsReport(entry) ? reports : validations).count(entry.step()) > 0;
    };
    for (LogEntry& entry : *old) {
      if (!goes(entry)) *batch.add_entries() = std::move(entry);
    }
  }
  for (LogEntry& entry : entries) *batch.add_entries() = std::move(entry);
  batch.set_level(level);
  const uint64_t last =
      batch.entries().empty() ? 0 : batch.entries(batch.entries_size() - 1).sequence();
  if (first != batches_.end()) {
    // Of two ranges, if the new batch is to have the key of an old one.
    const std::string old = EtcdKeys::Batch(folder_, first->first);
    if (last == 0) {
      change->DeleteRange(old, EndOfPrefix(folder_));
    } else {
      if (first->first < last) change->DeleteRange(old, EtcdKeys::Batch(folder_, last));
      change->DeleteRange(EtcdKeys::Batch(folder_, std::max(last + 1, first->first)),
                          EndOfPrefix(folder_));
    }
    next_->erase(next_->find(first->first), next_->end());
  }
  if (last > 0) {
    std::string serialized = batch.SerializeAsString();
    (*next_)[last] = Describe(batch, serialized.size());
    change->Put(EtcdKeys::Batch(folder_, last), std::move(serialized));
  }
  return absl::OkStatus();
}

void EtcdLog::Commit() {
  if (next_.has_value()) batches_ = *std::move(next_);
  next_.reset();
}

absl::Status EtcdLog::Read(const GuardedEtcd& etcd, const std::string& folder, uint64_t after,
                           int64_t* revision, const std::function<bool(const LogEntry&)>& visit) {
  return etcd.ReadRange(EtcdKeys::Batch(folder, after + 1), EndOfPrefix(folder), revision,
                        [&](const GuardedEtcd::Named& value) -> absl::StatusOr<bool> {
                          absl::StatusOr<LogBatch> batch = Parsed(value);
                          if (!batch.ok()) return batch.status();
                          for (const LogEntry& entry : batch->entries()) {
                            if (entry.sequence() > after && !visit(entry)) return false;
                          }
                          return true;
                        });
}

}  // namespace espalier
