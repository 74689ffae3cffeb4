// Life cycle of served models: loading, unloading, lookup, and restoring after a restart.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/net/caller.h"
#include "espalier/v1/inference.pb.h"
#include "ops/quantized/quantize_graph.h"
#include "server/artifacts/artifact_store.h"
#include "server/inference/models/async_engine.h"
#include "server/inference/models/loaded_model.h"
#include "server/inference/models/serving_metrics.h"
#include "server/inference/prediction/graph_loader.h"
#include "server/store/job_store.h"
#include "serving/models/model_description.h"

namespace espalier {

// Loads models from artifacts. An interface, so that tests need no trained model.
class ModelLoader {
 public:
  virtual ~ModelLoader() = default;

  struct Loaded {
    EngineParts parts;
    int64_t parameters = 0;       // of the LLM
    int64_t kv_cache_tokens = 0;  // of the LLM
    // smaller than useful, to fit the memory
    bool kv_cache_reduced = false;
    WeightFormat format = WeightFormat::kF32;        // of the LLM
    std::function<void(v1::ServedModel*)> describe;  // as in LoadedModel, while `parts` live
    // Placements of the LLM, then of the SSMs; and the candidates, if this loader chose.
    std::vector<v1::ModelPlacement> placements;
    std::vector<v1::PlacementCandidate> candidates;
  };
  struct Formats {
    std::optional<WeightFormat> llm, ssms;  // absent: as in the files
    int64_t resident_weight_bytes = 0;      // of the LLM: see ServingLowering; 0: all
    std::vector<std::string> adapters;      // artifacts of low-rank adapters of the LLM
    // What is loaded for an artifact's name: its version. Names without an entry are loaded as
    // such.
    std::map<std::string, std::string> versions;
  };
  // Where the models run.
  struct Placement {
    std::string name;  // as the model is served
    // Of the LLM, then the SSMs. Named workers are preferred. Empty: the loader chooses.
    std::vector<v1::ModelPlacement> models;
    int expected_requests = 1;  // concurrent requests to plan for
    int concurrent_steps = 0;   // limit on the LLM's concurrent steps; 0: its stages
    bool may_wait = false;      // for workers; until then requests fail
    // size that fit before, used if ServingSize gives none; 0: unknown
    int fitted_kv_cache_tokens = 0;
  };
  // Loads an LLM and its SSMs, sized so that any request within `size` fits with its draft trees.
  // Returns NotFound for an unknown artifact; InvalidArgument or Unimplemented, naming artifact and
  // field, if it cannot be served; ResourceExhausted, with byte counts, if no placement fits.
  virtual absl::StatusOr<Loaded> Load(const std::string& llm, const std::vector<std::string>& ssms,
                                      const ServingSize& size, const Expansion& expansion,
                                      const Formats& formats, const Placement& placement) = 0;
};

struct ModelServerOptions {
  ModelLoader* loader = nullptr;
  const GraphLoader* graphs = nullptr;  // optional: without it no trained graph is served
  JobStore* store = nullptr;
  const Clock* clock = nullptr;
  ServingMetrics* metrics = nullptr;  // optional
  int64_t default_seed = 0;           // mixed with a counter for requests without a seed
  // Delay before loading is retried: at first, and the maximum as it doubles.
  absl::Duration initial_backoff = absl::Seconds(10), max_backoff = absl::Minutes(5);
  // Returns the reference to record for an artifact, which a later version does not change. Null:
  // its name.
  std::function<absl::StatusOr<std::string>(const std::string& artifact)> pin;
  // Requests that are still being read may hold an unserved model: how long Unserve, and Serve of
  // the same name, wait for it.
  absl::Duration release_timeout = absl::Seconds(10);
  bool share_prefixes = false;  // among requests with different API keys, too
};

// Thread-safe.
class ModelServer {
 public:
  explicit ModelServer(ModelServerOptions options) : options_(options) {}
  ~ModelServer();  // stops; waits for a running load

