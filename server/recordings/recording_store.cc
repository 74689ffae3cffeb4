#include "server/recordings/recording_store.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/recordings/stored_checkpoints.h"

namespace espalier {
namespace {

std::string AttemptBlob(const std::string& job_id, int32_t attempt) {
  return absl::StrCat("recordings/", job_id, "/attempt-", attempt);
}

std::string DigestsBlob(const std::string& job_id) {
  return absl::StrCat("recordings/", job_id, "/digests");
}

template <typename Message>
absl::StatusOr<Message> ReadBlob(const JobStore& jobs, const std::string& name) {
  const absl::StatusOr<std::string> text = jobs.GetBlob(name);
  if (!text.ok()) return text.status();
  Message message;
  if (!message.ParseFromString(*text)) {
    return absl::DataLossError(absl::StrCat("job store: ", name, " is damaged"));
  }
  return message;
}

}  // namespace

bool IsRecorded(const v1::TrainingSpec& spec) {
  return spec.record().mode() != v1::RecordOptions::OFF;
}

std::vector<v1::RecordedAttempt> AttemptsOfSteps(std::vector<v1::RecordedAttempt> attempts) {
  std::vector<v1::RecordedAttempt> kept;
  for (v1::RecordedAttempt& attempt : attempts) {
    while (!kept.empty() && kept.back().first_step() >= attempt.first_step()) kept.pop_back();
    kept.push_back(std::move(attempt));
  }
  return kept;
}

bool BelongsToRecording(int32_t attempt, int64_t steps_done,
                        const std::vector<v1::RecordedAttempt>& attempts, int64_t checkpoint_step) {
  if (steps_done > checkpoint_step) return false;
  return std::all_of(attempts.begin(), attempts.end(), [&](const v1::RecordedAttempt& other) {
    return other.attempt() <= attempt || steps_done <= other.first_step();
  });
}

absl::Status RecordingStore::PutAttempt(const std::string& job_id,
                                        const v1::RecordedAttempt& attempt) {
  return jobs_->PutBlob(AttemptBlob(job_id, attempt.attempt()), attempt.SerializeAsString());
}

absl::Status RecordingStore::PutDigests(const std::string& job_id, const RecordedDigests& digests) {
  v1::Recording recording;
  recording.set_graph_sha256(digests.graph);
  recording.set_dataset_sha256(digests.dataset);
  recording.set_validation_sha256(digests.validation);
  return jobs_->PutBlob(DigestsBlob(job_id), recording.SerializeAsString());
}

absl::StatusOr<RecordedDigests> RecordingStore::Digests(const std::string& job_id) const {
  const auto recording = ReadBlob<v1::Recording>(*jobs_, DigestsBlob(job_id));
  if (!recording.ok()) return recording.status();
  return RecordedDigests{recording->graph_sha256(), recording->dataset_sha256(),
                         recording->validation_sha256()};
}

absl::StatusOr<v1::Recording> RecordingStore::LoadFacts(const std::string& job_id) const {
  absl::StatusOr<JobRecord> record = jobs_->Get(job_id);
  if (!record.ok()) return record.status();
  v1::Recording recording;
  v1::Job& job = *recording.mutable_job();
  job = std::move(record->job);
  job.clear_plan();
  job.mutable_spec()->clear_graph();
  job.mutable_spec()->mutable_search()->clear_imported();
  recording.set_experiment(job.experiment());
  recording.set_version(job.version());
  if (!IsRecorded(job.spec())) return recording;
  const absl::StatusOr<RecordedDigests> digests = Digests(job_id);
  if (!digests.ok() && !absl::IsNotFound(digests.status())) return digests.status();
  if (digests.ok()) {
    recording.set_graph_sha256(digests->graph);
    recording.set_dataset_sha256(digests->dataset);
    recording.set_validation_sha256(digests->validation);
  }
  for (int32_t attempt = 1; attempt <= job.attempts(); ++attempt) {
    auto read = ReadBlob<v1::RecordedAttempt>(*jobs_, AttemptBlob(job_id, attempt));
    if (absl::IsNotFound(read.status())) continue;  // it never came to train
    if (!read.ok()) return read.status();
    *recording.add_attempts() = *std::move(read);
  }
  return recording;
}

absl::StatusOr<v1::Recording> RecordingStore::Load(const std::string& job_id) const {
  absl::StatusOr<v1::Recording> recording = LoadFacts(job_id);
  if (!recording.ok() || !IsRecorded(recording->job().spec())) return recording;
  std::vector<v1::RecordedAttempt> attempts(recording->attempts().begin(),
                                            recording->attempts().end());
  const absl::StatusOr<StoredCheckpoints> stored = ListStoredCheckpoints(*checkpoints_, job_id);
  if (!stored.ok()) return stored.status();
  const absl::StatusOr<std::vector<v1::RecordedCheckpoint>> copies = copies_.CopiesOf(job_id);
  if (!copies.ok()) return copies.status();
  std::map<std::string, v1::RecordedCheckpoint> found;  // by directory
  for (const v1::RecordedCheckpoint& copy : *copies) {
    const auto [known, is_new] = found.try_emplace(copy.directory(), copy);
    if (!is_new && copy.spool() == spool_) known->second = copy;
  }
  for (const std::string& directory : UnusableCopies(job_id)) {
    const auto copy = found.find(directory);
    if (copy != found.end() && copy->second.spool() == spool_) copy->second.set_spooled(false);
  }
  std::map<std::string, int64_t> copied_bytes;  // by directory
  for (const auto& [directory, copy] : found) {
    if (copy.spooled()) copied_bytes[directory] = copy.bytes();
  }
  // The job's record does not know what others than the coordinator have removed.
  v1::Job& job = *recording->mutable_job();
  job.set_recorded_checkpoints(0);
  job.set_recorded_bytes(stored->shared_bytes);
  for (const StoredCheckpoints::Checkpoint& here : stored->checkpoints) {
    v1::RecordedCheckpoint& checkpoint = found[here.directory];
    checkpoint.set_steps_done(here.steps_done);
    checkpoint.set_directory(here.directory);
    checkpoint.set_bytes(here.bytes);
    checkpoint.set_stored(true);
  }
  for (auto& [directory, checkpoint] : found) {
    if (!BelongsToRecording(AttemptOf(directory), checkpoint.steps_done(), attempts,
                            recording->job().checkpoint_step())) {
      continue;
    }
    if (checkpoint.stored() || checkpoint.spooled()) {
      recording->set_all_checkpoints(recording->all_checkpoints() + 1);
    }
    if (checkpoint.stored()) {
      job.set_recorded_checkpoints(job.recorded_checkpoints() + 1);
      job.set_recorded_bytes(job.recorded_bytes() + checkpoint.bytes());
    }
    if (const auto copied = copied_bytes.find(directory); copied != copied_bytes.end()) {
      recording->set_copied_checkpoints(recording->copied_checkpoints() + 1);
      recording->set_copied_bytes(recording->copied_bytes() + copied->second);
    }
    *recording->add_checkpoints() = std::move(checkpoint);
  }
  std::stable_sort(recording->mutable_checkpoints()->begin(),
                   recording->mutable_checkpoints()->end(),
                   [](const auto& a, const auto& b) { return a.steps_done() < b.steps_done(); });
  recording->clear_attempts();
  for (v1::RecordedAttempt& attempt : AttemptsOfSteps(std::move(attempts))) {
    *recording->add_attempts() = std::move(attempt);
  }
  return recording;
}

std::string AnswersFolder(const std::string& job_id) { return absl::StrCat("replays/", job_id); }

absl::StatusOr<v1::RecordedCheckpoint> RecordingStore::CopyOf(const std::string& job_id,
                                                              const std::string& directory) const {
  const absl::StatusOr<std::vector<v1::RecordedCheckpoint>> copies = copies_.CopiesOf(job_id);
  if (!copies.ok()) return copies.status();
  const v1::RecordedCheckpoint* found = nullptr;
  for (const v1::RecordedCheckpoint& copy : *copies) {
    if (copy.directory() != directory) continue;
    if (found == nullptr || copy.spool() == spool_) found = &copy;
  }
  if (found != nullptr) return *found;
  return absl::NotFoundError(
      absl::StrCat("the checkpoint '", JoinPath(job_id, directory), "' is not there any more"));
}

void RecordingStore::SetCopyUsable(const std::string& job_id, const std::string& directory,
                                   bool usable) {
  absl::MutexLock lock(&mutex_);
  if (!usable) {
    unusable_[job_id].insert(directory);
  } else if (const auto job = unusable_.find(job_id); job != unusable_.end()) {
    job->second.erase(directory);
  }
}

std::set<std::string> RecordingStore::UnusableCopies(const std::string& job_id) const {
  absl::MutexLock lock(&mutex_);
  const auto job = unusable_.find(job_id);
  return job == unusable_.end() ? std::set<std::string>() : job->second;
}

absl::Status RecordingStore::RemoveFacts(const std::string& job_id, int32_t attempts) {
  {
    absl::MutexLock lock(&mutex_);
    unusable_.erase(job_id);
  }
  absl::Status status = checkpoints_->Delete(AnswersFolder(job_id));
  if (status.ok()) status = copies_.MarkDeleted(job_id, spool_);
  if (status.ok()) status = jobs_->DeleteBlob(DigestsBlob(job_id));
  for (int32_t attempt = 1; attempt <= attempts && status.ok(); ++attempt) {
    status = jobs_->DeleteBlob(AttemptBlob(job_id, attempt));
  }
  return status;
}

}  // namespace espalier
