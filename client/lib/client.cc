#include "client/lib/client.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/backoff.h"
#include "base/net/leading_channel.h"
#include "client/lib/call.h"
#include "client/lib/client_impl.h"

namespace espalier {
namespace {

// Longer than the lease of a coordinator that others stand by for, by default.
constexpr absl::Duration kTakeover = absl::Seconds(30);

// Marks an Unavailable status that the coordinator itself returned.
constexpr char kAnswered[] = "espalier/answered";

std::string Unreachable(const std::string& address, bool tls, const std::string& detail) {
  return absl::StrCat(
      "no coordinator answers at ", address, " (", detail,
      "). Start one with `espalier up`, or name another: --coordinator=HOST:PORT or "
      "ESPALIER_COORDINATOR",
      tls ? ""
          : "; if it uses TLS: `espalier login TOKEN` with a token of its administrator, or "
            "--ca-file=FILE, or --tls");
}

absl::Status CheckAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size()) {
    return absl::InvalidArgumentError(absl::StrCat("coordinator address \"", address,
                                                   "\": accepted: HOST:PORT, as 127.0.0.1:7070"));
  }
  int port = 0;
  if (!absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 1 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("coordinator address \"", address, "\": the port must be 1 to 65535"));
  }
  return absl::OkStatus();
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
  // gRPC and Abseil use the same code numbers.
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
  if (code == absl::StatusCode::kResourceExhausted &&
      absl::StrContains(text, "message larger than max")) {
    return absl::ResourceExhaustedError(
        absl::StrCat("one message would be too large: ", text,
                     "; a graph's values travel with it, so give a large model as an ONNX file"));
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
  const absl::StatusOr<std::vector<std::string>> addresses =
      SplitAddresses(address, "coordinator address");
  if (!addresses.ok()) return addresses.status();
  for (const std::string& one : *addresses) {
    if (absl::Status s = CheckAddress(one); !s.ok()) return s;
  }
  const bool stand_by = addresses->size() > 1;
  auto impl = std::make_unique<Impl>();
  impl->address = address;
  impl->options = options;
  // Until another one leads.
  if (stand_by) impl->options.retry_for = std::max(options.retry_for, kTakeover);
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (options.tls) {
    grpc::SslCredentialsOptions ssl;
    ssl.pem_root_certs = options.ca_pem;
    ssl.pem_cert_chain = options.certificate_pem;
    ssl.pem_private_key = options.key_pem;
    credentials = grpc::SslCredentials(ssl);
  }
  grpc::ChannelArguments arguments;
  // Graphs carry weights; the coordinator limits what it accepts.
  arguments.SetMaxReceiveMessageSize(256 << 20);
  arguments.SetMaxSendMessageSize(256 << 20);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  impl->channel = LeadingChannel(*addresses, arguments, nullptr, credentials);

  const auto deadline = absl::ToChronoTime(
      absl::Now() + (stand_by ? impl->options.retry_for : options.connect_timeout));
  for (auto state = impl->channel->GetState(true); state != GRPC_CHANNEL_READY;
       state = impl->channel->GetState(true)) {
    if (stand_by && state == GRPC_CHANNEL_TRANSIENT_FAILURE &&
        std::chrono::system_clock::now() < deadline) {
      continue;  // with the next one
    }
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE || state == GRPC_CHANNEL_SHUTDOWN) {
      return absl::UnavailableError(Unreachable(
          address, options.tls,
          options.tls ? "no connection, or its TLS certificate is not trusted" : "no connection"));
    }
    if (!impl->channel->WaitForStateChange(state, deadline)) {
      return absl::UnavailableError(Unreachable(
          address, options.tls,
          absl::StrCat("nothing within ", absl::FormatDuration(options.connect_timeout))));
    }
  }
  impl->training = v1::Training::NewStub(impl->channel);
  impl->recordings = v1::Recordings::NewStub(impl->channel);
  impl->replay = v1::Replay::NewStub(impl->channel);
  impl->planner = v1::Planner::NewStub(impl->channel);
  impl->models = v1::Models::NewStub(impl->channel);
  impl->cluster = v1::Cluster::NewStub(impl->channel);
  impl->inference = v1::Inference::NewStub(impl->channel);
  impl->distillation = v1::Distillation::NewStub(impl->channel);
  impl->sessions = v1::Sessions::NewStub(impl->channel);
  impl->open_inference = inference::GRPCInferenceService::NewStub(impl->channel);
  return std::unique_ptr<Client>(new Client(std::move(impl)));
}