  // Reads the list of served models from the store. From then on they are reported as loading. Call
  // once, before serving requests.
  absl::Status LoadServedList();
  // Starts a thread that loads those models; models on workers answer as soon as their workers have
  // joined. A model that fails to load stays in the store and is retried until it is loaded or
  // unserved. Call once.
  void StartRestoring();
  // Returns whether each has been tried.
  bool restored() const;

  // Loads and serves a model for requests of `owner`, or of everyone if that is empty. Idempotent
  // for an equal request. Returns AlreadyExists for a different request under the same name;
  // Aborted if it was unserved meanwhile; Unavailable while a request still holds an old model of
  // that name.
  absl::StatusOr<v1::ServedModel> Serve(const v1::ServeModelRequest& request,
                                        const std::string& owner = "");
  // Ends serving, also of a model that is loading or has failed to load. On return its resources
  // are free, unless a request has held it beyond `release_timeout`; its name stays reserved until
  // then. A retry with the same key ends nothing that was served since. Returns InvalidArgument if
  // the key was used for another call.
  absl::Status Unserve(const std::string& name, const std::string& idempotency_key = "");

  // What Serve would start an engine with, for callers that run their own engine.
  struct Prepared {
    v1::ServeModelRequest request;  // with defaults and the LLM's format filled in
    EngineParts parts;
    EngineOptions options;
    int64_t parameters = 0;                          // of the LLM
    std::function<void(v1::ServedModel*)> describe;  // as in LoadedModel, while `parts` live
    v1::SamplingOptions sampling_defaults;
    int64_t kv_cache_tokens = 0;
    bool kv_cache_reduced = false;
    std::vector<v1::ModelPlacement> placements;      // as in ModelLoader::Loaded
    std::vector<v1::PlacementCandidate> candidates;  // as in ModelLoader::Loaded
    // The description as far as it is known without an engine; `context` is the engine's.
    v1::ServedModel Describe(int context, absl::Time loaded) const;
  };
  absl::StatusOr<Prepared> Prepare(const v1::ServeModelRequest& request);

  // Returns NotFound, listing the served models, for an unknown name; Unavailable while the model
  // loads, after it failed to load, and after Drain. The pointer keeps the model alive and must not
  // outlive this server.
  absl::StatusOr<std::shared_ptr<LoadedModel>> Find(const std::string& name) const;
  // Returns nothing for a name that is not served.
  std::optional<std::string> OwnerOf(const std::string& name) const;
  // The error for a name that is not served, or not to this caller, with those that are.
  absl::Status NotServedTo(const Caller& caller, const std::string& name) const;
  // Like Find among the models that the caller may use, but also accepts the name of an adapter.
  struct Target {
    std::shared_ptr<LoadedModel> model;
    std::string adapter;  // empty: none
  };
  absl::StatusOr<Target> ResolveAny(const std::string& name, const Caller& caller) const;
  // The same for language models. Returns InvalidArgument, with a remedy, for a trained graph.
  absl::StatusOr<Target> Resolve(const std::string& name, const Caller& caller) const;
  // Like Resolve; the empty name means the only language model that the caller may use. Returns
  // InvalidArgument if there is not exactly one.
  absl::StatusOr<Target> ResolveOrOnly(const std::string& name, const Caller& caller) const;
  // Lists models that answer requests or will, including those being restored.
  std::vector<v1::ServedModel> List() const;
  // Of them, the language models that the caller may use.
  std::vector<v1::ServedModel> ListFor(const Caller& caller) const;
  std::vector<std::string> Names(const Caller& caller) const;
  // Like List, plus those that failed to load; `state` has the reason.
  std::vector<v1::ServedModel> ListWithFailed() const;
  // Artifacts that served models are loaded from, also those that are loading or have failed.
  std::vector<ArtifactUse> ArtifactsInUse() const;
  // Numbers of "ready", "loading", "waiting" (for workers) and "failed" models. Counts one that is
  // loading for the first time.
  std::map<std::string, int> CountByState() const;

