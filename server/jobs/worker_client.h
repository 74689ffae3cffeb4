// One worker as an attempt of a job, or a served model, sees it. The interface keeps gRPC out of
// them; tests put scripted workers behind it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "espalier/v1/worker.pb.h"
#include "base/net/api_keys.h"
#include "base/net/transport_security.h"

namespace espalier {

// The steps of one rank of a served model. All calls block and are of one thread; false once the
// stream is broken or the client was cancelled, and Finish says why.
class ServingStream {
 public:
  virtual ~ServingStream() = default;

  virtual bool Write(const v1::ServingStep& step) = 0;
  virtual bool Read(v1::ServingResult* result) = 0;
  // After Read gave false, or the client was cancelled; no other call follows.
  virtual absl::Status Finish() = 0;
};

// Thread-safe. All calls block. A worker that cannot be reached, or is lost during a call, gives
// Unavailable; after Cancel every call gives Cancelled.
class WorkerClient {
 public:
  virtual ~WorkerClient() = default;

  virtual absl::StatusOr<v1::LoadProgramReply> LoadProgram(
      const v1::LoadProgramRequest& request, absl::Duration timeout) = 0;
  // Calls `on_event` for each event; returns how the stream ended.
  virtual absl::Status Run(const v1::RunRequest& request,
                           const std::function<void(const v1::RunEvent&)>& on_event) = 0;
  virtual absl::StatusOr<v1::StartServingReply> StartServing(
      const v1::StartServingRequest& request, absl::Duration timeout) = 0;
  // Must not outlive the client.
  virtual std::unique_ptr<ServingStream> ServingSteps() = 0;
  virtual absl::Status Stop(const v1::StopRequest& request, absl::Duration timeout) = 0;
  virtual absl::StatusOr<v1::MeasureReply> Measure(const v1::MeasureRequest& request,
                                                      absl::Duration timeout) = 0;
  // Breaks off all calls but Stop, present and later.
  virtual void Cancel() = 0;
};

using WorkerDialer = std::function<std::unique_ptr<WorkerClient>(const std::string& address)>;

// Over gRPC; with TLS to workers off loopback if tls.calls(). Every call shows `key`; null: none.
WorkerDialer GrpcWorkerDialer(int message_limit_bytes, const ShownKey& key,
                              const TransportSecurity& tls = TransportSecurity());

}  // namespace espalier
