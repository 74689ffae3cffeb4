#include "server/inference/models/model_server.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "models/kv_cache_dtype.h"
#include "server/inference/field_error.h"
#include "server/inference/models/sampling_defaults.h"
#include "server/inference/models/serve_request.h"
#include "server/store/idempotency.h"

namespace espalier {
namespace {

constexpr char kDisabledPrefix[] = "disabled: ";  // followed by the reason
// Tree size to allow for when speculation is tuned.
constexpr int kTunedNodes = 40, kTunedDepth = 8;

absl::Status Stopping() {
  return absl::UnavailableError("the daemon is stopping and admits no more requests");
}

// The part of a description that follows from the request alone.
v1::ServedModel DescribeRequest(const v1::ServeModelRequest& request,
                                const std::vector<v1::ModelPlacement>& placements) {
  v1::ServedModel description;
  description.set_name(request.name());
  description.set_artifact(request.artifact());
  *description.mutable_ssm_artifacts() = request.ssm_artifacts();
  *description.mutable_expansion() = request.expansion();
  description.set_weights(request.weights());
  description.set_ssm_weights(request.ssm_weights());
  description.set_tune_speculation(request.tune_speculation());
  description.set_ngram_depth(request.ngram_depth());
  description.set_no_prefix_cache(request.no_prefix_cache());
  if (const auto kv_cache_dtype = KvCacheDTypeOf(request.kv_cache()); kv_cache_dtype.ok()) {
    description.set_kv_cache(KvCacheDTypeName(*kv_cache_dtype));
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
  description.set_generation_config(request.generation_config());
  return description;
}

// Returns whether any model runs on workers.
bool OnWorkers(const std::vector<v1::ModelPlacement>& placements) {
  return std::any_of(placements.begin(), placements.end(),
                     [](const v1::ModelPlacement& place) { return place.tensor_parallel() > 0; });
}

bool SameRequest(v1::ServeModelRequest known, const v1::ServeModelRequest& asked) {
  known.clear_chosen();
  known.clear_fitted_kv_cache_tokens();
  return known.SerializeAsString() == asked.SerializeAsString();
}

}  // namespace

absl::Status CheckDrafting(const LoadedModel& model, size_t prompt_tokens) {
  const v1::ServedModel now = Describe(model);
  int longest = 0;
  for (const v1::ModelPlacement& ssm : now.ssm_placements()) {
    if (absl::StartsWith(ssm.state(), kDisabledPrefix)) continue;
    // An SSM drafts after the answer's first token.
    const auto most = static_cast<size_t>(ssm.draft_tokens());
    if (most == 0 || prompt_tokens < most) return absl::OkStatus();
    longest = std::max(longest, ssm.draft_tokens());
  }
  if (now.ssm_placements().empty() || now.ngram_depth() > 0) return absl::OkStatus();
  if (longest > 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the prompt has ", prompt_tokens, " tokens, and the SSMs of model '", now.name(),
        "' draft for sequences of at most ", longest,
        "; ask with a shorter prompt, serve it with SSMs of more positions or with n-gram drafts"));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "model '", now.name(), "' has no SSM that works (", now.ssm_placements(0).state(),
      "); `espalier unserve ", now.name(), "`, then serve it again"));
}

v1::ServedModel Describe(const LoadedModel& model) {
  v1::ServedModel description = model.description;
  if (model.describe) model.describe(&description);
  const SpeculationStatistics speculation = model.engine->statistics().speculation;
  const std::vector<absl::Status>& ssms = speculation.ssm_status;
  for (int s = 0; s < std::min<int>(ssms.size(), description.ssm_placements_size()); ++s) {
    v1::ModelPlacement& place = *description.mutable_ssm_placements(s);
    const int limit = speculation.ssm_limits[s];
    if (limit < model.engine->context()) place.set_draft_tokens(std::max(1, limit));
    // An SSM whose workers are away has its own state, and may be ready before the engine notices.
    const bool away = !place.state().empty() && place.state() != "ready";
    const bool back = absl::IsUnavailable(ssms[s]) && place.state() == "ready";
    if (ssms[s].ok() || away || back) continue;
    place.set_state(absl::StrCat(kDisabledPrefix, ssms[s].message()));
  }
  return description;
}

bool AnswersRequests(const v1::ServedModel& model) {
  return model.state().empty() || model.state() == "ready";
}

