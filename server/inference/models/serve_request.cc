#include "server/inference/models/serve_request.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/kv_cache_dtype.h"
#include "ops/quantized/quantize_graph.h"
#include "server/artifacts/artifact_store.h"

namespace espalier {
namespace {

constexpr int kDefaultRequests = 16;
constexpr int kDefaultRows = 256;
constexpr int kDefaultQueue = 256;
constexpr int kMaxRequests = 4096;
constexpr int kGraphBatch = 32, kMaxGraphBatch = 1 << 16;
constexpr int64_t kMaxDelayMicroseconds = 10'000'000;
constexpr int kMaxRows = 65536;
constexpr int kMaxNgramDepth = 64;
// In tokens; the tuner drafts fewer where these do not pay.
constexpr int kTunedNgramDepth = 6;
constexpr int kMaxAdapters = 256;
constexpr size_t kMaxChatTemplateBytes = 1 << 20;
constexpr int kMaxParallel = 1024;

absl::Status CheckAdapters(const v1::ServeModelRequest& request) {
  if (request.adapters_size() > kMaxAdapters) {
    return absl::InvalidArgumentError(absl::StrCat("field 'adapters' has ", request.adapters_size(),
                                                   " entries, expected at most ", kMaxAdapters));
  }
  std::set<std::string> names = {request.name()};
  for (const v1::LoraAdapter& adapter : request.adapters()) {
    const absl::Status name = CheckArtifactName(adapter.name());
    if (!name.ok())
      return absl::InvalidArgumentError(absl::StrCat("field 'adapters': ", name.message()));
    if (adapter.artifact().empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("field 'adapters': '", adapter.name(), "' names no artifact"));
    }
    if (!names.insert(adapter.name()).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "field 'adapters': '", adapter.name(), "' is the name of another adapter or the model"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckConcurrentSteps(const v1::ServeModelRequest& request, bool ssms_on_workers) {
  const int steps = request.concurrent_steps();
  const int stages = std::max(1, request.pipeline_parallel());
  if (steps < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("field 'concurrent_steps' is ", steps,
                     ", expected 0 (as many as the model has stages) or more"));
  }
  if (steps <= 1) return absl::OkStatus();
  if (request.workers() == kAutoWorkers) {
    return absl::InvalidArgumentError(
        "field 'concurrent_steps': where 'workers' is auto there are as many as stages, or 1; "
        "leave "
        "it "
        "out, or give 1");
  }
  if (steps > stages) {
    return absl::InvalidArgumentError(absl::StrCat("field 'concurrent_steps' is ", steps,
                                                   ", but by 'pipeline_parallel' the model has ",
                                                   stages, stages == 1 ? " stage" : " stages"));
  }
  if (request.tune_speculation()) {
    return absl::InvalidArgumentError(
        "field 'concurrent_steps': with 'tune_speculation', which measures steps, it can only be "
        "1");
  }
  if (ssms_on_workers) {
    return absl::InvalidArgumentError(
        "field 'concurrent_steps': with small models on workers it can only be 1; leave "
        "'ssm_tensor_parallel' and 'ssm_pipeline_parallel' out");
  }
  return absl::OkStatus();
}

// Checks and completes the placement fields.
absl::Status CompletePlacement(v1::ServeModelRequest* request) {
  bool degrees = false;
  for (const auto& [field, degree] :
       {std::pair("tensor_parallel", request->tensor_parallel()),
        std::pair("pipeline_parallel", request->pipeline_parallel()),
        std::pair("ssm_tensor_parallel", request->ssm_tensor_parallel()),
        std::pair("ssm_pipeline_parallel", request->ssm_pipeline_parallel())}) {
    if (degree < 0 || degree > kMaxParallel) {
      return absl::InvalidArgumentError(
          absl::StrCat("field '", field, "' is ", degree, ", expected 0 to ", kMaxParallel));
    }
    degrees = degrees || degree > 0;
  }
  const bool chosen = request->workers() == kAutoWorkers;
  if (!chosen && !request->workers().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("field 'workers' is '", request->workers(), "', expected auto or nothing"));
  }
  if (chosen && degrees) {
    return absl::InvalidArgumentError(
        "field 'workers' is auto, which chooses the degrees; leave 'tensor_parallel', "
        "'pipeline_parallel' and those of SSMs out");
  }
  if (request->expected_requests() < 0 || request->expected_requests() > kMaxRequests) {
    return absl::InvalidArgumentError(absl::StrCat("field 'expected_requests' is ",
                                                   request->expected_requests(), ", expected 0 to ",
                                                   kMaxRequests));
  }
  if (request->expected_requests() > 0 && !chosen) {
    return absl::InvalidArgumentError(
        "field 'expected_requests' is for the choice of a place, and 'workers' is not auto");
  }
  for (const auto& [field, given] :
       {std::pair("chosen", request->chosen_size() > 0),
        std::pair("fitted_kv_cache_tokens", request->fitted_kv_cache_tokens() != 0),
        std::pair("owner", !request->owner().empty()),
        std::pair("versions", request->versions_size() > 0)}) {
    if (!given) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("field '", field, "' is the coordinator's own; leave it out"));
  }
  const auto complete = [](int tensor, int pipeline, const auto& set_tensor,
                           const auto& set_pipeline) {
    if (tensor == 0 && pipeline == 0) return false;
    set_tensor(std::max(1, tensor));
    set_pipeline(std::max(1, pipeline));
    return true;
  };
  complete(
      request->tensor_parallel(), request->pipeline_parallel(),
      [&](int n) { request->set_tensor_parallel(n); },
      [&](int n) { request->set_pipeline_parallel(n); });
  const bool ssms_on_workers = complete(
      request->ssm_tensor_parallel(), request->ssm_pipeline_parallel(),
      [&](int n) { request->set_ssm_tensor_parallel(n); },
      [&](int n) { request->set_ssm_pipeline_parallel(n); });
  if (ssms_on_workers && request->ssm_artifacts().empty()) {
    return absl::InvalidArgumentError(
        "fields 'ssm_tensor_parallel' and 'ssm_pipeline_parallel' place SSMs, but 'ssm_artifacts' "
        "names none");
  }
  return CheckConcurrentSteps(*request, ssms_on_workers);
}

}  // namespace

