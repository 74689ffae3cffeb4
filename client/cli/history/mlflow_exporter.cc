#include "client/cli/history/mlflow_exporter.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/cli/history/row_values.h"

namespace espalier {
namespace {

constexpr char kJobTag[] = "espalier.job";

}  // namespace

absl::Status MlflowExporter::BeginRun(const v1::HistoryRow& row) {
  if (absl::Status s = EndRun(); !s.ok()) return s;
  if (experiment_id_.empty() || experiment_ != row.experiment()) {
    auto id = client_.ExperimentId(row.experiment());
    if (!id.ok()) return id.status();
    experiment_ = row.experiment();
    experiment_id_ = *std::move(id);
    pages_.insert(client_.PageOf(experiment_id_));
  }
  auto run = client_.FindRun(experiment_id_, kJobTag, row.job_id());
  if (!run.ok()) return run.status();
  made_ = run->empty();
  if (made_) {
    run = client_.CreateRun(experiment_id_, RunOf(row), row.unix_ms(),
                            {{kJobTag, row.job_id()}, {"espalier.run", RunOf(row)}});
    if (!run.ok()) return run.status();
  }
  run_id_ = *std::move(run);
  job_ = row.job_id();
  last_unix_ms_ = row.unix_ms();
  return absl::OkStatus();
}

absl::Status MlflowExporter::Flush() {
  if (metrics_.empty()) return absl::OkStatus();
  absl::Status status = client_.LogBatch(run_id_, metrics_);
  metrics_.clear();
  return status;
}

absl::Status MlflowExporter::EndRun() {
  if (run_id_.empty()) return absl::OkStatus();
  if (absl::Status s = Flush(); !s.ok()) return s;
  absl::Status status = made_ ? client_.FinishRun(run_id_, last_unix_ms_) : absl::OkStatus();
  run_id_.clear();
  keys_.clear();
  used_keys_.clear();
  return status;
}

std::string MlflowExporter::KeyOf(const std::string& label) {
  const auto [place, is_new] = keys_.try_emplace(label);
  if (is_new) {
    const std::string key = MlflowKey(label);
    place->second = key;
    for (int i = 2; !used_keys_.insert(place->second).second; ++i) {
      place->second = absl::StrCat(key, " ", i);
    }
  }
  return place->second;
}

absl::Status MlflowExporter::Add(const v1::HistoryRow& row) {
  const std::vector<LabelledNumber> numbers = NumbersOf(row);
  if (numbers.empty()) {
    ++left_out_;
    return absl::OkStatus();
  }
  if (run_id_.empty() || job_ != row.job_id()) {
    if (absl::Status s = BeginRun(row); !s.ok()) return s;
  }
  last_unix_ms_ = std::max(last_unix_ms_, row.unix_ms());
  // What was recorded and what was answered later are not mixed.
  const bool recorded_again = row.source() == v1::HistoryRow::REPLAY && LabelOf(row) == row.name();
  for (const LabelledNumber& number : numbers) {
    metrics_.push_back({KeyOf(absl::StrCat(recorded_again ? "replay/" : "", number.label)),
                        number.value, row.unix_ms(), row.step()});
    if (metrics_.size() < MlflowClient::kMostMetrics) continue;
    if (absl::Status s = Flush(); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status MlflowExporter::Finish() { return EndRun(); }

std::vector<std::string> MlflowExporter::Notes() const {
  std::vector<std::string> notes;
  for (const std::string& page : pages_) notes.push_back(absl::StrCat("show it: ", page));
  if (left_out_ > 0) {
    notes.push_back(absl::StrCat(left_out_,
                                 " rows are left out: metrics of MLflow are numbers, not "
                                 "histograms, tensors or many elements"));
  }
  return notes;
}

}  // namespace espalier
