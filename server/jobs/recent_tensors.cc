#include "server/jobs/recent_tensors.h"

namespace espalier {
namespace {

// Of an entry's containers, so that many small tensors stay within the limit too.
constexpr size_t kOverheadBytes = 256;

}  // namespace

RecentTensors::Entries::iterator RecentTensors::Erase(Entries::iterator entry) {
  bytes_ -= entry->second.bytes;
  by_number_.erase(entry->second.number);
  return entries_.erase(entry);
}

void RecentTensors::Take(const std::string& job_id, v1::StepReport* report) {
  if (report->tensors().empty()) return;
  const Key key(job_id, report->step());
  if (const auto old = entries_.find(key); old != entries_.end()) Erase(old);
  Entry entry;
  entry.report.mutable_tensors()->swap(*report->mutable_tensors());
  entry.bytes = entry.report.ByteSizeLong() + kOverheadBytes;
  if (entry.bytes > max_bytes_) return;
  entry.number = next_number_++;
  bytes_ += entry.bytes;
  by_number_.emplace(entry.number, key);
  entries_.emplace(key, std::move(entry));
  while (bytes_ > max_bytes_) Erase(entries_.find(by_number_.begin()->second));
}

void RecentTensors::AddTo(const std::string& job_id, v1::StepReport* report) const {
  const auto entry = entries_.find({job_id, report->step()});
  if (entry != entries_.end()) *report->mutable_tensors() = entry->second.report.tensors();
}

void RecentTensors::DropFrom(const std::string& job_id, int64_t step) {
  auto entry = entries_.lower_bound({job_id, step});
  while (entry != entries_.end() && entry->first.first == job_id) entry = Erase(entry);
}

}  // namespace espalier
