#include "server/recordings/run_queries.h"

#include <algorithm>
#include <iterator>
#include <tuple>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/recordings/diff_runs.h"
#include "server/recordings/recorded_losses.h"
#include "server/store/pages.h"

namespace espalier {
namespace {

auto OrderOf(const RunName& run) { return std::tie(run.experiment, run.owner, run.version); }

// The name of an experiment may have any characters, so it comes last.
std::string TokenOfRun(const RunName& run) {
  return TokenOfName(absl::StrCat(run.version, "\n", run.owner, "\n", run.experiment));
}

absl::StatusOr<RunName> RunOfToken(const std::string& token) {
  const absl::StatusOr<std::string> name = NameOfToken(token);
  if (!name.ok()) return name.status();
  const std::vector<std::string> parts = absl::StrSplit(*name, absl::MaxSplits('\n', 2));
  RunName run;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &run.version)) {
    return absl::InvalidArgumentError("page_token: not one of a list of runs");
  }
  run.owner = parts[1];
  run.experiment = parts[2];
  return run;
}

}  // namespace

absl::Status RunQueries::AddLosses(v1::Recording* recording) {
  const v1::Job& job = recording->job();
  {
    absl::MutexLock lock(&mutex_);
    const auto known = known_.find(job.id());
    if (known != known_.end() && known->second.steps_done == job.steps_done() &&
        known->second.attempts == job.attempts()) {
      if (known->second.any) *recording->mutable_losses() = known->second.summary;
      return absl::OkStatus();
    }
  }
  const absl::StatusOr<std::vector<RecordedLoss>> losses = ReadLosses(jobs_, job.id());
  if (!losses.ok()) return losses.status();
  KnownLosses found{job.steps_done(), job.attempts(), !losses->empty(), {}};
  if (found.any) *recording->mutable_losses() = found.summary = SummarizeLosses(*losses);
  absl::MutexLock lock(&mutex_);
  known_[job.id()] = std::move(found);
  return absl::OkStatus();
}

absl::Status RunQueries::AddCounts(v1::Recording* recording) {
  const v1::Job& job = recording->job();
  if (!IsRecorded(job.spec())) return absl::OkStatus();
  const absl::StatusOr<std::vector<v1::RecordedCheckpoint>> copies =
      recordings_.copies().CopiesOf(job.id());
  if (!copies.ok()) return copies.status();
  recording->set_all_checkpoints(job.recorded_checkpoints());
  if (copies->empty()) return absl::OkStatus();
  KnownCounts counts{
      job.recorded_checkpoints(), job.recorded_bytes(), static_cast<int64_t>(copies->size()),
      static_cast<int64_t>(recordings_.UnusableCopies(job.id()).size()), job.attempts()};
  bool known = false;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = counts_.find(job.id());
    known = found != counts_.end() && found->second.stored == counts.stored &&
            found->second.stored_bytes == counts.stored_bytes &&
            found->second.copies == counts.copies && found->second.unusable == counts.unusable &&
            found->second.attempts == counts.attempts;
    if (known) counts = found->second;
  }
  if (!known) {
    const absl::StatusOr<v1::Recording> whole = recordings_.Load(job.id());
    if (!whole.ok()) return whole.status();
    counts.all = whole->all_checkpoints();
    counts.copied = whole->copied_checkpoints();
    counts.copied_bytes = whole->copied_bytes();
  }
  recording->set_all_checkpoints(counts.all);
  recording->set_copied_checkpoints(counts.copied);
  recording->set_copied_bytes(counts.copied_bytes);
  absl::MutexLock lock(&mutex_);
  counts_[job.id()] = counts;
  return absl::OkStatus();
}

absl::Status RunQueries::List(const v1::ListRunsRequest& request, const Caller& caller,
                              v1::ListRunsReply* reply) {
  const absl::StatusOr<size_t> size = PageSize(request.page_size());
  if (!size.ok()) return size.status();
  absl::StatusOr<std::vector<RunName>> runs = find_(request.run(), RunVersions::kAll, caller);
  if (!runs.ok()) return runs.status();
  std::sort(runs->begin(), runs->end(),
            [](const RunName& a, const RunName& b) { return OrderOf(a) < OrderOf(b); });
  auto next = runs->begin();
  if (!request.page_token().empty()) {
    const absl::StatusOr<RunName> last = RunOfToken(request.page_token());
    if (!last.ok()) return last.status();
    next = std::upper_bound(
        runs->begin(), runs->end(), *last,
        [](const RunName& a, const RunName& b) { return OrderOf(a) < OrderOf(b); });
  }
  for (; next != runs->end(); ++next) {
    if (static_cast<size_t>(reply->runs_size()) == *size) {
      reply->set_next_page_token(TokenOfRun(*std::prev(next)));
      break;
    }
    absl::StatusOr<v1::Recording> run = recordings_.LoadFacts(next->job_id);
    if (absl::IsNotFound(run.status())) continue;  // it was deleted meanwhile
    if (!run.ok()) return run.status();
    run->clear_attempts();
    if (absl::Status status = AddLosses(&*run); !status.ok()) return status;
    const absl::Status counted = AddCounts(&*run);
    if (absl::IsNotFound(counted)) continue;
    if (!counted.ok()) return counted;
    *reply->add_runs() = *std::move(run);
  }
  return absl::OkStatus();
}

absl::StatusOr<RunName> RunQueries::FindOne(const char* field, const std::string& run,
                                            const Caller& caller) const {
  absl::StatusOr<std::vector<RunName>> runs = find_(run, RunVersions::kNewest, caller);
  if (!runs.ok()) return runs.status();
  if (runs->size() == 1) return runs->front();
  return absl::InvalidArgumentError(absl::StrCat(
      field, ": '", run.substr(0, 200), "' are ", runs->size(), " runs; name one, such as ",
      runs->front().experiment, "@", runs->front().version));
}

absl::Status RunQueries::Get(const v1::GetRunRequest& request, const Caller& caller,
                             v1::GetRunReply* reply) {
  const absl::StatusOr<RunName> run = FindOne("run", request.run(), caller);
  if (!run.ok()) return run.status();
  absl::StatusOr<v1::Recording> recording = recordings_.Load(run->job_id);
  if (!recording.ok()) return recording.status();
  *reply->mutable_run() = *std::move(recording);
  return AddLosses(reply->mutable_run());
}

absl::Status RunQueries::Diff(const v1::DiffRunsRequest& request, const Caller& caller,
                              v1::DiffRunsReply* reply) {
  v1::Recording recordings[2];
  std::vector<RecordedLoss> losses[2];
  for (const int side : {0, 1}) {
    const absl::StatusOr<RunName> run =
        FindOne(side == 0 ? "a" : "b", side == 0 ? request.a() : request.b(), caller);
    if (!run.ok()) return run.status();
    absl::StatusOr<v1::Recording> recording = recordings_.Load(run->job_id);
    if (!recording.ok()) return recording.status();
    recordings[side] = *std::move(recording);
    absl::StatusOr<std::vector<RecordedLoss>> read = ReadLosses(jobs_, run->job_id);
    if (!read.ok()) return read.status();
    losses[side] = *std::move(read);
  }
  *reply = DiffRuns({recordings[0], losses[0]}, {recordings[1], losses[1]});
  return absl::OkStatus();
}

}  // namespace espalier