  // Admits no new requests and loads no more models; running requests continue.
  void Drain();
  bool draining() const;
  // Number of unfinished requests of all models.
  int OpenRequests() const;
  // Ends them all with this error and accepts no more. Returns at once.
  void EndRequests(const absl::Status& why);
  // Drains, and briefly waits for a running load, by any caller. Returns false if it still runs: it
  // may take minutes and cannot be interrupted.
  bool WaitForLoading();
  // Drains and unloads all models.
  void Stop();

  // Returns the salt under which the engine caches the prefixes of a request with this
  // Authorization header and `cache_salt`: without share_prefixes, requests with different API keys
  // never find each other's, and learn nothing from the speed or the usage of their own.
  std::string PrefixSalt(absl::string_view authorization, const std::string& cache_salt) const;

  // Returns a seed for a request without one.
  uint64_t NextSeed();

 private:
  struct Entry {
    v1::ServeModelRequest request;       // as stored
    std::shared_ptr<LoadedModel> model;  // null: to be restored
    absl::Status failure;                // last failure to load
    absl::Time next_retry = absl::InfinitePast();
    absl::Duration backoff;  // delay before next_retry
  };

  // Checks a request, and fills in the defaults of its kind of model.
  absl::StatusOr<v1::ServeModelRequest> Complete(const v1::ServeModelRequest& given) const;
  // Records the versions of a request's artifacts.
  absl::Status PinArtifacts(v1::ServeModelRequest* request) const;
  // Models load one at a time: waits for the load slot and for an old model of this name to be
  // destroyed. Returns Unavailable if that takes longer than `release_timeout`, and after Drain.
  absl::Status AcquireLoadSlot(const std::string& name);
  void ReleaseLoadSlot();
  // Called when the last reference to a model is gone.
  void OnModelDestroyed(const std::string& name);
  // Workers hold the model under `name`. The next three REQUIRE the load slot.
  absl::StatusOr<Prepared> LoadParts(const v1::ServeModelRequest& request, const std::string& name,
                                     bool may_wait);
  // Loads a model. Records in the request the chosen placement and the KV cache size that fits.
  absl::StatusOr<std::shared_ptr<LoadedModel>> Load(v1::ServeModelRequest* request, bool may_wait);
  // Loads a trained graph.
  absl::StatusOr<std::shared_ptr<LoadedModel>> LoadGraph(const v1::ServeModelRequest& request);
  // A model that frees its name when its last reference is gone.
  std::shared_ptr<LoadedModel> NewLoadedModel(const std::string& name);
  // Loads a model and serves it, unless it was unserved meanwhile. `restores`: the store has it
  // already.
  absl::StatusOr<v1::ServedModel> Admit(v1::ServeModelRequest* request, bool restores);
  // Waits until a model is due for restoring. Returns false if none is left or the server stops.
  bool WaitForNextRetry(std::string* name);
  // Tries to restore it. Returns false if the server stops.
  bool Restore(const std::string& name);
  void RecordFailure(const absl::Status& status, Entry* entry) const;
  static v1::ServedModel DescribeEntry(const Entry& entry);
  // Returns AlreadyExists if another model uses one of the request's names, adapters included.
  absl::Status CheckNames(const v1::ServeModelRequest& request) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status NotServed(const std::string& name, const Caller& caller) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<std::string> NamesFor(const Caller& caller) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ModelServerOptions options_;
  mutable absl::Mutex mutex_;
  std::map<std::string, Entry> models_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> unloading_ ABSL_GUARDED_BY(mutex_);  // unserved, not destroyed yet
  bool loading_ ABSL_GUARDED_BY(mutex_) = false;             // the load slot is taken
  // The model being loaded for serving; empty if there is none or it has been unserved.
  std::string loading_name_ ABSL_GUARDED_BY(mutex_);
  uint64_t seeds_ ABSL_GUARDED_BY(mutex_) = 0;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread restorer_;
};

}  // namespace espalier
