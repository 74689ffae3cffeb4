// The serving engine: one LLM, any number of SSMs (none is incremental decoding), many requests.
//
// Each Step is one iteration for all of them: schedule; the SSMs draft token trees, batched over
// requests; one pass of the LLM over prompt chunks, last tokens and tree nodes together;
// verification; commit of accepted KV slots; events. Incremental decoding is the same code with
// trees of the root alone.
//
// Where the LLM's runner takes several steps at once (the stages of a pipeline), the requests that
// decode are dealt out to as many passes, a request to one of them at a time, and a prompt's next
// chunk does not wait for the one before: a Step plans the next pass, and ends the oldest one once
// there is no room, or nothing to do, for another.
//
// Not thread-safe: the caller serialises all calls. Starts no thread, reads no clock but the one
// given. Speculation never changes the answer: greedily it is token for token that of incremental
// decoding, sampled it has exactly the LLM's distribution; and what a request gets depends on its
// own tokens, options and seed, not on the requests beside it. Except where a sampled request's
// drafts are drawn (SampledDrafting::kIndependent and kWithoutReplacement) and n-gram drafts or tuning have a
// part in them: which of the LLM's answers a seed gives then depends on what others have asked,
// too.
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
#include "serving/runner/model_runner.h"
#include "serving/runner/batch_builder.h"
#include "serving/engine/speculator.h"
#include "serving/kv/kv_cache.h"
#include "serving/request/request.h"
#include "serving/scheduler/scheduler.h"
#include "serving/speculative/expansion.h"
#include "serving/speculative/token_tree.h"
#include "serving/speculative/tree_verification.h"
#include "serving/statistics/histogram.h"
#include "serving/tokenizer/tokenizer.h"

namespace espalier {

struct EngineOptions {
  Expansion expansion;  // of each SSM; without effect if there is none
  SpeculationOptions speculation;
  bool prefix_cache = true;  // requests share the KV slots of tokens with which all of them begin
  int max_requests = 16;     // that run at once
  int max_tokens_per_batch = 256;  // rows of one LLM step; cut to the runner's limit
  int max_queue = 256;             // that wait
  int max_sequence_length = 0;  // prompt and answer; 0: all that the model and its KV cache allow
  // Passes of the LLM at once; 0: as many as its runner can. Tuned speculation measures what a pass
  // takes, and has one.
  int concurrent_steps = 0;
  std::function<double()>
      seconds;  // monotonic; for the times in Usage, which are 0 without it, and for tuning
};

struct RequestEvent {
  RequestId id = 0;
  std::vector<int> tokens;  // new ones
  std::string text;         // new, whole characters
  bool finished = false;
  FinishReason reason = FinishReason::kNone;
  absl::Status error;                          // if reason is kError
  StopCause stop;                              // if reason is kStop
  std::vector<TokenLogprobs> logprobs;         // of `tokens`, if asked for
  std::vector<TokenLogprobs> prompt_logprobs;  // in the first event with tokens, if asked for
  std::vector<float> embedding;                // in the last event, if that is what was asked for
  double seconds_since_last = 0;  // from the event with tokens before this one; 0 in the first
  Usage usage;                    // if finished
};

struct EngineStatistics {
  int waiting = 0;
  int running = 0;
  int64_t steps = 0;
  int64_t llm_batches = 0;
  int64_t ssm_batches = 0;
  int64_t rows = 0;                 // of the LLM
  int64_t prompt_tokens = 0;        // computed, again after preemption
  int64_t whole_prompt_tokens = 0;  // of requests whose prompt was processed, wherever it came from
  int64_t cached_prompt_tokens = 0;  // of those, the ones that were in the prefix cache
  int64_t generated_tokens = 0;
  int64_t verifications = 0;  // of one request, with a tree or without
  int64_t trees = 0;          // of those, the ones with drafted tokens
  int64_t drafted_tokens = 0;
  int64_t accepted_tokens = 0;
  std::vector<int64_t> drafted_by_depth;  // index 0: depth 1
  std::vector<int64_t> accepted_by_depth;
  int64_t preemptions = 0;
  int64_t prefix_query_tokens = 0;  // of prompts, in the prefix cache
  int64_t cached_tokens = 0;     // of those, that were there and did not have to be computed
  SpeculationStatistics speculation;
  HistogramCounts step_tokens;  // steps by prompt tokens computed and tokens generated
  std::map<FinishReason, int64_t> finished;
  // Requests by the LLM's adapter; empty where it has none.
  std::vector<int> waiting_by_adapter, running_by_adapter;
  KvCache::Statistics kv;
  KvCache::BlockTimes kv_blocks;
  std::vector<KvCache::Statistics> ssm_kv;

  EngineStatistics();
};

class Engine {
 public:
  // The runners and the tokenizer must outlive the engine. InvalidArgument with both numbers if
  // vocabularies differ, a tree does not fit a batch, or the context would be too small. If
  // speculation is tuned, the runners are timed here.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(ModelRunner* llm,
                                                        std::vector<ModelRunner*> ssms,
                                                        const Tokenizer* tokenizer,
                                                        EngineOptions options);

