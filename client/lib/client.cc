#include "client/lib/client.h"

#include <algorithm>
#include <random>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/lib/client_impl.h"

namespace espalier {
namespace {

// Payload of an Unavailable that the coordinator itself has said, of a model, say.
constexpr char kAnswered[] = "espalier/answered";

std::string Unreachable(const std::string& address, bool tls, const std::string& detail) {
  return absl::StrCat(
      "no coordinator answers at ", address, " (", detail,
      "). Start one with `espalier up`, or name another: --coordinator=HOST:PORT or "
      "ESPALIER_COORDINATOR",
      tls ? "" : "; one that speaks TLS wants --ca-file=FILE or --tls");
}

absl::Status CheckAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size()) {
    return absl::InvalidArgumentError(absl::StrCat("coordinator address \"", address,
                                                   "\": accepted is HOST:PORT, as 127.0.0.1:7070"));
  }
  int port = 0;
  if (!absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 1 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("coordinator address \"", address, "\": the port must be 1 to 65535"));
  }
  return absl::OkStatus();
}

// One unary call, repeated while the coordinator is unavailable.
template <typename Reply, typename Stub, typename Request>
absl::StatusOr<Reply> Call(const Client::Impl& impl, Stub* stub,
                           grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                        Reply*),
                           const Request& request, absl::Duration timeout) {
  const absl::Time give_up = absl::Now() + impl.options.retry_for;
  absl::Duration pause = absl::Milliseconds(100);
  while (true) {
    grpc::ClientContext context;
    impl.Prepare(&context, timeout);
    Reply reply;
    const grpc::Status status = (stub->*method)(&context, request, &reply);
    if (status.ok()) return reply;
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE || absl::Now() + pause > give_up) {
      return impl.FromGrpc(status);
    }
    absl::SleepFor(pause);
    pause = std::min(2 * pause, absl::Duration(absl::Seconds(2)));
  }
}

}  // namespace

bool IsUnreachable(const absl::Status& status) {
  return absl::IsUnavailable(status) && !status.GetPayload(kAnswered).has_value();
}

absl::Status AnsweredUnavailable(absl::string_view message) {
  absl::Status answered = absl::UnavailableError(message);
  answered.SetPayload(kAnswered, absl::Cord());
  return answered;
}

std::string NewIdempotencyKey() {
  std::random_device random;
  return absl::StrFormat("%08x%08x%08x%08x", random(), random(), random(), random());
}

void Client::Impl::Prepare(grpc::ClientContext* context, absl::Duration timeout) const {
  if (!options.token.empty()) context->AddMetadata("authorization", "Bearer " + options.token);
  if (timeout != absl::InfiniteDuration()) {
    context->set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  }
}

