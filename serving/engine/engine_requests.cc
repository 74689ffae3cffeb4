// Part of Engine: creation, submission and the end of requests, statistics and invariants.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "serving/engine/engine.h"

namespace espalier {
namespace {

int StepsAtOnce(const ModelRunner& llm, const EngineOptions& options) {
  if (options.speculation.tune) return 1;
  const int most = llm.limits().concurrent_steps;
  return options.concurrent_steps > 0 ? std::min(options.concurrent_steps, most) : most;
}

constexpr double kStepTokens[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192};

}  // namespace

EngineStatistics::EngineStatistics() : step_tokens(kStepTokens) {}

Engine::Engine(ModelRunner* llm, const Tokenizer* tokenizer, EngineOptions options)
    : llm_(llm),
      concurrent_steps_(StepsAtOnce(*llm, options)),
      tokenizer_(tokenizer),
      options_(std::move(options)),
      limits_(llm->limits()),
      kv_(limits_.kv_slots),
      cache_generation_(llm->cache_generation()),
      pipeline_(*llm, concurrent_steps_) {
  options_.max_tokens_per_batch = std::min(options_.max_tokens_per_batch, limits_.max_rows);
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(ModelRunner* llm,
                                                       std::vector<ModelRunner*> ssms,
                                                       const Tokenizer* tokenizer,
                                                       EngineOptions options) {
  std::unique_ptr<Engine> engine(new Engine(llm, tokenizer, std::move(options)));
  const EngineOptions& set = engine->options_;
  const RunnerLimits& limits = engine->limits_;
  if (tokenizer->vocabulary() > limits.vocabulary) {
    return absl::InvalidArgumentError(absl::StrCat("the tokenizer has ", tokenizer->vocabulary(),
                                                   " tokens, the LLM only ", limits.vocabulary));
  }
  if (set.max_requests < 1 || set.max_tokens_per_batch < 1 || set.max_queue < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_requests, max_tokens_per_batch and max_queue are ", set.max_requests, ", ",
        set.max_tokens_per_batch, " and ", set.max_queue, ", expected at least 1, 1 and 0"));
  }
  if (set.concurrent_steps < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("concurrent_steps is ", set.concurrent_steps,
                     ", expected 0 (all that the model allows) or more"));
  }
  if (!ssms.empty() && set.expansion.depth() > limits.max_ancestor_slots) {
    return absl::InvalidArgumentError(absl::StrCat("expansion has depth ", set.expansion.depth(),
                                                   ", the model runner allows ",
                                                   limits.max_ancestor_slots));
  }
  const int draft = set.expansion.nodes(set.expansion.depth()) * static_cast<int>(ssms.size());
  const int tree = draft + set.speculation.ngram.depth * set.speculation.ngram.branches;
  if (tree >= set.max_tokens_per_batch) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expansion ", set.expansion.ToString(), " with ", ssms.size(), " SSMs has ", draft,
        " nodes, n-gram drafts add ", tree - draft,
        "; with the root they must fit max_tokens_per_batch, ", set.max_tokens_per_batch));
  }
  if (set.max_sequence_length < 0 || set.max_sequence_length > limits.max_positions) {
    return absl::InvalidArgumentError(absl::StrCat("max_sequence_length is ",
                                                   set.max_sequence_length, ", the model has ",
                                                   limits.max_positions));
  }
  engine->context_ =
      std::min({set.max_sequence_length > 0 ? set.max_sequence_length : limits.max_positions,
                limits.kv_slots - tree, limits.max_context_slots});
  if (engine->context_ < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("a context of ", engine->context_, " tokens is too small: the model has ",
                     limits.max_positions, " positions and ", limits.kv_slots,
                     " KV slots, of which a tree takes ", tree));
  }
  auto speculator = Speculator::Create({.llm = llm,
                                        .ssms = std::move(ssms),
                                        .expansion = set.expansion,
                                        .options = set.speculation,
                                        .share_prefixes = set.prefix_cache,
                                        .max_rows = set.max_tokens_per_batch,
                                        .seconds = set.seconds});
  if (!speculator.ok()) return speculator.status();
  engine->speculator_ = *std::move(speculator);
  const bool best_first = set.speculation.tune || set.speculation.max_nodes > 0;
  const int depth = std::max({set.expansion.depth(), set.speculation.ngram.depth,
                              best_first ? set.speculation.max_depth : 0});
  engine->statistics_.drafted_by_depth.resize(depth);
  engine->statistics_.accepted_by_depth.resize(depth);
  return engine;
}

