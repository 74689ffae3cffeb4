#include "server/metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <chrono>
#include <vector>

namespace espalier {
namespace {

const char* const kJobStates[] = {"queued",    "planning", "running",  "recovering",
                                  "succeeded", "failed",   "cancelled"};
const char* const kWorkerStates[] = {"idle", "busy", "draining", "dead", "left"};

// From a toy model's step to one of the largest models.
const std::vector<double> kStepBuckets = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2,
                                          0.5,   1,     2,     5,    10,   20,   60};
const std::vector<double> kRequestBuckets = {0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 60};

}  // namespace

struct Metrics::Families {
  prometheus::Registry registry;
  prometheus::Family<prometheus::Counter>& requests =
      prometheus::BuildCounter()
          .Name("espalier_grpc_requests_total")
          .Help("RPCs answered, by method and status code.")
          .Register(registry);
  prometheus::Family<prometheus::Histogram>& request_seconds =
      prometheus::BuildHistogram()
          .Name("espalier_grpc_request_duration_seconds")
          .Help("Time from the start of an RPC to its answer.")
          .Register(registry);
  prometheus::Family<prometheus::Gauge>& jobs = prometheus::BuildGauge()
                                                    .Name("espalier_jobs")
                                                    .Help("Training jobs, by state.")
                                                    .Register(registry);
  prometheus::Family<prometheus::Gauge>& workers = prometheus::BuildGauge()
                                                       .Name("espalier_workers")
                                                       .Help("Workers, by state.")
                                                       .Register(registry);
  prometheus::Histogram& step_seconds = prometheus::BuildHistogram()
                                            .Name("espalier_job_step_duration_seconds")
                                            .Help("Duration of finished training steps.")
                                            .Register(registry)
                                            .Add({}, kStepBuckets);
  prometheus::Counter& steps = Count("espalier_job_steps_total", "Training steps finished.");
  prometheus::Histogram& validation_seconds = prometheus::BuildHistogram()
                                                  .Name("espalier_job_validation_duration_seconds")
                                                  .Help("Duration of evaluations during training.")
                                                  .Register(registry)
                                                  .Add({}, kStepBuckets);
  prometheus::Counter& batches_pushed =
      Count("espalier_job_batches_pushed_total",
            "Batches that clients have pushed to jobs whose dataset is a stream.");
  prometheus::Counter& checkpoints =
      Count("espalier_checkpoints_total", "Checkpoints made durable.");
  prometheus::Counter& checkpoints_skipped =
      Count("espalier_checkpoints_skipped_total",
            "Checkpoints that were not written because the disk was full.");
  prometheus::Counter& checkpoints_damaged =
      Count("espalier_checkpoints_damaged_total",
            "Checkpoints that could not be read when a job went on from them.");
  prometheus::Gauge& checkpoints_paused =
      prometheus::BuildGauge()
          .Name("espalier_jobs_checkpoints_paused")
          .Help("Running jobs that found no room for their last checkpoint.")
          .Register(registry)
          .Add({});
  prometheus::Counter& spooled =
      Count("espalier_spooled_checkpoints_total", "Checkpoints copied to the spool.");
  prometheus::Counter& spooled_bytes =
      Count("espalier_spooled_bytes_total", "Bytes written to the spool, compressed.");
  prometheus::Counter& spool_errors =
      Count("espalier_spool_errors_total", "Tries to copy checkpoints to the spool that failed.");
  prometheus::Gauge& spool_pending = prometheus::BuildGauge()
                                         .Name("espalier_spool_pending_checkpoints")
                                         .Help("Checkpoints that are to be copied to the spool.")
                                         .Register(registry)
                                         .Add({});
  prometheus::Counter& attempts = Count("espalier_job_attempts_total", "Attempts of jobs started.");
  prometheus::Counter& lost =
      Count("espalier_workers_lost_total",
            "Workers that went without leaving: silent for a lease, not answering, or replaced.");
  prometheus::Counter& store_errors =
      Count("espalier_store_errors_total", "Writes to the job store that failed.");
  prometheus::Gauge& folder_present =
      prometheus::BuildGauge()
          .Name("espalier_data_folder_present")
          .Help("0 while the data folder, its store or its artifacts are gone, otherwise 1.")
          .Register(registry)
          .Add({});
  prometheus::Gauge& start = prometheus::BuildGauge()
                                 .Name("process_start_time_seconds")
                                 .Help("Start of the process, seconds since 1970.")
                                 .Register(registry)
                                 .Add({});

  prometheus::Counter& Count(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add({});
  }
};

Metrics::Metrics() : families_(std::make_unique<Families>()) {
  families_->start.Set(
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
  SetDataFolderPresent(true);
  SetJobs({});
  SetWorkers({});
}

Metrics::~Metrics() = default;

void Metrics::GrpcRequest(const std::string& method, const std::string& code, double seconds) {
  families_->requests.Add({{"method", method}, {"code", code}}).Increment();
  families_->request_seconds.Add({{"method", method}}, kRequestBuckets).Observe(seconds);
}

void Metrics::SetJobs(const std::map<std::string, int>& by_state) {
  for (const char* state : kJobStates) {
    auto it = by_state.find(state);
    families_->jobs.Add({{"state", state}}).Set(it == by_state.end() ? 0 : it->second);
  }
}

void Metrics::SetWorkers(const std::map<std::string, int>& by_state) {
  for (const char* state : kWorkerStates) {
    auto it = by_state.find(state);
    families_->workers.Add({{"state", state}}).Set(it == by_state.end() ? 0 : it->second);
  }
}

void Metrics::JobStep(double seconds) {
  families_->step_seconds.Observe(seconds);
  families_->steps.Increment();
}

void Metrics::JobValidation(double seconds) { families_->validation_seconds.Observe(seconds); }

void Metrics::BatchesPushed(int64_t batches) {
  families_->batches_pushed.Increment(static_cast<double>(batches));
}

void Metrics::SetCheckpointsPaused(int jobs) { families_->checkpoints_paused.Set(jobs); }
void Metrics::CheckpointWritten() { families_->checkpoints.Increment(); }
void Metrics::CheckpointSpooled(int64_t bytes) {
  families_->spooled.Increment();
  families_->spooled_bytes.Increment(static_cast<double>(bytes));
}
void Metrics::SpoolError() { families_->spool_errors.Increment(); }
void Metrics::SetSpoolPending(int64_t checkpoints) {
  families_->spool_pending.Set(static_cast<double>(checkpoints));
}
void Metrics::CheckpointSkipped() { families_->checkpoints_skipped.Increment(); }
void Metrics::CheckpointDamaged() { families_->checkpoints_damaged.Increment(); }
void Metrics::AttemptStarted() { families_->attempts.Increment(); }
void Metrics::WorkerLost() { families_->lost.Increment(); }
void Metrics::StoreError() { families_->store_errors.Increment(); }
void Metrics::SetDataFolderPresent(bool present) { families_->folder_present.Set(present ? 1 : 0); }

std::string Metrics::Expose() const {
  return prometheus::TextSerializer().Serialize(families_->registry.Collect());
}

prometheus::Registry& Metrics::registry() { return families_->registry; }

}  // namespace espalier