absl::Status Client::Impl::FromGrpc(const grpc::Status& status) const {
  if (status.ok()) return absl::OkStatus();
  // The codes of gRPC and of Abseil are the same numbers.
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  const std::string& text = status.error_message();
  if (code == absl::StatusCode::kUnavailable) {
    if (status.error_details().empty()) {
      return absl::UnavailableError(Unreachable(address, options.tls, text));
    }
    return AnsweredUnavailable(text);
  }
  if (code == absl::StatusCode::kDeadlineExceeded) {
    return absl::DeadlineExceededError(
        absl::StrCat("the coordinator at ", address, " did not answer in time: ", text));
  }
  if (code == absl::StatusCode::kUnauthenticated) {
    return absl::UnauthenticatedError(absl::StrCat(
        text, "; at the command line: --token-file=FILE, ESPALIER_TOKEN_FILE or ESPALIER_TOKEN"));
  }
  return absl::Status(code, text);
}

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;
const std::string& Client::address() const { return impl_->address; }

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const std::string& address,
                                                        const ClientOptions& options) {
  if (absl::Status s = CheckAddress(address); !s.ok()) return s;
  auto impl = std::make_unique<Impl>();
  impl->address = address;
  impl->options = options;
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (options.tls) {
    grpc::SslCredentialsOptions ssl;
    ssl.pem_root_certs = options.ca_pem;
    ssl.pem_cert_chain = options.certificate_pem;
    ssl.pem_private_key = options.key_pem;
    credentials = grpc::SslCredentials(ssl);
  }
  grpc::ChannelArguments arguments;
  // Graphs carry their weights; the coordinator has its own limit on what it takes.
  arguments.SetMaxReceiveMessageSize(256 << 20);
  arguments.SetMaxSendMessageSize(256 << 20);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  impl->channel = grpc::CreateCustomChannel(address, credentials, arguments);

  const auto deadline = absl::ToChronoTime(absl::Now() + options.connect_timeout);
  for (auto state = impl->channel->GetState(true); state != GRPC_CHANNEL_READY;
       state = impl->channel->GetState(true)) {
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE || state == GRPC_CHANNEL_SHUTDOWN) {
      return absl::UnavailableError(
          Unreachable(address, options.tls,
                      options.tls ? "refused, or no TLS there that we trust" : "refused"));
    }
    if (!impl->channel->WaitForStateChange(state, deadline)) {
      return absl::UnavailableError(Unreachable(
          address, options.tls,
          absl::StrCat("nothing within ", absl::FormatDuration(options.connect_timeout))));
    }
  }
  impl->training = proto::Training::NewStub(impl->channel);
  impl->planner = proto::Planner::NewStub(impl->channel);
  impl->models = proto::Models::NewStub(impl->channel);
  impl->cluster = proto::Cluster::NewStub(impl->channel);
  impl->inference = proto::Inference::NewStub(impl->channel);
  impl->boosting = proto::Boosting::NewStub(impl->channel);
  return std::unique_ptr<Client>(new Client(std::move(impl)));
}

absl::StatusOr<std::string> Client::Submit(const proto::TrainingSpec& spec,
                                           const std::string& key) {
  proto::SubmitRequest request;
  *request.mutable_spec() = spec;
  request.set_idempotency_key(key.empty() ? NewIdempotencyKey() : key);
  auto reply =
      Call<proto::SubmitReply>(*impl_, impl_->training.get(), &proto::Training::Stub::Submit,
                               request, impl_->options.call_timeout);
  if (!reply.ok()) return reply.status();
  return reply->job_id();
}

absl::StatusOr<proto::GetJobReply> Client::GetJob(const std::string& job_id, bool with_reports) {
  proto::GetJobRequest request;
  request.set_job_id(job_id);
  request.set_with_reports(with_reports);
  return Call<proto::GetJobReply>(*impl_, impl_->training.get(), &proto::Training::Stub::Get,
                                  request, impl_->options.call_timeout);
}

absl::StatusOr<proto::DryRunReply> Client::DryRun(const proto::TrainingSpec& spec) {
  proto::DryRunRequest request;
  *request.mutable_spec() = spec;
  return Call<proto::DryRunReply>(*impl_, impl_->training.get(), &proto::Training::Stub::DryRun,
                                  request, impl_->options.plan_timeout);
}

absl::StatusOr<std::vector<proto::Job>> Client::ListJobs() {
  auto reply =
      Call<proto::ListJobsReply>(*impl_, impl_->training.get(), &proto::Training::Stub::List,
                                 proto::ListJobsRequest(), impl_->options.call_timeout);
  if (!reply.ok()) return reply.status();
  return std::vector<proto::Job>(reply->jobs().begin(), reply->jobs().end());
}

absl::StatusOr<proto::Job> Client::CancelJob(const std::string& job_id) {
  proto::CancelRequest request;
  request.set_job_id(job_id);
  request.set_idempotency_key(NewIdempotencyKey());
  auto reply =
      Call<proto::CancelReply>(*impl_, impl_->training.get(), &proto::Training::Stub::Cancel,
                               request, impl_->options.call_timeout);
  if (!reply.ok()) return reply.status();
  return reply->job();
}

absl::StatusOr<proto::Job> Client::ResumeJob(const std::string& job_id) {
  proto::ResumeRequest request;
  request.set_job_id(job_id);
  request.set_idempotency_key(NewIdempotencyKey());
  auto reply =
      Call<proto::ResumeReply>(*impl_, impl_->training.get(), &proto::Training::Stub::Resume,
                               request, impl_->options.call_timeout);
  if (!reply.ok()) return reply.status();
  return reply->job();
}

