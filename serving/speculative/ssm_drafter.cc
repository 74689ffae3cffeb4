#include "serving/speculative/ssm_drafter.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "serving/sampling/counter_rng.h"
#include "serving/sampling/sampler.h"

namespace espalier {
namespace {

// Distinguishes a draw from all others below the same root. Includes the root, because where a tree
// ends may depend on its draws; the next draft must not reuse random numbers at the same positions.
uint64_t DrawIndex(int depth, size_t node, int draw) {
  constexpr uint64_t kMost = Expansion::kMaxNodes;  // of each
  return (static_cast<uint64_t>(depth) * kMost + node) * kMost + static_cast<uint64_t>(draw);
}

bool Draws(const SsmDrafter::DraftRequest& job) {
  return !job.sampling.greedy() && (job.best_first.width == 0 || job.best_first.draws);
}

// Acceptance chance of a node at this depth (from 1), by the SSM's probability given its parent.
double WorthOf(const BestFirst& how, double probability, int depth, int rank) {
  const double worth = how.acceptance != nullptr
                           ? how.acceptance->OfProbability(probability, depth, rank)
                           : probability;
  return std::min(ScaleFailureOdds(worth, how.failing), AcceptanceEstimator::kMost);
}

// Expected acceptance of a draw from q before it is made.
double WorthOfDraw(const BestFirst& how, const Distribution& q, int depth) {
  constexpr double kLikely = 1e-2;  // few tokens are more probable; the others hardly matter
  double worth = 0, rest = 1;
  for (const double probability : q) {
    if (probability < kLikely) continue;
    worth += probability * WorthOf(how, probability, depth, 0);
    rest -= probability;
  }
  return worth + std::max(rest, 0.0) * WorthOf(how, kLikely / 2, depth, 0);
}

// A lower bound of WorthOfDraw.
double LeastWorth(const BestFirst& how, int depth) {
  return how.acceptance == nullptr ? 0
                                   : ScaleFailureOdds(how.acceptance->Least(depth, 0), how.failing);
}

// Remaining mass of a distribution below which nothing more is drawn from it.
constexpr double kLeast = 1e-9;

absl::StatusOr<Distribution> RejectionSampling(absl::Span<const float> logits,
                                               const SamplingParameters& sampling) {
  return SamplingDistribution(logits.data(), static_cast<int>(logits.size()), sampling);
}

// Nodes by falling chance, equals by rising number, so parents come before their children.
std::vector<int> ByChance(const TokenTree& tree) {
  std::vector<int> order(tree.drafted());
  std::iota(order.begin(), order.end(), 1);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return tree.chance(a) > tree.chance(b); });
  return order;
}

}  // namespace

SsmDrafter::SsmDrafter(ModelRunner& runner, int source, Expansion expansion, bool share_prefixes)
    : runner_(runner),
      source_(source),
      expansion_(std::move(expansion)),
      share_prefixes_(share_prefixes),
      kv_(runner.limits().kv_slots) {}

void SsmDrafter::Measure(std::function<double()> seconds, StepLatency* latency) {
  seconds_ = std::move(seconds);
  latency_ = latency;
}

absl::Status SsmDrafter::Draft(absl::Span<const DraftRequest> jobs, const LevelPays& worth) {
  std::vector<int> before;
  int levels = 0;
  for (const DraftRequest& job : jobs) {
    before.push_back(kv_.length(job.request));
    levels = std::max(levels, job.depth);
  }
  expected_seconds_ = 0;
  drafted_.clear();
  double start = Now();
  absl::Status status = Prefill(jobs);
  for (int depth = 0; status.ok(); ++depth) {
    std::vector<const DraftRequest*> deeper;
    std::vector<double> chances;
    for (const DraftRequest& job : jobs) {
      if (depth >= job.depth) continue;
      status.Update(Expand(job, depth));
      const DraftTree& draft = drafts_[job.request];
      if (depth + 1 >= job.depth || draft.frontier.empty()) continue;
      deeper.push_back(&job);
      for (const int node : draft.frontier) chances.push_back(draft.tree.chance(node));
    }
    if (latency_ != nullptr && run_rows_ > 0) {
      expected_seconds_ += latency_->Seconds(run_rows_);
      if (observes_) latency_->Observe(run_rows_, Now() - start);
    }
    // The last level is not run: its logits are not needed, and the next Prefill computes accepted
    // nodes.
    if (!status.ok() || deeper.empty()) break;
    if (deeper[0]->best_first.width > 0 && worth && !worth(depth + 1, chances, drafted_)) break;
    start = Now();
    status = RunFrontiers(deeper);
  }
  for (const DraftRequest& job : jobs) {
    if (status.ok() && job.depth > 0 && job.tree->token(0) != job.tokens.back()) {
      status = absl::InternalError("a draft was asked for another root than its tree's");
    }
  }
  for (const DraftRequest& job : jobs) {
    if (status.ok() && job.depth > 0) status = MergeIntoTree(job);
  }
  if (!status.ok()) {
    for (size_t i = 0; i < jobs.size(); ++i) {
      kv_.DropScratch(jobs[i].request);
      kv_.Truncate(jobs[i].request, before[i]);
      drafts_.erase(jobs[i].request);
    }
  }
  return status;
}

