#include "server/inference/model_server.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/models/kv_format.h"
#include "server/artifacts/artifact_store.h"
#include "server/inference/field_error.h"
#include "server/inference/sampling_defaults.h"

namespace espalier {
namespace {

constexpr char kSetAside[] = "set aside: ";  // why, behind it

constexpr int kDefaultRequests = 16;
constexpr int kDefaultRows = 256;
constexpr int kDefaultQueue = 256;
constexpr int kMaxRequests = 4096;
constexpr int kMaxRows = 65536;
constexpr int kMaxLookup = 64;
// Tokens; the tuner asks for fewer, or none, where these do not pay.
constexpr int kTunedLookup = 6;
constexpr int kMaxAdapters = 256;
constexpr size_t kMaxChatTemplateBytes = 1 << 20;
constexpr int kMaxParallel = 1024;
// Room for the trees of a request that the engine shapes itself.
constexpr int kTunedNodes = 40, kTunedDepth = 8;

absl::Status CheckAdapters(const proto::ServeModelRequest& request) {
  if (request.adapters_size() > kMaxAdapters) {
    return absl::InvalidArgumentError(absl::StrCat("field 'adapters' has ", request.adapters_size(),
                                                   " entries, expected at most ", kMaxAdapters));
  }
  std::set<std::string> names = {request.name()};
  for (const proto::LoraAdapter& adapter : request.adapters()) {
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

constexpr char kAuto[] = "auto";

absl::Status CheckStepsAtOnce(const proto::ServeModelRequest& request, bool ssms_on_workers) {
  const int steps = request.steps_at_once();
  const int stages = std::max(1, request.pipeline_parallel());
  if (steps < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("field 'steps_at_once' is ", steps,
                     ", expected 0 (as many as the model has stages) or more"));
  }
  if (steps <= 1) return absl::OkStatus();
  if (request.workers() == kAuto) {
    return absl::InvalidArgumentError(
        "field 'steps_at_once': where 'workers' is auto there are as many as stages, or 1; leave "
        "it "
        "out, or give 1");
  }
  if (steps > stages) {
    return absl::InvalidArgumentError(absl::StrCat("field 'steps_at_once' is ", steps,
                                                   ", but by 'pipeline_parallel' the model has ",
                                                   stages, stages == 1 ? " stage" : " stages"));
  }
  if (request.tune_speculation()) {
    return absl::InvalidArgumentError(
        "field 'steps_at_once': with 'tune_speculation', which measures steps, it can only be 1");
  }
  if (ssms_on_workers) {
    return absl::InvalidArgumentError(
        "field 'steps_at_once': with small models on workers it can only be 1; leave "
        "'ssm_tensor_parallel' and 'ssm_pipeline_parallel' out");
  }
  return absl::OkStatus();
}

// Checks and completes what the request says of where its models run.
absl::Status CompletePlacement(proto::ServeModelRequest* request) {
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
  const bool chosen = request->workers() == kAuto;
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
  if (request->chosen_size() > 0) {
    return absl::InvalidArgumentError("field 'chosen' is the coordinator's own; leave it out");
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
  return CheckStepsAtOnce(*request, ssms_on_workers);
}

// The LLM's, then the SSMs'; empty: to be chosen.
std::vector<proto::ModelPlacement> PlacementsOf(const proto::ServeModelRequest& request) {
  if (request.workers() == kAuto) return {request.chosen().begin(), request.chosen().end()};
  proto::ModelPlacement llm, ssm;
  llm.set_tensor_parallel(request.tensor_parallel());
  llm.set_pipeline_parallel(request.pipeline_parallel());
  ssm.set_tensor_parallel(request.ssm_tensor_parallel());
  ssm.set_pipeline_parallel(request.ssm_pipeline_parallel());
  std::vector<proto::ModelPlacement> all(static_cast<size_t>(request.ssm_artifacts_size()) + 1,
                                         ssm);
  all[0] = llm;
  return all;
}

// The request with its defaults filled in, or what is wrong with it.
absl::StatusOr<proto::ServeModelRequest> Complete(proto::ServeModelRequest request) {
  if (request.artifact().empty()) return absl::InvalidArgumentError("field 'artifact' is empty");
  if (request.name().empty()) request.set_name(request.artifact());
  if (absl::Status status = CheckArtifactName(request.name()); !status.ok()) return status;
  if (absl::Status status = CheckAdapters(request); !status.ok()) return status;
  if (request.ssm_artifacts().empty() && !request.expansion().empty()) {
    return absl::InvalidArgumentError(
        "field 'expansion' shapes the trees of SSMs, but 'ssm_artifacts' names none");
  }
  const bool wants_lookups = request.tune_speculation() && !request.has_lookup_depth();
  const bool drafts =
      !request.ssm_artifacts().empty() || request.lookup_depth() > 0 || wants_lookups;
  if (request.has_tune_speculation() && !drafts) {
    return absl::InvalidArgumentError(
        "field 'tune_speculation' chooses drafts, but there is neither an SSM nor a lookup_depth");
  }
  if (!request.has_tune_speculation()) {
    // Whoever names a shape wants it; and a pipeline that works on several steps cannot measure
    // one.
    request.set_tune_speculation(drafts && request.expansion().empty() &&
                                 request.pipeline_parallel() <= 1);
  }
  if (!request.has_lookup_depth()) {
    request.set_lookup_depth(request.tune_speculation() ? kTunedLookup : 0);
  }
  if (!request.ssm_weights().empty() && request.ssm_artifacts().empty()) {
    return absl::InvalidArgumentError("field 'ssm_weights': 'ssm_artifacts' names no SSM");
  }
  if (request.lookup_depth() < 0 || request.lookup_depth() > kMaxLookup) {
    return absl::InvalidArgumentError(absl::StrCat(
        "field 'lookup_depth' is ", request.lookup_depth(), ", expected 0 to ", kMaxLookup));
  }
  for (const std::string* format : {&request.weights(), &request.ssm_weights()}) {
    if (absl::Status known = WeightFormatOf(*format).status(); !known.ok()) return known;
  }
  const absl::StatusOr<DType> kv_format = KvFormatOf(request.kv_cache());
  if (!kv_format.ok()) return kv_format.status();
  if (*kv_format == DType::kF32) request.clear_kv_cache();  // as in requests of earlier versions
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

}  // namespace

absl::Status CheckDrafting(const LoadedModel& model) {
  const proto::ServedModel now = Describe(model);
  for (const proto::ModelPlacement& ssm : now.ssm_placements()) {
    if (!absl::StartsWith(ssm.state(), kSetAside)) return absl::OkStatus();
  }
  if (now.ssm_placements().empty() || now.lookup_depth() > 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "model '", now.name(), "' has no SSM that works (", now.ssm_placements(0).state(), ")"));
}

proto::ServedModel Describe(const LoadedModel& model) {
  proto::ServedModel description = model.description;
  if (model.describe) model.describe(&description);
  const std::vector<absl::Status> ssms = model.host->statistics().speculation.ssm_status;
  for (int s = 0; s < std::min<int>(ssms.size(), description.ssm_placements_size()); ++s) {
    proto::ModelPlacement& place = *description.mutable_ssm_placements(s);
    // One that is only away says so itself, and by what it says it is back before the engine knows.
    const bool away = !place.state().empty() && place.state() != "ready";
    const bool back = absl::IsUnavailable(ssms[s]) && place.state() == "ready";
    if (ssms[s].ok() || away || back) continue;
    place.set_state(absl::StrCat(kSetAside, ssms[s].message()));
  }
  return description;
}

bool AnswersRequests(const proto::ServedModel& model) {
  return model.state().empty() || model.state() == "ready";
}

absl::StatusOr<int> AdapterIndex(const proto::ServedModel& model, const std::string& adapter) {
  if (adapter.empty()) return -1;
  std::vector<std::string> names;
  for (int i = 0; i < model.adapters_size(); ++i) {
    if (model.adapters(i).name() == adapter) return i;
    names.push_back(model.adapters(i).name());
  }
  return absl::NotFoundError(
      absl::StrCat("model '", model.name(), "' has no adapter '", adapter, "'; ",
                   names.empty() ? "it is served with none"
                                 : absl::StrCat("it has: ", absl::StrJoin(names, ", "))));
}

absl::StatusOr<ModelServer::Prepared> ModelServer::LoadParts(
    const proto::ServeModelRequest& request, const std::string& name, bool may_wait) {
  absl::StatusOr<Expansion> expansion =
      Expansion::Create({request.expansion().begin(), request.expansion().end()});
  if (!expansion.ok()) return expansion.status();
  ServingSize size;
  size.max_sequence_length = request.max_sequence_length();
  size.max_requests = request.max_requests_per_batch();
  size.max_tokens_per_batch = request.max_tokens_per_batch();
  size.kv_cache_tokens = static_cast<int>(request.kv_cache_tokens());
  const absl::StatusOr<DType> kv_format = KvFormatOf(request.kv_cache());
  if (!kv_format.ok()) return kv_format.status();
  size.kv_format = *kv_format;
  if (request.tune_speculation() || request.lookup_depth() > 0) {
    const int sources = request.ssm_artifacts_size() + (request.lookup_depth() > 0 ? 1 : 0);
    size.tree_nodes = kTunedNodes * sources + 2 * request.lookup_depth();
    size.tree_depth = std::max(kTunedDepth, request.lookup_depth());
  }
  ModelLoader::Formats formats;
  formats.resident_weight_bytes = request.resident_weight_bytes();
  for (const auto& [given, format] : {std::pair{&request.weights(), &formats.llm},
                                      std::pair{&request.ssm_weights(), &formats.ssms}}) {
    if (given->empty()) continue;
    absl::StatusOr<WeightFormat> known = WeightFormatOf(*given);
    if (!known.ok()) return known.status();
    *format = *known;
  }
  for (const proto::LoraAdapter& adapter : request.adapters()) {
    formats.adapters.push_back(adapter.artifact());
  }
  absl::StatusOr<ModelLoader::Loaded> loaded = options_.loader->Load(
      request.artifact(), {request.ssm_artifacts().begin(), request.ssm_artifacts().end()}, size,
      *expansion, formats,
      {.name = name,
       .models = PlacementsOf(request),
       .expected_requests = request.expected_requests() > 0 ? request.expected_requests()
                                                            : request.max_requests_per_batch(),
       .steps_at_once = request.tune_speculation() ? 1 : request.steps_at_once(),
       .may_wait = may_wait});
  if (!loaded.ok()) return loaded.status();
  EngineOptions options;
  options.expansion = *std::move(expansion);
  options.max_requests = request.max_requests_per_batch();
  options.max_tokens_per_batch = request.max_tokens_per_batch();
  options.max_queue = request.max_queue();
  options.speculation.tune = request.tune_speculation();
  // With the same noise for draft and LLM a seed's answer does not depend on which tree was chosen.
  // Drawn drafts take whole rows of logits, which would have to come from the workers.
  if (request.tune_speculation()) {
    const bool on_workers =
        std::any_of(loaded->placements.begin(), loaded->placements.end(),
                    [](const proto::ModelPlacement& place) { return place.tensor_parallel() > 0; });
    options.speculation.sampled = on_workers ? SampledDrafts::kShared : SampledDrafts::kBySeed;
  }
  options.speculation.lookup.depth = request.lookup_depth();
  // Then nothing of one request is of use to another, or can be told by how long another takes.
  if (request.no_prefix_cache()) options.speculation.lookup.history_tokens = 0;
  options.prefix_cache = !request.no_prefix_cache();
  options.max_sequence_length = request.max_sequence_length();
  options.steps_at_once = request.steps_at_once();
  // From a start of its own, so that microseconds are not lost in the digits of the date.
  options.seconds = [clock = options_.clock, start = options_.clock->Now()] {
    return absl::ToDoubleSeconds(clock->Now() - start);
  };
  Prepared prepared{request, std::move(loaded->parts), std::move(options), loaded->parameters,
                    std::move(loaded->describe)};
  prepared.kv_cache_tokens = loaded->kv_cache_tokens;
  prepared.placements = std::move(loaded->placements);
  prepared.candidates = std::move(loaded->candidates);
  prepared.request.set_weights(Name(loaded->format));
  if (!request.chat_template().empty()) {
    auto chat = ChatFormat::Replace(prepared.parts.chat.get(), request.chat_template());
    if (!chat.ok()) {
      return absl::Status(chat.status().code(),
                          absl::StrCat("field 'chat_template': ", chat.status().message()));
    }
    prepared.parts.chat = *std::move(chat);
  }
  if (request.generation_config() == "model") {
    absl::StatusOr<proto::SamplingOptions> sampling = SamplingDefaults(prepared.parts.generation);
    if (!sampling.ok()) {
      return absl::Status(
          sampling.status().code(),
          absl::StrCat("artifact '", request.artifact(), "': ", sampling.status().message()));
    }
    prepared.sampling_defaults = *std::move(sampling);
    if (const auto& unused = prepared.parts.generation.unused; !unused.empty()) {
      spdlog::warn("model {}: its generation_config.json has {}, which nobody reads here",
                   request.name(), absl::StrJoin(unused, ", "));
    }
  }
  return prepared;
}

proto::ServedModel ModelServer::Prepared::Describe(int context, absl::Time loaded) const {
  proto::ServedModel description;
  description.set_name(request.name());
  description.set_artifact(request.artifact());
  *description.mutable_ssm_artifacts() = request.ssm_artifacts();
  *description.mutable_expansion() = request.expansion();
  description.set_parameters(parameters);
  description.set_kv_cache_tokens(kv_cache_tokens);
  description.set_max_sequence_length(context);
  description.set_vocabulary(parts.tokenizer->vocabulary());
  description.set_weights(request.weights());
  description.set_ssm_weights(request.ssm_weights());
  description.set_tune_speculation(request.tune_speculation());
  description.set_lookup_depth(request.lookup_depth());
  description.set_no_prefix_cache(request.no_prefix_cache());
  if (const auto kv_format = KvFormatOf(request.kv_cache()); kv_format.ok()) {
    description.set_kv_cache(KvFormatName(*kv_format));
  }
  description.set_resident_weight_bytes(request.resident_weight_bytes());
  *description.mutable_adapters() = request.adapters();
  for (size_t m = 0; m < placements.size(); ++m) {
    if (m > 0) {
      *description.add_ssm_placements() = placements[m];
    } else {
      description.set_tensor_parallel(placements[m].tensor_parallel());
      description.set_pipeline_parallel(placements[m].pipeline_parallel());
    }
  }
  description.mutable_candidates()->Assign(candidates.begin(), candidates.end());
  description.set_loaded_unix_ms(absl::ToUnixMillis(loaded));
  description.set_generation_config(request.generation_config());
  *description.mutable_sampling_defaults() = sampling_defaults;
  return description;
}

absl::StatusOr<ModelServer::Prepared> ModelServer::Prepare(const proto::ServeModelRequest& given) {
  absl::StatusOr<proto::ServeModelRequest> request = Complete(given);
  if (!request.ok()) return request.status();
  absl::MutexLock loading(&loading_);
  // Beside a served model of the same name, which has no slash.
  return LoadParts(*request, absl::StrCat(request->name(), "/prepared"), /*may_wait=*/false);
}

absl::StatusOr<std::shared_ptr<LoadedModel>> ModelServer::Load(proto::ServeModelRequest* request,
                                                               bool may_wait) {
  absl::StatusOr<Prepared> prepared = LoadParts(*request, request->name(), may_wait);
  if (!prepared.ok()) return prepared.status();
  if (request->workers() == kAuto) {
    request->mutable_chosen()->Assign(prepared->placements.begin(), prepared->placements.end());
  }
  auto model = std::make_shared<LoadedModel>();
  model->description = prepared->Describe(0, options_.clock->Now());
  absl::StatusOr<std::unique_ptr<EngineHost>> host =
      EngineHost::Create(std::move(prepared->parts), std::move(prepared->options));
  if (!host.ok()) return host.status();
  model->host = *std::move(host);
  model->describe = std::move(prepared->describe);
  model->description.set_max_sequence_length(model->host->context());
  model->description.set_steps_at_once(model->host->steps_at_once());
  model->description.set_embeddings(model->host->embedding_size() > 0);
  model->grammars = std::make_unique<GrammarCache>(model->host->shared_tokenizer());
  model->clock = options_.clock;
  return model;
}

std::map<std::string, absl::Status> ModelServer::Restore() {
  std::map<std::string, absl::Status> failures;
  absl::StatusOr<std::vector<proto::ServeModelRequest>> served = options_.store->Served();
  if (!served.ok()) {
    failures["*"] = served.status();
    return failures;
  }
  absl::MutexLock loading(&loading_);
  for (proto::ServeModelRequest& request : *served) {
    absl::StatusOr<std::shared_ptr<LoadedModel>> model = Load(&request, /*may_wait=*/true);
    if (!model.ok()) {
      failures[request.name()] = model.status();
      continue;
    }
    if (options_.metrics != nullptr) options_.metrics->Add(*model);
    request.clear_chosen();
    absl::MutexLock lock(&mutex_);
    models_[request.name()] = {request, *std::move(model)};
  }
  return failures;
}

absl::StatusOr<proto::ServedModel> ModelServer::Serve(const proto::ServeModelRequest& given) {
  absl::StatusOr<proto::ServeModelRequest> request = Complete(given);
  if (!request.ok()) return request.status();
  absl::MutexLock loading(&loading_);
  {
    absl::MutexLock lock(&mutex_);
    if (absl::Status status = CheckNames(*request); !status.ok()) return status;
    auto it = models_.find(request->name());
    if (it != models_.end()) {
      if (it->second.request.SerializeAsString() == request->SerializeAsString()) {
        return Describe(*it->second.model);
      }
      return absl::AlreadyExistsError(absl::StrCat(
          "model '", request->name(), "' is served already with other options; unserve it first"));
    }
  }
  absl::StatusOr<std::shared_ptr<LoadedModel>> model = Load(&*request, /*may_wait=*/false);
  if (!model.ok()) return model.status();
  if (absl::Status status = options_.store->PutServed(*request, nullptr); !status.ok()) {
    return status;
  }
  if (options_.metrics != nullptr) options_.metrics->Add(*model);
  const proto::ServedModel description = Describe(**model);
  request->clear_chosen();
  absl::MutexLock lock(&mutex_);
  models_[request->name()] = {*request, *std::move(model)};
  return description;
}

absl::Status ModelServer::CheckNames(const proto::ServeModelRequest& request) const {
  std::set<std::string> names = {request.name()};
  for (const proto::LoraAdapter& adapter : request.adapters()) names.insert(adapter.name());
  for (const auto& [model, entry] : models_) {
    if (model == request.name()) continue;
    std::vector<std::string> taken = {model};
    for (const proto::LoraAdapter& adapter : entry.request.adapters()) {
      taken.push_back(adapter.name());
    }
    for (const std::string& name : taken) {
      if (names.count(name) == 0) continue;
      return absl::AlreadyExistsError(absl::StrCat(
          "'", name, "' is already the name of ",
          name == model ? "a served model" : absl::StrCat("an adapter of model '", model, "'"),
          "; choose another"));
    }
  }
  return absl::OkStatus();
}

absl::Status ModelServer::Unserve(const std::string& name) {
  absl::MutexLock loading(&loading_);
  if (absl::Status status = Find(name).status(); !status.ok()) return status;
  if (absl::Status status = options_.store->DeleteServed(name, nullptr); !status.ok())
    return status;
  if (options_.metrics != nullptr) options_.metrics->Remove(name);
  std::shared_ptr<LoadedModel> last;  // destroyed without the lock: it joins a thread
  absl::MutexLock lock(&mutex_);
  auto it = models_.find(name);
  last = std::move(it->second.model);
  models_.erase(it);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<LoadedModel>> ModelServer::Find(const std::string& name) const {
  absl::MutexLock lock(&mutex_);
  if (draining_) {
    return absl::UnavailableError("the daemon is stopping and admits no more requests");
  }
  auto it = models_.find(name);
  if (it != models_.end()) return it->second.model;
  std::vector<std::string> names;
  for (const auto& [known, entry] : models_) names.push_back(known);
  return absl::NotFoundError(
      absl::StrCat("model '", name, "' is not served; ",
                   names.empty() ? std::string("none is (see 'espalier serve')")
                                 : absl::StrCat("served are: ", absl::StrJoin(names, ", "))));
}

absl::StatusOr<ModelServer::Target> ModelServer::Resolve(const std::string& name) const {
  std::string owner = name;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [model, entry] : models_) {
      for (const proto::LoraAdapter& adapter : entry.request.adapters()) {
        if (adapter.name() == name) owner = model;
      }
    }
  }
  absl::StatusOr<std::shared_ptr<LoadedModel>> model = Find(owner);
  if (!model.ok()) return model.status();
  return Target{*std::move(model), owner == name ? "" : name};
}

absl::StatusOr<ModelServer::Target> ModelServer::ResolveOrOnly(const std::string& name) const {
  if (!name.empty()) return Resolve(name);
  const std::vector<std::string> names = Names();
  if (names.size() == 1) return Resolve(names[0]);
  return FieldError(
      "model", absl::StrCat("field 'model' is missing, and ", names.size(), " models are served"));
}

std::vector<proto::ServedModel> ModelServer::List() const {
  absl::MutexLock lock(&mutex_);
  std::vector<proto::ServedModel> all;
  for (const auto& [name, entry] : models_) all.push_back(Describe(*entry.model));
  return all;
}

std::vector<std::string> ModelServer::Names() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> names;
  for (const auto& [name, entry] : models_) names.push_back(name);
  return names;
}

void ModelServer::Drain() {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
}

bool ModelServer::draining() const {
  absl::MutexLock lock(&mutex_);
  return draining_;
}

int ModelServer::OpenRequests() const {
  absl::MutexLock lock(&mutex_);
  int open = 0;
  for (const auto& [name, entry] : models_) open += entry.model->host->open();
  return open;
}

uint64_t ModelServer::NextSeed() {
  absl::MutexLock lock(&mutex_);
  // Odd multiplier: distinct counters give distinct seeds.
  return static_cast<uint64_t>(options_.default_seed) + 0x9E3779B97F4A7C15ull * ++seeds_;
}

}  // namespace espalier
