// The serving engine: one LLM, zero or more SSMs (with none it is incremental decoding), many
// requests.
//
// Each Step is one iteration of continuous batching: schedule; let the SSMs draft token trees,
// batched over requests; run the LLM once over prompt chunks, last tokens and tree nodes together;
// verify the trees; commit the KV slots of accepted nodes; queue events. Incremental decoding runs
// the same code with trees of one node.
//
// If the LLM's runner supports concurrent steps (pipeline parallelism), the decoding requests are
// divided among them, each request is in one step at a time, and the next chunk of a prompt does
// not wait for the chunk before. A Step then plans and starts one LLM step, and waits for the
// oldest step in flight only if no further step can start.
//
// Not thread-safe: the caller serializes all calls. The engine starts no thread and reads only the
// clock that it is given. Speculation never changes the output: greedy output equals incremental
// decoding token for token, sampled output has exactly the LLM's distribution. The output of a
// request depends on its own tokens, options and seed only, not on the batch. One exception: with
// SampledDrafting::kWithoutReplacement, n-gram drafts and tuning depend on other requests, so the
// tokens of a seed may, too (their distribution does not).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "serving/engine/speculator.h"
#include "serving/kv/kv_cache.h"
#include "serving/request/request.h"
#include "serving/runner/batch_builder.h"
#include "serving/runner/model_runner.h"
#include "serving/scheduler/scheduler.h"
#include "serving/speculative/expansion.h"
#include "serving/speculative/token_tree.h"
#include "serving/speculative/tree_verification.h"
#include "serving/statistics/histogram.h"
#include "serving/tokenizer/tokenizer.h"

namespace espalier {

struct EngineOptions {
  Expansion expansion;  // of each SSM; no effect without SSMs
  SpeculationOptions speculation;
  bool prefix_cache = true;        // requests share KV slots of common prefixes
  int max_requests = 16;           // running concurrently
  int max_tokens_per_batch = 256;  // rows of one LLM step; reduced to the runner's limit
  int max_queue = 256;             // waiting requests
  int max_sequence_length = 0;  // prompt and output; 0: as much as the model and its KV cache allow
  // LLM steps in flight at most; 0: as many as the runner supports. Tuned speculation measures
  // steps and needs 1.
  int concurrent_steps = 0;
  // Monotonic clock, for the times in Usage (0 without it) and for tuning.
  std::function<double()> seconds;
};

struct RequestEvent {
  RequestId id = 0;
  std::vector<int> tokens;  // new tokens
  std::string text;         // new text, whole characters
  bool finished = false;
  FinishReason reason = FinishReason::kNone;
  absl::Status error;                          // if reason is kError
  StopCause stop;                              // if reason is kStop
  std::vector<TokenLogprobs> logprobs;         // of `tokens`, if requested
  std::vector<TokenLogprobs> prompt_logprobs;  // in the first event with tokens, if requested
  std::vector<float> embedding;                // in the last event, if requested
  double seconds_since_last = 0;  // since the previous event with tokens; 0 in the first one
  Usage usage;                    // if finished
};

struct EngineStatistics {
  int waiting = 0;
  int running = 0;
  int64_t steps = 0;
  int64_t llm_batches = 0;
  int64_t ssm_batches = 0;
  int64_t rows = 0;                  // of the LLM
  int64_t prompt_tokens = 0;         // computed, including recomputation after preemption
  int64_t whole_prompt_tokens = 0;   // of requests whose prompt was processed, cached or not
  int64_t cached_prompt_tokens = 0;  // of these, tokens found in the prefix cache
  int64_t generated_tokens = 0;
  int64_t verifications = 0;  // per request and step, with or without a tree
  int64_t trees = 0;          // of these, with drafted tokens
  int64_t drafted_tokens = 0;
  int64_t accepted_tokens = 0;
  std::vector<int64_t> drafted_by_depth;  // index 0: depth 1
  std::vector<int64_t> accepted_by_depth;
  int64_t preemptions = 0;
  int64_t prefix_query_tokens = 0;  // of prompts, looked up in the prefix cache
  int64_t cached_tokens = 0;        // of these, found and not recomputed
  SpeculationStatistics speculation;
  HistogramCounts step_tokens;  // steps by prompt tokens computed plus tokens generated
  std::map<FinishReason, int64_t> finished;
  // Requests by adapter of the LLM; empty if it has none.
  std::vector<int> waiting_by_adapter, running_by_adapter;
  KvCache::Statistics kv;
  KvCache::BlockTimes kv_blocks;
  std::vector<KvCache::Statistics> ssm_kv;

  EngineStatistics();
};

class Engine {
 public:
  // The runners and the tokenizer must outlive the engine. Returns InvalidArgument, with both
  // numbers, if vocabularies differ, a tree does not fit a batch, or the context is too small. With
  // tuned speculation, the runners are calibrated here.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(ModelRunner* llm,
                                                        std::vector<ModelRunner*> ssms,
                                                        const Tokenizer* tokenizer,
                                                        EngineOptions options);

