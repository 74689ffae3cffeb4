// What an attempt adds to its job's recording: checkpoints as often as their costs allow, what its
// steps are computed with, and digests of the job's data.
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/backoff.h"
#include "base/sha256.h"
#include "base/version.h"
#include "server/jobs/attempt.h"
#include "server/jobs/job_message.h"
#include "server/jobs/training_dataset.h"

namespace espalier {
namespace {

// Equal for equal messages of this version of protobuf: maps are in order.
std::string DigestOfGraph(const v1::Graph& graph) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream out(&bytes);
    google::protobuf::io::CodedOutputStream coded(&out);
    coded.SetSerializationDeterministic(true);
    graph.SerializeToCodedStream(&coded);
  }
  return Sha256Hex(bytes);
}

// How long before its step the ranks are asked for a checkpoint: a request arrives everywhere
// within this time.
constexpr double kNoticeSeconds = 0.1;

}  // namespace

bool Attempt::is_recorded() const {
  return tools_.recordings != nullptr && IsRecorded(task_.record.job.spec());
}

std::optional<AttemptEnd> Attempt::RecordAttempt(const v1::Plan& plan, int64_t first_step) {
  if (!is_recorded()) return std::nullopt;
  const std::string& job_id = task_.record.job.id();
  v1::RecordedAttempt attempt;
  attempt.set_attempt(task_.attempt);
  attempt.set_first_step(first_step);
  *attempt.mutable_plan() = plan;
  for (const v1::RecordedAttempt::Rank& rank : recorded_) *attempt.add_ranks() = rank;
  attempt.set_program_version(kEspalierVersion);
  attempt.set_unix_ms(absl::ToUnixMillis(absl::Now()));
  for (bool said = false;; said = true) {
    const absl::Status status = tools_.recordings->PutAttempt(job_id, attempt);
    if (status.ok()) return std::nullopt;
    if (!MayPass(status)) {
      return AttemptEnd::Failed(absl::Status(
          status.code(),
          absl::StrCat("what the job is computed with cannot be recorded: ", status.message())));
    }
    if (!said) {
      observer_->OnMessage(
          job_id, WarningMessage(absl::StrCat("training waits until it can be recorded what it is "
                                              "computed with: ",
                                              status.message())));
    }
    if (WaitForRoom()) return AttemptEnd::Stopped();
  }
}

void Attempt::BeginSchedule(const PreparedJob& prepared, int64_t first_step,
                            absl::Duration restored) {
  const v1::RecordOptions& record = task_.record.job.spec().record();
  if (!is_recorded() || record.mode() != v1::RecordOptions::ADAPTIVE) return;
  absl::MutexLock report_lock(&report_mutex_);
  schedule_.emplace(RecordScheduleOptions{.overhead = record.overhead(),
                                          .restore_seconds = absl::ToDoubleSeconds(restored),
                                          .first_step = first_step,
                                          .total_steps = prepared.total_steps,
                                          .epoch_steps = prepared.steps_per_epoch});
}

void Attempt::ScheduleStep(const v1::StepReport& step) {
  if (!schedule_.has_value()) return;
  schedule_->StepDone(step.step() + 1, step.seconds());
  const int64_t at = schedule_->Due(kNoticeSeconds);
  if (at == 0) return;
  schedule_->Asked(at);
  absl::MutexLock lock(&mutex_);
  due_at_ = at;
  changed_.SignalAll();
}

void Attempt::ScheduleCost(const RankReportMerger::Checkpoint& checkpoint) {
  spdlog::info("job id={} checkpoint step={} stall_seconds={:.5f} write_seconds={:.5f}",
               task_.record.job.id(), checkpoint.steps_done, checkpoint.stall_seconds,
               checkpoint.write_seconds);
  if (!schedule_.has_value()) return;
  // Processors that compute the steps as well have less time for them: that of the writing thread,
  // and of what sends and records the checkpoint. The time until it is durable is more than both.
  const bool shares_processors =
      std::any_of(task_.members.begin(), task_.members.end(),
                  [](const Member& member) { return member.device.kind() == v1::Device::CPU; });
  schedule_->Written(checkpoint.steps_done,
                     checkpoint.stall_seconds + (shares_processors ? checkpoint.write_seconds : 0));
}

void Attempt::RecordDigests(const std::function<bool()>& stopped) {
  if (!is_recorded()) return;
  const v1::Job& job = task_.record.job;
  const v1::TrainingSpec& spec = job.spec();
  if (tools_.recordings->Digests(job.id()).ok()) return;
  RecordedDigests digests;
  absl::Status status;
  if (spec.has_graph()) {
    digests.graph = DigestOfGraph(spec.graph());
  } else {
    const absl::StatusOr<v1::Artifact> model = tools_.artifacts->Find(
        spec.onnx_artifact().empty() ? spec.init_artifact() : spec.onnx_artifact());
    if (model.ok()) digests.graph = model->sha256();
    status = model.status();
  }
  const auto add = [&](const v1::Dataset& dataset, std::string* digest) {
    if (!status.ok()) return;
    absl::StatusOr<std::string> read =
        DigestDataset(dataset, *tools_.artifacts, *tools_.dataset_roots, stopped);
    status = read.status();
    if (read.ok()) *digest = *std::move(read);
  };
  add(spec.dataset(), &digests.dataset);
  if (spec.validation().has_dataset()) add(spec.validation().dataset(), &digests.validation);
  if (status.ok()) status = tools_.recordings->PutDigests(job.id(), digests);
  if (status.ok() || absl::IsCancelled(status)) return;
  // The next attempt tries again.
  spdlog::warn("job id={}: {}", job.id(), status.ToString());
  observer_->OnMessage(job.id(), WarningMessage(absl::StrCat(
                                     "the recording has no hash of the data: ", status.message(),
                                     "; a replay cannot tell whether it is the same")));
}

}  // namespace espalier
