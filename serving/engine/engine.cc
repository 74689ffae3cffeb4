#include "serving/engine/engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

// The tokens of the nodes from below the root to `node`.
std::vector<int> PathTo(const TokenTree& tree, int node) {
  std::vector<int> path(tree.depth(node));
  for (; node > 0; node = tree.parent(node)) path[tree.depth(node) - 1] = tree.token(node);
  return path;
}

}  // namespace

Engine::Engine(ModelRunner* llm, const Tokenizer* tokenizer, EngineOptions options)
    : llm_(llm),
      tokenizer_(tokenizer),
      options_(std::move(options)),
      limits_(llm->limits()),
      kv_(limits_.kv_slots) {
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
  const int draft = set.expansion.nodes(set.expansion.depth());
  const int tree = draft * static_cast<int>(ssms.size());
  if (tree >= set.max_tokens_per_batch) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expansion ", set.expansion.ToString(), " with ", ssms.size(), " SSMs has ", tree,
        " nodes; with the root they must fit max_tokens_per_batch, ", set.max_tokens_per_batch));
  }
  if (!ssms.empty() && set.expansion.depth() > limits.max_ancestor_slots) {
    return absl::InvalidArgumentError(absl::StrCat("expansion has depth ", set.expansion.depth(),
                                                   ", the model runner allows ",
                                                   limits.max_ancestor_slots));
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
  for (size_t i = 0; i < ssms.size(); ++i) {
    const RunnerLimits ssm = ssms[i]->limits();
    if (ssm.vocabulary != limits.vocabulary) {
      return absl::InvalidArgumentError(absl::StrCat("SSM ", i, " has a vocabulary of ",
                                                     ssm.vocabulary, ", the LLM one of ",
                                                     limits.vocabulary, ": they must be equal"));
    }
    engine->drafters_.push_back(
        {.drafter = std::make_unique<Drafter>(*ssms[i], static_cast<int>(i), set.expansion),
         .limit = std::min({ssm.max_positions, ssm.kv_slots - tree, ssm.max_context_slots})});
  }
  engine->statistics_.drafted_by_depth.resize(set.expansion.depth());
  engine->statistics_.accepted_by_depth.resize(set.expansion.depth());
  return engine;
}

absl::StatusOr<RequestId> Engine::Submit(std::vector<int> prompt, RequestOptions options) {
  if (absl::Status status = ValidateOptions(options, limits_.vocabulary); !status.ok()) {
    return status;
  }
  if (options.timeout_seconds > 0 && !options_.seconds) {
    return absl::FailedPreconditionError("a timeout needs an engine with a clock");
  }
  if (prompt.empty()) {
    return absl::InvalidArgumentError("the prompt is empty, expected at least one token");
  }
  if (static_cast<int>(prompt.size()) >= context_) {
    return absl::InvalidArgumentError(absl::StrCat("the prompt has ", prompt.size(),
                                                   " tokens, the context ", context_,
                                                   ", of which at least one is for the answer"));
  }
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (prompt[i] < 0 || prompt[i] >= limits_.vocabulary) {
      return absl::InvalidArgumentError(absl::StrCat("prompt token ", i, " is ", prompt[i],
                                                     ", the vocabulary has ", limits_.vocabulary));
    }
  }
  if (static_cast<int>(waiting_.size()) >= options_.max_queue) {
    return absl::ResourceExhaustedError(absl::StrCat(
        waiting_.size(), " requests are waiting, which is the limit: try again later"));
  }
  const RequestId id = next_id_++;
  requests_[id] = {
      .request = std::make_unique<Request>(id, std::move(prompt), std::move(options), *tokenizer_),
      .submitted = Now()};
  waiting_.push_back(id);
  return id;
}

bool Engine::Cancel(RequestId id) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return false;
  it->second.request->Finish(FinishReason::kCancelled);
  Report(it->second);
  Retire(id);
  return true;
}

std::vector<RequestEvent> Engine::TakeEvents() {
  std::vector<RequestEvent> out;
  out.swap(events_);
  return out;
}

// How deep this SSM can draft now: the tree's last level and the token after it must be allowed to
// the request, and the levels that are run must be positions of the SSM.
int Engine::DraftDepth(const Request& request, const Ssm& ssm) const {
  if (!request.options().speculate || request.length() > ssm.limit) return 0;
  return std::max(0, std::min({options_.expansion.depth(), request.Remaining(context_) - 1,
                               ssm.limit - request.length() + 1}));
}