absl::StatusOr<v1::SubmitReply> Client::Submit(const v1::TrainingSpec& spec,
                                               const std::string& key) {
  v1::SubmitRequest request;
  *request.mutable_spec() = spec;
  request.set_idempotency_key(key.empty() ? NewIdempotencyKey() : key);
  // The coordinator reads the whole model and checks the whole dataset first.
  return Call<v1::SubmitReply>(*impl_, impl_->training.get(), &v1::Training::Stub::Submit, request,
                               impl_->options.plan_timeout);
}

absl::StatusOr<v1::GetJobReply> Client::GetJob(const std::string& job_id, bool with_reports) {
  v1::GetJobRequest request;
  request.set_job_id(job_id);
  request.set_with_reports(with_reports);
  return Call<v1::GetJobReply>(*impl_, impl_->training.get(), &v1::Training::Stub::Get, request,
                               impl_->options.call_timeout);
}

absl::StatusOr<v1::DryRunReply> Client::DryRun(const v1::TrainingSpec& spec, Canceller* canceller) {
  v1::DryRunRequest request;
  *request.mutable_spec() = spec;
  return Call<v1::DryRunReply>(*impl_, impl_->training.get(), &v1::Training::Stub::DryRun, request,
                               impl_->options.plan_timeout, canceller);
}

absl::StatusOr<std::vector<v1::Job>> Client::ListJobs() {
  auto reply = ListJobs(v1::ListJobsRequest(), 0);
  if (!reply.ok()) return reply.status();
  return std::vector<v1::Job>(reply->jobs().begin(), reply->jobs().end());
}

absl::StatusOr<v1::ListJobsReply> Client::ListJobs(v1::ListJobsRequest request, int64_t limit) {
  return AllPages(
      std::move(request), limit,
      [&](const v1::ListJobsRequest& page) {
        return Call<v1::ListJobsReply>(*impl_, impl_->training.get(), &v1::Training::Stub::List,
                                       page, impl_->options.call_timeout);
      },
      [](v1::ListJobsReply* reply) { return reply->mutable_jobs(); });
}

absl::StatusOr<v1::Job> Client::UpdateJob(v1::UpdateJobRequest request) {
  request.set_idempotency_key(NewIdempotencyKey());
  auto reply = Call<v1::UpdateJobReply>(*impl_, impl_->training.get(), &v1::Training::Stub::Update,
                                        request, impl_->options.call_timeout);
  if (!reply.ok()) return reply.status();
  return std::move(*reply->mutable_job());
}

absl::Status Client::DeleteJob(const std::string& job_id) {
  v1::DeleteJobRequest request;
  request.set_job_id(job_id);
  request.set_idempotency_key(NewIdempotencyKey());
  return Call<v1::DeleteJobReply>(*impl_, impl_->training.get(), &v1::Training::Stub::Delete,
                                  request, impl_->options.call_timeout)
      .status();
}

absl::StatusOr<v1::Job> Client::CancelJob(const std::string& job_id) {
  v1::CancelRequest request;
  request.set_job_id(job_id);
  request.set_idempotency_key(NewIdempotencyKey());
  auto reply = Call<v1::CancelReply>(*impl_, impl_->training.get(), &v1::Training::Stub::Cancel,
                                     request, impl_->options.call_timeout);
  if (!reply.ok()) return reply.status();
  return reply->job();
}

absl::StatusOr<v1::Job> Client::ResumeJob(const std::string& job_id) {
  v1::ResumeRequest request;
  request.set_job_id(job_id);
  request.set_idempotency_key(NewIdempotencyKey());
  auto reply = Call<v1::ResumeReply>(*impl_, impl_->training.get(), &v1::Training::Stub::Resume,
                                     request, impl_->options.call_timeout);
  if (!reply.ok()) return reply.status();
  return reply->job();
}

absl::StatusOr<v1::Job> Client::CheckpointJob(const std::string& job_id, absl::Duration timeout) {
  v1::CheckpointRequest request;
  request.set_job_id(job_id);
  auto reply = Call<v1::CheckpointReply>(*impl_, impl_->training.get(),
                                         &v1::Training::Stub::Checkpoint, request, timeout);
  if (!reply.ok()) return reply.status();
  return std::move(*reply->mutable_job());
}

