#include "serving/engine/speculator.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

constexpr double kMemory = 512;  // steps
constexpr int kHostMemory = 64;  // steps
// A step that took the host more than so many times the usual seconds, and some, was interrupted.
constexpr double kMostHost = 2, kSomeHost = 0.5e-3;
constexpr double kPriorTokens = 64;
constexpr int kTunedNodes = 32;  // of a tree, unless the options say

}  // namespace

bool UsesCoupledSampling(const RequestOptions& request, SampledDrafting drafts) {
  if (request.sampling.greedy()) return false;
  return drafts == SampledDrafting::kCoupled ||
         (drafts == SampledDrafting::kCoupledIfSeeded && request.reproducible);
}

Speculator::Speculator(Setup setup)
    : setup_(std::move(setup)),
      options_(setup_.options),
      ngram_(options_.ngram),
      ssm_gate_(options_.trial_share),
      ngram_gate_(options_.trial_share) {}

absl::StatusOr<std::unique_ptr<Speculator>> Speculator::Create(Setup setup) {
  const SpeculationOptions& given = setup.options;
  if (given.tune && !setup.seconds) {
    return absl::InvalidArgumentError("speculation.tune needs a clock, and the engine has none");
  }
  // Without best-first trees their depth does not matter.
  const bool best_first = given.tune || given.max_nodes > 0;
  const int deepest = best_first ? setup.llm->limits().max_ancestor_slots : INT32_MAX;
  const struct {
    const char* name;
    int value, least, most;
  } bounds[] = {{"max_nodes", given.max_nodes, 0, Expansion::kMaxNodes},
                {"max_depth", given.max_depth, 1, deepest},
                {"max_width", given.max_width, 1, Expansion::kMaxNodes},
                {"ngram.depth", given.ngram.depth, 0, setup.llm->limits().max_ancestor_slots},
                {"ngram.branches", given.ngram.branches, 1, 64},
                {"ngram.history_tokens", given.ngram.history_tokens, 0, 1 << 26}};
  for (const auto& bound : bounds) {
    if (bound.value < bound.least || bound.value > bound.most) {
      return absl::InvalidArgumentError(absl::StrCat("speculation.", bound.name, " is ",
                                                     bound.value, ", expected ", bound.least,
                                                     " to ", bound.most));
    }
  }
  if (!(given.trial_share >= 0 && given.trial_share <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("speculation.trial_share is ", given.trial_share, ", expected 0 to 1"));
  }
  const int vocabulary = setup.llm->limits().vocabulary;
  std::unique_ptr<Speculator> out(new Speculator(std::move(setup)));
  if (out->options_.tune && out->options_.max_nodes == 0) out->options_.max_nodes = kTunedNodes;
  const int tree = out->largest_whole_tree();
  for (size_t i = 0; i < out->setup_.ssms.size(); ++i) {
    const RunnerLimits limits = out->setup_.ssms[i]->limits();
    if (limits.vocabulary != vocabulary) {
      return absl::InvalidArgumentError(absl::StrCat("SSM ", i, " has a vocabulary of ",
                                                     limits.vocabulary, ", the LLM one of ",
                                                     vocabulary, ": they must be equal"));
    }
    Ssm ssm;
    ssm.acceptances[kIndependent] = AcceptanceEstimator::OfDraws();
    ssm.drafter = std::make_unique<SsmDrafter>(*out->setup_.ssms[i], static_cast<int>(i),
                                               out->setup_.expansion, out->setup_.share_prefixes);
    ssm.limit = std::min({limits.max_positions, limits.kv_slots - tree, limits.max_context_slots});
    ssm.generation = out->setup_.ssms[i]->cache_generation();
    out->ssms_.push_back(std::move(ssm));
  }
  for (Ssm& ssm : out->ssms_) {
    if (out->options_.tune) ssm.drafter->Measure(out->setup_.seconds, &ssm.latency);
  }
  const absl::Status status = out->CalibrateAll();
  if (!status.ok() && !absl::IsUnavailable(status)) return status;
  return out;
}

