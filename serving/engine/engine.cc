#include "serving/engine/engine.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

// The tokens that a request may attach from the prefix cache. The last token is always run, because
// its logits are needed. A preempted request decodes after it with a tree, which may have to be
// whole, and has no tree in the step that admits it; that step runs the token before.
absl::Span<const int> CacheablePrefix(const Request& request) {
  const size_t own = request.emitted() > 0 ? 2 : 1;
  return request.tokens().first(request.tokens().size() - own);
}

// True if the tokens and log-probabilities after its rows suffice, instead of all logits. Drawn
// proposals need the LLM's whole distribution.
bool RunnerCanSample(const Request& request, const TokenTree& tree) {
  return request.options().embed || request.options().sampling.greedy() || !tree.drawn();
}

}  // namespace

// Log-probabilities of a prompt need the logits of its rows, so they are not taken from the cache.
KvNamespace Engine::NamespaceOf(const Request& request) {
  return {.adapter = request.options().adapter, .salt = request.options().cache_salt};
}

bool Engine::UsesPrefixCache(const Request& request) const {
  return options_.prefix_cache && request.options().prompt_logprobs < 0;
}

// True if only its last token is still to be run.
bool Engine::Decodes(const Entry& entry) const {
  const Request& request = *entry.request;
  return request.emitted() > 0 && kv_.length(request.id()) == request.length() - 1;
}

RequestView Engine::View(const Entry& entry) const {
  const Request& request = *entry.request;
  const RequestId id = request.id();
  RequestView view{.id = id,
                   .length = request.length(),
                   .started = request.emitted() > 0,
                   .computed = {kv_.length(id)},
                   .busy = entry.busy,
                   .tree_may_shrink = speculator_->TreeMayShrink(request),
                   .last_step = entry.last_step,
                   .priority = request.options().priority,
                   .shared = {kv_.shared(id)}};
  for (int s = 0; s < speculator_->ssms(); ++s) {
    view.computed.push_back(speculator_->Computed(s, request));
    view.shared.push_back(speculator_->kv(s).shared(id));
  }
  if (Decodes(entry)) view.tree_nodes = speculator_->TreeNodes(request);
  return view;
}

void Engine::PlanSpeculation() {
  std::vector<const Request*> decoding;
  int64_t prompt_rows = 0;
  for (const RequestId id : running_) {
    const Entry& entry = requests_.at(id);
    if (Decodes(entry)) {
      decoding.push_back(entry.request.get());
    } else {
      prompt_rows += entry.request->length() - kv_.length(id);
    }
  }
  for (const RequestId id : waiting_) {
    if (static_cast<int>(running_.size()) >= options_.max_requests) break;
    prompt_rows += requests_.at(id).request->length();
  }
  const int64_t room =
      std::max<int64_t>(0, options_.max_tokens_per_batch - static_cast<int64_t>(decoding.size()));
  speculator_->Plan(decoding, static_cast<int>(std::clamp<int64_t>(prompt_rows, 0, room)),
                    context_);
}

RequestId Engine::PrefixProducer(const Request& request, int known,
                                 const SchedulerInput& before) const {
  const absl::Span<const int> wanted = CacheablePrefix(request);
  for (const auto* views : {&before.running, &before.waiting}) {
    for (const RequestView& view : *views) {
      // K and V of a step in flight are cached only when it ends.
      const bool in_flight = view.in_flight && !view.started;
      if (!in_flight &&
          (view.prompt_left() == 0 || view.computed[0] >= static_cast<int>(wanted.size()))) {
        continue;
      }
      const Request& other = *requests_.at(view.id).request;
      // Do not wait for a request of lower priority.
      if (view.priority > request.options().priority || NamespaceOf(other) != NamespaceOf(request))
        continue;
      const absl::Span<const int> tokens = other.tokens();
      // Waiting for a step must save some rows.
      const size_t least = in_flight ? known : std::max(known, view.computed[0]);
      const size_t rows = KvCache::kBlock;
      if (std::min(wanted.size(), tokens.size()) < least + rows) continue;
      // Compare these tokens first: many prompts share a long prefix and differ after it.
      if (wanted.subspan(least, rows) == tokens.subspan(least, rows) &&
          wanted.first(least) == tokens.first(least)) {
        return view.id;
      }
    }
  }
  return 0;
}