absl::StatusOr<int> AdapterIndex(const v1::ServedModel& model, const std::string& adapter) {
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

absl::StatusOr<ModelServer::Prepared> ModelServer::LoadParts(const v1::ServeModelRequest& request,
                                                             const std::string& name,
                                                             bool may_wait) {
  absl::StatusOr<Expansion> expansion =
      Expansion::Create({request.expansion().begin(), request.expansion().end()});
  if (!expansion.ok()) return expansion.status();
  ServingSize size;
  size.max_sequence_length = request.max_sequence_length();
  size.max_requests = request.max_requests_per_batch();
  size.max_tokens_per_batch = request.max_tokens_per_batch();
  size.kv_cache_tokens = static_cast<int>(request.kv_cache_tokens());
  // A restored model was accepted before, maybe by a version without this check.
  size.short_ssms = request.short_ssms() || may_wait;
  const absl::StatusOr<DType> kv_cache_dtype = KvCacheDTypeOf(request.kv_cache());
  if (!kv_cache_dtype.ok()) return kv_cache_dtype.status();
  size.kv_cache_dtype = *kv_cache_dtype;
  if (request.tune_speculation() || request.ngram_depth() > 0) {
    const int sources = request.ssm_artifacts_size() + (request.ngram_depth() > 0 ? 1 : 0);
    size.tree_nodes = kTunedNodes * sources + 2 * request.ngram_depth();
    size.tree_depth = std::max(kTunedDepth, request.ngram_depth());
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
  for (const v1::LoraAdapter& adapter : request.adapters()) {
    formats.adapters.push_back(adapter.artifact());
  }
  absl::StatusOr<ModelLoader::Loaded> loaded = options_.loader->Load(
      request.artifact(), {request.ssm_artifacts().begin(), request.ssm_artifacts().end()}, size,
      *expansion, formats,
      {.name = name,
       .models = PlacementsOf(request),
       .expected_requests = request.expected_requests() > 0 ? request.expected_requests()
                                                            : request.max_requests_per_batch(),
       .concurrent_steps = request.tune_speculation() ? 1 : request.concurrent_steps(),
       .may_wait = may_wait,
       .fitted_kv_cache_tokens = static_cast<int>(request.fitted_kv_cache_tokens())});
  if (!loaded.ok()) return loaded.status();
  EngineOptions options;
  options.expansion = *std::move(expansion);
  options.max_requests = request.max_requests_per_batch();
  options.max_tokens_per_batch = request.max_tokens_per_batch();
  options.max_queue = request.max_queue();
  options.speculation.tune = request.tune_speculation();
  // Coupled sampling makes a seeded answer independent of the draft tree. On workers always: other
  // sampling needs full rows of draft logits from them.
  options.speculation.sampled =
      OnWorkers(loaded->placements) ? SampledDrafting::kCoupled : SampledDrafting::kCoupledIfSeeded;
  options.speculation.ngram.depth = request.ngram_depth();
  // Then requests share nothing, so timing reveals nothing about other requests.
  if (request.no_prefix_cache()) options.speculation.ngram.history_tokens = 0;
  options.prefix_cache = !request.no_prefix_cache();
  options.max_sequence_length = request.max_sequence_length();
  options.concurrent_steps = request.concurrent_steps();
  // Relative to a start time, to keep microseconds within a double's precision.
  options.seconds = [clock = options_.clock, start = options_.clock->Now()] {
    return absl::ToDoubleSeconds(clock->Now() - start);
  };
  Prepared prepared{request, std::move(loaded->parts), std::move(options), loaded->parameters,
                    std::move(loaded->describe)};
  prepared.kv_cache_tokens = loaded->kv_cache_tokens;
  prepared.kv_cache_reduced = loaded->kv_cache_reduced;
  prepared.placements = std::move(loaded->placements);
  prepared.candidates = std::move(loaded->candidates);
  prepared.request.set_weights(Name(loaded->format));
  if (!request.chat_template().empty()) {
    auto chat = ChatTemplate::Replace(prepared.parts.chat.get(), request.chat_template());
    if (!chat.ok()) {
      return absl::Status(chat.status().code(),
                          absl::StrCat("field 'chat_template': ", chat.status().message()));
    }
    prepared.parts.chat = *std::move(chat);
  }
  if (request.generation_config() == "model") {
    absl::StatusOr<v1::SamplingOptions> sampling = SamplingDefaults(prepared.parts.generation);
    if (!sampling.ok()) {
      return absl::Status(
          sampling.status().code(),
          absl::StrCat("artifact '", request.artifact(), "': ", sampling.status().message()));
    }
    prepared.sampling_defaults = *std::move(sampling);
    if (const auto& unused = prepared.parts.generation.unused; !unused.empty()) {
      spdlog::warn("model {}: its generation_config.json has {}, which have no effect",
                   request.name(), absl::StrJoin(unused, ", "));
    }
  }
  return prepared;
}

v1::ServedModel ModelServer::Prepared::Describe(int context, absl::Time loaded) const {
  v1::ServedModel description = DescribeRequest(request, placements);
  description.set_parameters(parameters);
  description.set_kv_cache_tokens(kv_cache_tokens);
  description.set_max_sequence_length(context);
  description.set_vocabulary(parts.tokenizer->vocabulary());
  description.mutable_candidates()->Assign(candidates.begin(), candidates.end());
  description.set_loaded_unix_ms(absl::ToUnixMillis(loaded));
  *description.mutable_sampling_defaults() = sampling_defaults;
  if (request.generation_config() == "model") {
    const std::vector<std::string>& unused = parts.generation.unused;
    description.mutable_ignored_generation_fields()->Assign(unused.begin(), unused.end());
  }
  return description;
}

absl::Status ModelServer::AcquireLoadSlot(const std::string& name) {
  absl::MutexLock lock(&mutex_);
  const auto free = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return draining_ || (!loading_ && unloading_.count(name) == 0);
  };
  // A load ends eventually; a request that still reads its client's input may not.
  while (!mutex_.AwaitWithTimeout(absl::Condition(&free), options_.release_timeout)) {
    if (loading_) continue;
    return absl::UnavailableError(
        absl::StrCat("model '", name,
                     "' was unserved, but requests that are still being read, or its last step, "
                     "hold it and its memory; try again once they have ended"));
  }
  if (draining_) return Stopping();
  loading_ = true;
  return absl::OkStatus();
}

void ModelServer::ReleaseLoadSlot() {
  absl::MutexLock lock(&mutex_);
  loading_ = false;
  loading_name_.clear();
}

absl::StatusOr<ModelServer::Prepared> ModelServer::Prepare(const v1::ServeModelRequest& given) {
  absl::StatusOr<v1::ServeModelRequest> request = CompleteServeRequest(given);
  if (!request.ok()) return request.status();
  // Cannot clash with a served model, whose name has no slash.
  const std::string name = absl::StrCat(request->name(), "/prepared");
  if (absl::Status status = AcquireLoadSlot(name); !status.ok()) return status;
  const absl::Cleanup load_slot = [this] { ReleaseLoadSlot(); };
  return LoadParts(*request, name, /*may_wait=*/false);
}

absl::StatusOr<std::shared_ptr<LoadedModel>> ModelServer::Load(v1::ServeModelRequest* request,
                                                               bool may_wait) {
  absl::StatusOr<Prepared> prepared = LoadParts(*request, request->name(), may_wait);
  if (!prepared.ok()) return prepared.status();
  if (request->workers() == kAutoWorkers) {
    request->mutable_chosen()->Assign(prepared->placements.begin(), prepared->placements.end());
  }
  // Store the size that fits: after a restart the workers, or other models that share this
  // process's memory, may not be there yet to measure it against.
  if (request->kv_cache_tokens() == 0 &&
      (prepared->kv_cache_reduced || OnWorkers(prepared->placements))) {
    request->set_fitted_kv_cache_tokens(prepared->kv_cache_tokens);
  }
  const std::shared_ptr<LoadedModel> model(new LoadedModel,
                                           [this, name = request->name()](LoadedModel* last) {
                                             delete last;
                                             OnModelDestroyed(name);
                                           });
  model->description = prepared->Describe(0, options_.clock->Now());
  absl::StatusOr<std::unique_ptr<AsyncEngine>> engine =
      AsyncEngine::Create(std::move(prepared->parts), std::move(prepared->options));
  if (!engine.ok()) return engine.status();
  model->engine = *std::move(engine);
  model->describe = std::move(prepared->describe);
  model->description.set_max_sequence_length(model->engine->context());
  model->description.set_concurrent_steps(model->engine->concurrent_steps());
  model->description.set_embeddings(model->engine->embedding_size() > 0);
  model->grammars = std::make_unique<GrammarCache>(model->engine->shared_tokenizer());
  model->clock = options_.clock;
  return model;
}

absl::StatusOr<v1::ServedModel> ModelServer::Serve(const v1::ServeModelRequest& given) {
  absl::StatusOr<v1::ServeModelRequest> request = CompleteServeRequest(given);
  if (!request.ok()) return request.status();
  if (absl::Status status = AcquireLoadSlot(request->name()); !status.ok()) return status;
  const absl::Cleanup load_slot = [this] { ReleaseLoadSlot(); };
  {
    absl::MutexLock lock(&mutex_);
    if (absl::Status status = CheckNames(*request); !status.ok()) return status;
    auto it = models_.find(request->name());
    if (it != models_.end()) {
      if (!SameRequest(it->second.request, *request)) {
        return absl::AlreadyExistsError(
            absl::StrCat("model '", request->name(),
                         "' is served already with other options; unserve it first"));
      }
      if (it->second.model != nullptr) return Describe(*it->second.model);
    }
    loading_name_ = request->name();
  }
  return Admit(&*request, /*restores=*/false);
}

absl::StatusOr<v1::ServedModel> ModelServer::Admit(v1::ServeModelRequest* request, bool restores) {
  const std::string& name = request->name();
  absl::StatusOr<std::shared_ptr<LoadedModel>> model = Load(request, /*may_wait=*/restores);
  absl::MutexLock lock(&mutex_);  // released before an unwanted model is destroyed
  if (loading_name_ != name) {
    return absl::AbortedError(absl::StrCat("model '", name, "' was unserved while it was loaded"));
  }
  absl::Status status = model.status();
  // Under the lock, as in Unserve, so that models_ and store agree.
  if (status.ok() && !restores) status = options_.store->PutServed(*request, nullptr);
  if (!status.ok()) {
    if (auto known = models_.find(name); known != models_.end())
      RecordFailure(status, &known->second);
    return status;
  }
  if (options_.metrics != nullptr) options_.metrics->Add(*model);
  models_[name] = {*request, *model};
  return Describe(**model);
}

absl::Status ModelServer::CheckNames(const v1::ServeModelRequest& request) const {
  std::set<std::string> names = {request.name()};
  for (const v1::LoraAdapter& adapter : request.adapters()) names.insert(adapter.name());
  for (const auto& [model, entry] : models_) {
    if (model == request.name()) continue;
    std::vector<std::string> taken = {model};
    for (const v1::LoraAdapter& adapter : entry.request.adapters()) {
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

absl::Status ModelServer::Unserve(const std::string& name, const std::string& idempotency_key) {
  if (absl::Status status = CheckIdempotencyKey(idempotency_key); !status.ok()) return status;
  v1::UnserveModelRequest request;
  request.set_name(name);
  request.set_idempotency_key(idempotency_key);
  const IdempotencyRecord call =
      MakeIdempotencyRecord("Inference/Unserve", idempotency_key, request, v1::UnserveModelReply());
  const IdempotencyRecord* idempotency_record = idempotency_key.empty() ? nullptr : &call;
  std::shared_ptr<LoadedModel> last;
  {
    absl::MutexLock lock(&mutex_);
    if (draining_) return Stopping();
    if (idempotency_record != nullptr) {
      const auto known = options_.store->FindReply(call.method, call.key, call.request_hash);
      if (!known.ok()) return known.status();
      if (known->has_value()) return absl::OkStatus();
    }
    const auto it = models_.find(name);
    const bool arriving = !name.empty() && loading_name_ == name;
    if (it == models_.end() && !arriving) return NotServed(name);
    // A model loading for the first time is not in the store, but the idempotency record must be.
    absl::Status status = options_.store->DeleteServed(name, idempotency_record);
    if (!status.ok()) return status;
    if (it != models_.end()) {
      last = std::move(it->second.model);
      if (last != nullptr && options_.metrics != nullptr) options_.metrics->Remove(name);
      models_.erase(it);
    }
    if (arriving) loading_name_.clear();
    if (last == nullptr) return absl::OkStatus();
    unloading_.insert(name);
  }
  last.reset();  // destroyed without the lock: joins a thread
  absl::MutexLock lock(&mutex_);
  const auto gone = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return draining_ || unloading_.count(name) == 0;
  };
  if (!mutex_.AwaitWithTimeout(absl::Condition(&gone), options_.release_timeout)) {
    spdlog::warn(
        "model {} is unserved, but requests that are still being read hold it: until they are, its "
        "memory and workers are not free, and its name neither",
        name);
  }
  return absl::OkStatus();
}

void ModelServer::OnModelDestroyed(const std::string& name) {
  absl::MutexLock lock(&mutex_);
  unloading_.erase(name);
}

absl::Status ModelServer::NotServed(const std::string& name) const {
  const std::vector<std::string> names = NamesOfModels();
  return absl::NotFoundError(
      absl::StrCat("model '", name, "' is not served; ",
                   names.empty() ? std::string("none is (see 'espalier serve')")
                                 : absl::StrCat("served are: ", absl::StrJoin(names, ", "))));
}

absl::StatusOr<std::shared_ptr<LoadedModel>> ModelServer::Find(const std::string& name) const {
  absl::MutexLock lock(&mutex_);
  if (draining_) return Stopping();
  const auto it = models_.find(name);
  if (it == models_.end()) return NotServed(name);
  if (it->second.model != nullptr) return it->second.model;
  if (it->second.failure.ok()) {
    return absl::UnavailableError(
        absl::StrCat("model '", name, "' is being loaded; try again in a while"));
  }
  return absl::UnavailableError(absl::StrCat(
      "model '", name, "' could not be loaded: ", it->second.failure.message(),
      "; it is tried again from time to time, and at once by serving it again; 'espalier unserve ",
      name, "' gives it up"));
}

absl::StatusOr<ModelServer::Target> ModelServer::Resolve(const std::string& name) const {
  std::string owner = name;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [model, entry] : models_) {
      for (const v1::LoraAdapter& adapter : entry.request.adapters()) {
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

v1::ServedModel ModelServer::DescribeEntry(const Entry& entry) {
  if (entry.model != nullptr) return Describe(*entry.model);
  v1::ServedModel description = DescribeRequest(entry.request, PlacementsOf(entry.request));
  description.set_max_sequence_length(entry.request.max_sequence_length());
  description.set_state(entry.failure.ok() ? std::string("loading")
                                           : absl::StrCat("failed: ", entry.failure.message()));
  return description;
}

std::vector<v1::ServedModel> ModelServer::List() const {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::ServedModel> all;
  for (const auto& [name, entry] : models_) {
    if (entry.failure.ok()) all.push_back(DescribeEntry(entry));
  }
  return all;
}

std::vector<v1::ServedModel> ModelServer::ListWithFailed() const {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::ServedModel> all;
  for (const auto& [name, entry] : models_) all.push_back(DescribeEntry(entry));
  return all;
}

std::map<std::string, int> ModelServer::CountByState() const {
  absl::MutexLock lock(&mutex_);
  std::map<std::string, int> counts;
  for (const auto& [name, entry] : models_) {
    if (entry.model != nullptr) {
      ++counts[AnswersRequests(Describe(*entry.model)) ? "ready" : "waiting"];
    } else {
      ++counts[entry.failure.ok() ? "loading" : "failed"];
    }
  }
  if (!loading_name_.empty() && models_.count(loading_name_) == 0) ++counts["loading"];
  return counts;
}

std::vector<std::string> ModelServer::Names() const {
  absl::MutexLock lock(&mutex_);
  return NamesOfModels();
}

std::vector<std::string> ModelServer::NamesOfModels() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : models_) {
    if (entry.failure.ok()) names.push_back(name);
  }
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

void ModelServer::EndRequests(const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  for (const auto& [name, entry] : models_) {
    if (entry.model != nullptr) entry.model->engine->End(why);
  }
}

int ModelServer::OpenRequests() const {
  absl::MutexLock lock(&mutex_);
  int open = 0;
  for (const auto& [name, entry] : models_) {
    if (entry.model != nullptr) open += entry.model->engine->open();
  }
  return open;
}

uint64_t ModelServer::NextSeed() {
  absl::MutexLock lock(&mutex_);
  // Odd multiplier: distinct counters give distinct seeds.
  return static_cast<uint64_t>(options_.default_seed) + 0x9E3779B97F4A7C15ull * ++seeds_;
}

}  // namespace espalier