std::vector<v1::ModelPlacement> PlacementsOf(const v1::ServeModelRequest& request) {
  if (request.workers() == kAutoWorkers) return {request.chosen().begin(), request.chosen().end()};
  v1::ModelPlacement llm, ssm;
  llm.set_tensor_parallel(request.tensor_parallel());
  llm.set_pipeline_parallel(request.pipeline_parallel());
  ssm.set_tensor_parallel(request.ssm_tensor_parallel());
  ssm.set_pipeline_parallel(request.ssm_pipeline_parallel());
  std::vector<v1::ModelPlacement> all(static_cast<size_t>(request.ssm_artifacts_size()) + 1, ssm);
  all[0] = llm;
  return all;
}

std::vector<std::string> ArtifactsOf(const v1::ServeModelRequest& request) {
  std::vector<std::string> artifacts = {request.artifact()};
  artifacts.insert(artifacts.end(), request.ssm_artifacts().begin(), request.ssm_artifacts().end());
  for (const v1::LoraAdapter& adapter : request.adapters()) artifacts.push_back(adapter.artifact());
  return artifacts;
}

std::map<std::string, std::string> VersionsOf(const v1::ServeModelRequest& request) {
  std::map<std::string, std::string> versions;
  int at = 0;
  for (const std::string& artifact : ArtifactsOf(request)) {
    versions[artifact] = at < request.versions_size() ? request.versions(at) : artifact;
    ++at;
  }
  return versions;
}

absl::StatusOr<v1::ServeModelRequest> CompleteGraphRequest(const v1::ServeModelRequest& given) {
  v1::ServeModelRequest request;
  request.set_artifact(given.artifact());
  request.set_name(given.name().empty() ? given.artifact().substr(0, given.artifact().find('@'))
                                        : given.name());
  *request.mutable_graph() = given.graph();
  request.set_max_queue(given.max_queue());
  if (absl::Status status = CheckArtifactName(request.name()); !status.ok()) return status;
  // What else is set is for language models.
  v1::ServeModelRequest others = given;
  for (const char* known : {"name", "artifact", "graph", "max_queue", "idempotency_key"}) {
    others.GetReflection()->ClearField(&others, others.GetDescriptor()->FindFieldByName(known));
  }
  std::vector<const google::protobuf::FieldDescriptor*> set;
  others.GetReflection()->ListFields(others, &set);
  if (!set.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("field '", set[0]->name(), "' is for language models, and artifact '",
                     given.artifact(), "' is a trained graph; leave it out"));
  }
  if (request.graph().max_batch_size() == 0)
    request.mutable_graph()->set_max_batch_size(kGraphBatch);
  if (request.max_queue() == 0) request.set_max_queue(kDefaultQueue);
  const struct {
    const char* name;
    int64_t value, least, most;
  } fields[] = {{"graph.max_batch_size", request.graph().max_batch_size(), 1, kMaxGraphBatch},
                {"graph.max_queue_delay_microseconds",
                 request.graph().max_queue_delay_microseconds(), 0, kMaxDelayMicroseconds},
                {"max_queue", request.max_queue(), 1, 1 << 20}};
  for (const auto& field : fields) {
    if (field.value >= field.least && field.value <= field.most) continue;
    return absl::InvalidArgumentError(absl::StrCat("field '", field.name, "' is ", field.value,
                                                   ", expected ", field.least, " to ", field.most));
  }
  return request;
}

