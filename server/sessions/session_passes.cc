// Session: what runs on the ranks.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/jobs/rank_report_merger.h"
#include "server/sessions/session.h"

namespace espalier {

v1::RankCommand Session::PassesOf(int64_t times) {
  v1::RankCommand command;
  v1::RankCommand::Passes* passes = command.mutable_passes();
  passes->set_times(times);
  passes->set_first_forward(state_.forwards());
  passes->set_first_update(state_.updates());
  if (state_.learning_rate.has_value()) passes->set_learning_rate(*state_.learning_rate);
  return command;
}

absl::StatusOr<std::vector<v1::StepReport>> Session::RunPasses(
    std::vector<v1::RankCommand> messages) {
  const v1::RankCommand::Passes& passes = messages.back().passes();
  const auto times = static_cast<size_t>(passes.times());
  const bool zeroes = passes.zero_gradients();
  std::vector<std::vector<v1::StepReport>> by_time(times);
  std::vector<std::vector<v1::RankCommand>> for_all;
  for_all.push_back(std::move(messages));
  std::vector<size_t> next(ranks_->size(), 0);
  absl::Status status =
      ranks_->Run(std::move(for_all), [&](size_t rank, v1::RankResult result) -> absl::Status {
        for (v1::StepReport& report : *result.mutable_steps()) {
          if (next[rank] >= times) return absl::InternalError("a rank reports more passes");
          std::vector<v1::StepReport>& reports = by_time[next[rank]++];
          reports.resize(ranks_->size());
          reports[rank] = std::move(report);
        }
        return absl::OkStatus();
      });
  if (!status.ok()) return status;
  if (zeroes) zero_gradients_ = false;
  std::vector<v1::StepReport> merged;
  for (const std::vector<v1::StepReport>& reports : by_time)
    merged.push_back(MergeReports(reports));
  return merged;
}

absl::StatusOr<v1::StepReport> Session::RunEvaluation(std::vector<v1::RankCommand> messages) {
  std::vector<v1::StepReport> reports(ranks_->size());
  std::vector<std::vector<v1::RankCommand>> for_all;
  for_all.push_back(std::move(messages));
  absl::Status status = ranks_->Run(std::move(for_all), [&](size_t rank, v1::RankResult result) {
    if (result.steps_size() > 0) reports[rank] = std::move(*result.mutable_steps(0));
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return MergeReports(reports);
}

absl::StatusOr<std::vector<WholeTensor>> Session::ReadTensors(const SessionTensors::Names& names,
                                                              bool evaluation) {
  std::vector<v1::RankCommand::Read> reads = tensors_.ReadsOf(names, evaluation);
  reads.resize(ranks_->size());
  std::vector<std::vector<v1::RankCommand>> messages(ranks_->size());
  for (size_t r = 0; r < messages.size(); ++r) {
    *messages[r].emplace_back().mutable_read() = std::move(reads[r]);
  }
  std::vector<RankBuffers> buffers(ranks_->size());
  absl::Status status = ranks_->Run(std::move(messages), [&](size_t rank, v1::RankResult result) {
    for (v1::BufferPart& part : *result.mutable_reads()) {
      std::string& bytes = buffers[rank][{part.evaluation(), part.buffer()}];
      if (bytes.empty()) {
        bytes = std::move(*part.mutable_data());
      } else {
        bytes.append(part.data());
      }
    }
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return tensors_.Gather(names, evaluation, buffers);
}

absl::Status Session::FlushZeroGradients() {
  if (!zero_gradients_) return absl::OkStatus();
  v1::RankCommand command = PassesOf(1);
  command.mutable_passes()->set_zero_gradients(true);
  std::vector<v1::RankCommand> messages;
  messages.push_back(std::move(command));
  return RunPasses(std::move(messages)).status();
}

v1::StepReport Session::Finished(const v1::StepReport& merged) const {
  v1::StepReport report = merged;
  for (auto& [name, value] : *report.mutable_values()) {
    const auto finish = prepared_.job.finishes.find(name);
    if (finish != prepared_.job.finishes.end() && finish->second != nullptr) {
      value = finish->second(value);
    }
  }
  return report;
}

void Session::AddToMeans(const v1::StepReport& merged) {
  ++batches_;
  for (const auto& [name, value] : merged.values()) {
    if (prepared_.reported.contains(name)) sums_[name] += value;
  }
}

void Session::FillMeans(v1::SessionReply* reply) const {
  reply->set_batches(batches_);
  v1::StepReport means;
  for (const auto& [name, sum] : sums_) {
    (*means.mutable_values())[name] = sum / static_cast<double>(batches_);
  }
  *reply->mutable_means() = Finished(means).values();
}

absl::Status Session::CheckFullBatches(const char* command, int64_t examples,
                                       int64_t batches) const {
  const int64_t batch = prepared_.job.batch_size;
  if (batches > 0 ? examples == batches * batch : examples % batch == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      command, ": ", examples, " examples; ",
      batches > 0 ? absl::StrCat(batches, batches == 1 ? " batch" : " batches", " of ", batch,
                                 " take ", batches * batch)
                  : absl::StrCat("full batches of ", batch, " are needed, as output '",
                                 prepared_.job.unweighted, "' is no mean over the batch")));
}

}  // namespace espalier