RequestView Engine::View(const Entry& entry) const {
  const Request& request = *entry.request;
  RequestView view{.id = request.id(),
                   .length = request.length(),
                   .started = request.emitted() > 0,
                   .computed = {kv_.length(request.id())},
                   .tree_may_shrink = request.options().sampling.greedy(),
                   .last_step = entry.last_step};
  for (const Ssm& ssm : drafters_) {
    const bool follows = request.options().speculate && request.length() <= ssm.limit;
    view.computed.push_back(follows ? ssm.drafter->kv().length(request.id()) : -1);
    if (view.started) view.tree_nodes += options_.expansion.nodes(DraftDepth(request, ssm));
  }
  return view;
}

std::vector<Engine::Work> Engine::Plan() {
  SchedulerInput input{.max_rows = options_.max_tokens_per_batch,
                       .max_running = options_.max_requests,
                       .free_slots = {kv_.free_slots()},
                       .total_slots = {limits_.kv_slots}};
  for (const Ssm& ssm : drafters_) {
    input.free_slots.push_back(ssm.drafter->kv().free_slots());
    input.total_slots.push_back(ssm.drafter->kv().statistics().slots);
  }
  for (const RequestId id : running_) input.running.push_back(View(requests_.at(id)));
  for (const RequestId id : waiting_) {
    if (static_cast<int>(input.waiting.size()) >= options_.max_requests) break;
    input.waiting.push_back(View(requests_.at(id)));
  }
  const Schedule schedule = MakeSchedule(input);
  for (const RequestId id : schedule.preempt) {
    ReleaseSlots(id);
    requests_.at(id).request->Preempt();
    running_.erase(std::find(running_.begin(), running_.end(), id));
    waiting_.push_front(id);
    ++statistics_.preemptions;
  }
  for (const RequestId id : schedule.admit) {
    Entry& entry = requests_.at(id);
    entry.request->Admit();
    if (entry.last_step == 0) entry.request->usage().seconds_queued = Now() - entry.submitted;
    waiting_.pop_front();
    running_.push_back(id);
  }
  std::vector<Work> work;
  for (const Assignment& assignment : schedule.work) {
    Entry& entry = requests_.at(assignment.id);
    if (assignment.decodes) entry.last_step = statistics_.steps;
    work.push_back({&entry, assignment, TokenTree(entry.request->tokens().back())});
  }
  return work;
}