SchedulerInput Engine::BuildSchedulerInput() const {
  SchedulerInput input{.max_rows = options_.max_tokens_per_batch,
                       .max_running = options_.max_requests,
                       .free_slots = {kv_.free_slots()},
                       .total_slots = {limits_.kv_slots}};
  for (int s = 0; s < speculator_->ssms(); ++s) {
    input.free_slots.push_back(speculator_->kv(s).free_slots());
    input.total_slots.push_back(speculator_->kv(s).statistics().slots);
  }
  std::set<RequestId> in_flight;
  for (const InFlightStep& pending : in_flight_) {
    for (const Work& work : pending.work) in_flight.insert(work.assignment.id);
  }
  int decoding = 0;
  for (const RequestId id : running_) {
    const Entry& entry = requests_.at(id);
    input.running.push_back(View(entry));
    input.running.back().in_flight = in_flight.count(id) > 0;
    decoding += entry.busy || Decodes(entry);
  }
  if (concurrent_steps_ > 1) {
    input.max_decoding = (decoding + concurrent_steps_ - 1) / concurrent_steps_;
    input.steps_in_flight = !in_flight_.empty();
  }
  const bool full = static_cast<int>(running_.size()) >= options_.max_requests;
  // Slots of the LLM's cache beyond the known needs. Prefix lookups take time, so stop at the first
  // waiting request that does not fit.
  int64_t unclaimed = input.free_slots[0] - SpareSlots(limits_.kv_slots);
  for (const RequestView& view : input.running) {
    unclaimed -= view.length + 1 + view.tree_nodes - view.computed[0];
  }
  if (LetsRunningEnd()) return input;  // none starts where the model is about to leave
  for (const RequestId id : waiting_) {
    if (static_cast<int>(input.waiting.size()) >= (full ? 1 : options_.max_requests)) break;
    RequestView view = View(requests_.at(id));
    const Request& request = *requests_.at(id).request;
    if (UsesPrefixCache(request)) {
      const KvCache::Prefix prefix = kv_.FindPrefix(CacheablePrefix(request), NamespaceOf(request));
      view.computed[0] = prefix.length;
      view.idle_prefix_slots = prefix.idle;
      view.prefix_producer = PrefixProducer(request, prefix.length, input);
    }
    unclaimed -= view.length + 1 - view.computed[0] + view.idle_prefix_slots;
    const bool last = unclaimed < 0 && view.prefix_producer == 0;
    input.waiting.push_back(std::move(view));
    if (last) break;
  }
  return input;
}

std::vector<Engine::Work> Engine::Plan() {
  PlanSpeculation();
  const Schedule schedule = MakeSchedule(BuildSchedulerInput());
  if (!schedule.work.empty() || !schedule.preempt.empty()) ++statistics_.steps;
  for (const RequestId id : schedule.preempt) {
    ReleaseSlots(id);
    requests_.at(id).request->Preempt();
    running_.erase(std::find(running_.begin(), running_.end(), id));
    Enqueue(id, waiting_);
    ++statistics_.preemptions;
  }
  for (const RequestId id : schedule.admit) {
    Entry& entry = requests_.at(id);
    Request& request = *entry.request;
    if (UsesPrefixCache(request)) {
      const int cached = kv_.AttachPrefix(id, CacheablePrefix(request), NamespaceOf(request));
      if (!entry.admitted) {
        request.usage().cached_tokens = cached;
        statistics_.prefix_query_tokens += request.length();
        statistics_.cached_tokens += cached;
      }
    }
    if (!entry.admitted) request.usage().seconds_queued = Now() - entry.arrived;
    entry.admitted = true;
    if (request.options().group_started != nullptr) *request.options().group_started = true;
    request.Admit();
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), id));
    Enqueue(id, running_);
  }
  std::vector<Work> work;
  for (const Assignment& assignment : schedule.work) {
    Entry& entry = requests_.at(assignment.id);
    if (assignment.decodes) entry.last_step = statistics_.steps;
    const int end = kv_.length(assignment.id) + assignment.rows;
    entry.busy = end == entry.request->length();
    work.push_back(
        {.assignment = assignment, .tree = TokenTree(entry.request->tokens().back()), .end = end});
  }
  return work;
}

void Engine::Draft(std::vector<Work>& work) {
  std::vector<DraftWork> drafts;
  for (Work& item : work) {
    drafts.push_back({.request = *requests_.at(item.assignment.id).request,
                      .assignment = item.assignment,
                      .end = item.end,
                      .tree = item.tree});
  }
  speculator_->Draft(drafts);
}