absl::Status Speculator::CalibrateAll() {
  const double budget = options_.calibration_seconds;
  if (!options_.tune || budget <= 0) return absl::OkStatus();
  const auto calibrate = [&](ModelRunner& runner, StepLatency* latency, bool* done) {
    if (*done) return absl::OkStatus();
    const absl::Status status = Calibrate(runner, setup_.max_rows, budget, setup_.seconds, latency);
    *done = status.ok();
    return status;
  };
  const absl::Status status = calibrate(*setup_.llm, &llm_latency_, &llm_calibrated_);
  for (size_t i = 0; i < ssms_.size() && status.ok(); ++i) {
    const KvCache& kv = ssms_[i].drafter->kv();
    if (!ssms_[i].status.ok() || kv.free_slots() < kv.statistics().slots) continue;
    if (!ssms_[i].calibrated) ssms_[i].drafter->ResetPrefixCache();
    const absl::Status ssm = calibrate(*setup_.ssms[i], &ssms_[i].latency, &ssms_[i].calibrated);
    if (!ssm.ok()) DisableSsm(static_cast<int>(i), ssm);
  }
  return status;
}

void Speculator::ResetLostCaches() {
  for (size_t i = 0; i < ssms_.size(); ++i) {
    Ssm& ssm = ssms_[i];
    const uint64_t generation = setup_.ssms[i]->cache_generation();
    if (std::exchange(ssm.generation, generation) == generation) continue;
    for (const auto& [id, state] : states_) ssm.drafter->Release(id);
    ssm.drafter->ResetPrefixCache();
    if (absl::IsUnavailable(ssm.status)) ssm.status = absl::OkStatus();
  }
}

int Speculator::largest_whole_tree() const {
  const int expansion =
      setup_.expansion.nodes(setup_.expansion.depth()) * static_cast<int>(setup_.ssms.size());
  return expansion + options_.ngram.depth * options_.ngram.branches;
}

Speculator::Kind Speculator::KindOf(const Request& request) const {
  if (request.options().sampling.greedy()) return kGreedy;
  return UsesCoupledSampling(request.options(), options_.sampled) ? kCoupled : kIndependent;
}

bool Speculator::Follows(const Ssm& ssm, const Request& request) const {
  return ssm.status.ok() && request.options().speculate && request.length() <= ssm.limit;
}

// Returns how deep the SSM can draft: the request must be allowed the last level and the token
// after it, and the levels that are run must be within the SSM's positions.
int Speculator::DepthFor(const Ssm& ssm, const Request& request, int depth) const {
  if (!Follows(ssm, request)) return 0;
  const auto state = states_.find(request.id());
  const int useful = state == states_.end() ? 0 : state->second.depth;
  return std::max(0, std::min({depth, useful, ssm.limit - request.length() + 1}));
}

Speculator::State& Speculator::StateOf(const Request& request) {
  State& state = states_[request.id()];
  state.parts.resize(ssms_.size());
  return state;
}

int Speculator::Computed(int s, const Request& request) const {
  const Ssm& ssm = ssms_[s];
  if (!Follows(ssm, request)) return -1;
  if (options_.tune) {
    const auto state = states_.find(request.id());
    if (state == states_.end() || !state->second.parts[s].drafts) return -1;
  }
  return ssm.drafter->kv().length(request.id());
}

int Speculator::TreeNodes(const Request& request) const {
  const auto state = states_.find(request.id());
  if (state == states_.end()) return 0;
  int nodes = state->second.ngram.drafted();
  for (const Part& part : state->second.parts) nodes += part.drafts ? part.nodes : 0;
  return nodes;
}

// Draws are never dropped; tuned ones are made within what the scheduler grants.
bool Speculator::TreeMayShrink(const Request& request) const {
  return options_.tune || !Draws(request);
}

void Speculator::Learn(Acceptances& acceptances, RequestAcceptance& factor, const Request& request,
                       absl::Span<const DraftTrial> trials) {
  AcceptanceEstimator& acceptance = acceptances[KindOf(request)];
  for (const DraftTrial& trial : trials) {
    if (trial.expected_acceptance < 0) {
      factor.Observe(acceptance.OfProbability(trial.probability, trial.depth, trial.rank),
                     trial.accepted);
    }
    acceptance.Observe(trial);
  }
  if (trials.empty()) factor.Fade();
}

