// Part of Speculator: plans what to draft in the coming step.
#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "serving/engine/speculator.h"

namespace espalier {
namespace {

constexpr int kChooseEvery = 16;     // steps: until then, a tier is chosen once per load
constexpr double kKnown = 0.5;       // chance of an n-gram draft that leaves an SSM little to add
constexpr int kNgramMemory = 64;     // steps
constexpr double kHorizon = 64;      // steps over which the cost of prefill is spread
constexpr double kLeastGain = 0.3;   // of the first SSM; the gate decides by the clock
constexpr double kAddedGain = 1.01;  // of each further one
constexpr double kTimeIsFree = 1e9;
constexpr double kLeniency = 8;  // of explorations
// Steps between explorations: few at first, one more after each exploration.
constexpr int kExploreFirst = 16, kExploreLast = 128;
constexpr int kLowPool = 8;  // of an SSM's slots: below this share idle requests lose theirs

}  // namespace

void Speculator::Plan(absl::Span<const Request* const> decoding, int prompt_rows, int context) {
  ResetLostCaches();
  // The LLM's step will report the same error.
  CalibrateAll().IgnoreError();
  ++steps_;
  step_ = {};
  step_.load = {.decoding = static_cast<int>(decoding.size()),
                .other_rows = prompt_rows,
                .drafting = host_seconds_};
  for (auto& [id, state] : states_) {
    if (state.ngram.drafted() > 0) state.ngram = TokenTree(0);
    for (Part& part : state.parts) part.drafts = false;
  }
  for (const Request* request : decoding) {
    StateOf(*request).depth = std::max(0, request->Remaining(context) - 1);
  }
  step_.with_ngram = options_.ngram.depth > 0 && NgramDraftsPay();
  if (step_.with_ngram) PlanNgramDrafts(decoding);
  if (options_.tune) {
    PlanTuned(decoding);
  } else {
    PlanFixed(decoding);
  }
}

bool Speculator::NgramDraftsPay() {
  const StepLoad& load = step_.load;
  if (!options_.tune || always_drafts() || load.decoding == 0 || load.other_rows > 0) return true;
  const bool pay =
      ngram_gate_.ShouldDraft(load.decoding, ngram_gain_, llm_latency_.Seconds(load.decoding),
                              /*prefill=*/0, /*may_try=*/!ssm_gate_.in_trial(load.decoding));
  step_.warming_up = ngram_gate_.warming_up();
  return pay;
}

void Speculator::PlanNgramDrafts(absl::Span<const Request* const> decoding) {
  for (const Request* request : decoding) {
    if (!request->options().speculate || ConstraintTooSlow(*request)) continue;
    State& state = StateOf(*request);
    state.ngram = ngram_.Draft(request->id(), request->tokens(), state.depth,
                               options_.ngram.depth * options_.ngram.branches,
                               &ngram_acceptances_[KindOf(*request)], state.ngram_factor.failing(),
                               &request->logits_processor(), request->options().cache_salt);
  }
}

// Keeps the n-gram drafts that pay.
void Speculator::PruneNgramDrafts(absl::Span<const Request* const> decoding) {
  StepLoad& load = step_.load;
  std::vector<double> chances;
  for (const Request* request : decoding) {
    const TokenTree& tree = StateOf(*request).ngram;
    for (int node = 1; node < tree.size(); ++node) chances.push_back(tree.chance(node));
  }
  std::sort(chances.rbegin(), chances.rend());
  const int most = std::max(0, setup_.max_rows - load.decoding - load.other_rows);
  if (static_cast<int>(chances.size()) > most) chances.resize(most);
  const StepLoad without = load;
  load.nodes = ChooseNodes(load, llm_latency_, chances);
  if (step_.leniency > 1) {
    const double rate = Goodput(without, llm_latency_) / step_.leniency;
    load.nodes =
        std::min(ChooseNodes(load, llm_latency_, chances, rate), 2 * load.nodes + load.decoding);
  }
  for (int i = 0; i < load.nodes; ++i) load.gain += chances[i];
  if (load.decoding > 0 && load.other_rows == 0) {
    ngram_gains_ = std::min(ngram_gains_ + 1, kNgramMemory);
    ngram_gain_ +=
        (Goodput(load, llm_latency_) / Goodput(without, llm_latency_) - ngram_gain_) / ngram_gains_;
  }
  const double least = load.nodes > 0 ? chances[load.nodes - 1] : 2;
  for (const Request* request : decoding) {
    TokenTree& tree = StateOf(*request).ngram;
    std::vector<bool> keep(tree.size(), true);
    for (int node = 1; node < tree.size(); ++node) keep[node] = tree.chance(node) >= least;
    tree = tree.Keep(keep);
  }
}

void Speculator::PlanFixed(absl::Span<const Request* const> decoding) {
  for (const Request* request : decoding) {
    State& state = StateOf(*request);
    for (int s = 0; s < ssms(); ++s) {
      Part& part = state.parts[s];
      const bool shaped = options_.max_nodes == 0 || Draws(*request);
      part.depth =
          DepthFor(ssms_[s], *request, shaped ? setup_.expansion.depth() : options_.max_depth);
      part.nodes =
          shaped ? setup_.expansion.nodes(part.depth) : (part.depth > 0 ? options_.max_nodes : 0);
      part.drafts = part.nodes > 0 && !ConstraintTooSlow(*request);
    }
  }
}

std::vector<Speculator::Candidate> Speculator::CandidatesOf(
    int s, absl::Span<const Request* const> decoding) {
  const Ssm& ssm = ssms_[s];
  std::vector<Candidate> out;
  for (const Request* request : decoding) {
    if (DepthFor(ssm, *request, 1) == 0 || ConstraintTooSlow(*request)) continue;
    const State& state = StateOf(*request);
    double known = 0;  // chance that an n-gram draft has the next token
    for (const int child : state.ngram.children(0)) known += state.ngram.chance(child);
    const bool open = known < kKnown;
    const double adds = open ? 1 : 1 - std::min(known, 1.0);
    const int behind = request->length() - 1 - ssm.drafter->kv().length(request->id());
    out.push_back({.request = request,
                   .factor = state.parts[s].factor.value() * adds,
                   .open = open,
                   .behind = std::max(0, behind)});
  }
  std::stable_sort(out.begin(), out.end(), [](const Candidate& a, const Candidate& b) {
    return std::pair(a.open, a.factor) > std::pair(b.open, b.factor);
  });
  return out;
}

double Speculator::ChooseTiers(absl::Span<const std::vector<Candidate>> candidates,
                               double* prefill) {
  const double plain = Goodput(step_.load, llm_latency_);
  StepLoad load = step_.load;
  std::vector<bool> done(ssms_.size(), false);
  double missed = 1, gain = 1;
  // The best SSM first; then each of the others as an addition, whose tokens count only where those
  // of the ones before fail.
  for (int round = 0; round < ssms(); ++round) {
    int best = -1;
    DraftTier best_tier;
    for (int s = 0; s < ssms(); ++s) {
      Ssm& ssm = ssms_[s];
      if (done[s] || !ssm.status.ok()) continue;
      std::array<DraftGroup, 2> groups;  // open candidates; all
      for (const Candidate& candidate : candidates[s]) {
        for (size_t group = candidate.open ? 0 : 1; group < groups.size(); ++group) {
          ++groups[group].requests;
          groups[group].acceptance += candidate.factor * missed;
          groups[group].prefill_rows += candidate.behind / kHorizon;
        }
      }
      const auto choose = [&](double least_gain) {
        return ChooseDraftTier(load,
                               {.llm = llm_latency_,
                                .ssm = ssm.latency,
                                .overhead = overhead_,
                                .max_rows = setup_.max_rows},
                               ssm.shapes, groups, least_gain);
      };
      DraftTier tier;
      if (round > 0) {
        tier = choose(kAddedGain);
      } else {
        const auto [known, added] = ssm.tiers.try_emplace(
            {load.decoding, load.other_rows, groups[0].requests, groups[1].requests});
        if (added) known->second = choose(always_drafts() ? 0 : kLeastGain);
        tier = known->second;
      }
      if (tier.requests > 0 && (best < 0 || tier.rate > best_tier.rate)) {
        best = s;
        best_tier = tier;
      }
    }
    if (best < 0) break;
    done[best] = true;
    ssms_[best].tier = best_tier;
    int behind = 0;
    for (int i = 0; i < best_tier.requests; ++i) behind += candidates[best][i].behind;
    *prefill += ssms_[best].latency.Seconds(behind);
    gain = best_tier.rate / plain;
    load.nodes += best_tier.requests * best_tier.nodes;
    load.gain += best_tier.gain;
    load.drafting += best_tier.seconds;
    missed *= 1 - ssms_[best].acceptance().OfRank(1, 0);
  }
  return gain;
}

void Speculator::AssignParts(int s, absl::Span<const Candidate> candidates) {
  const Ssm& ssm = ssms_[s];
  const StepLoad& load = step_.load;
  const DraftTier& tier = ssm.tier;
  if (tier.requests == 0) return;
  int free = ssm.drafter->kv().free_slots();
  // Chances decide how far a draft goes (LevelPays), which may be beyond what is expected of it.
  const int likely = 2 * tier.nodes + options_.max_depth;
  const int room = (setup_.max_rows - load.decoding - load.other_rows) / tier.requests -
                   load.nodes / load.decoding;
  for (const Candidate& candidate : candidates.first(tier.requests)) {
    Part& part = StateOf(*candidate.request).parts[s];
    part.depth = DepthFor(ssm, *candidate.request, options_.max_depth);
    part.nodes = std::min({likely, options_.max_nodes, std::max(tier.nodes, room)});
    // Never more than the SSM's pool holds: a request must not wait for slots of a draft.
    const int slots = candidate.behind + 1 + part.nodes;
    part.drafts = part.depth > 0 && part.nodes > 0 && slots <= free;
    if (part.drafts) free -= slots;
    step_.with_ssm = step_.with_ssm || part.drafts;
  }
}

void Speculator::PlanTuned(absl::Span<const Request* const> decoding) {
  StepLoad& load = step_.load;
  if (always_drafts()) {
    step_.leniency = kTimeIsFree;
    // Sizes that are never run are never corrected: now and then a step verifies more.
  } else if (!decoding.empty() && --explore_in_ <= 0) {
    explore_in_ = std::min(kExploreFirst + explorations_++, kExploreLast);
    step_.leniency = kLeniency;
  }
  if (step_.with_ngram) PruneNgramDrafts(decoding);
  step_.tokens = load.decoding + load.gain;
  step_.rate = Goodput(load, llm_latency_);
  if (!decoding.empty() && !ssms_.empty()) {
    std::array<int, kKinds> kinds{};
    for (const Request* request : decoding) ++kinds[KindOf(*request)];
    const auto kind =
        static_cast<Kind>(std::max_element(kinds.begin(), kinds.end()) - kinds.begin());
    std::vector<std::vector<Candidate>> candidates;
    for (int s = 0; s < ssms(); ++s) {
      Ssm& ssm = ssms_[s];
      ssm.acceptances[kind].Fade();
      if (std::exchange(ssm.kind, kind) != kind || steps_ % kChooseEvery == 1) {
        const int ranks = ssm.kind == kIndependent ? 1 : AcceptanceEstimator::kRanks;
        ssm.shapes = DraftShapes(ssm.acceptance(), options_.max_depth, options_.max_nodes, ranks);
        ssm.tiers.clear();
      }
      ssm.tier = {};
      candidates.push_back(CandidatesOf(s, decoding));
      for (const Candidate& candidate : candidates.back()) step_.open |= candidate.open;
    }
    double prefill = 0;
    const double gain = ChooseTiers(candidates, &prefill);
    bool drafts = false, explores = false;
    if (always_drafts()) {
      drafts = true;
    } else if (gain != 1) {
      // Steps with prompts cannot be compared by the clock, so no trial begins there: instead,
      // explorations draft.
      const bool alone = load.other_rows == 0;
      const double plain = StepSeconds(load, llm_latency_, load.nodes);
      drafts = ssm_gate_.ShouldDraft(load.decoding, gain, plain, prefill,
                                     alone && !ngram_gate_.in_trial(load.decoding));
      explores = alone && drafts && ssm_gate_.warming_up();
      step_.warming_up |= alone && ssm_gate_.warming_up();
      drafts |= !alone && step_.leniency > 1;
    }
    for (int s = 0; s < ssms() && drafts; ++s) AssignParts(s, candidates[s]);
    if (step_.with_ssm) step_.rate *= gain;
    // The first steps of a trial do not count: they explore.
    if (step_.with_ssm && explores) step_.leniency = kLeniency;
    statistics_.withheld += !drafts && gain > 1;
    statistics_.tuned_off += !step_.with_ssm;
    for (int s = 0; s < ssms(); ++s) ReleaseIdle(s, decoding);
  }
  step_.rate /= step_.leniency;
}

// Requests that the SSM does not draft for keep their slots while there are plenty.
void Speculator::ReleaseIdle(int s, absl::Span<const Request* const> decoding) {
  Ssm& ssm = ssms_[s];
  if (ssm.drafter->kv().free_slots() >= ssm.drafter->kv().statistics().slots / kLowPool) return;
  for (const Request* request : decoding) {
    if (!StateOf(*request).parts[s].drafts) ssm.drafter->Release(request->id());
  }
}

}  // namespace espalier
