#include <grpcpp/grpcpp.h>

#include "espalier/v1/training.grpc.pb.h"
#include "server/jobs/job_runner.h"
#include "server/jobs/pushed_examples.h"
#include "server/services/call_interceptor.h"
#include "server/services/services.h"
#include "server/store/idempotency.h"

namespace espalier {
namespace {

using grpc::ServerContext;

class TrainingService : public v1::Training::Service {
 public:
  TrainingService(CallInterceptor* interceptor, JobRunner* jobs)
      : interceptor_(*interceptor), jobs_(*jobs) {}

  grpc::Status Submit(ServerContext* context, const v1::SubmitRequest* request,
                      v1::SubmitReply* reply) override {
    return interceptor_.Handle(context, "Training/Submit", request, [&](const Caller& caller) {
      return jobs_.Submit(*request, caller, reply);
    });
  }
  grpc::Status DryRun(ServerContext* context, const v1::DryRunRequest* request,
                      v1::DryRunReply* reply) override {
    return interceptor_.Handle(context, "Training/DryRun", request,
                               [&](const Caller&) { return jobs_.DryRun(*request, reply); });
  }
  grpc::Status Watch(ServerContext* context, const v1::WatchRequest* request,
                     grpc::ServerWriter<v1::JobEvent>* writer) override {
    return interceptor_.Handle(context, "Training/Watch", request, [&](const Caller&) {
      return jobs_.Watch(
          *request,
          [&](const v1::JobEvent& event) {
            const StreamIdleTimeout::Wait wait(interceptor_.idle(), context);
            return writer->Write(event);
          },
          [&] { return context->IsCancelled(); });  // also true after the deadline
    });
  }
  grpc::Status Get(ServerContext* context, const v1::GetJobRequest* request,
                   v1::GetJobReply* reply) override {
    return interceptor_.Handle(context, "Training/Get", request,
                               [&](const Caller&) { return jobs_.Get(*request, reply); });
  }
  grpc::Status List(ServerContext* context, const v1::ListJobsRequest* request,
                    v1::ListJobsReply* reply) override {
    return interceptor_.Handle(context, "Training/List", request, [&](const Caller& caller) {
      return jobs_.List(*request, caller, reply);
    });
  }
  grpc::Status Cancel(ServerContext* context, const v1::CancelRequest* request,
                      v1::CancelReply* reply) override {
    return interceptor_.Handle(
        context, "Training/Cancel", request,
        [&](const Caller& caller) {
          return jobs_.Cancel(WithOwnersKey(*request, caller.owner), reply);
        },
        CallKind::kShort);
  }
  grpc::Status Resume(ServerContext* context, const v1::ResumeRequest* request,
                      v1::ResumeReply* reply) override {
    return interceptor_.Handle(context, "Training/Resume", request, [&](const Caller& caller) {
      return jobs_.Resume(WithOwnersKey(*request, caller.owner), reply);
    });
  }
  grpc::Status Checkpoint(ServerContext* context, const v1::CheckpointRequest* request,
                          v1::CheckpointReply* reply) override {
    return interceptor_.Handle(context, "Training/Checkpoint", request, [&](const Caller&) {
      return jobs_.Checkpoint(
          *request, [&] { return context->IsCancelled(); }, reply);
    });
  }
  grpc::Status Update(ServerContext* context, const v1::UpdateJobRequest* request,
                      v1::UpdateJobReply* reply) override {
    return interceptor_.Handle(context, "Training/Update", request, [&](const Caller& caller) {
      return jobs_.Update(WithOwnersKey(*request, caller.owner), caller, reply);
    });
  }
  grpc::Status Delete(ServerContext* context, const v1::DeleteJobRequest* request,
                      v1::DeleteJobReply* reply) override {
    return interceptor_.Handle(context, "Training/Delete", request, [&](const Caller& caller) {
      return jobs_.Delete(WithOwnersKey(*request, caller.owner), reply);
    });
  }
  grpc::Status PushExamples(ServerContext* context,
                            grpc::ServerReader<v1::PushExamplesRequest>* reader,
                            v1::PushExamplesReply* reply) override {
    return interceptor_.Handle(
        context, "Training/PushExamples", nullptr,
        [&](const Caller& caller) { return Receive(context, caller, reader, reply); });
  }

 private:
  using PushReader = grpc::ServerReader<v1::PushExamplesRequest>;

  bool Read(ServerContext* context, PushReader* reader, v1::PushExamplesRequest* message) {
    const StreamIdleTimeout::Wait wait(interceptor_.idle(), context);
    return reader->Read(message);
  }

  absl::Status Receive(ServerContext* context, const Caller& caller, PushReader* reader,
                       v1::PushExamplesReply* reply) {
    v1::PushExamplesRequest message;
    if (!Read(context, reader, &message)) {
      return absl::InvalidArgumentError("job_id: the call ended before its first message");
    }
    absl::Status status =
        interceptor_.access().CheckRequest("Training/PushExamples", caller, message);
    const std::string job_id = message.job_id();
    if (status.ok()) status = jobs_.CheckTakesExamples(job_id);
    PushedExamples examples;
    do {
      if (status.ok()) status = examples.Add(std::move(message));
      if (!status.ok()) return status;
      message.Clear();
    } while (Read(context, reader, &message));
    // A broken call and an unreadable message look like the end of a complete one. A further read
    // after the end returns nothing, and by then IsCancelled is reliable.
    const bool more = Read(context, reader, &message);
    if (context->IsCancelled())
      return absl::CancelledError("the call broke off; nothing was taken");
    if (more) {
      return absl::InvalidArgumentError(
          "a message of the call could not be read; nothing of it was taken");
    }
    return jobs_.PushExamples(
        job_id, std::move(examples), [&] { return context->IsCancelled(); }, reply);
  }

  CallInterceptor& interceptor_;
  JobRunner& jobs_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeTrainingService(CallInterceptor* interceptor, JobRunner* jobs) {
  return std::make_unique<TrainingService>(interceptor, jobs);
}

}  // namespace espalier