absl::StatusOr<proto::BoostJob> Client::SubmitBoost(const proto::BoostSpec& spec,
                                                    const std::string& key) {
  proto::SubmitBoostRequest request;
  *request.mutable_spec() = spec;
  request.set_idempotency_key(key.empty() ? NewIdempotencyKey() : key);
  auto reply =
      Call<proto::BoostReply>(*impl_, impl_->boosting.get(), &proto::Boosting::Stub::SubmitBoost,
                              request, impl_->options.plan_timeout);
  if (!reply.ok()) return reply.status();
  return std::move(*reply->mutable_job());
}

absl::StatusOr<std::vector<proto::BoostJob>> Client::ListBoosts() {
  auto reply = Call<proto::ListBoostsReply>(
      *impl_, impl_->boosting.get(), &proto::Boosting::Stub::ListBoosts, proto::ListBoostsRequest(),
      impl_->options.call_timeout);
  if (!reply.ok()) return reply.status();
  return std::vector<proto::BoostJob>(reply->jobs().begin(), reply->jobs().end());
}

namespace {

// A call about one boost-tuning.
template <typename Method>
absl::StatusOr<proto::BoostJob> OfBoost(const Client::Impl& impl, Method method,
                                        const std::string& id) {
  proto::BoostRequest request;
  request.set_id(id);
  auto reply = Call<proto::BoostReply>(impl, impl.boosting.get(), method, request,
                                       impl.options.call_timeout);
  if (!reply.ok()) return reply.status();
  return std::move(*reply->mutable_job());
}

}  // namespace

absl::StatusOr<proto::BoostJob> Client::GetBoost(const std::string& id) {
  return OfBoost(*impl_, &proto::Boosting::Stub::GetBoost, id);
}

absl::StatusOr<proto::BoostJob> Client::CancelBoost(const std::string& id) {
  return OfBoost(*impl_, &proto::Boosting::Stub::CancelBoost, id);
}

absl::StatusOr<proto::BoostJob> Client::ResumeBoost(const std::string& id) {
  return OfBoost(*impl_, &proto::Boosting::Stub::ResumeBoost, id);
}

absl::StatusOr<proto::Plan> Client::MakePlan(const proto::PlanRequest& request) {
  auto reply = Call<proto::PlanReply>(*impl_, impl_->planner.get(), &proto::Planner::Stub::MakePlan,
                                      request, impl_->options.plan_timeout);
  if (!reply.ok()) return reply.status();
  return reply->plan();
}

absl::StatusOr<proto::ExplainReply> Client::Explain(const proto::ExplainRequest& request) {
  return Call<proto::ExplainReply>(*impl_, impl_->planner.get(), &proto::Planner::Stub::Explain,
                                   request, impl_->options.plan_timeout);
}

absl::StatusOr<std::string> Client::ExportPlan(const std::string& job_id) {
  proto::ExportRequest request;
  request.set_job_id(job_id);
  auto reply = Call<proto::ExportReply>(*impl_, impl_->planner.get(), &proto::Planner::Stub::Export,
                                        request, impl_->options.call_timeout);
  if (!reply.ok()) return reply.status();
  return reply->json();
}

absl::StatusOr<proto::Plan> Client::ImportPlan(const proto::ImportRequest& request) {
  auto reply = Call<proto::ImportReply>(*impl_, impl_->planner.get(), &proto::Planner::Stub::Import,
                                        request, impl_->options.call_timeout);
  if (!reply.ok()) return reply.status();
  return reply->plan();
}

absl::StatusOr<proto::DiffReply> Client::DiffPlans(const proto::DiffRequest& request) {
  return Call<proto::DiffReply>(*impl_, impl_->planner.get(), &proto::Planner::Stub::Diff, request,
                                impl_->options.call_timeout);
}