  // Queues a request. InvalidArgument for options or a prompt that cannot be served (empty, tokens
  // outside the vocabulary, longer than the context, an adapter that there is not);
  // FailedPrecondition for an embedding where the LLM's runner has none; ResourceExhausted if those
  // that wait and that it does not outrank fill the queue. Where it does outrank some, the last of
  // them that keeps no place (RequestOptions::group_started) and has not begun itself ends in its stead,
  // with that error in its event: so the queue grows beyond its limit by what has begun alone, and
  // nobody is kept out by those who come after him. `age_seconds`: how long ago it came, from when
  // its timeout and the times in Usage count.
  absl::StatusOr<RequestId> Submit(std::vector<int> prompt, RequestOptions options,
                                   double age_seconds = 0);

  // Ends a request, frees its slots and queues its last event. False if it is not known (any more).
  bool Cancel(RequestId id);

  // One iteration, or the beginning of one; does nothing if idle. Requests whose time is over end
  // with DeadlineExceeded. If the LLM fails, all running requests end with that error, which is
  // also returned (in their events ResourceExhausted is Internal: there it means a full queue);
  // waiting ones stay. If it lost its KV cache, they end with Unavailable. An SSM
  // that fails is not used again.
  absl::Status Step();

  // Events since the last call, in order.
  std::vector<RequestEvent> TakeEvents();

  // No request, and no step that has not ended.
  bool idle() const { return requests_.empty() && in_flight_.empty(); }
  int concurrent_steps() const { return concurrent_steps_; }
  int adapters() const { return limits_.adapters; }
  int embedding_size() const { return limits_.hidden; }  // 0: there are none
  int context() const { return context_; }               // tokens of prompt and answer together
  EngineStatistics statistics() const;
  // Internal if a KV slot is lost, has two owners, or belongs to a request that is not running.
  absl::Status CheckInvariants() const;

 private:
  struct Entry {
    std::unique_ptr<Request> request;
    double arrived = 0;
    bool admitted = false;   // ever
    double last_tokens = 0;  // when the last event with tokens was made
    int64_t last_step = 0;
    bool busy = false;  // the step that will give its next token has not ended
  };
  struct Work {
    Assignment assignment;
    TokenTree tree;              // what the LLM verifies
    std::vector<int32_t> slots;  // of the tree's nodes from 1 on
    int end = 0;                 // tokens in the KV cache after this step, the tree apart
    int prompt_rows = 0;         // rows whose logits the prompt's log-probabilities want; first
  };
  // A pass of the LLM that has not ended. Requests may have ended meanwhile.
  struct InFlightStep {
    std::vector<Work> work;
    StepWork of_llm;
    double planned = 0, begun = 0;  // when
  };

  Engine(ModelRunner* llm, const Tokenizer* tokenizer, EngineOptions options);

  absl::Status CheckPrompt(absl::Span<const int> prompt, const RequestOptions& options) const;
  RequestView View(const Entry& entry) const;
  void PlanSpeculation();
  SchedulerInput BuildSchedulerInput() const;
  // Of those before a waiting request, `known` of whose tokens are in the cache: one that is still
  // to compute more of what both begin with. 0: none.
  RequestId PrefixProducer(const Request& request, int known, const SchedulerInput& before) const;
  bool Decodes(const Entry& entry) const;
  bool SharesPrefix(const Request& request) const;
  void Enqueue(RequestId id, std::deque<RequestId>& queue);
  // For one more in the queue. False: there is none.
  bool EvictFromQueue(int priority);
  std::vector<Work> Plan();
  void Draft(std::vector<Work>& work);
  // False if there was nothing to do, or no room for it.
  absl::StatusOr<bool> BeginStep();
  absl::Status BeginLlm(std::vector<Work>& work);
  // The oldest one.
  absl::Status EndStep();
  absl::Status Verify(Work& work, int index, const StepOutput& logits);
  void CountPrompt(const Usage& usage);
  void Embed(Entry& entry, const float* hidden);
  absl::Status CommitTokens(Entry& entry, Work& work, const Verification& verification, int index,
                        const StepOutput& logits);
  void ExpireRequests();
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
  uint64_t cache_generation_;  // of the LLM, that kv_ speaks of
  std::unique_ptr<Speculator> speculator_;
  BatchPipeline pipeline_;        // the flights' rows, in the same order
  std::deque<InFlightStep> in_flight_;  // the oldest first
  StepOutput logits_;           // of the last one that ended: its memory
  RequestId next_id_ = 1;
  std::map<RequestId, Entry> requests_;
  std::deque<RequestId> waiting_;  // by rank: priority, then age
  std::deque<RequestId> running_;  // by rank
  std::vector<RequestEvent> events_;
  EngineStatistics statistics_;
};

}  // namespace espalier
