// The interface to one worker for a job's attempt or a served model. Keeps gRPC out of them, so
// tests can script workers.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/net/transport_security.h"
#include "espalier/v1/worker.pb.h"
#include "server/membership/worker_registry.h"

namespace espalier {

// The step stream of one rank of a served model. Calls block and are made by one thread. Read and
// Write return false once the stream is broken or the client was cancelled; Finish says why.
class ServingStream {
 public:
  virtual ~ServingStream() = default;

  virtual bool Write(const v1::ServingStep& step) = 0;
  virtual bool Read(v1::ServingResult* result) = 0;
  // Call once, last, after Read returned false or the client was cancelled.
  virtual absl::Status Finish() = 0;
};

// The stream of commands of one rank of a session; as ServingStream, but one thread may write while
// another reads.
class SessionRankStream {
 public:
  virtual ~SessionRankStream() = default;

  virtual bool Write(const v1::RankCommand& command) = 0;
  virtual bool Read(v1::RankResult* result) = 0;
  // Call once, last, after Read returned false or the client was cancelled.
  virtual absl::Status Finish() = 0;
};

// Thread-safe. All calls block. They return Unavailable if the worker cannot be reached or is lost
// during the call, and Cancelled after Cancel.
class WorkerClient {
 public:
  virtual ~WorkerClient() = default;

  virtual absl::StatusOr<v1::LoadProgramReply> LoadProgram(const v1::LoadProgramRequest& request,
                                                           absl::Duration timeout) = 0;
  // Calls `on_event` for each event; returns the stream's final status.
  virtual absl::Status Run(const v1::RunRequest& request,
                           const std::function<void(const v1::RunEvent&)>& on_event) = 0;
  virtual absl::StatusOr<v1::StartServingReply> StartServing(const v1::StartServingRequest& request,
                                                             absl::Duration timeout) = 0;
  // The stream must not outlive the client.
  virtual std::unique_ptr<ServingStream> ServingSteps() = 0;
  // The stream must not outlive the client.
  virtual std::unique_ptr<SessionRankStream> RunSession() = 0;
  virtual absl::StatusOr<v1::CheckpointAtReply> CheckpointAt(const v1::CheckpointAtRequest& request,
                                                             absl::Duration timeout) = 0;
  virtual absl::Status Stop(const v1::StopRequest& request, absl::Duration timeout) = 0;
  virtual absl::StatusOr<v1::MeasureReply> Measure(const v1::MeasureRequest& request,
                                                   absl::Duration timeout) = 0;
  virtual absl::StatusOr<v1::ProbeReply> Probe(const v1::ProbeRequest& request,
                                               absl::Duration timeout) = 0;
  // Cancels all current and future calls except Stop.
  virtual void Cancel() = 0;
};

using WorkerDialer = std::function<std::unique_ptr<WorkerClient>(const Member& worker)>;

// Dials over gRPC, with TLS to workers off loopback if tls.calls(). Every call carries the worker's
// own key, by which it knows its coordinator; API keys are never shown to workers.
WorkerDialer GrpcWorkerDialer(int message_limit_bytes,
                              const TransportSecurity& tls = TransportSecurity());

}  // namespace espalier
