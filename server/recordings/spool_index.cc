#include "server/recordings/spool_index.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

constexpr char kDeletionsBlob[] = "spool/deletions";

std::string CopiesBlob(const std::string& job_id) {
  return absl::StrCat("recordings/", job_id, "/copies");
}

template <typename Message>
absl::StatusOr<Message> ReadOrEmpty(const JobStore& jobs, const std::string& name) {
  const absl::StatusOr<std::string> text = jobs.GetBlob(name);
  if (absl::IsNotFound(text.status())) return Message();
  if (!text.ok()) return text.status();
  Message message;
  if (!message.ParseFromString(*text)) {
    return absl::DataLossError(absl::StrCat("job store: ", name, " is damaged"));
  }
  return message;
}

bool Contains(const v1::SpoolDeletions& deletions, const std::string& job_id) {
  return std::any_of(deletions.entries().begin(), deletions.entries().end(),
                     [&](const auto& entry) { return entry.job_id() == job_id; });
}

}  // namespace

absl::StatusOr<v1::Recording> SpoolIndex::ReadCopies(const std::string& job_id) const {
  return ReadOrEmpty<v1::Recording>(*jobs_, CopiesBlob(job_id));
}

absl::StatusOr<v1::SpoolDeletions> SpoolIndex::ReadDeletions() const {
  return ReadOrEmpty<v1::SpoolDeletions>(*jobs_, kDeletionsBlob);
}

absl::StatusOr<std::vector<v1::RecordedCheckpoint>> SpoolIndex::CopiesOf(
    const std::string& job_id) const {
  const absl::StatusOr<v1::Recording> copies = ReadCopies(job_id);
  if (!copies.ok()) return copies.status();
  return std::vector<v1::RecordedCheckpoint>(copies->checkpoints().begin(),
                                             copies->checkpoints().end());
}

absl::Status SpoolIndex::Add(const std::string& job_id, const v1::RecordedCheckpoint& copy) {
  absl::MutexLock lock(&writing_);
  const absl::StatusOr<v1::SpoolDeletions> deletions = ReadDeletions();
  if (!deletions.ok()) return deletions.status();
  if (Contains(*deletions, job_id)) {
    return absl::NotFoundError(absl::StrCat("job ", job_id, " is deleted"));
  }
  absl::StatusOr<v1::Recording> copies = ReadCopies(job_id);
  if (!copies.ok()) return copies.status();
  auto& known = *copies->mutable_checkpoints();
  const auto same = std::find_if(known.begin(), known.end(), [&](const auto& other) {
    return other.directory() == copy.directory() && other.spool() == copy.spool();
  });
  *(same == known.end() ? copies->add_checkpoints() : &*same) = copy;
  return jobs_->PutBlob(CopiesBlob(job_id), copies->SerializeAsString());
}

absl::Status SpoolIndex::MarkDeleted(const std::string& job_id, const std::string& spool) {
  absl::MutexLock lock(&writing_);
  const absl::StatusOr<v1::Recording> copies = ReadCopies(job_id);
  if (!copies.ok()) return copies.status();
  std::set<std::string> spools;
  if (!spool.empty()) spools.insert(spool);
  for (const v1::RecordedCheckpoint& copy : copies->checkpoints()) spools.insert(copy.spool());
  if (spools.empty()) return absl::OkStatus();
  absl::StatusOr<v1::SpoolDeletions> deletions = ReadDeletions();
  if (!deletions.ok()) return deletions.status();
  for (const std::string& from : spools) {
    v1::SpoolDeletions::Entry& entry = *deletions->add_entries();
    entry.set_job_id(job_id);
    entry.set_spool(from);
  }
  const absl::Status marked = jobs_->PutBlob(kDeletionsBlob, deletions->SerializeAsString());
  return marked.ok() ? jobs_->DeleteBlob(CopiesBlob(job_id)) : marked;
}

absl::StatusOr<std::vector<std::string>> SpoolIndex::DeletedOf(const std::string& spool) const {
  const absl::StatusOr<v1::SpoolDeletions> deletions = ReadDeletions();
  if (!deletions.ok()) return deletions.status();
  std::vector<std::string> jobs;
  for (const auto& entry : deletions->entries()) {
    if (entry.spool() == spool) jobs.push_back(entry.job_id());
  }
  return jobs;
}

absl::Status SpoolIndex::Removed(const std::string& job_id, const std::string& spool) {
  absl::MutexLock lock(&writing_);
  absl::StatusOr<v1::SpoolDeletions> deletions = ReadDeletions();
  if (!deletions.ok()) return deletions.status();
  auto& entries = *deletions->mutable_entries();
  entries.erase(std::remove_if(entries.begin(), entries.end(),
                               [&](const auto& entry) {
                                 return entry.job_id() == job_id && entry.spool() == spool;
                               }),
                entries.end());
  if (entries.empty()) return jobs_->DeleteBlob(kDeletionsBlob);
  return jobs_->PutBlob(kDeletionsBlob, deletions->SerializeAsString());
}

}  // namespace espalier
