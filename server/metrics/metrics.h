// The coordinator's Prometheus metrics, named by its conventions (base units, _total for counters).
// Labels take values from small fixed sets, so clients cannot grow them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace prometheus {
class Registry;
}

namespace espalier {

// Thread-safe.
class Metrics {
 public:
  Metrics();
  ~Metrics();

  // espalier_grpc_requests_total{method,code} and espalier_grpc_request_duration_seconds{method}.
  void GrpcRequest(const std::string& method, const std::string& code, double seconds);
  // espalier_jobs{state}; states not in the map become 0.
  void SetJobs(const std::map<std::string, int>& by_state);
  // espalier_workers{state}.
  void SetWorkers(const std::map<std::string, int>& by_state);
  // espalier_job_step_duration_seconds and espalier_job_steps_total.
  void JobStep(double seconds);
  // espalier_job_validation_duration_seconds.
  void JobValidation(double seconds);
  void BatchesPushed(int64_t batches);  // espalier_job_batches_pushed_total
  // espalier_jobs_checkpoints_paused: jobs that found no room for their last checkpoint.
  void SetCheckpointsPaused(int jobs);
  void CheckpointWritten();  // espalier_checkpoints_total
  void CheckpointSkipped();  // espalier_checkpoints_skipped_total
  void CheckpointDamaged();  // espalier_checkpoints_damaged_total
  // espalier_spooled_checkpoints_total and espalier_spooled_bytes_total: one more, of so many
  // bytes.
  void CheckpointSpooled(int64_t bytes);
  void SpoolError();                          // espalier_spool_errors_total
  void SetSpoolPending(int64_t checkpoints);  // espalier_spool_pending_checkpoints
  void AttemptStarted();                      // espalier_job_attempts_total
  void WorkerLost();                          // espalier_workers_lost_total
  void StoreError();                          // espalier_store_errors_total
  // espalier_data_folder_present: 1 from the start, 0 while it is gone.
  void SetDataFolderPresent(bool present);

  // Returns the text exposition format, for /metrics.
  std::string Expose() const;

  // For other components (serving) that add their own families.
  prometheus::Registry& registry();

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

}  // namespace espalier