absl::Status SsmDrafter::Run(absl::Span<const SequenceRows> sequences) {
  run_rows_ = 0;
  for (const SequenceRows& sequence : sequences) {
    run_rows_ += static_cast<int>(sequence.rows.size());
  }
  absl::StatusOr<StepOutput> result = RunRows(runner_, sequences, std::move(logits_));
  if (!result.ok()) return result.status();
  logits_ = *std::move(result);
  batches_ += logits_.batches();
  return absl::OkStatus();
}

absl::Status SsmDrafter::Prefill(absl::Span<const DraftRequest> jobs) {
  std::vector<SequenceRows> sequences(jobs.size());
  for (size_t i = 0; i < jobs.size(); ++i) {
    const DraftRequest& job = jobs[i];
    const int length = static_cast<int>(job.tokens.size());
    if (share_prefixes_ && job.prefill > 0) {
      // Attach a cached prefix; the last token to prefill is always run.
      const KvNamespace space{.salt = job.cache_salt};
      kv_.CacheBlocks(job.request, job.tokens, space);
      kv_.AttachPrefix(job.request, job.tokens.subspan(0, job.prefill - 1), space);
    }
    const int known = kv_.length(job.request);
    if (job.prefill > length || (job.depth > 0 && (known >= length || job.prefill != length))) {
      return absl::InternalError(absl::StrCat(
          "SSM ", source_, " has run ", known, " of ", length, " tokens of request ", job.request,
          " and cannot follow to ", job.prefill, (job.depth > 0 ? " and draft" : "")));
    }
    if (job.prefill <= known) continue;
    if (absl::Status status = kv_.Append(job.request, job.prefill - known); !status.ok()) {
      return status;
    }
    const absl::Span<const int32_t> slots = kv_.slots(job.request);
    for (int position = known; position < job.prefill; ++position) {
      sequences[i].rows.push_back({.token = job.tokens[position],
                                   .position = position,
                                   .slot = slots[position],
                                   .prefix = position + 1,
                                   .wants_logits = job.depth > 0 && position + 1 == length,
                                   .row_output = RowOutputOf(job, 0)});
    }
    if (job.logits_processor != nullptr)
      AddRowEdits(*job.logits_processor, {}, &sequences[i].rows.back());
    sequences[i].metadata = MetadataOf(job);
  }
  // After all calls of Append, which may move the slot lists.
  for (size_t i = 0; i < jobs.size(); ++i) sequences[i].slots = kv_.slots(jobs[i].request);
  if (absl::Status status = Run(sequences); !status.ok()) return status;
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (jobs[i].depth == 0) continue;
    DraftTree& draft = drafts_[jobs[i].request];
    draft = DraftTree();
    draft.tree = TokenTree(jobs[i].tokens.back());
    draft.nodes.resize(1);
    draft.frontier = {0};
    draft.next = {NextOf(i, 0)};
  }
  return absl::OkStatus();
}

