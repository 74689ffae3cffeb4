#include "server/inference/services/inference_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <compare>
#include <deque>
#include <map>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/net/authenticated_channel.h"
#include "base/random_id.h"
#include "espalier/v1/inference.grpc.pb.h"
#include "server/inference/models/model_server.h"
#include "server/inference/requests/embedding.h"
#include "server/inference/requests/generation.h"
#include "server/inference/requests/schema_warnings.h"
#include "server/inference/requests/tokenization.h"
#include "server/inference/services/lossless_verification.h"
#include "server/services/call_interceptor.h"
#include "server/store/idempotency.h"

namespace espalier {
namespace {

// Poll interval for a client's disconnect while a stream waits for tokens.
constexpr absl::Duration kDisconnectPollInterval = absl::Milliseconds(50);

// Minimum interval between progress messages within one check.
constexpr absl::Duration kProgressInterval = absl::Milliseconds(100);

constexpr size_t kMaxRequestId = 256;  // bytes

absl::Status Gone() { return absl::CancelledError("the client has gone"); }

// Queue of replies from the engine's thread to the stream's.
class ReplyQueue {
 public:
  struct Item {
    absl::StatusOr<v1::GenerateReply> reply;
    bool last = false;
  };

  void Put(const absl::StatusOr<v1::GenerateReply>& reply, bool last) {
    absl::MutexLock lock(&mutex_);
    queue_.push_back({reply, last});
  }
  bool Take(Item* item) {
    absl::MutexLock lock(&mutex_);
    const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !queue_.empty(); };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&ready), kDisconnectPollInterval)) return false;
    *item = std::move(queue_.front());
    queue_.pop_front();
    return true;
  }

 private:
  absl::Mutex mutex_;
  std::deque<Item> queue_ ABSL_GUARDED_BY(mutex_);
};

// Seconds to the call's deadline; 0: none.
double SecondsLeft(const grpc::ServerContext& context) {
  const absl::Duration left = absl::FromChrono(context.deadline()) - absl::Now();
  return left > absl::Hours(24) ? 0 : std::max(0.001, absl::ToDoubleSeconds(left));
}

// Applies the call's deadline to the request, so that its slots are freed even if nobody polls.
template <typename Request>
void LimitTime(const grpc::ServerContext& context, Request* request) {
  const double seconds = SecondsLeft(context);
  if (seconds > 0 && (request->timeout_seconds() <= 0 || request->timeout_seconds() > seconds)) {
    request->set_timeout_seconds(seconds);
  }
}

// Puts the adapter that the model's name resolved to into the request.
absl::Status SetAdapter(const std::string& named, v1::GenerateRequest* request) {
  if (named.empty() || request->adapter() == named) return absl::OkStatus();
  if (!request->adapter().empty()) {
    return absl::InvalidArgumentError(absl::StrCat("field 'model' names the adapter '", named,
                                                   "', field 'adapter' another one, '",
                                                   request->adapter(), "'"));
  }
  request->set_adapter(named);
  return absl::OkStatus();
}