absl::StatusOr<proto::ProfileReply> Client::Profile() {
  return Call<proto::ProfileReply>(*impl_, impl_->planner.get(), &proto::Planner::Stub::Profile,
                                   proto::ProfileRequest(), impl_->options.call_timeout);
}

absl::StatusOr<proto::MachinesReply> Client::Machines(const proto::MachinesRequest& request) {
  return Call<proto::MachinesReply>(*impl_, impl_->planner.get(), &proto::Planner::Stub::Machines,
                                    request, impl_->options.call_timeout);
}

absl::StatusOr<std::vector<proto::Artifact>> Client::ListArtifacts() {
  auto reply =
      Call<proto::ListArtifactsReply>(*impl_, impl_->models.get(), &proto::Models::Stub::List,
                                      proto::ListArtifactsRequest(), impl_->options.call_timeout);
  if (!reply.ok()) return reply.status();
  return std::vector<proto::Artifact>(reply->artifacts().begin(), reply->artifacts().end());
}

absl::Status Client::DeleteArtifact(const std::string& name) {
  proto::DeleteArtifactRequest request;
  request.set_name(name);
  request.set_idempotency_key(NewIdempotencyKey());
  return Call<proto::DeleteArtifactReply>(*impl_, impl_->models.get(), &proto::Models::Stub::Delete,
                                          request, impl_->options.call_timeout)
      .status();
}

absl::StatusOr<proto::ClusterStatusReply> Client::Status() {
  return Call<proto::ClusterStatusReply>(
      *impl_, impl_->cluster.get(), &proto::Cluster::Stub::Status, proto::ClusterStatusRequest(),
      impl_->options.call_timeout);
}

absl::StatusOr<std::vector<proto::WorkerInfo>> Client::ListWorkers() {
  auto reply = Call<proto::ListWorkersReply>(
      *impl_, impl_->cluster.get(), &proto::Cluster::Stub::ListWorkers, proto::ListWorkersRequest(),
      impl_->options.call_timeout);
  if (!reply.ok()) return reply.status();
  return std::vector<proto::WorkerInfo>(reply->workers().begin(), reply->workers().end());
}

absl::StatusOr<proto::ServedModel> Client::Serve(const proto::ServeModelRequest& request) {
  proto::ServeModelRequest keyed = request;
  if (keyed.idempotency_key().empty()) keyed.set_idempotency_key(NewIdempotencyKey());
  auto reply =
      Call<proto::ServeModelReply>(*impl_, impl_->inference.get(), &proto::Inference::Stub::Serve,
                                   keyed, impl_->options.serve_timeout);
  if (!reply.ok()) return reply.status();
  return reply->model();
}

absl::Status Client::Unserve(const std::string& name) {
  proto::UnserveModelRequest request;
  request.set_name(name);
  request.set_idempotency_key(NewIdempotencyKey());
  return Call<proto::UnserveModelReply>(*impl_, impl_->inference.get(),
                                        &proto::Inference::Stub::Unserve, request,
                                        impl_->options.call_timeout)
      .status();
}

absl::StatusOr<std::vector<proto::ServedModel>> Client::ListServed() {
  auto reply = Call<proto::ListServedReply>(
      *impl_, impl_->inference.get(), &proto::Inference::Stub::ListServed,
      proto::ListServedRequest(), impl_->options.call_timeout);
  if (!reply.ok()) return reply.status();
  return std::vector<proto::ServedModel>(reply->models().begin(), reply->models().end());
}

absl::StatusOr<proto::EmbedReply> Client::Embed(const proto::EmbedRequest& request,
                                                absl::Duration timeout) {
  return Call<proto::EmbedReply>(*impl_, impl_->inference.get(), &proto::Inference::Stub::Embed,
                                 request, timeout);
}

absl::StatusOr<bool> Client::CancelGenerate(const std::string& request_id) {
  proto::CancelGenerateRequest request;
  request.set_request_id(request_id);
  auto reply = Call<proto::CancelGenerateReply>(*impl_, impl_->inference.get(),
                                                &proto::Inference::Stub::Cancel, request,
                                                impl_->options.call_timeout);
  if (!reply.ok()) return reply.status();
  return reply->found();
}

}  // namespace espalier
