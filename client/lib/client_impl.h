// Internals shared by the client's .cc files. Keeps gRPC out of client.h.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "client/lib/client.h"
#include "espalier/v1/cluster.grpc.pb.h"
#include "espalier/v1/distillation.grpc.pb.h"
#include "espalier/v1/inference.grpc.pb.h"
#include "espalier/v1/models.grpc.pb.h"
#include "espalier/v1/plan.grpc.pb.h"
#include "espalier/v1/recording.grpc.pb.h"
#include "espalier/v1/replay.grpc.pb.h"
#include "espalier/v1/session.grpc.pb.h"
#include "espalier/v1/training.grpc.pb.h"
#include "open_inference/open_inference.grpc.pb.h"

namespace espalier {

// Registers a call with a canceller (may be null) for its scope.
class CancellableCall {
 public:
  CancellableCall(Canceller* canceller, grpc::ClientContext* context);
  ~CancellableCall();

 private:
  Canceller* const canceller_;
};

struct Client::Impl {
  std::string address;
  ClientOptions options;
  std::shared_ptr<grpc::ChannelInterface> channel;
  std::unique_ptr<v1::Training::Stub> training;
  std::unique_ptr<v1::Recordings::Stub> recordings;
  std::unique_ptr<v1::Replay::Stub> replay;
  std::unique_ptr<v1::Planner::Stub> planner;
  std::unique_ptr<v1::Models::Stub> models;
  std::unique_ptr<v1::Cluster::Stub> cluster;
  std::unique_ptr<v1::Inference::Stub> inference;
  std::unique_ptr<v1::Distillation::Stub> distillation;
  std::unique_ptr<v1::Sessions::Stub> sessions;
  std::unique_ptr<inference::GRPCInferenceService::Stub> open_inference;

  // Sets the token and, unless infinite, the deadline.
  void Prepare(grpc::ClientContext* context, absl::Duration timeout) const;
  absl::Status FromGrpc(const grpc::Status& status) const;
};

}  // namespace espalier
