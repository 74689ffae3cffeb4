// A coordinator in memory for tests of clients: it keeps what it is sent and answers what it is
// told. Listens on a free port of the loopback.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "espalier/v1/cluster.pb.h"
#include "espalier/v1/inference.pb.h"
#include "espalier/v1/models.pb.h"
#include "espalier/v1/plan.pb.h"
#include "espalier/v1/training.pb.h"

namespace espalier {

// What the services answer and what they have seen. Set before calls, read after them.
struct FakeState {
  // Answers.
  v1::Job job;                       // Get, Cancel, Resume; List returns it if it has an id
  std::vector<v1::JobEvent> events;  // Watch
  int drop_watch_after = -1;            // breaks the first watch off after so many events
  v1::ExplainReply explanation;
  v1::DryRunReply dry_run;
  v1::DiffReply difference;
  v1::MachinesReply machines;
  std::string exported;
  v1::ClusterStatusReply status;
  v1::ServedModel served;
  std::vector<v1::GenerateReply> replies;     // without speculation, or by default
  std::vector<v1::GenerateReply> speculated;  // with SPECULATION_ON
  double answer_seconds = 0;                     // that Generate takes
  // Generate waits until so many calls of it are there at once; DEADLINE_EXCEEDED after 20 s.
  int together = 0;
  std::vector<v1::LosslessProgress> proof_progress;
  v1::LosslessReport proof;
  std::vector<v1::QuantizeProgress> packing;
  v1::ProfileReply profile;
  int unavailable = 0;  // so many Get and Generate calls fail first
  std::string unavailable_details;
  // Done, but answered only once the caller has gone.
  bool uploads_hang = false, proofs_hang = false;
  bool corrupt_downloads = false;

  // Seen.
  std::vector<v1::SubmitRequest> submits;
  std::vector<v1::WatchRequest> watches;
  std::vector<v1::ExplainRequest> explains;
  std::vector<v1::DiffRequest> diffs;
  std::vector<v1::GenerateRequest> generates;
  std::vector<v1::EmbedRequest> embeds;  // answered with (0.6, 0.8), then (0.6, -0.8)
  std::vector<v1::ServeModelRequest> serves;
  std::vector<v1::VerifyLosslessRequest> verifies;
  std::vector<v1::QuantizeRequest> quantizes;
  std::vector<std::string> deleted;  // artifacts
  std::vector<std::string> authorizations;
  int uploads = 0;
  int broken_off = 0;  // Generate and Watch calls that their callers ended
  // Artifact -> file -> content.
  std::map<std::string, std::map<std::string, std::string>> files;
  std::map<std::string, v1::Artifact> artifacts;
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
