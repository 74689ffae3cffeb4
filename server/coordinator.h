// The coordinator: store, worker registry, jobs, artifacts, metrics and their gRPC services in one
// object, which a test can run in its own process.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/net/caller.h"
#include "espalier/v1/models.pb.h"
#include "server/coordinator_options.h"

namespace grpc {
class Service;
}

namespace espalier {

class AccessControl;
class ArtifactStore;
class FolderCheckpointStore;
class CallInterceptor;
class JobRunner;
class JobStore;
class Metrics;
class OpRegistry;
class CalibratedPlanner;
class Rendezvous;
class WorkerRegistry;

// Call Start, then Stop or the destructor; not restartable. Other methods are thread-safe.
class Coordinator {
 public:
  // Opens the store under data_dir. Returns FailedPrecondition if another coordinator holds it or
  // its version is newer, and DataLoss if it is damaged.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Open(CoordinatorOptions options);
  ~Coordinator();

  // Adds the service of another component (Inference). Call before Start; not owned.
  void AddService(grpc::Service* service);
  // Starts to listen and resumes active jobs.
  absl::Status Start();
  // Refuses new calls, ends watches, stops attempts (their jobs continue after the next start) and
  // joins all threads. Idempotent.
  void Stop();

  // Makes gRPC's health service report NOT_SERVING. Calls are still answered.
  void Drain();

  // Returns Unavailable while the data folder, or the store or the artifacts in it, is not where it
  // was at the start: looked at once a second. gRPC's health service then reports NOT_SERVING.
  absl::Status DataFolderStatus() const;

  std::string grpc_address() const;  // with the bound port; valid after Start
  // The address on which processes of this machine reach it without TLS; empty if there is none.
  // Valid after Start.
  std::string loopback_address() const;
  // Further values that Cluster.Status reports.
  void SetHttpAddress(std::string address);
  // Returns why a model cannot be served, for the reply to its upload.
  void SetServableCheck(std::function<absl::Status(const v1::Artifact&)> check);
  void SetServedModels(std::function<std::vector<std::string>(const Caller&)> list);

  Metrics& metrics();
  ArtifactStore& artifacts();
  JobStore& store();
  WorkerRegistry& workers();
  const FolderCheckpointStore& data_folder() const;
  Rendezvous& rendezvous();
  JobRunner& jobs();
  CalibratedPlanner& planner();
  const OpRegistry& operators() const;
  // Decides who may call what; other components add their resources before Start.
  AccessControl& access();
  // Wraps every RPC: access, metrics, logging, errors.
  CallInterceptor& interceptor();

 private:
  struct Parts;
  explicit Coordinator(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace espalier
