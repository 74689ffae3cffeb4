#include "serving/speculative/drafter.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "serving/sampling/noise.h"

namespace espalier {
namespace {

// Draws of one frontier node have indices of their own, so nodes at one depth do not draw alike.
constexpr int kDrawsPerNode = Expansion::kMaxNodes;

double LogSumExp(const std::vector<float>& logits) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - most);
  return most + std::log(sum);
}

// Token ids by falling logit, equals by rising id; the first `count`.
std::vector<int> Top(const std::vector<float>& logits, int count) {
  std::vector<int> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  count = std::min(count, static_cast<int>(order.size()));
  std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int a, int b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  order.resize(count);
  return order;
}

}  // namespace

Drafter::Drafter(ModelRunner& runner, int source, Expansion expansion)
    : runner_(runner),
      source_(source),
      expansion_(std::move(expansion)),
      kv_(runner.limits().kv_slots) {}

absl::Status Drafter::Draft(absl::Span<const Job> jobs) {
  std::vector<int> before;
  for (const Job& job : jobs) before.push_back(kv_.length(job.request));
  absl::Status status = Follow(jobs);
  for (int depth = 0; status.ok() && depth < expansion_.depth(); ++depth) {
    std::vector<const Job*> deeper;
    for (const Job& job : jobs) {
      if (depth >= job.depth) continue;
      status.Update(Expand(job, depth));
      if (depth + 1 < job.depth && !drafts_[job.request].frontier.empty()) deeper.push_back(&job);
    }
    // The last level is not run: its logits would be of no use, and Follow computes what is
    // accepted.
    if (status.ok() && !deeper.empty()) status = RunFrontiers(deeper);
  }
  for (const Job& job : jobs) {
    if (status.ok() && job.depth > 0) status = job.tree->Merge(drafts_[job.request].tree);
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

absl::Status Drafter::Follow(absl::Span<const Job> jobs) {
  std::vector<SequenceRows> sequences(jobs.size());
  for (size_t i = 0; i < jobs.size(); ++i) {
    const Job& job = jobs[i];
    const int length = static_cast<int>(job.tokens.size());
    const int known = kv_.length(job.request);
    if (job.follow > length || (job.depth > 0 && (known >= length || job.follow != length))) {
      return absl::InternalError(absl::StrCat(
          "SSM ", source_, " has run ", known, " of ", length, " tokens of request ", job.request,
          " and cannot follow to ", job.follow, (job.depth > 0 ? " and draft" : "")));
    }
    if (job.follow <= known) continue;
    if (absl::Status status = kv_.Append(job.request, job.follow - known); !status.ok()) {
      return status;
    }
    const absl::Span<const int32_t> slots = kv_.slots(job.request);
    for (int position = known; position < job.follow; ++position) {
      sequences[i].rows.push_back({.token = job.tokens[position],
                                   .position = position,
                                   .slot = slots[position],
                                   .prefix = position + 1,
                                   .wants_logits = job.depth > 0 && position + 1 == length});
    }
  }
  // Only now: Append may have moved the lists of slots.
  for (size_t i = 0; i < jobs.size(); ++i) sequences[i].slots = kv_.slots(jobs[i].request);
  absl::StatusOr<StepLogits> logits = RunRows(runner_, sequences);
  if (!logits.ok()) return logits.status();
  batches_ += logits->batches();
  const int vocabulary = runner_.limits().vocabulary;
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (jobs[i].depth == 0) continue;
    const float* row = logits->at(static_cast<int>(i), 0);
    Branches& draft = drafts_[jobs[i].request];
    draft = Branches();
    draft.tree = TokenTree(jobs[i].tokens.back());
    draft.nodes.resize(1);
    draft.frontier = {0};
    draft.logits.emplace_back(row, row + vocabulary);
  }
  return absl::OkStatus();
}

absl::Status Drafter::RunFrontiers(absl::Span<const Job* const> jobs) {
  std::vector<SequenceRows> sequences(jobs.size());
  for (size_t i = 0; i < jobs.size(); ++i) {
    const Job& job = *jobs[i];
    Branches& draft = drafts_[job.request];
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
      sequences[i].rows.push_back({.token = draft.tree.token(id),
                                   .position = root + draft.tree.depth(id),
                                   .slot = node.slot,
                                   .prefix = root + 1,
                                   .ancestors = node.path,
                                   .wants_logits = true});
    }
  }
  for (size_t i = 0; i < jobs.size(); ++i) sequences[i].slots = kv_.slots(jobs[i]->request);
  absl::StatusOr<StepLogits> logits = RunRows(runner_, sequences);
  if (!logits.ok()) return logits.status();
  batches_ += logits->batches();
  const int vocabulary = runner_.limits().vocabulary;
  for (size_t i = 0; i < jobs.size(); ++i) {
    Branches& draft = drafts_[jobs[i]->request];
    draft.logits.clear();
    for (size_t j = 0; j < draft.frontier.size(); ++j) {
      const float* row = logits->at(static_cast<int>(i), static_cast<int>(j));
      draft.logits.emplace_back(row, row + vocabulary);
    }
  }
  return absl::OkStatus();
}

