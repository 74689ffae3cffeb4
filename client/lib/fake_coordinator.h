// A coordinator in memory for tests of clients: it keeps what it is sent and answers what it is
// told. Listens on a free port of the loopback.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "proto/cluster.pb.h"
#include "proto/inference.pb.h"
#include "proto/models.pb.h"
#include "proto/plan.pb.h"
#include "proto/training.pb.h"

namespace espalier {

// What the services answer and what they have seen. Set before calls, read after them.
struct FakeState {
  // Answers.
  proto::Job job;                       // Get, Cancel, Resume; List returns it if it has an id
  std::vector<proto::JobEvent> events;  // Watch
  int drop_watch_after = -1;            // breaks the first watch off after so many events
  proto::ExplainReply explanation;
  proto::DryRunReply dry_run;
  proto::DiffReply difference;
  proto::MachinesReply machines;
  std::string exported;
  proto::ClusterStatusReply status;
  proto::ServedModel served;
  std::vector<proto::GenerateReply> replies;     // without speculation, or by default
  std::vector<proto::GenerateReply> speculated;  // with SPECULATION_ON
  double answer_seconds = 0;                     // that Generate takes
  // Generate waits until so many calls of it are there at once; DEADLINE_EXCEEDED after 20 s.
  int together = 0;
  std::vector<proto::LosslessProgress> proof_progress;
  proto::LosslessReport proof;
  std::vector<proto::QuantizeProgress> packing;
  proto::ProfileReply profile;
  int unavailable = 0;  // so many Get and Generate calls fail first
  std::string unavailable_details;
  // Done, but answered only once the caller has gone.
  bool uploads_hang = false, proofs_hang = false;
  bool corrupt_downloads = false;

  // Seen.
  std::vector<proto::SubmitRequest> submits;
  std::vector<proto::WatchRequest> watches;
  std::vector<proto::ExplainRequest> explains;
  std::vector<proto::DiffRequest> diffs;
  std::vector<proto::GenerateRequest> generates;
  std::vector<proto::EmbedRequest> embeds;  // answered with (0.6, 0.8), then (0.6, -0.8)
  std::vector<proto::ServeModelRequest> serves;
  std::vector<proto::VerifyLosslessRequest> verifies;
  std::vector<proto::QuantizeRequest> quantizes;
  std::vector<std::string> deleted;  // artifacts
  std::vector<std::string> authorizations;
  int uploads = 0;
  int broken_off = 0;  // Generate and Watch calls that their callers ended
  // Artifact -> file -> content.
  std::map<std::string, std::map<std::string, std::string>> files;
  std::map<std::string, proto::Artifact> artifacts;
};

class FakeCoordinator {
 public:
  // The state, locked until the end of the expression: services run on threads of their own.
  class Locked {
   public:
    Locked(FakeState* state, std::recursive_mutex* mutex) : state_(state), lock_(*mutex) {}
    FakeState* operator->() const { return state_; }

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