absl::Status Engine::CheckPrompt(absl::Span<const int> prompt,
                                 const RequestOptions& options) const {
  if (options.adapter < -1 || options.adapter >= limits_.adapters) {
    return absl::InvalidArgumentError(
        absl::StrCat("adapter ", options.adapter, " is asked for, the LLM has ", limits_.adapters));
  }
  if (options.embed && limits_.hidden == 0) {
    return absl::FailedPreconditionError("this model is served without its hidden states");
  }
  if (prompt.empty()) {
    return absl::InvalidArgumentError("the prompt is empty, expected at least one token");
  }
  const int answer = options.embed ? 0 : 1;
  if (static_cast<int>(prompt.size()) > context_ - answer) {
    return absl::InvalidArgumentError(
        absl::StrCat("the prompt has ", prompt.size(), " tokens, the context ", context_,
                     answer > 0 ? ", of which at least one is for the answer" : ""));
  }
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (prompt[i] < 0 || prompt[i] >= limits_.vocabulary) {
      return absl::InvalidArgumentError(absl::StrCat("prompt token ", i, " is ", prompt[i],
                                                     ", the vocabulary has ", limits_.vocabulary));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<RequestId> Engine::Submit(std::vector<int> prompt, RequestOptions options,
                                         double age_seconds) {
  if (absl::Status status = ValidateOptions(options, limits_.vocabulary); !status.ok()) {
    return status;
  }
  if (options.timeout_seconds > 0 && !options_.seconds) {
    return absl::FailedPreconditionError("a timeout needs an engine with a clock");
  }
  if (absl::Status status = CheckPrompt(prompt, options); !status.ok()) return status;
  if (!options.admission_guaranteed() && !EvictFromQueue(options.priority)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        waiting_.size(), " requests are waiting, which is the limit: try again later"));
  }
  const RequestId id = next_id_++;
  if (options.embed) {
    // No SSM takes part, and only the last row's output is needed.
    options.speculate = false;
    options.prompt_logprobs = -1;
  }
  requests_[id] = {
      .request = std::make_unique<Request>(id, std::move(prompt), std::move(options), *tokenizer_),
      .arrived = options_.seconds ? Now() - age_seconds : 0};
  Enqueue(id, waiting_);
  return id;
}

bool Engine::EvictFromQueue(int priority) {
  const int waiting = static_cast<int>(waiting_.size());
  if (waiting < options_.max_queue) return true;
  int outranked = 0;
  for (auto last = waiting_.rbegin(); last != waiting_.rend(); ++last, ++outranked) {
    Entry& entry = requests_.at(*last);
    const RequestOptions& options = entry.request->options();
    if (options.priority <= priority) break;
    // Evicting a started request would lose work.
    if (entry.admitted || options.admission_guaranteed()) continue;
    entry.request->Finish(FinishReason::kError);
    EmitEvent(entry, absl::ResourceExhaustedError(
                         absl::StrCat(waiting,
                                      " requests are waiting, which is the limit, and one "
                                      "of higher priority arrived: try again later")));
    Retire(*last);
    return true;
  }
  return waiting - outranked < options_.max_queue;
}

// Inserts after all requests that outrank it.
void Engine::Enqueue(RequestId id, std::deque<RequestId>& queue) {
  const auto rank = [&](RequestId one) {
    return std::make_pair(requests_.at(one).request->options().priority, one);
  };
  queue.insert(std::upper_bound(queue.begin(), queue.end(), id,
                                [&](RequestId a, RequestId b) { return rank(a) < rank(b); }),
               id);
}

bool Engine::Cancel(RequestId id) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return false;
  it->second.request->Finish(FinishReason::kCancelled);
  EmitEvent(it->second);
  Retire(id);
  return true;
}

std::vector<RequestEvent> Engine::TakeEvents() {
  std::vector<RequestEvent> out;
  out.swap(events_);
  return out;
}