void Speculator::Commit(const Request& request, absl::Span<const int> accepted, int next) {
  State& state = StateOf(request);
  for (int s = 0; s < ssms(); ++s) {
    Ssm& ssm = ssms_[s];
    if (!ssm.status.ok()) continue;
    const absl::StatusOr<std::vector<DraftTrial>> trials =
        ssm.drafter->Commit(request.id(), accepted, next);
    if (!trials.ok()) {
      DisableSsm(s, trials.status());
      continue;
    }
    Learn(ssm.acceptances, state.parts[s].factor, request, *trials);
    if (request.length() > ssm.limit) ssm.drafter->Release(request.id());
  }
  if (options_.ngram.depth == 0) return;
  Learn(ngram_acceptances_, state.ngram_factor, request,
        ngram_.Commit(request.id(), accepted, next));
}

void Speculator::CountNgramTokens(const TokenTree& tree, absl::Span<const int> path) {
  if (options_.ngram.depth == 0) return;
  const auto from_ngram = [&](int node) {
    for (const Proposal& proposal : tree.proposals(tree.parent(node))) {
      if (proposal.node == node && proposal.source == NgramDrafter::kSource) return true;
    }
    return false;
  };
  for (int node = 1; node < tree.size(); ++node) statistics_.ngram_drafted += from_ngram(node);
  for (const int node : path) statistics_.ngram_accepted += from_ngram(node);
}

void Speculator::ObserveLlm(int rows, double seconds) {
  // Its cache holds requests, which a calibration would overwrite; it learns from steps instead.
  llm_calibrated_ = true;
  llm_seconds_ = seconds;
  if (options_.tune && !step_.warming_up) llm_latency_.Observe(rows, seconds);
}

void Speculator::ObserveStep(int tokens, double seconds) {
  const StepLoad& load = step_.load;
  if (!options_.tune || load.decoding == 0 || load.other_rows > 0) return;
  host_steps_ = std::min(host_steps_ + 1, kHostMemory);
  const double host = std::clamp(seconds - llm_seconds_ - drafting_seconds_, 0.0,
                                 kMostHost * (host_seconds_ + kSomeHost));
  host_seconds_ += (host - host_seconds_) / host_steps_;
  Yield& yield = yields_[step_.with_ssm][step_.with_ngram];
  yield.tokens += tokens - yield.tokens / kMemory;
  yield.expected += step_.tokens - yield.expected / kMemory;
  const double calibrated =
      step_.tokens * (yield.tokens + kPriorTokens) / (yield.expected + kPriorTokens);
  if (options_.ngram.depth > 0) {
    ngram_gate_.Observe(load.decoding,
                        {.drafted = step_.with_ngram, .tokens = calibrated, .seconds = seconds});
  }
  if (ssms_.empty()) return;
  ssm_gate_.Observe(load.decoding, {.drafted = step_.with_ssm,
                                    .tokens = calibrated,
                                    .seconds = seconds,
                                    .open = step_.open || step_.with_ssm,
                                    .settling = step_.settling});
}

void Speculator::Release(const Request& request, bool for_good) {
  for (Ssm& ssm : ssms_) ssm.drafter->Release(request.id());
  if (!for_good) return;
  ngram_.Release(request.id(), request.tokens(), request.usage().prompt_tokens);
  states_.erase(request.id());
}

void Speculator::DisableSsm(int s, const absl::Status& status) {
  Ssm& ssm = ssms_[s];
  ssm.status = status;
  ssm.tier = {};
  for (const auto& [id, state] : states_) ssm.drafter->Release(id);
}

SpeculationStatistics Speculator::statistics() const {
  SpeculationStatistics out = statistics_;
  out.trials = ssm_gate_.trials() + ngram_gate_.trials();
  for (const Ssm& ssm : ssms_) {
    out.ssm_status.push_back(ssm.status);
    out.ssm_drafts.push_back(ssm.drafts);
    out.ssm_limits.push_back(ssm.limit);
  }
  return out;
}

int64_t Speculator::batches() const {
  int64_t sum = 0;
  for (const Ssm& ssm : ssms_) sum += ssm.drafter->batches();
  return sum;
}

}  // namespace espalier
