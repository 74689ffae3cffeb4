// Histories as metrics of MLflow's runs.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/history/exporter.h"
#include "client/cli/history/mlflow_client.h"

namespace espalier {

// An experiment for each experiment, and a run for each version, which is found again by its tag
// espalier.job. Histograms, tensors and rows of many elements are left out. A value that the
// server's database has already at this step and time is not added again.
class MlflowExporter : public HistoryExporter {
 public:
  explicit MlflowExporter(MlflowClient client) : client_(std::move(client)) {}
  absl::Status Add(const v1::HistoryRow& row) override;
  absl::Status Finish() override;
  std::vector<std::string> Notes() const override;

 private:
  absl::Status BeginRun(const v1::HistoryRow& row);
  absl::Status Flush();
  // Ends the run that is written now.
  absl::Status EndRun();
  // The key of a label, which no other label of the run has.
  std::string KeyOf(const std::string& label);

  MlflowClient client_;
  std::string job_, run_id_;  // that are written now
  bool made_ = false;         // the run is new
  int64_t last_unix_ms_ = 0;
  std::map<std::string, std::string> keys_;  // by label
  std::set<std::string> used_keys_;
  std::vector<MlflowMetric> metrics_;  // that are not sent yet
  std::string experiment_, experiment_id_;
  std::set<std::string> pages_;
  int64_t left_out_ = 0;
};

}  // namespace espalier