void Engine::EmitEvent(Entry& entry, const absl::Status& error, std::vector<float> embedding) {
  Request& request = *entry.request;
  RequestEvent event{.id = request.id(),
                     .tokens = request.TakeTokens(),
                     .text = request.TakeText(),
                     .finished = request.phase() == Phase::kFinished,
                     .reason = request.finish_reason(),
                     .error = error.ok() ? request.error() : error,
                     .stop = request.stop_cause(),
                     .logprobs = request.TakeLogprobs(),
                     .embedding = std::move(embedding)};
  if (!event.tokens.empty()) {
    event.prompt_logprobs = request.TakePromptLogprobs();
    const double now = Now();
    const bool first = static_cast<int>(event.tokens.size()) == request.emitted();
    event.seconds_since_last = first ? 0 : now - entry.last_tokens;
    entry.last_tokens = now;
  }
  if (event.finished) {
    request.usage().seconds = Now() - entry.arrived;
    event.usage = request.usage();
    ++statistics_.finished[event.reason];
  }
  if (event.finished || !event.tokens.empty() || !event.text.empty()) {
    events_.push_back(std::move(event));
  }
}

void Engine::ExpireRequests() {
  if (!options_.seconds) return;
  std::vector<RequestId> late;
  for (const auto& [id, entry] : requests_) {
    const double timeout = entry.request->options().timeout_seconds;
    if (timeout > 0 && Now() - entry.arrived > timeout) late.push_back(id);
  }
  for (const RequestId id : late) {
    Entry& entry = requests_.at(id);
    entry.request->Finish(FinishReason::kError);
    EmitEvent(entry, absl::DeadlineExceededError(absl::StrCat(
                         "the request's time is over: ", entry.request->emitted(), " tokens in ",
                         entry.request->options().timeout_seconds, " s")));
    Retire(id);
  }
}

void Engine::ReleaseSlots(RequestId id) {
  kv_.Release(id);
  speculator_->Release(*requests_.at(id).request, /*for_good=*/false);
}

void Engine::Retire(RequestId id) {
  kv_.Release(id);
  speculator_->Release(*requests_.at(id).request, /*for_good=*/true);
  for (std::deque<RequestId>* queue : {&running_, &waiting_}) {
    const auto found = std::find(queue->begin(), queue->end(), id);
    if (found != queue->end()) queue->erase(found);
  }
  requests_.erase(id);
}

EngineStatistics Engine::statistics() const {
  EngineStatistics out = statistics_;
  out.waiting = static_cast<int>(waiting_.size());
  out.running = static_cast<int>(running_.size());
  const auto by_adapter = [this](const std::deque<RequestId>& queue) {
    std::vector<int> counts(limits_.adapters);
    if (counts.empty()) return counts;
    for (const RequestId id : queue) {
      const int adapter = requests_.at(id).request->options().adapter;
      if (adapter >= 0) ++counts[adapter];
    }
    return counts;
  };
  out.waiting_by_adapter = by_adapter(waiting_);
  out.running_by_adapter = by_adapter(running_);
  out.kv = kv_.statistics();
  out.kv_blocks = kv_.block_times();
  for (int s = 0; s < speculator_->ssms(); ++s)
    out.ssm_kv.push_back(speculator_->kv(s).statistics());
  out.ssm_batches = speculator_->batches();
  out.speculation = speculator_->statistics();
  return out;
}

absl::Status Engine::CheckInvariants() const {
  const auto check = [&](const KvCache& kv, absl::string_view whose) {
    int running = 0, slots = 0, shared = 0;
    for (const RequestId id : running_) {
      running += kv.length(id) > 0;
      slots += kv.length(id);
      shared += kv.shared(id);
    }
    // Trees in verification.
    slots += kv.scratch_slots();
    const KvCache::Statistics s = kv.statistics();
    // Shared slots are counted once in `used`, at least once in the sharers' counts.
    if (s.used > slots || s.used < slots - shared) {
      return absl::InternalError(absl::StrCat("running requests have ", slots, " slots of ", whose,
                                              " KV cache, ", shared, " of them shared, but ",
                                              s.used, " are in use"));
    }
    if (kv.sequences_with_slots() != running) {
      return absl::InternalError(absl::StrCat(kv.sequences_with_slots(),
                                              " sequences have slots of ", whose, " KV cache, but ",
                                              running, " running requests do"));
    }
    return kv.CheckInvariants();
  };
  absl::Status status = check(kv_, "the LLM's");
  for (int s = 0; s < speculator_->ssms(); ++s) {
    status.Update(check(speculator_->kv(s), absl::StrCat("SSM ", s, "'s")));
  }
  return status;
}

}  // namespace espalier