absl::StatusOr<v1::ServeModelRequest> CompleteServeRequest(v1::ServeModelRequest request) {
  if (request.artifact().empty()) return absl::InvalidArgumentError("field 'artifact' is empty");
  if (request.has_graph()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "field 'graph' is for trained graphs, and artifact '", request.artifact(),
        "' is none; a language model has max_requests_per_batch and max_tokens_per_batch"));
  }
  // Without the version: requests go on when another one is served.
  if (request.name().empty()) {
    request.set_name(request.artifact().substr(0, request.artifact().find('@')));
  }
  if (absl::Status status = CheckArtifactName(request.name()); !status.ok()) return status;
  if (absl::Status status = CheckAdapters(request); !status.ok()) return status;
  if (request.ssm_artifacts().empty() && !request.expansion().empty()) {
    return absl::InvalidArgumentError(
        "field 'expansion' shapes the trees of SSMs, but 'ssm_artifacts' names none");
  }
  if (request.has_tune_speculation() && request.tune_speculation() &&
      !request.expansion().empty()) {
    return absl::InvalidArgumentError(
        "fields 'tune_speculation' and 'expansion': trees are chosen at each step, or have the one "
        "shape that is given; leave one of them out");
  }
  const bool wants_ngram = request.tune_speculation() && !request.has_ngram_depth();
  const bool drafts = !request.ssm_artifacts().empty() || request.ngram_depth() > 0 || wants_ngram;
  if (request.tune_speculation() && !drafts) {
    return absl::InvalidArgumentError(
        "field 'tune_speculation' chooses drafts, but there is neither an SSM nor a ngram_depth");
  }
  if (!request.has_tune_speculation()) {
    // An explicit expansion is used as given, and a pipeline with concurrent steps cannot time one
    // step.
    request.set_tune_speculation(drafts && request.expansion().empty() &&
                                 request.pipeline_parallel() <= 1);
  }
  if (!request.has_ngram_depth()) {
    request.set_ngram_depth(request.tune_speculation() ? kTunedNgramDepth : 0);
  }
  if (!request.ssm_weights().empty() && request.ssm_artifacts().empty()) {
    return absl::InvalidArgumentError("field 'ssm_weights': 'ssm_artifacts' names no SSM");
  }
  if (request.ngram_depth() < 0 || request.ngram_depth() > kMaxNgramDepth) {
    return absl::InvalidArgumentError(absl::StrCat("field 'ngram_depth' is ", request.ngram_depth(),
                                                   ", expected 0 to ", kMaxNgramDepth));
  }
  for (const std::string* format : {&request.weights(), &request.ssm_weights()}) {
    if (absl::Status known = WeightFormatOf(*format).status(); !known.ok()) return known;
  }
  const absl::StatusOr<DType> kv_cache_dtype = KvCacheDTypeOf(request.kv_cache());
  if (!kv_cache_dtype.ok()) return kv_cache_dtype.status();
  // normalize: earlier versions had no field for it
  if (*kv_cache_dtype == DType::kF32) request.clear_kv_cache();
  if (request.short_ssms() && request.ssm_artifacts().empty()) {
    return absl::InvalidArgumentError("field 'short_ssms': 'ssm_artifacts' names no SSM");
  }
  if (request.resident_weight_bytes() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("field 'resident_weight_bytes' is ", request.resident_weight_bytes(),
                     ", expected bytes of the device, or 0 for all weights"));
  }
  if (request.kv_cache_tokens() < 0 || request.kv_cache_tokens() > INT32_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("field 'kv_cache_tokens' is ", request.kv_cache_tokens(), ", expected 1 to ",
                     INT32_MAX, ", or 0 for as many as all requests could need"));
  }
  if (absl::Status status = CompletePlacement(&request); !status.ok()) return status;
  if (!request.ssm_artifacts().empty() && request.expansion().empty()) {
    for (int children : {1, 1, 3, 1, 1}) request.add_expansion(children);
  }
  if (request.chat_template().size() > kMaxChatTemplateBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("field 'chat_template' has ", request.chat_template().size(),
                     " bytes, expected at most ", kMaxChatTemplateBytes));
  }
  if (request.generation_config().empty()) request.set_generation_config("model");
  if (request.generation_config() != "model" && request.generation_config() != "none") {
    return absl::InvalidArgumentError(absl::StrCat("field 'generation_config' is '",
                                                   request.generation_config(),
                                                   "', expected model or none"));
  }
  const auto fill = [](int value, int fallback) { return value == 0 ? fallback : value; };
  request.set_max_requests_per_batch(fill(request.max_requests_per_batch(), kDefaultRequests));
  request.set_max_tokens_per_batch(fill(request.max_tokens_per_batch(), kDefaultRows));
  request.set_max_queue(fill(request.max_queue(), kDefaultQueue));
  const struct {
    const char* name;
    int value;
    int limit;
  } fields[] = {{"max_requests_per_batch", request.max_requests_per_batch(), kMaxRequests},
                {"max_tokens_per_batch", request.max_tokens_per_batch(), kMaxRows},
                {"max_queue", request.max_queue(), 1 << 20},
                {"max_sequence_length", request.max_sequence_length() + 1, 1 << 20}};
  for (const auto& field : fields) {
    if (field.value < 1 || field.value > field.limit) {
      return absl::InvalidArgumentError(absl::StrCat(
          "field '", field.name, "' is out of range: ", "expected at most ", field.limit));
    }
  }
  request.clear_idempotency_key();
  return request;
}

}  // namespace espalier
