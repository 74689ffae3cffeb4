// The models that are served: loading, unloading, finding, and restoring them after a restart.
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
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "ops/quantized/quantize_graph.h"
#include "espalier/v1/inference.pb.h"
#include "base/clock.h"
#include "server/inference/models/async_engine.h"
#include "server/inference/models/grammar_cache.h"
#include "server/inference/models/serving_metrics.h"
#include "server/store/job_store.h"
#include "serving/models/model_description.h"

namespace espalier {

// One model with its engine. Immutable but for the engine's own state.
struct LoadedModel {
  v1::ServedModel description;
  std::unique_ptr<AsyncEngine> engine;
  std::unique_ptr<GrammarCache> grammars;
  const Clock* clock = nullptr;
  // Adds what changes while the model is served: its workers and their state. Null: nothing does.
  std::function<void(v1::ServedModel*)> describe;
};

// As it is now. Of an SSM that failed, and is used no more, the state says why.
v1::ServedModel Describe(const LoadedModel& model);
// FailedPrecondition, with what to do, if it is served with SSMs, and all of them have failed or
// have too few positions for what comes after a prompt of so many tokens.
absl::Status CheckDrafting(const LoadedModel& model, size_t prompt_tokens);
// Whether a model that is described so answers requests: on workers only while they hold it. (SSMs
// that are away cost time, no answers.)
bool AnswersRequests(const v1::ServedModel& model);

// What serving needs of artifacts, behind an interface so that tests need no trained model.
class ModelLoader {
 public:
  virtual ~ModelLoader() = default;

  struct Loaded {
    EngineParts parts;
    int64_t parameters = 0;                             // of the LLM
    int64_t kv_cache_tokens = 0;                        // likewise
    bool kv_cache_reduced = false;                           // they are fewer than would be useful
    WeightFormat format = WeightFormat::kF32;           // likewise
    std::function<void(v1::ServedModel*)> describe;  // as in LoadedModel, while `parts` live
    // The LLM's place, then the SSMs'; and, if they were chosen here, of what.
    std::vector<v1::ModelPlacement> placements;
    std::vector<v1::PlacementCandidate> candidates;
  };
  struct Formats {
    std::optional<WeightFormat> llm, ssms;  // absent: as the files have it
    int64_t resident_weight_bytes = 0;      // of the LLM: see ServingLowering; 0: all
    std::vector<std::string> adapters;      // artifacts of low-rank adapters of the LLM
  };
  // Where the models run.
  struct Placement {
    std::string name;  // as the model is served
    // The LLM's, then the SSMs'. Workers that are named are preferred. Empty: to be chosen.
    std::vector<v1::ModelPlacement> models;
    int expected_requests = 1;  // at once, for that choice
    int concurrent_steps = 0;      // of the LLM: at most, in that choice; 0: as many as it has stages
    bool may_wait = false;      // for workers: the model is there, and answers once they are
    int fitted_kv_cache_tokens = 0;  // that fitted before, if ServingSize asks for none; 0: unknown
  };
  // Loads an LLM and its SSMs so that any request of that size fits with its trees. NotFound if
  // there is no such artifact; InvalidArgument or Unimplemented if it cannot be served, naming
  // artifact and field; ResourceExhausted, with bytes, if a place is to be chosen and there is
  // none.
  virtual absl::StatusOr<Loaded> Load(const std::string& llm, const std::vector<std::string>& ssms,
                                      const ServingSize& size, const Expansion& expansion,
                                      const Formats& formats, const Placement& placement) = 0;
};

struct ModelServerOptions {
  ModelLoader* loader = nullptr;
  JobStore* store = nullptr;
  const Clock* clock = nullptr;
  ServingMetrics* metrics = nullptr;  // optional
  int64_t default_seed = 0;           // where a request brings none: mixed with a counter
  // After a model of the last run could not be loaded, until it is tried again: at first, and,
  // doubled each time, at most.
  absl::Duration initial_backoff = absl::Seconds(10), max_backoff = absl::Minutes(5);
  // What is unserved may be held by requests that are still being read: how long Unserve, and Serve
  // of the same name, wait.
  absl::Duration release_timeout = absl::Seconds(10);
};

// The index of the model's adapter of that name, -1 for the empty name. NotFound names those that
// there are.
absl::StatusOr<int> AdapterIndex(const v1::ServedModel& model, const std::string& adapter);

// Thread-safe.
class ModelServer {
 public:
  explicit ModelServer(ModelServerOptions options) : options_(options) {}
  ~ModelServer();  // stops, and waits for a model that is being loaded

  // What was served before the last stop is known from now on: whoever asks for it hears that it is
  // being loaded. Once, before anybody asks.
  absl::Status LoadServedList();
  // Begins to load that on a thread of its own; models on workers answer as soon as those have
  // joined. What cannot be loaded stays, in the store too, and is tried again until it is loaded or
  // unserved. Once.
  void StartRestoring();
  // Whether all of it has been tried.
  bool restored() const;

  // Idempotent for an equal request; AlreadyExists for another one under the same name. Aborted if
  // it was unserved meanwhile; Unavailable while an old model of that name is still held.
  absl::StatusOr<v1::ServedModel> Serve(const v1::ServeModelRequest& request);
  // Of what is still being loaded, or could not be, too. When it returns, what the model took is
  // free, unless somebody holds it for longer than `release_timeout`; then its name is taken so long.
  // A repetition under its key ends nothing that was served since; InvalidArgument if the key was
  // used for anything else.
  absl::Status Unserve(const std::string& name, const std::string& idempotency_key = "");

