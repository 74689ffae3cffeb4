// A session: a model on leased workers, and the commands of its client.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/file_system.h"
#include "server/sessions/prepare_session.h"
#include "server/sessions/session_batches.h"
#include "server/sessions/session_ranks.h"
#include "server/sessions/session_state.h"
#include "server/sessions/session_tensors.h"
#include "storage/checkpoint_store.h"

namespace espalier {

struct SessionFacts {
  std::string id;
  std::string owner;  // empty: nobody
  int64_t opened_unix_ms = 0;
  absl::Duration grace;
};

// What a session uses of the coordinator; outlives it.
struct SessionTools {
  const OpRegistry* registry = nullptr;
  ArtifactStore* artifacts = nullptr;
  FileSystem* files = nullptr;
  CheckpointStore* checkpoints = nullptr;
};

class Session {
 public:
  // `folder`: in the checkpoint store, for checkpoints on their way to the artifacts.
  Session(SessionFacts facts, const SessionTools& tools, PreparedSession prepared,
          std::unique_ptr<SessionRanks> ranks, SessionTensors tensors,
          std::string graph_fingerprint, std::string folder);

  const SessionFacts& facts() const { return facts_; }
  SessionRanks& ranks() { return *ranks_; }
  v1::SessionInfo Info() const;

  // A stream of commands. The one before it is ended by its `cancel`, and waited for. Returns
  // NotFound once the session is closed. Thread-safe.
  absl::Status Attach(std::function<void()> cancel);
  void Detach();
  // Ends the stream, if there is one, and the session; later Attach fails. Thread-safe.
  void Close();
  // Whether the session has had no stream for the grace time. Thread-safe.
  bool Abandoned(absl::Time now) const;

  // Of the attached stream, by one thread:
  using Emit = std::function<bool(const v1::SessionReply&)>;
  // Begins a stream: says how far the session is, and repeats the replies behind `answered`.
  void Begin(uint64_t answered, const Emit& emit);
  // Takes one message: part of a command, a whole one, or several. Carries out those that are whole
  // now, and replies. A command that was carried out before gets the same reply. Returns
  // InvalidArgument, which ends the stream, for a message that cannot follow the one before it.
  // `may_save` checks the name of a checkpoint's artifact.
  using MaySave = std::function<absl::Status(const std::string& artifact)>;
  absl::Status Take(v1::SessionCommand message, const MaySave& may_save, const Emit& emit);

 private:
  struct Answer {
    v1::SessionReply reply;
    std::vector<WholeTensor> tensors;
  };
  using Kept = std::pair<uint64_t, std::vector<v1::SessionReply>>;

  absl::Status TakeOne(v1::SessionCommand message, const MaySave& may_save, const Emit& emit);
  absl::Status CarryOut(const v1::SessionCommand& command, std::vector<WholeTensor> tensors,
                        const MaySave& may_save, Answer* answer);
  // Makes messages of an answer, and keeps them for a client that comes again.
  const std::vector<v1::SessionReply>& Keep(uint64_t number, Answer answer);
  void Forget(uint64_t answered);

  // session_commands.cc
  absl::Status Forward(const v1::SessionCommand::Forward& command, std::vector<WholeTensor> tensors,
                       Answer* answer);
  absl::Status Backward(Answer* answer);
  absl::Status Update(Answer* answer);
  absl::Status Step(const v1::SessionCommand::Step& command, std::vector<WholeTensor> tensors,
                    Answer* answer);
  absl::Status Evaluate(const v1::SessionCommand::Evaluate& command,
                        std::vector<WholeTensor> tensors, Answer* answer);
  absl::Status Predict(const v1::SessionCommand::Predict& command, std::vector<WholeTensor> tensors,
                       Answer* answer);
  absl::Status GetTensors(const v1::SessionCommand::GetTensors& command, Answer* answer);
  absl::Status SetTensors(std::vector<WholeTensor> tensors);
  absl::Status SetLearningRate(const v1::SessionCommand::SetLearningRate& command);
  absl::Status SaveCheckpoint(const std::string& artifact, const MaySave& may_save, Answer* answer);

  // session_passes.cc
  v1::RankCommand PassesOf(int64_t times);
  // Runs passes and merges the ranks' reports, by time.
  absl::StatusOr<std::vector<v1::StepReport>> RunPasses(std::vector<v1::RankCommand> messages);
  absl::StatusOr<v1::StepReport> RunEvaluation(std::vector<v1::RankCommand> messages);
  absl::StatusOr<std::vector<WholeTensor>> ReadTensors(const SessionTensors::Names& names,
                                                       bool evaluation);
  // Tells the ranks of a ZeroGradients that they have not seen.
  absl::Status FlushZeroGradients();
  v1::StepReport Finished(const v1::StepReport& merged) const;
  void AddToMeans(const v1::StepReport& merged);
  void FillMeans(v1::SessionReply* reply) const;
  absl::Status CheckFullBatches(const char* command, int64_t examples, int64_t batches) const;

  const SessionFacts facts_;
  const SessionTools tools_;
  const PreparedSession prepared_;
  const std::unique_ptr<SessionRanks> ranks_;
  const SessionTensors tensors_;
  const std::string graph_fingerprint_;
  const std::string folder_;

  // Of the attached stream's thread.
  SessionState state_;
  bool zero_gradients_ = false;  // with the next command to the ranks that needs it
  std::map<std::string, double> sums_;
  int64_t batches_ = 0;  // behind sums_
  int64_t saved_ = 0;    // checkpoints
  TensorAssembler assembler_;
  absl::Status assembly_;  // of the command whose messages come
  std::deque<Kept> kept_;
  int64_t kept_bytes_ = 0;

  mutable absl::Mutex mutex_;
  absl::CondVar detached_;
  std::function<void()> cancel_ ABSL_GUARDED_BY(mutex_);  // of the attached stream
  bool attached_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time detached_since_ ABSL_GUARDED_BY(mutex_);
  v1::SessionProgress progress_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace espalier