absl::StatusOr<v1::DistillationJob> Client::SubmitDistillation(const v1::DistillationSpec& spec,
                                                               const std::string& key) {
  v1::SubmitDistillationRequest request;
  *request.mutable_spec() = spec;
  request.set_idempotency_key(key.empty() ? NewIdempotencyKey() : key);
  auto reply = Call<v1::DistillationReply>(*impl_, impl_->distillation.get(),
                                           &v1::Distillation::Stub::SubmitDistillation, request,
                                           impl_->options.plan_timeout);
  if (!reply.ok()) return reply.status();
  return std::move(*reply->mutable_job());
}

absl::StatusOr<std::vector<v1::DistillationJob>> Client::ListDistillations() {
  auto reply = Call<v1::ListDistillationsReply>(
      *impl_, impl_->distillation.get(), &v1::Distillation::Stub::ListDistillations,
      v1::ListDistillationsRequest(), impl_->options.call_timeout);
  if (!reply.ok()) return reply.status();
  return std::vector<v1::DistillationJob>(reply->jobs().begin(), reply->jobs().end());
}

namespace {

// A call about one boost-tuning.
template <typename Method>
absl::StatusOr<v1::DistillationJob> CallDistillation(const Client::Impl& impl, Method method,
                                                     const std::string& id) {
  v1::DistillationRequest request;
  request.set_id(id);
  auto reply = Call<v1::DistillationReply>(impl, impl.distillation.get(), method, request,
                                           impl.options.call_timeout);
  if (!reply.ok()) return reply.status();
  return std::move(*reply->mutable_job());
}

}  // namespace

absl::StatusOr<v1::DistillationJob> Client::GetDistillation(const std::string& id) {
  return CallDistillation(*impl_, &v1::Distillation::Stub::GetDistillation, id);
}

absl::StatusOr<v1::DistillationJob> Client::CancelDistillation(const std::string& id) {
  return CallDistillation(*impl_, &v1::Distillation::Stub::CancelDistillation, id);
}

absl::StatusOr<v1::DistillationJob> Client::ResumeDistillation(const std::string& id) {
  return CallDistillation(*impl_, &v1::Distillation::Stub::ResumeDistillation, id);
}

absl::StatusOr<v1::Plan> Client::MakePlan(const v1::PlanRequest& request) {
  auto reply = Call<v1::PlanReply>(*impl_, impl_->planner.get(), &v1::Planner::Stub::MakePlan,
                                   request, impl_->options.plan_timeout);
  if (!reply.ok()) return reply.status();
  return reply->plan();
}

absl::StatusOr<v1::ExplainReply> Client::Explain(const v1::ExplainRequest& request) {
  return Call<v1::ExplainReply>(*impl_, impl_->planner.get(), &v1::Planner::Stub::Explain, request,
                                impl_->options.plan_timeout);
}

absl::StatusOr<std::string> Client::ExportPlan(const std::string& job_id) {
  v1::ExportRequest request;
  request.set_job_id(job_id);
  auto reply = Call<v1::ExportReply>(*impl_, impl_->planner.get(), &v1::Planner::Stub::Export,
                                     request, impl_->options.call_timeout);
  if (!reply.ok()) return reply.status();
  return reply->json();
}

absl::StatusOr<v1::Plan> Client::ImportPlan(const v1::ImportRequest& request) {
  auto reply = Call<v1::ImportReply>(*impl_, impl_->planner.get(), &v1::Planner::Stub::Import,
                                     request, impl_->options.call_timeout);
  if (!reply.ok()) return reply.status();
  return reply->plan();
}

absl::StatusOr<v1::DiffReply> Client::DiffPlans(const v1::DiffRequest& request) {
  return Call<v1::DiffReply>(*impl_, impl_->planner.get(), &v1::Planner::Stub::Diff, request,
                             impl_->options.call_timeout);
}

absl::StatusOr<v1::ProfileReply> Client::Profile() {
  return Call<v1::ProfileReply>(*impl_, impl_->planner.get(), &v1::Planner::Stub::Profile,
                                v1::ProfileRequest(), impl_->options.call_timeout);
}

absl::StatusOr<v1::MachinesReply> Client::Machines(const v1::MachinesRequest& request) {
  return Call<v1::MachinesReply>(*impl_, impl_->planner.get(), &v1::Planner::Stub::Machines,
                                 request, impl_->options.call_timeout);
}

absl::StatusOr<v1::ListArtifactsReply> Client::ListArtifacts(v1::ListArtifactsRequest request,
                                                             int64_t limit) {
  return AllPages(
      std::move(request), limit,
      [&](const v1::ListArtifactsRequest& page) {
        return Call<v1::ListArtifactsReply>(*impl_, impl_->models.get(), &v1::Models::Stub::List,
                                            page, impl_->options.call_timeout);
      },
      [](v1::ListArtifactsReply* reply) { return reply->mutable_artifacts(); });
}

