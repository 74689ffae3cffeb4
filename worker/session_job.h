// One rank of a session: a training program whose passes run one by one, an evaluation program, and
// reading and writing of their tensors. Independent of gRPC. A command that fails leaves the ranks
// apart, so the coordinator sends none that could be refused, and ends the session on an error.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_system.h"
#include "espalier/v1/worker.pb.h"
#include "worker/data/session_source.h"
#include "worker/executor/executor.h"
#include "worker/job_peers.h"
#include "worker/training_job.h"
#include "worker/worker_job.h"

namespace espalier {

class SessionJob : public WorkerJob {
 public:
  using Emit = std::function<absl::Status(const v1::RankResult&)>;

  // Loads the programs, the dataset if there is one, and the initial parameters.
  static absl::StatusOr<std::unique_ptr<SessionJob>> Load(const v1::LoadProgramRequest& request,
                                                          const TrainingJobOptions& options);

  int64_t measured_peak_bytes() const;
  void ListTensors(v1::LoadProgramReply* reply) const;

  // Connects the ranks. Returns Cancelled after Abort.
  absl::Status Connect();
  // Runs one whole command and passes its answer to `emit`, in one or more messages. Blocks.
  absl::Status Run(v1::RankCommand command, const Emit& emit);

  void Abort(const std::string& reason) override {
    options_.storage->Cancel();
    peers_.Abort(reason);
  }
  std::unique_ptr<Communicator> TakeCommunicator() override;

 private:
  SessionJob(const v1::LoadProgramRequest& request, const TrainingJobOptions& options);
  absl::Status ChooseBatch(v1::RankCommand* command, SessionSource& source);
  absl::Status RunPasses(const v1::RankCommand::Passes& passes, int64_t first_batch,
                         uint64_t number, const Emit& emit);
  absl::StatusOr<v1::StepReport> RunOnce(const v1::RankCommand::Passes& passes, int64_t time);
  absl::Status Evaluate(const v1::RankCommand::Evaluate& evaluate, v1::RankResult* result);
  absl::Status Read(const v1::RankCommand::Read& read, uint64_t number, const Emit& emit);
  absl::Status ReadOne(int buffer, bool evaluation, uint64_t number, const Emit& emit);
  absl::Status Write(const v1::RankCommand& command);
  bool IsGradient(int buffer) const;
  // Makes the gradients zero in memory, if they were only marked so.
  absl::Status WriteZeroGradients();

  const TrainingJobOptions options_;
  const v1::PassBorders borders_;
  const absl::Duration peer_timeout_;
  std::unique_ptr<SessionSource> training_data_, evaluation_data_;
  std::unique_ptr<Executor> training_, evaluation_;
  // The gradients are zero: the next backward pass stores its own in their place. `zeros_written_`:
  // their memory says so, too.
  bool gradients_are_zero_ = true;
  bool zeros_written_ = true;
  JobPeers peers_;
};

}  // namespace espalier
