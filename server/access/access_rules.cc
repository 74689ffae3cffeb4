#include "server/access/access_rules.h"

#include <algorithm>

namespace espalier {
namespace {

constexpr Roles kTrain = Role::kTrain, kInfer = Role::kInfer, kWorker = Role::kWorker,
                kMonitor = Role::kMonitor, kOnlyAdmin = Role::kAdmin;
constexpr Roles kAny = kTrain | kInfer | kWorker | kMonitor;
constexpr Roles kClients = kTrain | kInfer | kMonitor;

ResourceField Read(absl::string_view artifact, absl::string_view prefix = "") {
  return {artifact, ResourceKind::kArtifact, ResourceUse::kRead, prefix};
}
ResourceField Change(absl::string_view artifact) {
  return {artifact, ResourceKind::kArtifact, ResourceUse::kChange};
}
ResourceField Create(absl::string_view artifact) {
  return {artifact, ResourceKind::kArtifact, ResourceUse::kCreate};
}
std::vector<ResourceField> ReadJob() {
  return {{"job_id", ResourceKind::kJob, ResourceUse::kRead}};
}
std::vector<ResourceField> ChangeJob() {
  return {{"job_id", ResourceKind::kJob, ResourceUse::kChange}};
}
std::vector<ResourceField> ChangeSession() {
  return {{"session_id", ResourceKind::kSession, ResourceUse::kChange}};
}
std::vector<ResourceField> Tuning(ResourceUse use) {
  return {{"id", ResourceKind::kDistillation, use}};
}
std::vector<ResourceField> OwnLease(absl::string_view worker = "lease.worker_id") {
  return {{worker, ResourceKind::kWorker, ResourceUse::kActAs}};
}
// Artifacts that a job's specification names.
std::vector<ResourceField> OfSpec() {
  return {Read("spec.onnx_artifact"),
          Read("spec.init_artifact"),
          Read("spec.tokenizer_artifact"),
          Read("spec.dataset.uri", "artifact:"),
          Read("spec.validation.dataset.uri", "artifact:"),
          Create("spec.output_model")};
}
// Artifacts that a model is served from.
std::vector<ResourceField> Served(const char* artifact, const char* ssms, const char* adapters) {
  return {Read(artifact), Read(ssms), Read(adapters)};
}

std::vector<AccessRule> MakeRules() {
  std::vector<AccessRule> rules = {
      {"Training/Submit", kTrain, OfSpec()},
      {"Training/DryRun", kTrain, OfSpec()},
      {"Training/Watch", kTrain, ReadJob()},
      {"Training/Get", kTrain, ReadJob()},
      {"Training/List", kTrain, {}},
      {"Training/Cancel", kTrain, ChangeJob()},
      {"Training/Resume", kTrain, ChangeJob()},
      {"Training/Checkpoint", kTrain, ChangeJob()},
      {"Training/Update", kTrain, ChangeJob()},
      {"Training/Delete", kTrain, ChangeJob()},
      // The job stands in the call's first message, which the service hands in.
      {"Training/PushExamples", kTrain, ChangeJob()},

      // Names of runs are looked up among those that the caller may see.
      {"Recordings/List", kTrain, {}},
      {"Recordings/Get", kTrain, {}},
      {"Recordings/ListValues", kTrain, {}},
      {"Recordings/Diff", kTrain, {}},

      {"Replay/Estimate", kTrain, {Read("spec.evaluate.uri", "artifact:")}},
      {"Replay/Start", kTrain, {Read("spec.evaluate.uri", "artifact:")}},
      {"Replay/Watch", kTrain, {{"replay_id", ResourceKind::kReplay, ResourceUse::kRead}}},
      {"Replay/Cancel", kTrain, {{"replay_id", ResourceKind::kReplay, ResourceUse::kChange}}},
      {"Replay/Get", kTrain, {{"replay_id", ResourceKind::kReplay, ResourceUse::kRead}}},
      {"Replay/Delete", kTrain, {{"replay_id", ResourceKind::kReplay, ResourceUse::kChange}}},
      {"Replay/List", kTrain, {}},
      {"Replay/Query", kTrain, {}},

      {"Sessions/Open", kTrain, OfSpec()},
      // The session stands in the stream's first message, which the service hands in.
      {"Sessions/Run", kTrain, ChangeSession()},
      {"Sessions/Close", kTrain, ChangeSession()},
      {"Sessions/List", kTrain, {}},

      {"Planner/MakePlan", kTrain, {Read("onnx_artifact")}},
      {"Planner/Explain",
       kTrain,
       {{"job_id", ResourceKind::kJob, ResourceUse::kRead}, Read("plan.onnx_artifact")}},
      {"Planner/Export", kTrain, ReadJob()},
      {"Planner/Import", kTrain, {}},
      {"Planner/Diff", kTrain, {}},
      {"Planner/Profile", kTrain, {}},
      {"Planner/Machines", kTrain, {}},

      {"Ops/List", kTrain, {}},
      {"Ops/Infer", kTrain, {}},

      // The name of an upload stands in its first message, which the service hands in.
      {"Models/Upload", kTrain, {Create("name")}},
      {"Models/List", kTrain, {}},
      {"Models/Get", kTrain | kWorker, {Read("name")}},
      {"Models/Delete", kTrain, {Change("name")}},
      {"Models/Quantize", kTrain, {Read("name"), Create("out")}},

      {"Distillation/SubmitDistillation",
       kTrain,
       {Read("spec.llm"), Read("spec.ssms.artifact"), Read("spec.prompts")}},
      {"Distillation/GetDistillation", kTrain, Tuning(ResourceUse::kRead)},
      {"Distillation/ListDistillations", kTrain, {}},
      {"Distillation/CancelDistillation", kTrain, Tuning(ResourceUse::kChange)},
      {"Distillation/ResumeDistillation", kTrain, Tuning(ResourceUse::kChange)},

      // Names of served models are looked up among those that the caller may use.
      {"Inference/Generate", kInfer, {}},
      {"Inference/Embed", kInfer, {}},
      {"Inference/Cancel", kInfer, {}},
      {"Inference/Tokenize", kInfer, {}},
      {"Inference/Detokenize", kInfer, {}},
      {"Inference/Serve", kTrain, Served("artifact", "ssm_artifacts", "adapters.artifact")},
      {"Inference/Unserve", kTrain, {{"name", ResourceKind::kServedModel, ResourceUse::kChange}}},
      {"Inference/ListServed", kClients, {}},
      {"Inference/VerifyLossless", kTrain,
       Served("models.artifact", "models.ssm_artifacts", "models.adapters.artifact")},

      {"Cluster/Join", kWorker, {}},
      {"Cluster/Heartbeat", kWorker, OwnLease()},
      {"Cluster/Drain", kWorker, OwnLease()},
      {"Cluster/Leave", kWorker, OwnLease()},
      {"Cluster/StoreSet", kWorker, OwnLease()},
      {"Cluster/StoreGet", kWorker, OwnLease()},
      // The lease stands in the call's first message, which the service hands in.
      {"Storage/PutObject", kWorker, OwnLease("begin.caller.lease.worker_id")},
      {"Storage/ReadObject", kWorker, OwnLease("caller.lease.worker_id")},
      {"Storage/ListObjects", kWorker, OwnLease("caller.lease.worker_id")},
      {"Cluster/ListWorkers", kAny, {}},
      {"Cluster/Status", kAny, {}},
      {"Cluster/Backup", kOnlyAdmin, {}},

      {"Access/CreateToken", kOnlyAdmin, {}},
      {"Access/ListTokens", kOnlyAdmin, {}},
      {"Access/RevokeToken", kOnlyAdmin, {}},
      {"Access/IssueCertificate", kAny, {}, /*has_token=*/true},
      {"Access/RenewCertificate", kWorker, {}},

      {"OpenInference/ServerLive", kAny, {}},
      {"OpenInference/ServerReady", kAny, {}},
      {"OpenInference/ServerMetadata", kAny, {}},
      {"OpenInference/ModelReady", kClients, {}},
      {"OpenInference/ModelMetadata", kClients, {}},
      {"OpenInference/ModelStatistics", kClients, {}},
      {"OpenInference/ModelInfer", kInfer, {}},

      {"GET /health", kAny, {}},
      {"GET /ready", kAny, {}},
      {"GET /version", kAny, {}},
      {"GET /v2", kAny, {}},
      {"GET /v2/health/live", kAny, {}},
      {"GET /v2/health/ready", kAny, {}},
      {"GET /metrics", kMonitor, {}},
      {"GET /v1/models", kClients, {}},
      {"GET /v1/models/NAME", kClients, {}},
      {"GET /", kAny, {}},
      {"GET /api/version", kAny, {}},
      {"GET /api/tags", kClients, {}},
      {"GET /api/ps", kClients, {}},
      {"POST /api/show", kClients, {}},
      {"GET /v2/models/NAME", kClients, {}},
      {"GET /v2/models/NAME/ready", kClients, {}},
      {"GET /v2/models/stats", kClients, {}},
      {"GET /v2/models/NAME/stats", kClients, {}},
  };
  for (const char* route :
       {"POST /v1/completions", "POST /v1/chat/completions", "POST /v1/responses",
        "POST /v1/responses/input_tokens", "GET /v1/responses/ID", "DELETE /v1/responses/ID",
        "POST /v1/responses/ID/cancel", "GET /v1/responses/ID/input_items", "POST /v1/messages",
        "POST /v1/messages/count_tokens", "POST /v1/embeddings", "POST /rerank", "POST /v1/rerank",
        "POST /v2/rerank", "POST /v2/models/NAME/infer", "POST /tokenize", "POST /detokenize",
        "GET /tokenizer_info", "POST /api/generate", "POST /api/chat", "POST /api/embed",
        "POST /api/embeddings",
        // Refused with what to do instead.
        "POST /api/pull", "POST /api/push", "POST /api/create", "POST /api/copy",
        "POST /api/blobs/ID", "GET /api/blobs/ID", "DELETE /api/delete"}) {
    rules.push_back({route, kInfer, {}});
  }
  std::sort(rules.begin(), rules.end(),
            [](const AccessRule& a, const AccessRule& b) { return a.method < b.method; });
  return rules;
}

}  // namespace

const char* NameOfKind(ResourceKind kind) {
  switch (kind) {
    case ResourceKind::kJob:
      return "job";
    case ResourceKind::kArtifact:
      return "artifact";
    case ResourceKind::kDistillation:
      return "boost-tuning";
    case ResourceKind::kServedModel:
      return "served model";
    case ResourceKind::kSession:
      return "session";
    case ResourceKind::kReplay:
      return "replay";
    case ResourceKind::kWorker:
      return "worker";
  }
  return "resource";
}

const std::vector<AccessRule>& AccessRules() {
  static const auto* const rules = new std::vector<AccessRule>(MakeRules());
  return *rules;
}

const AccessRule* FindAccessRule(absl::string_view method) {
  const std::vector<AccessRule>& rules = AccessRules();
  const auto found = std::lower_bound(
      rules.begin(), rules.end(), method,
      [](const AccessRule& rule, absl::string_view wanted) { return rule.method < wanted; });
  return found != rules.end() && found->method == method ? &*found : nullptr;
}

}  // namespace espalier