absl::StatusOr<std::vector<v1::Artifact>> Client::ListArtifacts() {
  auto reply = ListArtifacts(v1::ListArtifactsRequest(), 0);
  if (!reply.ok()) return reply.status();
  return std::vector<v1::Artifact>(reply->artifacts().begin(), reply->artifacts().end());
}

absl::Status Client::DeleteArtifact(const std::string& name, bool force) {
  v1::DeleteArtifactRequest request;
  request.set_name(name);
  request.set_force(force);
  request.set_idempotency_key(NewIdempotencyKey());
  return Call<v1::DeleteArtifactReply>(*impl_, impl_->models.get(), &v1::Models::Stub::Delete,
                                       request, impl_->options.call_timeout)
      .status();
}

absl::StatusOr<v1::ClusterStatusReply> Client::Status() {
  return Call<v1::ClusterStatusReply>(*impl_, impl_->cluster.get(), &v1::Cluster::Stub::Status,
                                      v1::ClusterStatusRequest(), impl_->options.call_timeout);
}

absl::StatusOr<std::vector<v1::WorkerInfo>> Client::ListWorkers() {
  auto reply =
      Call<v1::ListWorkersReply>(*impl_, impl_->cluster.get(), &v1::Cluster::Stub::ListWorkers,
                                 v1::ListWorkersRequest(), impl_->options.call_timeout);
  if (!reply.ok()) return reply.status();
  return std::vector<v1::WorkerInfo>(reply->workers().begin(), reply->workers().end());
}

absl::StatusOr<v1::ServedModel> Client::Serve(const v1::ServeModelRequest& request) {
  v1::ServeModelRequest keyed = request;
  if (keyed.idempotency_key().empty()) keyed.set_idempotency_key(NewIdempotencyKey());
  auto reply =
      Call<v1::ServeModelReply>(*impl_, impl_->inference.get(), &v1::Inference::Stub::Serve, keyed,
                                impl_->options.serve_timeout);
  if (!reply.ok()) return reply.status();
  return reply->model();
}

absl::Status Client::Unserve(const std::string& name) {
  v1::UnserveModelRequest request;
  request.set_name(name);
  request.set_idempotency_key(NewIdempotencyKey());
  return Call<v1::UnserveModelReply>(*impl_, impl_->inference.get(), &v1::Inference::Stub::Unserve,
                                     request, impl_->options.call_timeout)
      .status();
}

absl::StatusOr<std::vector<v1::ServedModel>> Client::ListServed() {
  auto reply =
      Call<v1::ListServedReply>(*impl_, impl_->inference.get(), &v1::Inference::Stub::ListServed,
                                v1::ListServedRequest(), impl_->options.call_timeout);
  if (!reply.ok()) return reply.status();
  return std::vector<v1::ServedModel>(reply->models().begin(), reply->models().end());
}

absl::StatusOr<v1::EmbedReply> Client::Embed(const v1::EmbedRequest& request,
                                             absl::Duration timeout) {
  return Call<v1::EmbedReply>(*impl_, impl_->inference.get(), &v1::Inference::Stub::Embed, request,
                              timeout);
}

absl::StatusOr<inference::ModelMetadataResponse> Client::ModelMetadata(const std::string& model) {
  inference::ModelMetadataRequest request;
  request.set_name(model);
  return Call<inference::ModelMetadataResponse>(
      *impl_, impl_->open_inference.get(), &inference::GRPCInferenceService::Stub::ModelMetadata,
      request, impl_->options.call_timeout);
}

absl::StatusOr<inference::ModelInferResponse> Client::ModelInfer(
    const inference::ModelInferRequest& request, absl::Duration timeout) {
  return Call<inference::ModelInferResponse>(*impl_, impl_->open_inference.get(),
                                             &inference::GRPCInferenceService::Stub::ModelInfer,
                                             request, timeout);
}

absl::StatusOr<bool> Client::CancelGenerate(const std::string& request_id) {
  v1::CancelGenerateRequest request;
  request.set_request_id(request_id);
  auto reply =
      Call<v1::CancelGenerateReply>(*impl_, impl_->inference.get(), &v1::Inference::Stub::Cancel,
                                    request, impl_->options.call_timeout);
  if (!reply.ok()) return reply.status();
  return reply->found();
}

}  // namespace espalier
