#include "server/inference/inference_service.h"

#include <grpcpp/grpcpp.h>

#include <deque>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/inference.grpc.pb.h"
#include "server/inference/model_server.h"
#include "server/services/guard.h"

namespace espalier {
namespace {

constexpr int kDefaultMaxTokens = 16;
// How often a stream that waits for tokens looks whether its client is still there.
constexpr absl::Duration kPoll = absl::Milliseconds(50);

// Events of one request on their way from the engine's thread to the stream's.
class Mailbox {
 public:
  void Put(const RequestEvent& event) {
    absl::MutexLock lock(&mutex_);
    events_.push_back(event);
  }
  bool Take(RequestEvent* event) {
    absl::MutexLock lock(&mutex_);
    const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !events_.empty(); };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&ready), kPoll)) return false;
    *event = std::move(events_.front());
    events_.pop_front();
    return true;
  }

 private:
  absl::Mutex mutex_;
  std::deque<RequestEvent> events_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<RequestOptions> OptionsOf(const proto::GenerateRequest& request,
                                         const LoadedModel& model, ModelServer* models) {
  RequestOptions options;
  options.max_tokens = request.max_tokens() == 0 ? kDefaultMaxTokens : request.max_tokens();
  options.stop = {request.stop().begin(), request.stop().end()};
  options.ignore_eos = request.ignore_eos();
  if (request.speculation() == proto::SPECULATION_ON && !model.host->has_ssms()) {
    return absl::FailedPreconditionError(
        absl::StrCat("field 'speculation' is ON, but model '", request.model(),
                     "' is served without SSMs; serve it with some, or leave the field out"));
  }
  options.speculate = request.speculation() != proto::SPECULATION_OFF;
  options.sampling.temperature = request.sampling().temperature();
  options.sampling.top_p = request.sampling().top_p() == 0 ? 1 : request.sampling().top_p();
  options.sampling.top_k = request.sampling().top_k();
  options.sampling.seed =
      request.sampling().has_seed() ? request.sampling().seed() : models->NextSeed();
  return options;
}

void FillUsage(const Usage& usage, proto::Usage* out) {
  out->set_prompt_tokens(usage.prompt_tokens);
  out->set_completion_tokens(usage.completion_tokens);
  out->set_drafted_tokens(usage.drafted_tokens);
  out->set_accepted_tokens(usage.accepted_tokens);
  out->set_verification_steps(usage.verification_steps);
  out->set_seconds_to_first_token(usage.seconds_to_first_token);
  out->set_seconds(usage.seconds);
}

class InferenceService final : public proto::Inference::Service {
 public:
  InferenceService(ModelServer* models, Guard* guard, ServingMetrics* metrics)
      : models_(models), guard_(guard), metrics_(metrics) {}

  grpc::Status Generate(grpc::ServerContext* context, const proto::GenerateRequest* request,
                        grpc::ServerWriter<proto::GenerateReply>* writer) override {
    return guard_->Answer(context, "Inference/Generate",
                          [&] { return DoGenerate(context, *request, writer); });
  }

  grpc::Status Cancel(grpc::ServerContext* context, const proto::CancelGenerateRequest* request,
                      proto::CancelGenerateReply* reply) override {
    return guard_->Answer(context, "Inference/Cancel", [&] {
      absl::MutexLock lock(&mutex_);
      auto it = open_.find(request->request_id());
      reply->set_found(it != open_.end());
      if (it != open_.end()) it->second.model->host->Cancel(it->second.ticket);
      return absl::OkStatus();
    });
  }

  grpc::Status Serve(grpc::ServerContext* context, const proto::ServeModelRequest* request,
                     proto::ServeModelReply* reply) override {
    return guard_->Answer(context, "Inference/Serve", [&] {
      absl::StatusOr<proto::ServedModel> model = models_->Serve(*request);
      if (model.ok()) *reply->mutable_model() = *std::move(model);
      return model.status();
    });
  }

  grpc::Status Unserve(grpc::ServerContext* context, const proto::UnserveModelRequest* request,
                       proto::UnserveModelReply*) override {
    return guard_->Answer(context, "Inference/Unserve",
                          [&] { return models_->Unserve(request->name()); });
  }

