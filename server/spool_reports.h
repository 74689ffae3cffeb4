// Says in jobs' logs and in the metrics what the spool does.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "espalier/v1/training.pb.h"
#include "server/jobs/job_message.h"
#include "server/metrics/metrics.h"
#include "server/recordings/spool.h"

namespace espalier {

class SpoolReports : public SpoolObserver {
 public:
  using Say = std::function<void(const std::string& job_id, const v1::JobMessage& message)>;
  using OnJob = std::function<void(const std::string& job_id)>;

  // `metrics` must outlive it.
  SpoolReports(Metrics* metrics, Say say, OnJob on_spooled)
      : metrics_(*metrics), say_(std::move(say)), on_spooled_(std::move(on_spooled)) {}

  void OnSpoolFailed(const std::string& job_id, const std::string& message) override {
    say_(job_id, WarningMessage(message));
  }
  void OnSpoolRecovered(const std::string& job_id, const std::string& message) override {
    say_(job_id, InfoMessage(message));
  }
  void OnJobSpooled(const std::string& job_id) override { on_spooled_(job_id); }
  void OnSpooled(int64_t bytes) override { metrics_.CheckpointSpooled(bytes); }
  void OnSpoolError() override { metrics_.SpoolError(); }
  void OnSpoolPending(int64_t checkpoints) override { metrics_.SetSpoolPending(checkpoints); }

 private:
  Metrics& metrics_;
  const Say say_;
  const OnJob on_spooled_;
};

}  // namespace espalier