  // Queues a request. Returns InvalidArgument if the options or the prompt cannot be served (empty
  // prompt, tokens outside the vocabulary, longer than the context, unknown adapter);
  // FailedPrecondition if an embedding is requested of an LLM without hidden states;
  // ResourceExhausted if the queue is full of requests that this one does not outrank. If it
  // outranks some, the last of them is evicted and gets this error in its event, unless it has
  // started or its admission is guaranteed (RequestOptions::group_started). So only started
  // requests can make the queue exceed its limit. `age_seconds`: how long ago the request arrived;
  // its timeout and the times in Usage count from then.
  absl::StatusOr<RequestId> Submit(std::vector<int> prompt, RequestOptions options,
                                   double age_seconds = 0);

  // Ends a request, frees its slots and queues its last event. Returns false for an unknown or
  // finished request.
  bool Cancel(RequestId id);

  // Runs or starts one iteration; does nothing if idle. Requests that timed out end with
  // DeadlineExceeded. If the LLM fails, all running requests end with its error, which is also
  // returned (in events, ResourceExhausted becomes Internal, because there it means a full queue);
  // waiting requests stay. If the LLM lost its KV cache, running requests end with Unavailable. An
  // SSM that fails is disabled.
  absl::Status Step();

  // Returns the events since the last call, in order.
  std::vector<RequestEvent> TakeEvents();

  // True if there is no request and no step in flight.
  bool idle() const { return requests_.empty() && in_flight_.empty(); }
  int concurrent_steps() const { return concurrent_steps_; }
  int adapters() const { return limits_.adapters; }
  int embedding_size() const { return limits_.hidden; }  // 0: not available
  int context() const { return context_; }               // tokens of prompt and output together
  EngineStatistics statistics() const;
  // Returns Internal if a KV slot is leaked, has two owners, or belongs to a request that is not
  // running.
  absl::Status CheckInvariants() const;

 private:
  struct Entry {
    std::unique_ptr<Request> request;
    double arrived = 0;
    bool admitted = false;   // at any time
    double last_tokens = 0;  // time of the last event with tokens
    int64_t last_step = 0;
    bool busy = false;  // the step that yields its next token is in flight
  };
  struct Work {
    Assignment assignment;
    TokenTree tree;              // what the LLM verifies
    std::vector<int32_t> slots;  // of the tree's nodes from 1 on
    int end = 0;                 // tokens in the KV cache after this step, without the tree
    int prompt_rows = 0;  // leading rows whose logits are needed for prompt log-probabilities
  };
  // An LLM step in flight. Its requests may end meanwhile.
  struct InFlightStep {
    std::vector<Work> work;
    int rows = 0;
    double planned = 0, begun = 0;  // times
  };

  Engine(ModelRunner* llm, const Tokenizer* tokenizer, EngineOptions options);

  absl::Status CheckPrompt(absl::Span<const int> prompt, const RequestOptions& options) const;
  RequestView View(const Entry& entry) const;
  void PlanSpeculation();
  SchedulerInput BuildSchedulerInput() const;
  // Returns a request in `before` that is going to compute more of the prefix shared with `request`
  // than the `known` tokens already cached; 0 if there is none.
  RequestId PrefixProducer(const Request& request, int known, const SchedulerInput& before) const;
  bool Decodes(const Entry& entry) const;
  bool UsesPrefixCache(const Request& request) const;
  static KvNamespace NamespaceOf(const Request& request);
  void Enqueue(RequestId id, std::deque<RequestId>& queue);
  // Evicts one waiting request for a new one of this priority. Returns false if none may be
  // evicted.
  bool EvictFromQueue(int priority);
  std::vector<Work> Plan();
  void Draft(std::vector<Work>& work);
  // Returns false if there was nothing to do, or no further step can start.
  absl::StatusOr<bool> BeginStep();
  absl::Status BeginLlm(std::vector<Work>& work);
  // Ends the oldest step in flight.
  absl::Status EndStep();
  absl::Status Verify(Work& work, int index, const StepOutput& logits);
  void CountPrompt(const Usage& usage);
  void Embed(Entry& entry, const float* hidden);
  absl::Status CommitTokens(Entry& entry, Work& work, const Verification& verification, int index,
                            const StepOutput& logits);
  void ExpireRequests();
  // Whether requests that run where the model is about to leave are to end first.
  bool LetsRunningEnd() const;
  void ResetLostCache();
  void FailRunning(const absl::Status& status);
  void EmitEvent(Entry& entry, const absl::Status& error = absl::OkStatus(),
                 std::vector<float> embedding = {});
  void ReleaseSlots(RequestId id);
  void Retire(RequestId id);
  double Now() const { return options_.seconds ? options_.seconds() : 0; }

  ModelRunner* llm_;
  const int concurrent_steps_;
  const Tokenizer* tokenizer_;
  EngineOptions options_;
  RunnerLimits limits_;
  int context_ = 0;
  KvCache kv_;
  uint64_t cache_generation_;  // of the LLM's cache that kv_ describes
  std::unique_ptr<Speculator> speculator_;
  BatchPipeline pipeline_;              // the rows of in_flight_, in the same order
  std::deque<InFlightStep> in_flight_;  // oldest first
  StepOutput logits_;                   // of the last step that ended; its memory is reused
  RequestId next_id_ = 1;
  std::map<RequestId, Entry> requests_;
  std::deque<RequestId> waiting_;  // by rank: priority, then age
  std::deque<RequestId> running_;  // by rank
  std::vector<RequestEvent> events_;
  EngineStatistics statistics_;
};

}  // namespace espalier