class InferenceService final : public v1::Inference::Service {
 public:
  InferenceService(ModelServer* models, CallInterceptor* interceptor, ServingMetrics* metrics)
      : models_(models), interceptor_(interceptor), metrics_(metrics) {}

  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateReply>* writer) override {
    return interceptor_->Handle(context, "Inference/Generate", request, [&](const Caller& caller) {
      return DoGenerate(context, caller, *request, writer);
    });
  }

  grpc::Status Embed(grpc::ServerContext* context, const v1::EmbedRequest* request,
                     v1::EmbedReply* reply) override {
    return interceptor_->Handle(context, "Inference/Embed", request, [&](const Caller& caller) {
      return DoEmbed(context, caller, *request, reply);
    });
  }

  grpc::Status Cancel(grpc::ServerContext* context, const v1::CancelGenerateRequest* request,
                      v1::CancelGenerateReply* reply) override {
    const auto cancel = [&](const Caller& caller) {
      const std::string& id = request->request_id();
      absl::MutexLock lock(&mutex_);
      const auto own = open_.find({id, caller.owner});
      if (own != open_.end()) {
        own->second->Cancel();
        reply->set_found(true);
        return absl::OkStatus();
      }
      // Of several owners' that chose the same ID, an admin means any.
      for (auto it = open_.lower_bound({id, ""}); it != open_.end() && it->first.id == id; ++it) {
        if (!caller.MayChange(it->first.owner)) continue;
        it->second->Cancel();
        reply->set_found(true);
      }
      return absl::OkStatus();
    };
    return interceptor_->Handle(context, "Inference/Cancel", request, cancel, CallKind::kShort);
  }

  grpc::Status Tokenize(grpc::ServerContext* context, const v1::TokenizeRequest* request,
                        v1::TokenizeReply* reply) override {
    return interceptor_->Handle(context, "Inference/Tokenize", request, [&](const Caller& caller) {
      absl::StatusOr<v1::TokenizeReply> tokens = espalier::Tokenize(*request, caller, *models_);
      if (tokens.ok()) *reply = *std::move(tokens);
      return tokens.status();
    });
  }

  grpc::Status Detokenize(grpc::ServerContext* context, const v1::DetokenizeRequest* request,
                          v1::DetokenizeReply* reply) override {
    return interceptor_->Handle(context, "Inference/Detokenize", request,
                                [&](const Caller& caller) {
                                  absl::StatusOr<v1::DetokenizeReply> text =
                                      espalier::Detokenize(*request, caller, *models_);
                                  if (text.ok()) *reply = *std::move(text);
                                  return text.status();
                                });
  }

  grpc::Status Serve(grpc::ServerContext* context, const v1::ServeModelRequest* request,
                     v1::ServeModelReply* reply) override {
    return interceptor_->Handle(context, "Inference/Serve", request, [&](const Caller& caller) {
      absl::StatusOr<v1::ServedModel> model = models_->Serve(*request, caller.owner);
      if (model.ok()) *reply->mutable_model() = *std::move(model);
      return model.status();
    });
  }

  grpc::Status Unserve(grpc::ServerContext* context, const v1::UnserveModelRequest* request,
                       v1::UnserveModelReply*) override {
    return interceptor_->Handle(context, "Inference/Unserve", request, [&](const Caller& caller) {
      return models_->Unserve(request->name(), OwnersKey(caller.owner, request->idempotency_key()));
    });
  }

  grpc::Status ListServed(grpc::ServerContext* context, const v1::ListServedRequest* request,
                          v1::ListServedReply* reply) override {
    return interceptor_->Handle(context, "Inference/ListServed", request,
                                [&](const Caller& caller) {
                                  for (const v1::ServedModel& model : models_->ListWithFailed()) {
                                    *reply->add_models() = model;
                                  }
                                  KeepUsable(caller, reply->mutable_models());
                                  return absl::OkStatus();
                                });
  }

  grpc::Status VerifyLossless(grpc::ServerContext* context,
                              const v1::VerifyLosslessRequest* request,
                              grpc::ServerWriter<v1::VerifyLosslessReply>* writer) override {
    return interceptor_->Handle(context, "Inference/VerifyLossless", request,
                                [&](const Caller&) { return DoVerify(context, *request, writer); });
  }

 private:
  // A running request. Its owner and admins, who know its ID, may cancel it.
  struct Handle {
    std::string id, owner;
    auto operator<=>(const Handle&) const = default;
  };

  // Registers a request before it runs; generates an ID if it has none.
  static absl::StatusOr<Handle> HandleOf(const Caller& caller, const std::string& wanted,
                                         const char* prefix) {
    if (wanted.size() > kMaxRequestId) {
      return absl::InvalidArgumentError(absl::StrCat("field 'request_id' has ", wanted.size(),
                                                     " bytes, expected at most ", kMaxRequestId));
    }
    if (!wanted.empty()) return Handle{wanted, caller.owner};
    const absl::StatusOr<std::string> random = RandomId();
    if (!random.ok()) return random.status();
    return Handle{absl::StrCat(prefix, *random), caller.owner};
  }

  absl::Status Register(const Handle& handle, std::shared_ptr<Generation> generation) {
    absl::MutexLock lock(&mutex_);
    if (!open_.emplace(handle, std::move(generation)).second) {
      return absl::AlreadyExistsError(
          absl::StrCat("field 'request_id': a request '", handle.id, "' is running"));
    }
    return absl::OkStatus();
  }

  absl::Status DoGenerate(grpc::ServerContext* context, const Caller& caller,
                          v1::GenerateRequest request,
                          grpc::ServerWriter<v1::GenerateReply>* writer) {
    absl::StatusOr<ModelServer::Target> target = models_->Resolve(request.model(), caller);
    if (!target.ok()) return target.status();
    if (absl::Status status = SetAdapter(target->adapter, &request); !status.ok()) return status;
    request.set_cache_salt(models_->PrefixSalt(AuthorizationOf(*context), request.cache_salt()));
    // Checked here, too, because a negative timeout would be read as none below.
    if (!(request.timeout_seconds() >= 0)) {
      return absl::InvalidArgumentError("field 'timeout_seconds' must be 0 (none) or more");
    }
    const absl::StatusOr<Handle> handle = HandleOf(caller, request.request_id(), "gen-");
    if (!handle.ok()) return handle.status();
    LimitTime(*context, &request);
    const std::string warning = WarningHeader(SchemaWarnings(request));
    if (!warning.empty()) context->AddInitialMetadata(kWarningHeader, warning);
    auto replies = std::make_shared<ReplyQueue>();
    absl::StatusOr<std::shared_ptr<Generation>> generation =
        StartGeneration(request, std::move(target->model), models_, metrics_,
                        [replies](const absl::StatusOr<v1::GenerateReply>& reply, bool last) {
                          replies->Put(reply, last);
                        });
    if (!generation.ok()) return generation.status();
    absl::Status status = Register(*handle, *generation);
    if (!status.ok()) {
      (*generation)->Cancel();
      return status;
    }
    status = Stream(context, **generation, handle->id, replies.get(), writer);
    if (const auto delay = status.GetPayload(kRetryAfterPayload)) {
      context->AddTrailingMetadata("retry-after", std::string(*delay));
    }
    absl::MutexLock lock(&mutex_);
    open_.erase(*handle);
    return status;
  }

  absl::Status DoEmbed(grpc::ServerContext* context, const Caller& caller,
                       const v1::EmbedRequest& request, v1::EmbedReply* reply) {
    absl::StatusOr<ModelServer::Target> target = models_->Resolve(request.model(), caller);
    if (!target.ok()) return target.status();
    const absl::StatusOr<Handle> handle = HandleOf(caller, request.request_id(), "emb-");
    if (!handle.ok()) return handle.status();
    v1::EmbedRequest limited = request;
    LimitTime(*context, &limited);
    limited.set_cache_salt(models_->PrefixSalt(AuthorizationOf(*context), request.cache_salt()));
    struct Shared {
      absl::Mutex mutex;
      bool done ABSL_GUARDED_BY(mutex) = false;
      absl::StatusOr<v1::EmbedReply> reply ABSL_GUARDED_BY(mutex);
    };
    auto shared = std::make_shared<Shared>();
    absl::StatusOr<std::shared_ptr<Generation>> embedding =
        StartEmbedding(std::move(limited), *std::move(target), metrics_,
                       [shared](absl::StatusOr<v1::EmbedReply> reply) {
                         absl::MutexLock lock(&shared->mutex);
                         shared->reply = std::move(reply);
                         shared->done = true;
                       });
    if (!embedding.ok()) return embedding.status();
    if (absl::Status status = Register(*handle, *embedding); !status.ok()) {
      (*embedding)->Cancel();
      return status;
    }
    const auto over = [&] {
      absl::MutexLock lock(&shared->mutex);
      return shared->mutex.AwaitWithTimeout(absl::Condition(&shared->done),
                                            kDisconnectPollInterval);
    };
    for (bool cancelled = false; !over();) {
      if (cancelled || !context->IsCancelled()) continue;
      // Without the lock: dropping the last reference to the model joins the thread that makes the
      // last call.
      (*embedding)->Cancel();
      cancelled = true;
    }
    {
      absl::MutexLock lock(&shared->mutex);
      if (shared->reply.ok()) *reply = *std::move(shared->reply);
    }
    absl::MutexLock open_lock(&mutex_);
    open_.erase(*handle);
    absl::MutexLock lock(&shared->mutex);
    if (const auto delay = shared->reply.status().GetPayload(kRetryAfterPayload)) {
      context->AddTrailingMetadata("retry-after", std::string(*delay));
    }
    return shared->reply.status();
  }

  template <typename Reply>
  bool Write(grpc::ServerContext* context, const Reply& reply, grpc::ServerWriter<Reply>* writer) {
    const StreamIdleTimeout::Wait wait(interceptor_->idle(), context);
    return writer->Write(reply);
  }

  absl::Status Stream(grpc::ServerContext* context, Generation& generation, const std::string& id,
                      ReplyQueue* replies, grpc::ServerWriter<v1::GenerateReply>* writer) {
    bool cancelled = false;
    for (bool first = true;;) {
      if (!cancelled && context->IsCancelled()) {
        generation.Cancel();
        cancelled = true;
      }
      ReplyQueue::Item item;
      if (!replies->Take(&item)) continue;
      if (!item.reply.ok()) return item.reply.status();
      if (first) item.reply->set_request_id(id);
      first = false;
      if (!cancelled && !Write(context, *item.reply, writer)) {
        generation.Cancel();
        cancelled = true;
      }
      if (item.last) return absl::OkStatus();
    }
  }

  absl::Status DoVerify(grpc::ServerContext* context, const v1::VerifyLosslessRequest& request,
                        grpc::ServerWriter<v1::VerifyLosslessReply>* writer) {
    if (verifying_.exchange(true)) {
      return absl::ResourceExhaustedError(
          "a verification is running, whose models fill the memory; try again when it is over");
    }
    const absl::Cleanup over = [&] { verifying_ = false; };
    std::string stage;
    absl::Time next = absl::InfinitePast();
    const auto listener = [&](const v1::LosslessProgress& progress) -> absl::Status {
      if (context->IsCancelled()) return Gone();
      if (models_->draining()) return absl::UnavailableError("the daemon is stopping");
      const absl::Time now = absl::Now();
      if (progress.stage() == stage && now < next) return absl::OkStatus();
      stage = progress.stage();
      next = now + kProgressInterval;
      v1::VerifyLosslessReply reply;
      *reply.mutable_progress() = progress;
      return Write(context, reply, writer) ? absl::OkStatus() : Gone();
    };
    absl::StatusOr<v1::LosslessReport> report =
        RunLosslessVerification(request, models_, SystemClock(), listener);
    if (!report.ok()) return report.status();
    v1::VerifyLosslessReply reply;
    *reply.mutable_report() = *std::move(report);
    return Write(context, reply, writer) ? absl::OkStatus() : Gone();
  }

  ModelServer* const models_;
  CallInterceptor* const interceptor_;
  ServingMetrics* const metrics_;
  std::atomic<bool> verifying_{false};
  absl::Mutex mutex_;
  std::map<Handle, std::shared_ptr<Generation>> open_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<grpc::Service> NewInferenceService(ModelServer* models,
                                                   CallInterceptor* interceptor,
                                                   ServingMetrics* metrics) {
  return std::make_unique<InferenceService>(models, interceptor, metrics);
}

}  // namespace espalier
