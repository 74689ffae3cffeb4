// Part of Speculator: plans what to draft in the coming step.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#include "serving/engine/speculator.h"
#include "serving/speculative/draft_size_exploration.h"

namespace espalier {
namespace {

constexpr int kChooseEvery = 16;   // steps, while the load stays the same and much is learned;
constexpr int kChooseSeldom = 64;  // once no SSM has drafted for so many
constexpr int kLongIdle = 256;
constexpr double kMargin = 0.01;  // by which drafting must be better to begin
// By which the other kind of drafts must be better to be preferred to the present one: each change
// of mind costs some steps.
constexpr double kSame = 1.02;
constexpr int kPreferEvery = 8;  // choices
// What shared noise is given credit for until it was tried: of several requests' candidates, which
// are seen before they are sent to the LLM, the best are taken, which averages do not tell.
constexpr double kHope = 1.15;
constexpr double kFewSteps = 32;
constexpr int kProbeDepth = 3;
constexpr int kProbeNodes = 4;
constexpr double kTrialLoss = 2;      // plain steps, besides catching up
constexpr double kTransitions = 128;  // that are remembered
constexpr double kLenient = 0.7;      // SSMs draft more than seems to pay, if time costs less
constexpr double kFree = 0.01;        // the size is given: time hardly matters
constexpr double kCheap = 0.125;      // of a step: a level of which more can be drafted
constexpr double kCovered =
    0.5;  // chance of an n-gram draft beside which an SSM has little to add:
constexpr double kBesideNgramDrafts = 2;  // it must be worth so many times the SSM's levels
constexpr int kLowPool = 8;  // of an SSM's slots: below this share idle requests lose theirs

}  // namespace

void Speculator::Plan(absl::Span<const Request* const> decoding, int prompt_rows, int context) {
  ResetLostCaches();
  // The LLM's step will report the same error.
  CalibrateAll().IgnoreError();
  ++steps_;
  load_ = {.decoding = static_cast<int>(decoding.size()), .other_rows = prompt_rows};
  for (auto& [id, state] : states_) {
    if (state.ngram.drafted() > 0) state.ngram = TokenTree(0);
    for (Part& part : state.parts) part.drafts = part.probe = false;
  }
  for (const Request* request : decoding) {
    load_.context += request->length() / static_cast<double>(decoding.size());
    StateOf(*request).depth = std::max(0, request->Remaining(context) - 1);
  }
  const bool compares = options_.tune && prompt_rows == 0 && !decoding.empty();
  with_ngram_ = options_.ngram.depth > 0 && !(compares && ngram_gate_.ShouldSkip(load_.decoding));
  with_ssm_ = with_probe_ = prefilling_ = covered_ = false;
  prefill_seconds_ = expected_tokens_ = 0;
  price_scale_ = 1;
  explored_nodes_ = 0;
  if (with_ngram_) PlanNgramDrafts(decoding);
  if (!options_.tune) return PlanFixed(decoding);
  StepLoad load = load_;
  if (options_.ngram.depth > 0) PruneNgramDrafts(decoding, &load);
  PlanTuned(decoding, load);
}

void Speculator::PlanNgramDrafts(absl::Span<const Request* const> decoding) {
  for (const Request* request : decoding) {
    if (!request->options().speculate || ConstraintTooSlow(*request)) continue;
    State& state = StateOf(*request);
    state.ngram =
        ngram_.Draft(request->id(), request->tokens(), state.depth,
                     options_.ngram.depth * options_.ngram.branches,
                     &ngram_learned_.acceptance[KindOf(*request)], state.ngram_factor.failing(),
                     &request->logits_processor(), request->options().cache_salt);
  }
}

// If tuned: keeps the n-gram drafts that pay.
void Speculator::PruneNgramDrafts(absl::Span<const Request* const> decoding, StepLoad* load) {
  std::vector<double> chances;
  for (const Request* request : decoding) {
    const TokenTree& tree = StateOf(*request).ngram;
    for (int node = 1; node < tree.size(); ++node) chances.push_back(tree.chance(node));
  }
  std::sort(chances.rbegin(), chances.rend());
  const int most = std::max(0, setup_.max_rows - load->decoding - load->other_rows);
  load->nodes = ChooseNodes(*load, llm_latency_, chances, most);
  if (load->other_rows == 0 && ngram_exploration_.Due()) {
    const int best = std::exchange(load->nodes, 0);
    load->nodes = NodesToExplore(
        *load, llm_latency_, absl::MakeSpan(chances).first(std::min<size_t>(most, chances.size())),
        best, ngram_exploration_.tries());
  }
  for (int i = 0; i < load->nodes; ++i) load->gain += chances[i];
  const double least = load->nodes > 0 ? chances[load->nodes - 1] : 2;
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

// The requests that the SSM could draft for, the most promising first, without those whose next
// token an n-gram draft probably has; the SSM would mostly draft the same.
std::vector<const Request*> Speculator::Offered(int ssm,
                                                absl::Span<const Request* const> decoding) {
  std::vector<const Request*> out;
  for (const Request* request : decoding) {
    if (MayDraft(ssm, *request)) out.push_back(request);
  }
  if (out.size() < 2) return out;
  std::stable_sort(out.begin(), out.end(), [&](const Request* a, const Request* b) {
    const Part &one = StateOf(*a).parts[ssm], &other = StateOf(*b).parts[ssm];
    return one.factor.value() * one.adds > other.factor.value() * other.adds;
  });
  return out;
}

void Speculator::NoteCovered(absl::Span<const Request* const> decoding, const StepLoad& load) {
  // In tokens: of one more row for each request, and of its share of an SSM's level.
  const double rate = LongRunRate() / load.decoding;
  const double row = rate * (StepSeconds(load, llm_latency_, load.nodes + load.decoding) -
                             StepSeconds(load, llm_latency_, load.nodes));
  std::vector<double> levels;
  for (const Ssm& ssm : ssms_) levels.push_back(rate * LevelSeconds(ssm, load.decoding));
  for (const Request* request : decoding) {
    State& state = StateOf(*request);
    std::vector<double> known;  // chance that an n-gram draft knows the token, by depth from 1
    for (int node = 1; node < state.ngram.size(); ++node) {
      const size_t depth = state.ngram.depth(node);
      if (known.size() < depth) known.resize(depth, 0);
      known[depth - 1] += state.ngram.chance(node);
    }
    const bool knows = !known.empty() && known[0] >= kCovered;
    for (int s = 0; s < ssms(); ++s) {
      state.parts[s].adds = knows ? AddedBeside(ssms_[s], known, levels[s], row) : 1;
    }
    if (with_ngram_ && state.was_open) {
      covered_next_ += ((knows ? 1 : 0) - covered_next_) / kTransitions;
    }
    state.was_open = with_ngram_ && !knows;
  }
}

// The share of what the SSM's chain is worth that n-gram drafts leave, where they are wrong; 0 if
// that is not worth the levels. Where they are right, the SSM's tokens are mostly theirs, and cost
// no rows.
double Speculator::AddedBeside(const Ssm& ssm, absl::Span<const double> known, double level,
                               double row) const {
  double chance = 1, worth = 0, adds = 0, net = 0, most = 0, share = 0;
  for (int depth = 1; depth <= options_.max_depth; ++depth) {
    chance *= ssm.acceptance().OfRank(depth, 0);
    const size_t at = static_cast<size_t>(depth) - 1;
    const double wrong = 1 - std::min(1.0, at < known.size() ? known[at] : 0.0);
    worth += chance;
    adds += wrong * chance;
    net += wrong * (chance - row) - kBesideNgramDrafts * level;
    if (net > most) {
      most = net;
      share = adds / worth;
    }
  }
  return share;
}

bool Speculator::MayDraft(int ssm, const Request& request) {
  return DepthFor(ssms_[ssm], request, 1) > 0 && StateOf(request).parts[ssm].adds > 0 &&
         !ConstraintTooSlow(request);
}

DraftBounds Speculator::Bounds() const {
  return {.depth = options_.max_depth,
          .nodes = options_.max_nodes,
          .rows = setup_.max_rows,
          .overhead = overhead_};
}

std::vector<DraftCandidate> Speculator::CandidatesFor(int ssm,
                                                      absl::Span<const Request* const> decoding,
                                                      double missed,
                                                      std::array<int, kKinds>* kinds) {
  std::vector<DraftCandidate> out;
  for (const Request* request : Offered(ssm, decoding)) {
    const int behind = request->length() - 1 - ssms_[ssm].drafter->kv().length(request->id());
    ++(*kinds)[KindOf(*request)];
    const Part& part = StateOf(*request).parts[ssm];
    out.push_back({.factor = part.factor.value() * part.adds * missed * SsmToken(),
                   .prefill_tokens = std::max(0, behind)});
  }
  return out;
}

// Chooses how to draft for requests that arrive from now on.
void Speculator::Prefer(absl::Span<const Request* const> decoding, const StepLoad& load) {
  double drawing = 0, sharing = 0;
  DraftBounds tree = Bounds(), chain = tree;
  chain.ranks = 1;
  for (int s = 0; s < ssms(); ++s) {
    const Ssm& ssm = ssms_[s];
    std::array<int, kKinds> kinds{};
    const std::vector<DraftCandidate> offers = CandidatesFor(s, decoding, 1, &kinds);
    const auto rate = [&](Kind kind, const DraftBounds& bounds) {
      return ChooseDraft(load, llm_latency_, ssm.cost, ssm.learned.acceptance[kind], offers, bounds,
                         0)
          .rate;
    };
    drawing = std::max(drawing, rate(kIndependent, chain));
    sharing = std::max(sharing, rate(kCoupled, tree));
  }
  drawing *= Correction(kIndependent);
  sharing *= Correction(kCoupled);
  (prefers_draws_ ? drawing : sharing) *= kSame;
  prefers_draws_ = drawing >= sharing;
}

double Speculator::Correction(Kind kind) const {
  const double prior = kind == kCoupled && load_.decoding > 1 ? kHope : 1;
  const auto known = yields_.find(SpeculationGate::LoadBucket(load_.decoding));
  if (known == yields_.end()) return prior;
  const Yield& yield = known->second[kind];
  const double measured = yield.expected > 0 ? yield.tokens / yield.expected : 1;
  return (kFewSteps * prior + yield.steps * measured) / (kFewSteps + yield.steps);
}

void Speculator::Choose(absl::Span<const Request* const> decoding, const StepLoad& load) {
  chosen_at_ = steps_;
  ++choices_;
  for (Ssm& ssm : ssms_) ssm.least_sums.clear();
  if (options_.sampled == SampledDrafting::kCoupledIfSeeded &&
      (choices_ < kPreferEvery || choices_ % kPreferEvery == 0)) {
    Prefer(decoding, load);
  }
  chosen_for_ = load.decoding;
  // The best SSM first; then each of the others as an addition. What a further one adds is less
  // than it would be worth alone: it counts only where the tokens of the first one fail.
  StepLoad with = load;
  const double plain = StepGoodput(load, llm_latency_);
  std::vector<bool> done(ssms_.size(), false);
  double missed = 1;
  gain_ = 1;
  trial_cost_ = kTrialLoss * StepSeconds(load, llm_latency_, load.nodes);
  for (size_t turn = 0; turn < ssms_.size(); ++turn) {
    int best = -1;
    DraftChoice best_choice;
    for (int s = 0; s < ssms(); ++s) {
      Ssm& ssm = ssms_[s];
      if (done[s]) continue;
      std::array<int, kKinds> kinds{};
      const std::vector<DraftCandidate> offers = CandidatesFor(s, decoding, missed, &kinds);
      ssm.kind = static_cast<Kind>(std::max_element(kinds.begin(), kinds.end()) - kinds.begin());
      DraftBounds bounds = Bounds();
      if (ssm.kind == kIndependent) bounds.ranks = 1;
      const bool on = ssm.choice.requests > 0;
      // The gate decides by the clock whether the best choice pays (speculation_gate.h).
      const double margin = turn == 0 ? SpeculationGate::kLeastGain - 1 : on ? 0 : kMargin;
      const DraftChoice choice =
          ChooseDraft(with, llm_latency_, ssm.cost, ssm.acceptance(), offers, bounds, margin);
      if (choice.requests > 0 && (best < 0 || choice.rate > best_choice.rate)) {
        best = s;
        best_choice = choice;
      } else if (choice.requests == 0) {
        ssm.choice = choice;
      }
    }
    if (best < 0) break;
    done[best] = true;
    ssms_[best].choice = best_choice;
    if (plain > 0) gain_ = best_choice.rate / plain;
    trial_cost_ += ssms_[best].cost.Seconds(best_choice.prefill_tokens);
    with.nodes += best_choice.requests * best_choice.nodes;
    with.gain += best_choice.gain;
    with.drafting += best_choice.seconds;
    missed *= 1 - ssms_[best].acceptance().OfRank(1, 0);
  }
}

void Speculator::PlanTuned(absl::Span<const Request* const> decoding, StepLoad load) {
  plain_rate_ = StepGoodput(load, llm_latency_);
  plain_tokens_ = load.decoding + load.gain;
  if (decoding.empty() || ssms_.empty()) return;
  std::array<int, kKinds> kinds{};
  for (const Request* request : decoding) ++kinds[KindOf(*request)];
  const auto most = std::max_element(kinds.begin(), kinds.end());
  most_ = static_cast<Kind>(most - kinds.begin());
  alike_ = *most == load.decoding;
  NoteCovered(decoding, load);
  const int changed = std::abs(load.decoding - chosen_for_);
  const auto offered =
      static_cast<int>(std::count_if(decoding.begin(), decoding.end(), [&](const Request* request) {
        for (int s = 0; s < ssms(); ++s) {
          if (MayDraft(s, *request)) return true;
        }
        return false;
      }));
  covered_ = with_ngram_ && offered == 0;
  for (Ssm& ssm : ssms_) ssm.learned.acceptance[ssm.kind].Fade();
  // The first choices rest on little: they are made again soon.
  const int64_t every = std::min<int64_t>(idle_steps_ > kLongIdle ? kChooseSeldom : kChooseEvery,
                                          1 + choices_ / kChooseEvery);
  if (!covered_ && (chosen_at_ < 0 || steps_ - chosen_at_ >= every || changed * 8 > chosen_for_ ||
                    (offered - chosen_of_) * 8 > chosen_of_)) {
    Choose(decoding, load);
    chosen_of_ = offered;
  }
  bool wanted = false;
  for (const Ssm& ssm : ssms_) {
    wanted = wanted || (!covered_ && ssm.choice.requests > 0 && ssm.status.ok());
  }
  // Steps with prompts cannot be compared by the clock: there the estimate has to do.
  const bool withheld = wanted && (load.other_rows == 0 ? ssm_gates_[most_].ShouldSkip(
                                                              load.decoding, gain_, trial_cost_)
                                                        : gain_ < 1);
  statistics_.withheld += withheld;
  for (int s = 0; s < ssms() && !withheld; ++s) {
    Ssm& ssm = ssms_[s];
    const DraftChoice& choice = ssm.choice;
    if (choice.requests == 0 || !ssm.status.ok()) continue;
    const std::vector<const Request*> offered = Offered(s, decoding);
    int free = ssm.drafter->kv().free_slots();
    for (int i = 0; i < std::min<int>(choice.requests, static_cast<int>(offered.size())); ++i) {
      Part& part = StateOf(*offered[i]).parts[s];
      // As far as their chances carry (DraftBySsm).
      part.depth = DepthFor(ssm, *offered[i], options_.max_depth);
      const int room = (setup_.max_rows - load.decoding - load.other_rows) / choice.requests;
      part.nodes = std::min({2 * choice.nodes + options_.max_depth, options_.max_nodes,
                             std::max(choice.nodes, room - load.nodes / load.decoding)});
      // Never more than the SSM's pool holds: a request must not wait for slots of a draft.
      const int behind =
          offered[i]->length() - ssm.drafter->kv().length(offered[i]->id()) + part.nodes;
      part.drafts = part.depth > 0 && part.nodes > 0 && behind <= free;
      if (part.drafts) free -= behind;
      with_ssm_ = with_ssm_ || part.drafts;
    }
  }
  if (!covered_) idle_steps_ = with_ssm_ ? 0 : idle_steps_ + 1;
  if (with_ssm_ && load.other_rows == 0 && ssm_exploration_.Due()) ExploreDraftSize(decoding, load);
  if (!with_ssm_) {
    ++statistics_.tuned_off;
    if (!covered_) Probe(decoding, load);
  }
  for (int s = 0; s < ssms(); ++s) ReleaseIdle(s, decoding);
}

// Drafts that make the step one of another size than the best one as far as is known. Of such sizes
// it is that something is to be learned: not at a dear SSM's price.
void Speculator::ExploreDraftSize(absl::Span<const Request* const> decoding, const StepLoad& load) {
  const Ssm* ssm = nullptr;
  std::vector<Part*> parts;
  bool one = true;
  for (int s = 0; s < ssms(); ++s) {
    const auto all = static_cast<int64_t>(parts.size());
    for (const Request* request : decoding) {
      if (Part& part = StateOf(*request).parts[s]; part.drafts) parts.push_back(&part);
    }
    const auto drafting = static_cast<int>(static_cast<int64_t>(parts.size()) - all);
    if (drafting == 0) continue;
    const double level = LevelSeconds(ssms_[s], drafting);
    if (level > kCheap * StepSeconds(load, llm_latency_, load.nodes)) return;
    one = ssm == nullptr;
    ssm = &ssms_[s];
  }
  price_scale_ = kLenient;
  // Which size it will be is known of one SSM's trees, all drawn or none.
  if (!one || !alike_) return;
  const auto drafting = static_cast<int>(parts.size());
  const bool drawn = most_ == kIndependent;
  std::vector<double> chances;
  for (const AcceptanceEstimator::Node& node : ssm->acceptance().BestNodes(
           options_.max_depth, options_.max_nodes, drawn ? 1 : AcceptanceEstimator::kRanks)) {
    chances.insert(chances.end(), parts.size(), node.value);
  }
  const auto room = static_cast<size_t>(std::max(0, setup_.max_rows - load.decoding - load.nodes));
  if (chances.size() > room) chances.resize(room);
  const int best = drafting * ssm->choice.nodes;
  if (best > static_cast<int>(chances.size())) return;
  const int turn = ssm_exploration_.tries();
  const int nodes = NodesToExplore(load, llm_latency_, chances, best, turn, drawn ? drafting : 1);
  if (!IsFarExploration(turn) && (nodes >= best || options_.ngram.depth > 0))
    return;  // n-gram drafts have tries
  const bool nothing = nodes == best && llm_latency_.Proven(load.decoding + load.nodes + nodes);
  price_scale_ = IsFarExploration(turn) && !nothing ? kFree : 1;
  if (nothing || nodes == 0) return;
  explored_nodes_ = static_cast<size_t>(load.nodes + nodes);
  for (Part* part : parts) part->depth = std::min(part->depth, (nodes + drafting - 1) / drafting);
}

void Speculator::Probe(absl::Span<const Request* const> decoding, const StepLoad& load) {
  const int s = static_cast<int>(probe_turn_ % ssms());
  Ssm& ssm = ssms_[s];
  probe_credit_ += options_.probe_share * last_step_seconds_;
  const Request* cheapest = nullptr;
  int least = 0;
  for (const Request* request : decoding) {
    if (DepthFor(ssm, *request, 1) == 0 || ConstraintTooSlow(*request)) continue;
    const int behind = request->length() - ssm.drafter->kv().length(request->id());
    if (cheapest != nullptr && behind >= least) continue;
    cheapest = request;
    least = behind;
  }
  if (cheapest == nullptr) {
    ++probe_turn_;
    return;
  }
  const double cost = ssm.cost.Seconds(least) + (kProbeDepth - 1) * ssm.cost.Seconds(1) +
                      StepSeconds(load, llm_latency_, load.nodes + kProbeNodes) -
                      StepSeconds(load, llm_latency_, load.nodes);
  if (probe_credit_ < cost || least + kProbeNodes > ssm.drafter->kv().free_slots()) return;
  probe_credit_ = std::min(probe_credit_ - cost, cost);
  probe_cost_ = cost;
  Part& part = StateOf(*cheapest).parts[s];
  part.drafts = part.probe = with_probe_ = true;
  part.depth = DepthFor(ssm, *cheapest, std::min(kProbeDepth, options_.max_depth));
  part.nodes = kProbeNodes;
  ++statistics_.probes;
  ++probe_turn_;
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
