// The client library: the coordinator's API as blocking calls that return a Status.
//
//   auto client = Client::Connect("127.0.0.1:7070");
//   v1::TrainingSpec spec;
//   *spec.mutable_graph() = ToProto(*graph);           // ops/graph/builder.h makes graphs
//   auto job = (*client)->Submit(spec);
//   (*client)->Watch(job->job_id(), 0, [](const v1::JobEvent& e) { ...; return true; });
//
// Calls carry a deadline. While the coordinator is UNAVAILABLE, read-only calls and calls with an
// idempotency key (all others but Generate) are retried for up to ClientOptions::retry_for.
// Thread-safe. Errors are the coordinator's, verbatim; Unavailable names the address and what to
// start.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "espalier/v1/access.pb.h"
#include "espalier/v1/cluster.pb.h"
#include "espalier/v1/distillation.pb.h"
#include "espalier/v1/inference.pb.h"
#include "espalier/v1/models.pb.h"
#include "espalier/v1/plan.pb.h"
#include "espalier/v1/recording.pb.h"
#include "espalier/v1/replay.pb.h"
#include "espalier/v1/session.pb.h"
#include "espalier/v1/training.pb.h"
#include "open_inference/open_inference.pb.h"

namespace espalier {

struct ClientOptions {
  std::string token;  // sent as "authorization: Bearer <token>"; empty: none
  bool tls = false;
  std::string ca_pem;           // trusted roots; empty: the system's
  std::string certificate_pem;  // client certificate, if the coordinator asks for one
  std::string key_pem;
  absl::Duration connect_timeout = absl::Seconds(5);
  absl::Duration call_timeout = absl::Seconds(30);
  absl::Duration plan_timeout = absl::Minutes(10);   // Submit, MakePlan, Explain, DryRun
  absl::Duration serve_timeout = absl::Minutes(10);  // Serve loads a model
  absl::Duration retry_for = absl::Seconds(10);      // while UNAVAILABLE
  absl::Duration watch_retry_for = absl::Minutes(2);
};

// Bytes transferred so far, and in total.
using TransferProgress = std::function<void(int64_t done, int64_t total)>;

// Cancels, from another thread, the calls that were given it: the running one and later ones, which
// return Cancelled. Thread-safe; used by one call at a time.
class Canceller {
 public:
  void Cancel();

 private:
  friend class CancellableCall;
  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> end_ ABSL_GUARDED_BY(mutex_);  // ends the running call
};

struct LocalFile {
  std::string name;  // in the artifact
  std::string path;
};

class Client {
 public:
  // `address` is host:port. Waits for the coordinator to answer, at most connect_timeout.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const std::string& address,
                                                         const ClientOptions& options = {});
  ~Client();
  const std::string& address() const;

  // Training. An empty key is replaced by a random one; pass one to make Submit idempotent across
  // processes.
  absl::StatusOr<v1::SubmitReply> Submit(const v1::TrainingSpec& spec, const std::string& key = "");
  // Checks and plans the job without queueing it.
  absl::StatusOr<v1::DryRunReply> DryRun(const v1::TrainingSpec& spec,
                                         Canceller* canceller = nullptr);
  // Calls `event` with the job's current state, then with all its reports and, if `follow`, with
  // new events, until the job is over or `event` returns false. A lost connection is resumed where
  // it broke off; a JobEvent::message says so.
  absl::Status Watch(const std::string& job_id, int64_t from_step,
                     const std::function<bool(const v1::JobEvent&)>& event, bool follow = true);
  absl::StatusOr<v1::GetJobReply> GetJob(const std::string& job_id, bool with_reports = false);
  // All jobs, in the order of submission.
  absl::StatusOr<std::vector<v1::Job>> ListJobs();
  // The first `limit` jobs that the request selects, of as many pages as needed; 0: all. The
  // request has no page. `matching` of the reply counts those that `limit` leaves out, too.
  absl::StatusOr<v1::ListJobsReply> ListJobs(v1::ListJobsRequest request, int64_t limit);
  // What the request does not set stays.
  absl::StatusOr<v1::Job> UpdateJob(v1::UpdateJobRequest request);
  absl::Status DeleteJob(const std::string& job_id);
  absl::StatusOr<v1::Job> CancelJob(const std::string& job_id);
  absl::StatusOr<v1::Job> ResumeJob(const std::string& job_id);
  // Has the job write a checkpoint now, and waits for that.
  absl::StatusOr<v1::Job> CheckpointJob(const std::string& job_id, absl::Duration timeout);

