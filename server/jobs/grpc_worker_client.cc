#include <grpcpp/grpcpp.h>

#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/net/authenticated_channel.h"
#include "base/net/grpc_status.h"
#include "espalier/v1/worker.grpc.pb.h"
#include "server/jobs/worker_client.h"

namespace espalier {
namespace {

class GrpcWorkerClient : public WorkerClient {
 public:
  explicit GrpcWorkerClient(std::shared_ptr<grpc::Channel> channel)
      : stub_(v1::Worker::NewStub(channel)) {}

  absl::StatusOr<v1::LoadProgramReply> LoadProgram(const v1::LoadProgramRequest& request,
                                                   absl::Duration timeout) override {
    Call call(this, timeout);
    v1::LoadProgramReply reply;
    absl::Status status = FromGrpc(stub_->LoadProgram(&call.context, request, &reply));
    if (!status.ok()) return status;
    return reply;
  }

  absl::Status Run(const v1::RunRequest& request,
                   const std::function<void(const v1::RunEvent&)>& on_event) override {
    Call call(this, absl::InfiniteDuration());
    auto stream = stub_->Run(&call.context, request);
    v1::RunEvent event;
    while (stream->Read(&event)) on_event(event);
    return FromGrpc(stream->Finish());
  }

  absl::StatusOr<v1::StartServingReply> StartServing(const v1::StartServingRequest& request,
                                                     absl::Duration timeout) override {
    Call call(this, timeout);
    v1::StartServingReply reply;
    absl::Status status = FromGrpc(stub_->StartServing(&call.context, request, &reply));
    if (!status.ok()) return status;
    return reply;
  }

  std::unique_ptr<ServingStream> ServingSteps() override { return std::make_unique<Steps>(this); }

  std::unique_ptr<SessionRankStream> RunSession() override {
    return std::make_unique<Commands>(this);
  }

  absl::StatusOr<v1::CheckpointAtReply> CheckpointAt(const v1::CheckpointAtRequest& request,
                                                     absl::Duration timeout) override {
    Call call(this, timeout);
    v1::CheckpointAtReply reply;
    absl::Status status = FromGrpc(stub_->CheckpointAt(&call.context, request, &reply));
    if (!status.ok()) return status;
    return reply;
  }

  absl::Status Stop(const v1::StopRequest& request, absl::Duration timeout) override {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    v1::StopReply reply;
    return FromGrpc(stub_->Stop(&context, request, &reply));
  }

  absl::StatusOr<v1::MeasureReply> Measure(const v1::MeasureRequest& request,
                                           absl::Duration timeout) override {
    Call call(this, timeout);
    v1::MeasureReply reply;
    absl::Status status = FromGrpc(stub_->Measure(&call.context, request, &reply));
    if (!status.ok()) return status;
    return reply;
  }

  absl::StatusOr<v1::ProbeReply> Probe(const v1::ProbeRequest& request,
                                       absl::Duration timeout) override {
    Call call(this, timeout);
    v1::ProbeReply reply;
    absl::Status status = FromGrpc(stub_->Probe(&call.context, request, &reply));
    if (!status.ok()) return status;
    return reply;
  }

  void Cancel() override {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    for (grpc::ClientContext* context : contexts_) context->TryCancel();
  }

 private:
  // A call in progress; registered so that Cancel can end it.
  struct Call {
    Call(GrpcWorkerClient* owner, absl::Duration timeout) : owner(owner) {
      if (timeout != absl::InfiniteDuration()) {
        context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
      }
      absl::MutexLock lock(&owner->mutex_);
      owner->contexts_.insert(&context);
      if (owner->cancelled_) context.TryCancel();
    }
    ~Call() {
      absl::MutexLock lock(&owner->mutex_);
      owner->contexts_.erase(&context);
    }
    GrpcWorkerClient* owner;
    grpc::ClientContext context;
  };

  struct Steps : ServingStream {
    explicit Steps(GrpcWorkerClient* owner)
        : call(owner, absl::InfiniteDuration()),
          stream(owner->stub_->ServingSteps(&call.context)) {}
    bool Write(const v1::ServingStep& step) override { return stream->Write(step); }
    bool Read(v1::ServingResult* result) override { return stream->Read(result); }
    absl::Status Finish() override {
      // gRPC requires pending messages to be read before Finish.
      for (v1::ServingResult rest; stream->Read(&rest);) continue;
      return FromGrpc(stream->Finish());
    }

    Call call;
    std::unique_ptr<grpc::ClientReaderWriter<v1::ServingStep, v1::ServingResult>> stream;
  };

  struct Commands : SessionRankStream {
    explicit Commands(GrpcWorkerClient* owner)
        : call(owner, absl::InfiniteDuration()), stream(owner->stub_->RunSession(&call.context)) {}
    bool Write(const v1::RankCommand& command) override { return stream->Write(command); }
    bool Read(v1::RankResult* result) override { return stream->Read(result); }
    absl::Status Finish() override {
      for (v1::RankResult rest; stream->Read(&rest);) continue;
      return FromGrpc(stream->Finish());
    }

    Call call;
    std::unique_ptr<grpc::ClientReaderWriter<v1::RankCommand, v1::RankResult>> stream;
  };

  std::unique_ptr<v1::Worker::Stub> stub_;
  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<grpc::ClientContext*> contexts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

WorkerDialer GrpcWorkerDialer(int message_limit_bytes, const TransportSecurity& tls) {
  return [message_limit_bytes, tls,
          secure = CallersCredentials(tls)](const Member& worker) -> std::unique_ptr<WorkerClient> {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(message_limit_bytes);
    arguments.SetMaxSendMessageSize(message_limit_bytes);
    // A channel of its own: connections must not outlive the attempt, nor be shared with a previous
    // worker at the same address.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    return std::make_unique<GrpcWorkerClient>(KeyedChannel(
        worker.address, arguments, [key = worker.call_key] { return key; },
        IsLoopback(worker.address) ? nullptr : secure));
  };
}

}  // namespace espalier
