#include "server/inference/models/model_server.h"

#include <spdlog/spdlog.h>

#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/net/api_keys.h"
#include "base/sha256.h"
#include "server/inference/field_error.h"
#include "server/inference/models/serve_request.h"
#include "server/store/idempotency.h"
#include "serving/request/request.h"

namespace espalier {
namespace {

absl::Status Stopping() {
  return absl::UnavailableError("the daemon is stopping and admits no more requests");
}

absl::Status NameTaken(const std::string& name) {
  return absl::AlreadyExistsError(absl::StrCat("the name '", name,
                                               "' of a served model is another owner's; choose "
                                               "another: espalier serve ARTIFACT --name=NAME"));
}

bool SameRequest(v1::ServeModelRequest known, const v1::ServeModelRequest& asked) {
  known.clear_chosen();
  known.clear_fitted_kv_cache_tokens();
  return known.SerializeAsString() == asked.SerializeAsString();
}

}  // namespace

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

absl::StatusOr<v1::ServeModelRequest> ModelServer::Complete(
    const v1::ServeModelRequest& given) const {
  // An artifact that is not there is named by PinArtifacts.
  const bool graph = options_.graphs != nullptr && !given.artifact().empty() &&
                     options_.graphs->IsGraph(given.artifact()).value_or(false);
  return graph ? CompleteGraphRequest(given) : CompleteServeRequest(given);
}

absl::Status ModelServer::PinArtifacts(v1::ServeModelRequest* request) const {
  if (options_.pin == nullptr) return absl::OkStatus();
  request->clear_versions();
  for (const std::string& artifact : ArtifactsOf(*request)) {
    absl::StatusOr<std::string> pinned = options_.pin(artifact);
    if (!pinned.ok()) return pinned.status();
    request->add_versions(*std::move(pinned));
  }
  return absl::OkStatus();
}

std::vector<ArtifactUse> ModelServer::ArtifactsInUse() const {
  std::vector<ArtifactUse> uses;
  absl::MutexLock lock(&mutex_);
  for (const auto& [name, entry] : models_) {
    const auto add = [&uses, &name = name](const std::string& artifact) {
      uses.push_back({artifact, absl::StrCat("the served model '", name, "'"),
                      absl::StrCat("end that first: espalier unserve ", name)});
    };
    for (const auto& [artifact, version] : VersionsOf(entry.request)) add(version);
  }
  return uses;
}

absl::StatusOr<v1::ServedModel> ModelServer::Serve(const v1::ServeModelRequest& given,
                                                   const std::string& owner) {
  absl::StatusOr<v1::ServeModelRequest> request = Complete(given);
  if (!request.ok()) return request.status();
  request->set_owner(owner);
  if (absl::Status status = PinArtifacts(&*request); !status.ok()) return status;
  if (absl::Status status = AcquireLoadSlot(request->name()); !status.ok()) return status;
  const absl::Cleanup load_slot = [this] { ReleaseLoadSlot(); };
  {
    absl::MutexLock lock(&mutex_);
    if (absl::Status status = CheckNames(*request); !status.ok()) return status;
    auto it = models_.find(request->name());
    if (it != models_.end()) {
      const std::string& known_owner = it->second.request.owner();
      if (!owner.empty() && known_owner != owner) return NameTaken(request->name());
      if (!SameRequest(it->second.request, *request)) {
        const std::string now = absl::StrJoin(it->second.request.versions(), ", ");
        const std::string wanted = absl::StrJoin(request->versions(), ", ");
        return absl::AlreadyExistsError(
            absl::StrCat("model '", request->name(), "' is served already ",
                         now == wanted ? "with other options"
                                       : absl::StrCat("from ", now, ", not from ", wanted),
                         "; unserve it first"));
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
      if (!request.owner().empty() && entry.request.owner() != request.owner()) {
        return NameTaken(name);
      }
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
    if (it == models_.end() && !arriving) return NotServed(name, Caller::Unrestricted());
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

absl::Status ModelServer::NotServed(const std::string& name, const Caller& caller) const {
  const std::vector<std::string> names = NamesFor(caller);
  return absl::NotFoundError(
      absl::StrCat("model '", name, "' is not served; ",
                   names.empty() ? std::string("none is (see 'espalier serve')")
                                 : absl::StrCat("served are: ", absl::StrJoin(names, ", "))));
}

absl::StatusOr<std::shared_ptr<LoadedModel>> ModelServer::Find(const std::string& name) const {
  absl::MutexLock lock(&mutex_);
  if (draining_) return Stopping();
  const auto it = models_.find(name);
  if (it == models_.end()) return NotServed(name, Caller::Unrestricted());
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

std::optional<std::string> ModelServer::OwnerOf(const std::string& name) const {
  absl::MutexLock lock(&mutex_);
  const auto it = models_.find(name);
  if (it == models_.end()) return std::nullopt;
  return it->second.request.owner();
}

absl::Status ModelServer::NotServedTo(const Caller& caller, const std::string& name) const {
  absl::MutexLock lock(&mutex_);
  return NotServed(name, caller);
}

absl::StatusOr<ModelServer::Target> ModelServer::Resolve(const std::string& name,
                                                         const Caller& caller) const {
  absl::StatusOr<Target> target = ResolveAny(name, caller);
  if (!target.ok() || target->model->engine != nullptr) return target;
  return absl::InvalidArgumentError(absl::StrCat(
      "model '", name,
      "' is a trained graph, no language model: it takes tensors by ModelInfer of the Open "
      "Inference Protocol, POST /v2/models/",
      name, "/infer or `espalier predict`"));
}

absl::StatusOr<ModelServer::Target> ModelServer::ResolveAny(const std::string& name,
                                                            const Caller& caller) const {
  std::string with_adapter = name;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [model, entry] : models_) {
      for (const v1::LoraAdapter& adapter : entry.request.adapters()) {
        if (adapter.name() == name) with_adapter = model;
      }
    }
    const auto it = models_.find(with_adapter);
    const bool usable = it != models_.end() && caller.MayUse(it->second.request.owner());
    if (!draining_ && !usable) return NotServed(name, caller);
  }
  absl::StatusOr<std::shared_ptr<LoadedModel>> model = Find(with_adapter);
  if (!model.ok()) return model.status();
  return Target{*std::move(model), with_adapter == name ? "" : name};
}

std::string ModelServer::PrefixSalt(absl::string_view authorization,
                                    const std::string& cache_salt) const {
  const absl::string_view key = KeyIn(authorization);
  // One that is too long is refused by the engine.
  if (options_.share_prefixes || key.empty() || cache_salt.size() > kLongestSalt) return cache_salt;
  // A hash: salts are kept for long, keys should not be.
  return Sha256Hex(absl::StrCat(key.size(), " ", key, cache_salt));
}

absl::StatusOr<ModelServer::Target> ModelServer::ResolveOrOnly(const std::string& name,
                                                               const Caller& caller) const {
  if (!name.empty()) return Resolve(name, caller);
  const std::vector<v1::ServedModel> models = ListFor(caller);
  if (models.size() == 1) return Resolve(models[0].name(), caller);
  return FieldError(
      "model", absl::StrCat("field 'model' is missing, and ", models.size(), " models are served"));
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

std::vector<v1::ServedModel> ModelServer::ListFor(const Caller& caller) const {
  std::vector<v1::ServedModel> models = List();
  std::erase_if(models, [&](const v1::ServedModel& model) {
    return model.has_graph() || !caller.MayUse(model.owner());
  });
  return models;
}

std::vector<std::string> ModelServer::Names(const Caller& caller) const {
  absl::MutexLock lock(&mutex_);
  return NamesFor(caller);
}

std::vector<std::string> ModelServer::NamesFor(const Caller& caller) const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : models_) {
    if (entry.failure.ok() && caller.MayUse(entry.request.owner())) names.push_back(name);
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
    if (entry.model == nullptr) continue;
    if (entry.model->engine != nullptr) entry.model->engine->End(why);
    if (entry.model->predictor != nullptr) entry.model->predictor->End(why);
  }
}

int ModelServer::OpenRequests() const {
  absl::MutexLock lock(&mutex_);
  int open = 0;
  for (const auto& [name, entry] : models_) {
    if (entry.model == nullptr) continue;
    if (entry.model->engine != nullptr) open += entry.model->engine->open();
    if (entry.model->predictor != nullptr) open += entry.model->predictor->statistics().open;
  }
  return open;
}

uint64_t ModelServer::NextSeed() {
  absl::MutexLock lock(&mutex_);
  // Odd multiplier: distinct counters give distinct seeds.
  return static_cast<uint64_t>(options_.default_seed) + 0x9E3779B97F4A7C15ull * ++seeds_;
}

}  // namespace espalier