  grpc::Status ListServed(grpc::ServerContext* context, const proto::ListServedRequest*,
                          proto::ListServedReply* reply) override {
    return guard_->Answer(context, "Inference/ListServed", [&] {
      for (const proto::ServedModel& model : models_->List()) *reply->add_models() = model;
      return absl::OkStatus();
    });
  }

 private:
  struct Open {
    std::shared_ptr<LoadedModel> model;
    EngineHost::Ticket ticket;
  };

  absl::StatusOr<std::string> Register(const std::string& wanted,
                                       std::shared_ptr<LoadedModel> model,
                                       EngineHost::Ticket ticket) {
    absl::MutexLock lock(&mutex_);
    const std::string id = wanted.empty() ? absl::StrCat("gen-", ++counter_) : wanted;
    if (!open_.emplace(id, Open{std::move(model), ticket}).second) {
      return absl::AlreadyExistsError(
          absl::StrCat("field 'request_id': a request '", id, "' is running"));
    }
    return id;
  }

  absl::Status DoGenerate(grpc::ServerContext* context, const proto::GenerateRequest& request,
                          grpc::ServerWriter<proto::GenerateReply>* writer) {
    absl::StatusOr<std::shared_ptr<LoadedModel>> model = models_->Find(request.model());
    if (!model.ok()) return model.status();
    absl::StatusOr<RequestOptions> options = OptionsOf(request, **model, models_);
    if (!options.ok()) return options.status();
    absl::StatusOr<std::vector<int>> prompt =
        std::vector<int>(request.tokens().ids().begin(), request.tokens().ids().end());
    if (request.prompt_case() != proto::GenerateRequest::kTokens) {
      prompt = (*model)->host->tokenizer().TryEncode(request.text(),
                                                     {.add_special = true, .parse_special = true});
      if (!prompt.ok()) return prompt.status();
    }
    auto mailbox = std::make_shared<Mailbox>();
    absl::StatusOr<EngineHost::Ticket> ticket =
        (*model)->host->Submit(*std::move(prompt), *std::move(options),
                               [mailbox](const RequestEvent& event) { mailbox->Put(event); });
    if (!ticket.ok()) return ticket.status();
    absl::StatusOr<std::string> id = Register(request.request_id(), *model, *ticket);
    if (!id.ok()) {
      (*model)->host->Cancel(*ticket);
      return id.status();
    }
    const absl::Status status = Stream(context, **model, *ticket, *id, mailbox.get(), writer);
    absl::MutexLock lock(&mutex_);
    open_.erase(*id);
    return status;
  }

  absl::Status Stream(grpc::ServerContext* context, LoadedModel& model, EngineHost::Ticket ticket,
                      const std::string& id, Mailbox* mailbox,
                      grpc::ServerWriter<proto::GenerateReply>* writer) {
    bool cancelled = false;
    for (bool first = true;;) {
      if (!cancelled && context->IsCancelled()) {
        model.host->Cancel(ticket);
        cancelled = true;
      }
      RequestEvent event;
      if (!mailbox->Take(&event)) continue;
      if (event.finished && metrics_ != nullptr) {
        metrics_->RequestFinished(model.description.name(), event);
      }
      if (event.reason == FinishReason::kError) return event.error;
      proto::GenerateReply reply;
      if (first) reply.set_request_id(id);
      first = false;
      reply.set_text(event.text);
      reply.mutable_tokens()->Assign(event.tokens.begin(), event.tokens.end());
      if (event.finished) {
        reply.set_finish_reason(Name(event.reason));
        FillUsage(event.usage, reply.mutable_usage());
      }
      if (!cancelled && !writer->Write(reply)) {
        model.host->Cancel(ticket);
        cancelled = true;
      }
      if (event.finished) return absl::OkStatus();
    }
  }

  ModelServer* const models_;
  Guard* const guard_;
  ServingMetrics* const metrics_;
  absl::Mutex mutex_;
  std::map<std::string, Open> open_ ABSL_GUARDED_BY(mutex_);
  int64_t counter_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

std::unique_ptr<grpc::Service> NewInferenceService(ModelServer* models, Guard* guard,
                                                   ServingMetrics* metrics) {
  return std::make_unique<InferenceService>(models, guard, metrics);
}

}  // namespace espalier