absl::Status SsmDrafter::RunFrontiers(absl::Span<const DraftRequest* const> jobs) {
  std::vector<SequenceRows> sequences(jobs.size());
  for (size_t i = 0; i < jobs.size(); ++i) {
    const DraftRequest& job = *jobs[i];
    DraftTree& draft = drafts_[job.request];
    const int count = static_cast<int>(draft.frontier.size());
    const absl::StatusOr<std::vector<int32_t>> slots = kv_.TakeScratch(job.request, count);
    if (!slots.ok()) return slots.status();
    const int root = static_cast<int>(job.tokens.size()) - 1;
    for (int j = 0; j < count; ++j) {
      const int id = draft.frontier[j];
      Node& node = draft.nodes[id];
      node.slot = (*slots)[j];
      node.path = draft.nodes[draft.tree.parent(id)].path;
      node.path.push_back(node.slot);
      ++draft.run;
      sequences[i].rows.push_back({.token = draft.tree.token(id),
                                   .position = root + draft.tree.depth(id),
                                   .slot = node.slot,
                                   .prefix = root + 1,
                                   .ancestors = node.path,
                                   .wants_logits = true,
                                   .row_output = RowOutputOf(job, draft.tree.depth(id))});
      if (job.logits_processor != nullptr) {
        AddRowEdits(*job.logits_processor, draft.tree.PathTo(id), &sequences[i].rows.back());
      }
    }
    sequences[i].metadata = MetadataOf(job);
  }
  for (size_t i = 0; i < jobs.size(); ++i) sequences[i].slots = kv_.slots(jobs[i]->request);
  if (absl::Status status = Run(sequences); !status.ok()) return status;
  for (size_t i = 0; i < jobs.size(); ++i) {
    DraftTree& draft = drafts_[jobs[i]->request];
    draft.next.clear();
    for (size_t j = 0; j < draft.frontier.size(); ++j) draft.next.push_back(NextOf(i, j));
  }
  return absl::OkStatus();
}

int32_t SsmDrafter::RowOutputOf(const DraftRequest& job, int depth) const {
  if (job.depth == 0 || Draws(job)) return RunnerBatch::kLogits;
  const int width = job.best_first.width > 0 ? job.best_first.width : expansion_.width(depth);
  return std::clamp(width, 1, runner_.limits().vocabulary);
}

SamplingMetadata SsmDrafter::MetadataOf(const DraftRequest& job) {
  SamplingMetadata metadata{.sampling = job.sampling};
  if (job.logits_processor != nullptr) metadata.edits = SequenceEditsOf(*job.logits_processor);
  return metadata;
}

SsmDrafter::DraftTree::Next SsmDrafter::NextOf(size_t job, size_t row) const {
  const int sequence = static_cast<int>(job), wanted = static_cast<int>(row);
  const absl::Span<const TokenProbability> best = logits_.choices(sequence, wanted);
  if (!best.empty()) return {.best = best};
  const size_t vocabulary = runner_.limits().vocabulary;
  return {.logits = absl::MakeConstSpan(logits_.at(sequence, wanted), vocabulary)};
}

// Returns the best `width` tokens by the request's sampling method.
absl::StatusOr<std::vector<TokenProbability>> SsmDrafter::BestOf(const DraftTree::Next& next,
                                                                 int width,
                                                                 const SamplingParameters& sampling,
                                                                 int position) {
  if (!next.best.empty()) {
    const auto best = next.best.subspan(0, static_cast<size_t>(std::max(width, 0)));
    return std::vector<TokenProbability>(best.begin(), best.end());
  }
  return sampling.greedy() ? TopTokens(next.logits, width)
                           : CoupledTopTokens(next.logits, width, sampling, position);
}

// Applies the request's logits processor to logits of the frontier. A node after which all tokens
// are masked, or the processor fails, gets no children. That depends on its path only, so draws
// keep their distribution.
void SsmDrafter::Rule(const DraftRequest& job, DraftTree& draft) const {
  if (job.logits_processor == nullptr || !job.logits_processor->active()) return;
  size_t kept = 0;
  if (draft.ruled.size() < draft.frontier.size()) draft.ruled.resize(draft.frontier.size());
  for (size_t i = 0; i < draft.frontier.size(); ++i) {
    DraftTree::Next next = draft.next[i];
    if (next.best.empty()) {
      std::vector<float>& logits = draft.ruled[kept];
      logits.assign(next.logits.begin(), next.logits.end());
      const absl::Status status = job.logits_processor->Apply(
          draft.tree.PathTo(draft.frontier[i]), logits.data(), static_cast<int>(logits.size()));
      if (!status.ok()) continue;
      next.logits = logits;
    }
    draft.frontier[kept] = draft.frontier[i];
    draft.next[kept] = next;
    ++kept;
  }
  draft.frontier.resize(kept);
  draft.next.resize(kept);
}

absl::Status SsmDrafter::Expand(const DraftRequest& job, int depth) {
  DraftTree& draft = drafts_[job.request];
  Rule(job, draft);
  if (Draws(job)) {
    return job.best_first.width > 0 ? ExpandChain(job, depth, draft)
                                    : ExpandByDraws(job, depth, draft);
  }
  if (job.best_first.width > 0) return ExpandBestFirst(job, depth, draft);
  const int budget = job.max_nodes - draft.tree.drafted();
  return ExpandByBeam(std::clamp(budget, 0, expansion_.width(depth)), draft);
}