  // What Serve would start an engine from, for those who run one themselves: nothing is served.
  struct Prepared {
    v1::ServeModelRequest request;  // with its defaults, and the LLM's format
    EngineParts parts;
    EngineOptions options;
    int64_t parameters = 0;                             // of the LLM
    std::function<void(v1::ServedModel*)> describe;  // as in LoadedModel, while `parts` live
    v1::SamplingOptions sampling_defaults;
    int64_t kv_cache_tokens = 0;
    bool kv_cache_reduced = false;
    std::vector<v1::ModelPlacement> placements;      // as in ModelLoader::Loaded
    std::vector<v1::PlacementCandidate> candidates;  // likewise
    // All that is known without an engine; `context` is its.
    v1::ServedModel Describe(int context, absl::Time loaded) const;
  };
  absl::StatusOr<Prepared> Prepare(const v1::ServeModelRequest& request);

  // NotFound names the models that there are; Unavailable while the model is being loaded, or has
  // failed to, and once Drain was called. The model stays alive while the pointer does, which must
  // go before this does.
  absl::StatusOr<std::shared_ptr<LoadedModel>> Find(const std::string& name) const;
  // The same for a name that may also be one of a model's adapters, which is then returned too.
  struct Target {
    std::shared_ptr<LoadedModel> model;
    std::string adapter;  // empty: none
  };
  absl::StatusOr<Target> Resolve(const std::string& name) const;
  // Where the empty name stands for the only model that is served; InvalidArgument if there is no
  // such one.
  absl::StatusOr<Target> ResolveOrOnly(const std::string& name) const;
  // Those that answer requests or will: of the last run, ones that are still being loaded, too.
  std::vector<v1::ServedModel> List() const;
  std::vector<std::string> Names() const;
  // And those that could not be loaded: `state` says why.
  std::vector<v1::ServedModel> ListWithFailed() const;
  // How many are "ready", "loading", "waiting" (for workers) and "failed". One that is being loaded
  // for the first time counts, too.
  std::map<std::string, int> CountByState() const;

  // From now on nothing new is admitted, and no further model loaded; what runs goes on.
  void Drain();
  bool draining() const;
  // Requests that have not ended, of all models.
  int OpenRequests() const;
  // Ends them all with this error; no model takes any more. Returns at once.
  void EndRequests(const absl::Status& why);
  // Drains, and waits a moment for the model that is being loaded, by whomever. False if it still
  // is: that may take minutes, and nothing can interrupt it.
  bool WaitForLoading();
  // Drains, and unloads every model.
  void Stop();

  // For requests that bring no seed.
  uint64_t NextSeed();

 private:
  struct Entry {
    v1::ServeModelRequest request;    // as it is in the store
    std::shared_ptr<LoadedModel> model;  // null: of the last run, and not loaded (yet)
    absl::Status failure;                // of the last try to load it
    absl::Time next_retry = absl::InfinitePast();
    absl::Duration backoff;  // before that
  };

  // One model is loaded at a time. Waits for that, and until no model of this name is on its way
  // out; Unavailable if that takes longer than `release_timeout`, and once Drain was called.
  absl::Status AcquireLoadSlot(const std::string& name);
  void ReleaseLoadSlot();
  // Of a model that nobody holds any more.
  void OnModelDestroyed(const std::string& name);
  // `name`: under which workers hold what is theirs. These three for whoever has the turn.
  absl::StatusOr<Prepared> LoadParts(const v1::ServeModelRequest& request,
                                     const std::string& name, bool may_wait);
  // Notes in the request what was chosen for it, and what fits.
  absl::StatusOr<std::shared_ptr<LoadedModel>> Load(v1::ServeModelRequest* request,
                                                    bool may_wait);
  // Loads the arriving model, and serves it unless it has been unserved by then. `restores`: what
  // the store has already.
  absl::StatusOr<v1::ServedModel> Admit(v1::ServeModelRequest* request, bool restores);
  // Waits until a model of the last run is to be tried. False if there is none any more, or at the
  // end.
  bool WaitForNextRetry(std::string* name);
  // Tries it. False at the end.
  bool Restore(const std::string& name);
  void RecordFailure(const absl::Status& status, Entry* entry) const;
  static v1::ServedModel DescribeEntry(const Entry& entry);
  // AlreadyExists if the names of the request, its adapters' included, are taken by other models.
  absl::Status CheckNames(const v1::ServeModelRequest& request) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status NotServed(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<std::string> NamesOfModels() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ModelServerOptions options_;
  mutable absl::Mutex mutex_;
  std::map<std::string, Entry> models_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> unloading_ ABSL_GUARDED_BY(mutex_);  // unserved, and not gone yet
  bool loading_ ABSL_GUARDED_BY(mutex_) = false;           // somebody has the turn
  // What is being loaded to be served; empty: nothing is, or it has been unserved.
  std::string loading_name_ ABSL_GUARDED_BY(mutex_);
  uint64_t seeds_ ABSL_GUARDED_BY(mutex_) = 0;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread restorer_;
};

}  // namespace espalier
