// An in-memory coordinator for tests of clients: it records requests and returns configured
// replies. Listens on a free loopback port.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "espalier/v1/cluster.pb.h"
#include "espalier/v1/inference.pb.h"
#include "espalier/v1/models.pb.h"
#include "espalier/v1/plan.pb.h"
#include "espalier/v1/replay.pb.h"
#include "espalier/v1/training.pb.h"

namespace espalier {

// Configured replies and recorded requests. Set before calls, read after them.
struct FakeState {
  // Answers.
  v1::Job job;        // for Get, Cancel, Resume, and List if it has an id
  int more_jobs = 0;  // copies of it in List, "more-<n>", at most 10 on a page
  v1::JobState more_jobs_state = v1::JOB_STATE_UNSPECIFIED;  // of these; unspecified: as of it
  absl::Status update_status, delete_job_status;
  std::vector<v1::JobEvent> events;  // Watch
  int drop_watch_after = -1;         // ends the first watch after this many events; -1: never
  v1::ExplainReply explanation;
  v1::DryRunReply dry_run;
  v1::DiffReply difference;
  v1::MachinesReply machines;
  std::string exported;
  v1::ClusterStatusReply status;
  v1::ServedModel served;
  absl::Status submit_status;
  absl::Status serve_status, delete_status;   // of Serve and of the deletion of artifacts
  std::vector<v1::GenerateReply> replies;     // without speculation
  std::vector<v1::GenerateReply> speculated;  // with SPECULATION_ON
  std::string warning;                        // of Generate
  double answer_seconds = 0;                  // duration of Generate
  // Generate waits until this many calls are running; DEADLINE_EXCEEDED after 20 s.
  int concurrent_generates = 0;
  std::vector<v1::LosslessProgress> proof_progress;
  v1::LosslessReport proof;
  std::vector<v1::QuantizeProgress> packing;
  v1::ProfileReply profile;
  std::vector<v1::HistoryRow> history;  // of each Query
  absl::Status history_status;          // after them
  int unavailable = 0;                  // this many Get, Generate and Query calls fail first
  std::string unavailable_details;
  // The work is done, but answered only after the caller has gone.
  bool uploads_hang = false, proofs_hang = false, dry_runs_hang = false;
  bool corrupt_downloads = false;
  std::string owner, upload_salt;  // of uploads and lists

  // Seen.
  std::vector<v1::SubmitRequest> submits;
  std::vector<v1::DryRunRequest> dry_runs;
  std::vector<v1::ListJobsRequest> job_lists;
  std::vector<v1::ListArtifactsRequest> artifact_lists;
  std::vector<v1::UpdateJobRequest> updates;
  std::vector<std::string> deleted_jobs;
  std::vector<v1::WatchRequest> watches;
  std::vector<v1::ExplainRequest> explains;
  std::vector<v1::QueryHistoryRequest> queries;
  std::vector<v1::ReplayInfo> replays;
  std::vector<v1::DiffRequest> diffs;
  std::vector<v1::GenerateRequest> generates;
  std::vector<v1::EmbedRequest> embeds;  // answered with (0.6, 0.8), then (0.6, -0.8)
  std::vector<v1::ServeModelRequest> serves;
  std::vector<v1::VerifyLosslessRequest> verifies;
  std::vector<v1::QuantizeRequest> quantizes;
  std::vector<std::string> deleted;  // artifacts
  std::vector<std::string> forced;   // of these, with `force`
  std::vector<std::string> authorizations;
  int uploads = 0;
  int broken_off = 0;  // Generate and Watch calls ended by their callers
  // Artifact -> file -> content.
  std::map<std::string, std::map<std::string, std::string>> files;
  std::map<std::string, v1::Artifact> artifacts;
};

class FakeCoordinator {
 public:
  // Access to the state, locked until the end of the expression: services run on other threads.
  class Locked {
   public:
    Locked(FakeState* state, std::recursive_mutex* mutex) : state_(state), lock_(*mutex) {}
    FakeState* operator->() const { return state_; }
    FakeState& operator*() const { return *state_; }

   private:
    FakeState* state_;
    std::unique_lock<std::recursive_mutex> lock_;
  };

  FakeCoordinator();
  ~FakeCoordinator();
  std::string address() const;
  Locked state();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace espalier