absl::Status SsmDrafter::ExpandByBeam(int width, DraftTree& draft) {
  struct Candidate {
    double log_probability;
    int parent;  // node; sorted by rank
    TokenProbability choice;
  };
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < draft.frontier.size(); ++i) {
    const absl::StatusOr<std::vector<TokenProbability>> choices =
        BestOf(draft.next[i], width, SamplingParameters(), 0);
    if (!choices.ok()) return choices.status();
    const int parent = draft.frontier[i];
    for (const TokenProbability& choice : *choices) {
      candidates.push_back(
          {draft.nodes[parent].log_probability + std::log(choice.probability), parent, choice});
    }
  }
  std::stable_sort(
      candidates.begin(), candidates.end(),
      [](const Candidate& a, const Candidate& b) { return a.log_probability > b.log_probability; });
  candidates.resize(std::min(static_cast<int>(candidates.size()), width));
  draft.frontier.clear();
  for (const Candidate& candidate : candidates) {
    const int node = draft.tree.Propose(candidate.parent, candidate.choice.token, source_, nullptr,
                                        {}, std::exp(candidate.log_probability));
    draft.nodes.resize(draft.tree.size());
    draft.nodes[node].log_probability = candidate.log_probability;
    draft.nodes[node].probability = candidate.choice.probability;
    draft.frontier.push_back(node);
  }
  return absl::OkStatus();
}

void SsmDrafter::DrawChildren(const DraftRequest& job, int depth, size_t i, int count,
                              Distribution q, DraftTree& draft) const {
  const auto whole = std::make_shared<const Distribution>(std::move(q));
  Distribution left;  // without tokens drawn before; empty: none
  double rest = 1;    // remaining mass of q
  const int parent = draft.frontier[i];
  const int root = static_cast<int>(job.tokens.size()) - 1;
  std::vector<int> taken;
  for (int j = 0; j < count; ++j) {
    const double uniform =
        RequestUniform(job.sampling.seed, RngStream::kDraft, source_, root, DrawIndex(depth, i, j));
    const int token = SampleFrom(left.empty() ? *whole : left, uniform);
    const double chance =
        draft.tree.chance(parent) * WorthOf(job.best_first, (*whole)[token], depth + 1, j);
    const int node = draft.tree.Propose(parent, token, source_, whole, taken, chance);
    draft.nodes.resize(draft.tree.size());
    draft.nodes[node].probability = (*whole)[token];
    if (j + 1 == count) break;
    // Whether another draw follows may depend on the draws before it, never on itself.
    taken.push_back(token);
    if (left.empty()) left = *whole;
    left[token] = 0;
    const double mass = std::accumulate(left.begin(), left.end(), 0.0);
    rest *= mass;
    if (!(rest > kLeast)) break;
    for (double& value : left) value /= mass;
  }
}

absl::Status SsmDrafter::ExpandByDraws(const DraftRequest& job, int depth, DraftTree& draft) {
  const int first_new = draft.tree.size();
  for (size_t i = 0; i < draft.frontier.size(); ++i) {
    absl::StatusOr<Distribution> q = RejectionSampling(draft.next[i].logits, job.sampling);
    if (!q.ok()) return q.status();
    DrawChildren(job, depth, i, expansion_.children(depth), *std::move(q), draft);
  }
  draft.frontier.resize(static_cast<size_t>(draft.tree.size() - first_new));
  std::iota(draft.frontier.begin(), draft.frontier.end(), first_new);
  return absl::OkStatus();
}

absl::Status SsmDrafter::ExpandChain(const DraftRequest& job, int depth, DraftTree& draft) {
  const BestFirst& how = job.best_first;
  if (draft.frontier.empty()) return absl::OkStatus();
  absl::StatusOr<Distribution> q = RejectionSampling(draft.next[0].logits, job.sampling);
  if (!q.ok()) return q.status();
  const int parent = draft.frontier[0];
  const double chance = draft.tree.chance(parent);
  if (chance * LeastWorth(how, depth + 1) < how.price || depth >= job.max_nodes) {
    const double worth = WorthOfDraw(how, *q, depth + 1);
    if (chance * worth < how.price || depth >= job.max_nodes) {
      draft.nodes[parent].expected_acceptance = ScaleFailureOdds(worth, 1 / how.failing);
      draft.frontier.clear();
      return absl::OkStatus();
    }
  }
  DrawChildren(job, depth, 0, 1, *std::move(q), draft);
  const int node = draft.tree.size() - 1;
  drafted_.push_back(draft.tree.chance(node));
  draft.frontier = {node};
  if (draft.tree.chance(node) < std::max(how.price, how.parent)) draft.frontier.clear();
  return absl::OkStatus();
}