  // Runs of experiments; names are as in recording.proto. An empty one lists all.
  absl::StatusOr<std::vector<v1::Recording>> ListRuns(const std::string& run);
  absl::StatusOr<v1::Recording> GetRun(const std::string& run);
  absl::StatusOr<v1::ListRunValuesReply> ListRunValues(const std::string& run,
                                                       const std::string& pattern);
  absl::StatusOr<v1::DiffRunsReply> DiffRuns(const std::string& a, const std::string& b);
  // Calls `row` with what was recorded of runs and with the answers to replays of them, until it
  // returns an error, which is returned. No deadline.
  absl::Status QueryHistory(const v1::QueryHistoryRequest& request,
                            const std::function<absl::Status(const v1::HistoryRow&)>& row,
                            Canceller* canceller = nullptr);

  // Replays of recorded runs. An empty key as for Submit.
  absl::StatusOr<v1::ReplayEstimate> EstimateReplay(const v1::ReplaySpec& spec);
  absl::StatusOr<v1::ReplayInfo> StartReplay(const v1::ReplaySpec& spec,
                                             const std::string& key = "");
  // Calls `event` with the replay, again after each change, and with its answers, each once, until
  // it is over or `event` returns false. A lost connection is made again.
  absl::Status WatchReplay(const std::string& replay_id, bool with_rows,
                           const std::function<bool(const v1::ReplayEvent&)>& event,
                           Canceller* canceller = nullptr);
  absl::StatusOr<v1::ReplayInfo> CancelReplay(const std::string& replay_id);
  absl::StatusOr<v1::ReplayInfo> GetReplay(const std::string& replay_id);
  // One that is over, with its answers.
  absl::Status DeleteReplay(const std::string& replay_id);
  // The newest first; with an empty run, of all.
  absl::StatusOr<std::vector<v1::ReplayInfo>> ListReplays(const std::string& run);

  // Boost-tuning of SSMs. An empty key as for Submit.
  absl::StatusOr<v1::DistillationJob> SubmitDistillation(const v1::DistillationSpec& spec,
                                                         const std::string& key = "");
  absl::StatusOr<v1::DistillationJob> GetDistillation(const std::string& id);
  absl::StatusOr<std::vector<v1::DistillationJob>> ListDistillations();
  absl::StatusOr<v1::DistillationJob> CancelDistillation(const std::string& id);
  absl::StatusOr<v1::DistillationJob> ResumeDistillation(const std::string& id);

  // Opens a session, lets `command` make one command from what the session has, carries that out
  // and closes the session. Errors of the command are returned.
  absl::StatusOr<v1::SessionReply> RunInSession(
      const v1::OpenSessionRequest& request,
      const std::function<v1::SessionCommand(const v1::OpenSessionReply&)>& command,
      Canceller* canceller = nullptr);

  // Plans.
  absl::StatusOr<v1::Plan> MakePlan(const v1::PlanRequest& request);
  absl::StatusOr<v1::ExplainReply> Explain(const v1::ExplainRequest& request);
  absl::StatusOr<std::string> ExportPlan(const std::string& job_id);
  absl::StatusOr<v1::Plan> ImportPlan(const v1::ImportRequest& request);
  absl::StatusOr<v1::DiffReply> DiffPlans(const v1::DiffRequest& request);
  absl::StatusOr<v1::ProfileReply> Profile();
  absl::StatusOr<v1::MachinesReply> Machines(const v1::MachinesRequest& request);