absl::Status Engine::Draft(std::vector<Work>& work) {
  const int sources = static_cast<int>(drafters_.size());
  for (int s = 0; s < sources; ++s) {
    const Ssm& ssm = drafters_[s];
    std::vector<Drafter::Job> jobs;
    for (Work& item : work) {
      const Request& request = *item.entry->request;
      const Assignment& assignment = item.assignment;
      if (!request.options().speculate || request.length() > ssm.limit) continue;
      Drafter::Job job{.request = request.id(),
                       .tokens = request.tokens(),
                       .follow = kv_.length(request.id()) + assignment.rows,
                       .sampling = request.options().sampling,
                       .tree = &item.tree};
      if (assignment.decodes && assignment.tree_nodes > 0) {
        job.depth = DraftDepth(request, ssm);
        // Shares of what the scheduler gave; the first SSMs get the remainder.
        job.max_nodes = (assignment.tree_nodes + sources - 1 - s) / sources;
      }
      // The root is left for the draft that will ask for its logits.
      if (job.depth == 0 && job.follow == request.length()) --job.follow;
      jobs.push_back(job);
    }
    if (absl::Status status = ssm.drafter->Draft(jobs); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat("SSM ", s, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<StepLogits> Engine::RunLlm(std::vector<Work>& work) {
  std::vector<SequenceRows> sequences(work.size());
  for (size_t i = 0; i < work.size(); ++i) {
    const Request& request = *work[i].entry->request;
    const TokenTree& tree = work[i].tree;
    const int first = kv_.length(request.id());
    const int end = first + work[i].assignment.rows;
    if (absl::Status status = kv_.Append(request.id(), end - first); !status.ok()) return status;
    absl::StatusOr<std::vector<int32_t>> scratch = kv_.TakeScratch(request.id(), tree.drafted());
    if (!scratch.ok()) return scratch.status();
    work[i].slots = *std::move(scratch);
    const absl::Span<const int32_t> slots = kv_.slots(request.id());
    std::vector<SequenceRows::Row>& rows = sequences[i].rows;
    for (int position = first; position < end; ++position) {
      rows.push_back({.token = request.tokens()[position],
                      .position = position,
                      .slot = slots[position],
                      .prefix = position + 1,
                      .wants_logits = position + 1 == request.length()});
      if (request.WantsPromptLogits(position)) {
        rows.back().wants_logits = true;
        ++work[i].prompt_rows;
      }
    }
    const size_t root = rows.size() - 1;
    for (int node = 1; node < tree.size(); ++node) {
      const int32_t slot = work[i].slots[node - 1];
      std::vector<int32_t> path = rows[root + tree.parent(node)].ancestors;
      path.push_back(slot);
      rows.push_back({.token = tree.token(node),
                      .position = request.length() - 1 + tree.depth(node),
                      .slot = slot,
                      .prefix = request.length(),
                      .ancestors = std::move(path),
                      .wants_logits = true});
    }
    statistics_.rows += static_cast<int64_t>(rows.size());
    if (!work[i].assignment.decodes) statistics_.prompt_tokens += end - first;
  }
  for (size_t i = 0; i < work.size(); ++i) {
    sequences[i].slots = kv_.slots(work[i].entry->request->id());
  }
  absl::StatusOr<StepLogits> logits = RunRows(*llm_, sequences);
  if (logits.ok()) statistics_.llm_batches += logits->batches();
  return logits;
}

void Engine::ExpireRequests() {
  if (!options_.seconds) return;
  std::vector<RequestId> late;
  for (const auto& [id, entry] : requests_) {
    const double timeout = entry.request->options().timeout_seconds;
    if (timeout > 0 && Now() - entry.submitted > timeout) late.push_back(id);
  }
  for (const RequestId id : late) {
    Entry& entry = requests_.at(id);
    entry.request->Finish(FinishReason::kError);
    Report(entry, absl::DeadlineExceededError(
                      absl::StrCat("the request's time is over: ", entry.request->emitted(),
                                   " tokens in ", entry.request->options().timeout_seconds, " s")));
    Retire(id);
  }
}

absl::Status Engine::Step() {
  ExpireRequests();
  if (idle()) return absl::OkStatus();
  ++statistics_.steps;
  std::vector<Work> work = Plan();
  absl::Status status =
      work.empty() ? absl::InternalError("the scheduler found no work although requests wait")
                   : Draft(work);
  if (status.ok()) {
    absl::StatusOr<StepLogits> logits = RunLlm(work);
    status = logits.status();
    for (size_t i = 0; status.ok() && i < work.size(); ++i) {
      status = Verify(work[i], static_cast<int>(i), *logits);
    }
  }
  if (!status.ok()) FailRunning(status);
  return status;
}

absl::Status Engine::Verify(Work& work, int index, const StepLogits& logits) {
  Request& request = *work.entry->request;
  const RequestId id = request.id();
  for (int row = 0; row < work.prompt_rows; ++row) {
    request.AddPromptLogprobs(logits.at(index, row), limits_.vocabulary);
  }
  if (kv_.length(id) < request.length()) return absl::OkStatus();  // in the middle of the prompt
  // After the prompt's, the wanted rows are the root and then the nodes, as the tree numbers them.
  // Rules are applied here, before anything is compared or drawn.
  std::vector<float> ruled;
  const auto row_of = [&](int node) -> absl::StatusOr<const float*> {
    const float* row = logits.at(index, work.prompt_rows + node);
    if (!request.rules().active()) return row;
    ruled.assign(row, row + limits_.vocabulary);
    absl::Status status =
        request.rules().Apply(PathTo(work.tree, node), ruled.data(), limits_.vocabulary);
    if (!status.ok()) return status;
    return ruled.data();
  };
  absl::StatusOr<Verification> verification;
  if (request.options().sampling.greedy()) {
    verification = VerifyGreedy(work.tree, [&](int node) -> absl::StatusOr<int> {
      const absl::StatusOr<const float*> row = row_of(node);
      if (!row.ok()) return row.status();
      return Argmax(*row, limits_.vocabulary);
    });
  } else {
    RequestNoise noise(request.options().sampling.seed, request.length() - 1);
    verification = VerifySampled(
        work.tree,
        [&](int node) -> absl::StatusOr<Distribution> {
          const absl::StatusOr<const float*> row = row_of(node);
          if (!row.ok()) return row.status();
          return SamplingDistribution(*row, limits_.vocabulary, request.options().sampling);
        },
        noise);
  }
  if (verification.ok()) return Conclude(work, *verification, index, logits);
  // Logits that are no numbers, and rules that cannot be followed, concern this request alone.
  request.Finish(FinishReason::kError);
  Report(*work.entry, verification.status());
  Retire(id);
  return absl::OkStatus();
}

absl::Status Engine::Conclude(Work& work, const Verification& verification, int index,
                              const StepLogits& logits) {
  Request& request = *work.entry->request;
  const RequestId id = request.id();
  Usage& usage = request.usage();
  if (request.emitted() == 0) usage.seconds_to_first_token = Now() - work.entry->submitted;
  if (work.assignment.decodes) {
    ++usage.verification_steps;
    ++statistics_.verifications;
  }
  usage.drafted_tokens += work.tree.drafted();
  statistics_.drafted_tokens += work.tree.drafted();
  for (int node = 1; node < work.tree.size(); ++node) {
    ++statistics_.drafted_by_depth[work.tree.depth(node) - 1];
  }
  for (size_t i = 0; i < verification.tokens.size() && request.phase() != Phase::kFinished; ++i) {
    const int token = verification.tokens[i];
    TokenLogprobs logprobs;
    const bool reported = request.options().logprobs >= 0;
    if (reported) {
      const int node = i == 0 ? 0 : verification.path[i - 1];
      logprobs = LogprobsOf(logits.at(index, work.prompt_rows + node), limits_.vocabulary, token,
                            request.options().logprobs);
    }
    request.Emit(token, context_, reported ? &logprobs : nullptr);
    ++statistics_.generated_tokens;
    if (i < verification.path.size()) {
      ++usage.accepted_tokens;
      ++statistics_.accepted_tokens;
      ++statistics_.accepted_by_depth[i];
    }
  }
  Report(*work.entry);
  if (request.phase() == Phase::kFinished) {
    Retire(id);
    return absl::OkStatus();
  }
  std::vector<int32_t> accepted;
  for (const int node : verification.path) accepted.push_back(work.slots[node - 1]);
  absl::Status status = kv_.CommitScratch(id, accepted);
  kv_.DropScratch(id);
  const absl::Span<const int> tokens =
      absl::MakeConstSpan(verification.tokens).subspan(0, verification.path.size());
  for (const Ssm& ssm : drafters_) {
    status.Update(ssm.drafter->Commit(id, tokens));
    if (request.length() > ssm.limit) ssm.drafter->Release(id);
  }
  return status;
}

void Engine::FailRunning(const absl::Status& status) {
  for (const RequestId id : std::vector<RequestId>(running_)) {
    Entry& entry = requests_.at(id);
    entry.request->Finish(FinishReason::kError);
    Report(entry, status);
    Retire(id);
  }
}

void Engine::Report(Entry& entry, const absl::Status& error) {
  Request& request = *entry.request;
  RequestEvent event{.id = request.id(),
                     .tokens = request.TakeTokens(),
                     .text = request.TakeText(),
                     .finished = request.phase() == Phase::kFinished,
                     .reason = request.finish_reason(),
                     .error = error.ok() ? request.error() : error,
                     .stop = request.stop_cause(),
                     .logprobs = request.TakeLogprobs()};
  if (!event.tokens.empty()) {
    event.prompt_logprobs = request.TakePromptLogprobs();
    const double now = Now();
    const bool first = static_cast<int>(event.tokens.size()) == request.emitted();
    event.seconds_since_last = first ? 0 : now - entry.last_tokens;
    entry.last_tokens = now;
  }
  if (event.finished) {
    request.usage().seconds = Now() - entry.submitted;
    event.usage = request.usage();
    ++statistics_.finished[event.reason];
  }
  if (event.finished || !event.tokens.empty() || !event.text.empty()) {
    events_.push_back(std::move(event));
  }
}

void Engine::ReleaseSlots(RequestId id) {
  kv_.Release(id);
  for (const Ssm& ssm : drafters_) ssm.drafter->Release(id);
}

void Engine::Retire(RequestId id) {
  ReleaseSlots(id);
  const auto running = std::find(running_.begin(), running_.end(), id);
  if (running != running_.end()) {
    running_.erase(running);
  } else {
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), id));
  }
  requests_.erase(id);
}

EngineStatistics Engine::statistics() const {
  EngineStatistics out = statistics_;
  out.waiting = static_cast<int>(waiting_.size());
  out.running = static_cast<int>(running_.size());
  out.kv = kv_.statistics();
  for (const Ssm& ssm : drafters_) {
    out.ssm_kv.push_back(ssm.drafter->kv().statistics());
    out.ssm_batches += ssm.drafter->batches();
  }
  return out;
}

absl::Status Engine::CheckInvariants() const {
  int running_slots = 0;
  for (const RequestId id : running_) running_slots += kv_.length(id);
  if (running_slots != kv_.statistics().used) {
    return absl::InternalError(absl::StrCat("running requests have ", running_slots,
                                            " KV slots, but ", kv_.statistics().used,
                                            " are in use"));
  }
  absl::Status status = kv_.CheckInvariants();
  for (const Ssm& ssm : drafters_) {
    const KvCache& kv = ssm.drafter->kv();
    int slots = 0;
    for (const RequestId id : running_) slots += kv.length(id);
    if (slots != kv.statistics().used) status.Update(absl::InternalError("an SSM's KV slot leaks"));
    status.Update(kv.CheckInvariants());
  }
  return status;
}

}  // namespace espalier