absl::Status Drafter::Expand(const Job& job, int depth) {
  Branches& draft = drafts_[job.request];
  if (!job.sampling.greedy()) return ExpandByDraws(job, depth, draft);
  const int budget = job.max_nodes - draft.tree.drafted();
  ExpandByBeam(std::clamp(budget, 0, expansion_.width(depth)), draft);
  return absl::OkStatus();
}

void Drafter::ExpandByBeam(int width, Branches& draft) {
  struct Candidate {
    double log_probability;
    int parent;  // node; parents come in order of rank
    int token;
  };
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < draft.frontier.size(); ++i) {
    const std::vector<float>& logits = draft.logits[i];
    const int parent = draft.frontier[i];
    const double base = draft.nodes[parent].log_probability - LogSumExp(logits);
    for (const int token : Top(logits, width)) {
      candidates.push_back({base + logits[token], parent, token});
    }
  }
  std::stable_sort(
      candidates.begin(), candidates.end(),
      [](const Candidate& a, const Candidate& b) { return a.log_probability > b.log_probability; });
  candidates.resize(std::min(static_cast<int>(candidates.size()), width));
  draft.frontier.clear();
  for (const Candidate& candidate : candidates) {
    const int node = draft.tree.Propose(candidate.parent, candidate.token, source_);
    draft.nodes.resize(draft.tree.size());
    draft.nodes[node].log_probability = candidate.log_probability;
    draft.frontier.push_back(node);
  }
}

absl::Status Drafter::ExpandByDraws(const Job& job, int depth, Branches& draft) {
  std::vector<int> next;
  const int position = static_cast<int>(job.tokens.size()) + depth;
  for (size_t i = 0; i < draft.frontier.size(); ++i) {
    const std::vector<float>& logits = draft.logits[i];
    absl::StatusOr<Distribution> q =
        SamplingDistribution(logits.data(), static_cast<int>(logits.size()), job.sampling);
    if (!q.ok()) return q.status();
    const auto shared = std::make_shared<const Distribution>(*std::move(q));
    for (int j = 0; j < expansion_.children(depth); ++j) {
      const double uniform = RequestUniform(job.sampling.seed, NoiseStream::kDraft, source_,
                                            position, i * kDrawsPerNode + j);
      const int before = draft.tree.size();
      const int node =
          draft.tree.Propose(draft.frontier[i], SampleFrom(*shared, uniform), source_, shared);
      if (node == before) next.push_back(node);
    }
  }
  draft.nodes.resize(draft.tree.size());
  draft.frontier = std::move(next);
  return absl::OkStatus();
}

absl::Status Drafter::Commit(int64_t request, absl::Span<const int> accepted) {
  const auto it = drafts_.find(request);
  if (it == drafts_.end()) return absl::OkStatus();
  const Branches& draft = it->second;
  std::vector<int32_t> kept;
  int node = 0;
  for (const int token : accepted) {
    node = draft.tree.Child(node, token);
    if (node < 0 || draft.nodes[node].slot < 0) break;
    kept.push_back(draft.nodes[node].slot);
  }
  const absl::Status status = kv_.CommitScratch(request, kept);
  kv_.DropScratch(request);
  drafts_.erase(it);
  return status;
}

void Drafter::Release(int64_t request) {
  kv_.Release(request);
  drafts_.erase(request);
}

}  // namespace espalier