  // Artifacts. Files are sent in chunks of 1 MiB with a SHA-256, which the receiver checks.
  // `not_servable` (optional) is set to why a model cannot be served, or to nothing.
  absl::StatusOr<v1::Artifact> Upload(const v1::UploadHeader& header,
                                      const std::vector<LocalFile>& files,
                                      const TransferProgress& progress = nullptr,
                                      Canceller* canceller = nullptr,
                                      std::string* not_servable = nullptr);
  // Returns the artifact of this kind with these files that is the caller's owner's or nobody's,
  // and not temporary; empty if there is none.
  absl::StatusOr<std::string> FindUploaded(const std::vector<LocalFile>& files,
                                           v1::Artifact::Kind kind);
  // As FindUploaded; uploads the files, under a name derived from `stem`, the owner and their
  // content, if there is none. `uploaded` (optional) is set if they were sent. REQUIRES: at least
  // one file.
  absl::StatusOr<std::string> EnsureUploaded(const std::vector<LocalFile>& files,
                                             const std::string& stem, v1::Artifact::Kind kind,
                                             const TransferProgress& progress = nullptr,
                                             bool* uploaded = nullptr);
  // The same with the first file's name as the stem, and for one file.
  absl::StatusOr<std::string> EnsureUploaded(const std::vector<LocalFile>& files,
                                             v1::Artifact::Kind kind,
                                             const TransferProgress& progress = nullptr,
                                             bool* uploaded = nullptr);
  absl::StatusOr<std::string> EnsureUploaded(const std::string& path, v1::Artifact::Kind kind,
                                             const TransferProgress& progress = nullptr,
                                             bool* uploaded = nullptr);
  // Writes the artifact's files to `folder`, creating it. A file appears once it is complete.
  // Returns DataLoss if the content does not match the artifact's hash, and FailedPrecondition,
  // with the reason, if it cannot be written.
  absl::StatusOr<v1::Artifact> Download(const std::string& name, const std::string& folder,
                                        const TransferProgress& progress = nullptr);
  absl::StatusOr<std::vector<v1::Artifact>> ListArtifacts();
  // As ListJobs.
  absl::StatusOr<v1::ListArtifactsReply> ListArtifacts(v1::ListArtifactsRequest request,
                                                       int64_t limit);
  // Makes an artifact with quantized matrices from another one. Progress in bytes of weights.
  absl::StatusOr<v1::Artifact> Quantize(const v1::QuantizeRequest& request,
                                        const TransferProgress& progress = nullptr);
  // `force`: even if recorded runs need it to be replayed.
  absl::Status DeleteArtifact(const std::string& name, bool force = false);

  // Cluster.
  absl::StatusOr<v1::ClusterStatusReply> Status();
  absl::StatusOr<std::vector<v1::WorkerInfo>> ListWorkers();
  // Writes a copy of the coordinator's store to `path`, readable by its owner only, and returns its
  // size in bytes. The file appears once it is complete and its hash was compared. AlreadyExists if
  // there is a file.
  absl::StatusOr<int64_t> Backup(const std::string& path,
                                 const std::function<void(int64_t done)>& progress = nullptr);

  // Tokens, of an admin.
  absl::StatusOr<v1::CreateTokenReply> CreateToken(const v1::CreateTokenRequest& request);
  absl::StatusOr<std::vector<v1::AccessToken>> ListTokens();
  absl::StatusOr<v1::AccessToken> RevokeToken(const std::string& id, bool certificates = false);

  // Serving.
  absl::StatusOr<v1::ServedModel> Serve(const v1::ServeModelRequest& request);
  absl::Status Unserve(const std::string& name);
  absl::StatusOr<std::vector<v1::ServedModel>> ListServed();
  // Calls `reply` for each piece; returning false cancels the request. The only deadline is
  // `timeout`. Before that it calls `warning`, if the coordinator has one: what the answer need not
  // follow.
  absl::Status Generate(const v1::GenerateRequest& request,
                        const std::function<bool(const v1::GenerateReply&)>& reply,
                        absl::Duration timeout = absl::InfiniteDuration(),
                        const std::function<void(const std::string&)>& warning = nullptr);
  // Returns one vector per input, in order. The only deadline is `timeout`.
  absl::StatusOr<v1::EmbedReply> Embed(const v1::EmbedRequest& request,
                                       absl::Duration timeout = absl::InfiniteDuration());
  absl::StatusOr<bool> CancelGenerate(const std::string& request_id);
  // The inputs and outputs of a served model (Open Inference Protocol).
  absl::StatusOr<inference::ModelMetadataResponse> ModelMetadata(const std::string& model);
  // Computes outputs of a served graph. The only deadline is `timeout`.
  absl::StatusOr<inference::ModelInferResponse> ModelInfer(
      const inference::ModelInferRequest& request,
      absl::Duration timeout = absl::InfiniteDuration());
  // Verifies that speculation changes no answer of these models. No deadline; returning false from
  // `progress` ends it with Cancelled.
  absl::StatusOr<v1::LosslessReport> VerifyLossless(
      const v1::VerifyLosslessRequest& request,
      const std::function<bool(const v1::LosslessProgress&)>& progress,
      Canceller* canceller = nullptr);

  struct Impl;  // defined in client_impl.h

 private:
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Returns true if no coordinator answered. A coordinator may itself return Unavailable, for example
// for a model that waits for its workers.
bool IsUnreachable(const absl::Status& status);
// Makes an Unavailable status that a coordinator answered by gRPC or HTTP.
absl::Status AnsweredUnavailable(absl::string_view message);

// Makes a name of an artifact from the name of a file or folder: "king james.txt" gives
// "king-james", a folder keeps its dots.
std::string ArtifactStem(const std::string& path);

// Returns 128 random bits in hexadecimal.
std::string NewIdempotencyKey();

}  // namespace espalier