absl::Status SsmDrafter::ExpandBestFirst(const DraftRequest& job, int depth, DraftTree& draft) {
  const BestFirst& how = job.best_first;
  const int position = static_cast<int>(job.tokens.size()) + depth;
  const int first_new = draft.tree.size();
  for (size_t i = 0; i < draft.frontier.size(); ++i) {
    const int parent = draft.frontier[i];
    const absl::StatusOr<std::vector<TokenProbability>> choices =
        BestOf(draft.next[i], how.width, job.sampling, position);
    if (!choices.ok()) return choices.status();
    int rank = 0;
    for (const TokenProbability& choice : *choices) {
      const double chance =
          draft.tree.chance(parent) * WorthOf(how, choice.probability, depth + 1, rank++);
      draft.tree.Propose(parent, choice.token, source_, nullptr, {}, chance);
      draft.nodes.resize(draft.tree.size());
      draft.nodes.back().probability = choice.probability;
      if (chance >= how.price) drafted_.push_back(chance);
    }
  }
  // Only new nodes among the best ones can have children among the best.
  const std::vector<int> order = ByChance(draft.tree);
  draft.frontier.clear();
  const int most = std::min(how.width, job.max_nodes - draft.run);
  for (int i = 0; i < std::min(job.max_nodes, static_cast<int>(order.size())); ++i) {
    if (static_cast<int>(draft.frontier.size()) >= most) break;
    if (order[i] < first_new) continue;
    if (draft.tree.chance(order[i]) < std::max(how.price, how.parent)) break;
    draft.frontier.push_back(order[i]);
  }
  return absl::OkStatus();
}

// Merges the finished draft into the request's tree.
absl::Status SsmDrafter::MergeIntoTree(const DraftRequest& job) const {
  const DraftTree& draft = drafts_.at(job.request);
  if (job.best_first.width == 0 || Draws(job)) return job.tree->Merge(draft.tree);
  std::vector<bool> keep(draft.tree.size(), false);
  keep[0] = true;
  int kept = 0;
  for (const int node : ByChance(draft.tree)) {
    if (kept == job.max_nodes || draft.tree.chance(node) < job.best_first.price) break;
    keep[node] = true;
    ++kept;
  }
  return job.tree->Merge(draft.tree.Keep(keep));
}

absl::StatusOr<std::vector<DraftTrial>> SsmDrafter::Commit(int64_t request,
                                                           absl::Span<const int> accepted,
                                                           int next) {
  std::vector<DraftTrial> trials;
  const auto it = drafts_.find(request);
  if (it == drafts_.end()) return trials;
  const DraftTree& draft = it->second;
  std::vector<int32_t> kept;
  bool has_all = true;  // the SSM has K and V of the path so far
  for (int node = 0, i = 0; i <= static_cast<int>(accepted.size()) && node >= 0; ++i) {
    const bool in_path = i < static_cast<int>(accepted.size());
    const int token = in_path ? accepted[i] : next;
    if (token < 0) break;
    if (draft.nodes[node].expected_acceptance >= 0) {
      trials.push_back(
          {.depth = i + 1, .expected_acceptance = draft.nodes[node].expected_acceptance});
    }
    int rank = 0;
    for (const int child : draft.tree.children(node)) {
      trials.push_back({.depth = i + 1,
                        .rank = rank++,
                        .probability = draft.nodes[child].probability,
                        .accepted = draft.tree.token(child) == token});
    }
    node = draft.tree.Child(node, token);
    has_all = has_all && in_path && node >= 0 && draft.nodes[node].slot >= 0;
    if (has_all) kept.push_back(draft.nodes[node].slot);
  }
  const absl::Status status = kv_.CommitScratch(request, kept);
  kv_.DropScratch(request);
  drafts_.erase(it);
  if (!status.ok()) return status;
  return trials;
}

void SsmDrafter::Release(int64_t request) {
  kv_.Release(request);
  drafts_.erase(request);
}

}  // namespace espalier