absl::Status Engine::BeginLlm(std::vector<Work>& work) {
  std::vector<SequenceRows> sequences(work.size());
  for (size_t i = 0; i < work.size(); ++i) {
    const Request& request = *requests_.at(work[i].assignment.id).request;
    const TokenTree& tree = work[i].tree;
    const int first = kv_.length(request.id());
    const int end = work[i].end;
    if (absl::Status status = kv_.Append(request.id(), end - first); !status.ok()) return status;
    absl::StatusOr<std::vector<int32_t>> scratch = kv_.TakeScratch(request.id(), tree.drafted());
    if (!scratch.ok()) return scratch.status();
    work[i].slots = *std::move(scratch);
    const absl::Span<const int32_t> slots = kv_.slots(request.id());
    std::vector<SequenceRows::Row>& rows = sequences[i].rows;
    const int32_t row_output =
        RunnerCanSample(request, tree) ? RunnerBatch::kToken : RunnerBatch::kLogits;
    for (int position = first; position < end; ++position) {
      rows.push_back({.token = request.tokens()[position],
                      .position = position,
                      .slot = slots[position],
                      .prefix = position + 1,
                      .wants_logits = position + 1 == request.length(),
                      .wants_hidden = request.options().embed,
                      .row_output = row_output});
      if (request.WantsPromptLogits(position)) {
        rows.back().wants_logits = true;
        rows.back().row_output = RunnerBatch::kPromptLogprob;
        rows.back().next_prompt_tokens = request.tokens()[position + 1];
        ++work[i].prompt_rows;
      }
    }
    if (end == request.length()) AddRowEdits(request.logits_processor(), {}, &rows.back());
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
                      .wants_logits = true,
                      .row_output = row_output});
      AddRowEdits(request.logits_processor(), tree.PathTo(node), &rows.back());
    }
    statistics_.rows += static_cast<int64_t>(rows.size());
    if (!work[i].assignment.decodes) statistics_.prompt_tokens += end - first;
  }
  for (size_t i = 0; i < work.size(); ++i) {
    const RequestId id = work[i].assignment.id;
    sequences[i].slots = kv_.slots(id);
    const Request& request = *requests_.at(id).request;
    const RequestOptions& chosen = request.options();
    sequences[i].adapter = chosen.adapter;
    if (chosen.embed) continue;
    sequences[i].metadata = {.sampling = chosen.sampling,
                             .coupled = UsesCoupledSampling(chosen, options_.speculation.sampled),
                             .edits = SequenceEditsOf(request.logits_processor()),
                             .logprobs = chosen.logprobs,
                             .prompt_logprobs = chosen.prompt_logprobs};
  }
  return pipeline_.Begin(sequences);
}

bool Engine::LetsRunningEnd() const { return !running_.empty() && llm_->is_to_move(); }

void Engine::ResetLostCache() {
  if (LetsRunningEnd()) return;
  const uint64_t generation = llm_->cache_generation();
  if (generation == cache_generation_) return;
  cache_generation_ = generation;
  FailRunning(
      absl::UnavailableError("the model had to be loaded again, and what was computed of this "
                             "request is lost; try again"));
}

absl::StatusOr<bool> Engine::BeginStep() {
  InFlightStep pending{.planned = Now()};
  kv_.SetTime(pending.planned);
  pending.work = Plan();
  if (pending.work.empty()) return false;
  Draft(pending.work);
  pending.begun = Now();
  for (const Work& item : pending.work) {
    pending.rows += item.assignment.rows + item.tree.drafted();
  }
  if (absl::Status status = BeginLlm(pending.work); !status.ok()) return status;
  in_flight_.push_back(std::move(pending));
  return true;
}

absl::Status Engine::EndStep() {
  absl::StatusOr<StepOutput> logits = pipeline_.End(std::move(logits_));
  if (!logits.ok()) return logits.status();
  statistics_.llm_batches += logits->batches();
  InFlightStep pending = std::move(in_flight_.front());
  in_flight_.pop_front();
  const int64_t generated = statistics_.generated_tokens;
  int64_t prompt = 0;
  for (size_t i = 0; i < pending.work.size(); ++i) {
    const Assignment& assignment = pending.work[i].assignment;
    if (!assignment.decodes) prompt += assignment.rows;
    const absl::Status status = Verify(pending.work[i], static_cast<int>(i), *logits);
    if (!status.ok()) return status;
  }
  const double end = Now();
  statistics_.step_tokens.Count(
      static_cast<double>(prompt + statistics_.generated_tokens - generated));
  speculator_->ObserveLlm(pending.rows, end - pending.begun);
  speculator_->ObserveStep(static_cast<int>(statistics_.generated_tokens - generated),
                           end - pending.planned);
  logits_ = *std::move(logits);
  return absl::OkStatus();
}

absl::Status Engine::Step() {
  ExpireRequests();
  ResetLostCache();
  if (idle()) return absl::OkStatus();
  const int64_t preempted = statistics_.preemptions;
  const auto full = [&] { return static_cast<int>(in_flight_.size()) >= concurrent_steps_; };
  absl::StatusOr<bool> begun = false;
  if (!full()) begun = BeginStep();
  // There may be work for a further step.
  if (begun.ok() && *begun && !full()) return absl::OkStatus();
  absl::Status status = begun.status();
  if (status.ok() && !in_flight_.empty()) {
    status = EndStep();
  } else if (status.ok() && statistics_.preemptions == preempted) {
    // Slots that preempted requests shared are freed with the last of them, in the next step.
    status = absl::InternalError("the scheduler found no work although requests wait");
  }
  if (!status.ok()) FailRunning(status);
  return status;
}

void Engine::FailRunning(const absl::Status& status) {
  // For clients, ResourceExhausted means that the queue is full.
  const absl::Status told =
      absl::IsResourceExhausted(status)
          ? absl::InternalError(absl::StrCat("the model's step failed: ", status.message()))
          : status;
  pipeline_.Drain();
  in_flight_.clear();
  for (const RequestId id : std::vector<RequestId>(running_.begin(), running_.end())) {
    Entry& entry = requests_.at(id);
    entry.request->Finish(FinishReason::kError);
    EmitEvent(entry, told);
    Retire(id);
  }
  // A runner that failed may have lost what its cache held.
  kv_.ResetPrefixCache();
}

}  // namespace espalier
