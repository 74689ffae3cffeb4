#include "serving/engine/speculator.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

constexpr int kTunedNodes = 32;   // of a tree, unless the options say
constexpr int kChooseEvery = 8;   // steps, while the load stays the same and much is learned
constexpr double kMargin = 0.01;  // by which drafting must be better to begin
constexpr double kEasier = 1.1;   // times the average chance of acceptance
constexpr int kProbeDepth = 3;
constexpr int kProbeNodes = 4;
constexpr double kTrialLoss = 2;  // plain steps, besides catching up
constexpr double kOverheadStep = 0.05;
constexpr double kMostOverhead = 4;
constexpr int kLowPool = 8;  // of an SSM's slots: below this share idle requests lose theirs

}  // namespace

Speculator::Speculator(Setup setup)
    : setup_(std::move(setup)),
      options_(setup_.options),
      limits_(setup_.llm->limits()),
      lookup_(options_.lookup) {}

absl::StatusOr<std::unique_ptr<Speculator>> Speculator::Create(Setup setup) {
  const SpeculationOptions& given = setup.options;
  if (given.tune && !setup.seconds) {
    return absl::InvalidArgumentError("speculation.tune needs a clock, and the engine has none");
  }
  // Without best-first trees their depth says nothing.
  const bool best_first = given.tune || given.max_nodes > 0;
  const int deepest = best_first ? setup.llm->limits().max_ancestor_slots : INT32_MAX;
  const struct {
    const char* name;
    int value, least, most;
  } bounds[] = {{"max_nodes", given.max_nodes, 0, Expansion::kMaxNodes},
                {"max_depth", given.max_depth, 1, deepest},
                {"max_width", given.max_width, 1, Expansion::kMaxNodes},
                {"lookup.depth", given.lookup.depth, 0, setup.llm->limits().max_ancestor_slots},
                {"lookup.branches", given.lookup.branches, 1, 64},
                {"lookup.history_tokens", given.lookup.history_tokens, 0, 1 << 26}};
  for (const auto& bound : bounds) {
    if (bound.value < bound.least || bound.value > bound.most) {
      return absl::InvalidArgumentError(absl::StrCat("speculation.", bound.name, " is ",
                                                     bound.value, ", expected ", bound.least,
                                                     " to ", bound.most));
    }
  }
  if (!(given.probe_share >= 0 && given.probe_share <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("speculation.probe_share is ", given.probe_share, ", expected 0 to 1"));
  }
  const int vocabulary = setup.llm->limits().vocabulary;
  std::unique_ptr<Speculator> out(new Speculator(std::move(setup)));
  if (out->options_.tune && out->options_.max_nodes == 0) out->options_.max_nodes = kTunedNodes;
  const int tree = out->setup_.expansion.nodes(out->setup_.expansion.depth()) *
                   static_cast<int>(out->setup_.ssms.size());
  for (size_t i = 0; i < out->setup_.ssms.size(); ++i) {
    const RunnerLimits limits = out->setup_.ssms[i]->limits();
    if (limits.vocabulary != vocabulary) {
      return absl::InvalidArgumentError(absl::StrCat("SSM ", i, " has a vocabulary of ",
                                                     limits.vocabulary, ", the LLM one of ",
                                                     vocabulary, ": they must be equal"));
    }
    Ssm ssm;
    ssm.drafter = std::make_unique<Drafter>(*out->setup_.ssms[i], static_cast<int>(i),
                                            out->setup_.expansion, out->setup_.share_prefixes);
    ssm.limit = std::min({limits.max_positions, limits.kv_slots - tree, limits.max_context_slots});
    ssm.generation = out->setup_.ssms[i]->cache_generation();
    out->ssms_.push_back(std::move(ssm));
  }
  for (Ssm& ssm : out->ssms_) {
    if (out->options_.tune) ssm.drafter->Measure(out->setup_.seconds, &ssm.cost);
  }
  const absl::Status status = out->CalibrateAll();
  if (!status.ok() && !absl::IsUnavailable(status)) return status;
  return out;
}

absl::Status Speculator::CalibrateAll() {
  const double budget = options_.calibration_seconds;
  if (!options_.tune || budget <= 0) return absl::OkStatus();
  const auto calibrate = [&](ModelRunner& runner, StepCost* cost, bool* done) {
    if (*done) return absl::OkStatus();
    const absl::Status status = Calibrate(runner, setup_.max_rows, budget, setup_.seconds, cost);
    *done = status.ok();
    return status;
  };
  const absl::Status status = calibrate(*setup_.llm, &llm_cost_, &llm_calibrated_);
  for (size_t i = 0; i < ssms_.size() && status.ok(); ++i) {
    const KvCache& kv = ssms_[i].drafter->kv();
    if (!ssms_[i].status.ok() || kv.free_slots() < kv.statistics().slots) continue;
    if (!ssms_[i].calibrated) ssms_[i].drafter->ForgetIdle();
    const absl::Status ssm = calibrate(*setup_.ssms[i], &ssms_[i].cost, &ssms_[i].calibrated);
    if (!ssm.ok()) SetAside(static_cast<int>(i), ssm);
  }
  return status;
}

void Speculator::MeetAgain() {
  for (size_t i = 0; i < ssms_.size(); ++i) {
    Ssm& ssm = ssms_[i];
    const uint64_t generation = setup_.ssms[i]->cache_generation();
    if (std::exchange(ssm.generation, generation) == generation) continue;
    for (const auto& [id, state] : states_) ssm.drafter->Release(id);
    ssm.drafter->ForgetIdle();
    if (absl::IsUnavailable(ssm.status)) ssm.status = absl::OkStatus();
  }
}

int Speculator::largest_whole_tree() const {
  const int expansion = setup_.expansion.nodes(setup_.expansion.depth()) * ssms();
  return expansion + options_.lookup.depth * options_.lookup.branches;
}

// Whether its drafts are random draws, whose trees have the expansion's shape and are never cut.
bool Speculator::Draws(const Request& request) const {
  return !request.options().sampling.greedy() && options_.sampled != SampledDrafts::kShared;
}

bool Speculator::Follows(const Ssm& ssm, const Request& request) const {
  return ssm.status.ok() && request.options().speculate && request.length() <= ssm.limit;
}

// How deep the SSM can draft: the tree's last level and the token after it must be allowed to the
// request, and the levels that are run must be positions of the SSM.
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

void Speculator::Plan(absl::Span<const Request* const> decoding, int prompt_rows, int context) {
  MeetAgain();
  // An error is the step's, too, which says so.
  CalibrateAll().IgnoreError();
  ++steps_;
  load_ = {.decoding = static_cast<int>(decoding.size()), .other_rows = prompt_rows};
  for (auto& [id, state] : states_) {
    state.lookup = TokenTree(0);
    for (Part& part : state.parts) part.drafts = part.probe = false;
  }
  for (const Request* request : decoding) {
    load_.context += request->length() / static_cast<double>(decoding.size());
    StateOf(*request).depth = std::max(0, request->Remaining(context) - 1);
  }
  const bool compares = options_.tune && prompt_rows == 0 && !decoding.empty();
  with_lookups_ =
      options_.lookup.depth > 0 && !(compares && lookup_payoff_.Withholds(load_.decoding));
  with_ssm_ = with_probe_ = false;
  catching_up_ = likely_ = 0;
  if (with_lookups_) PlanLookups(decoding);
  if (!options_.tune) return PlanFixed(decoding);
  StepLoad load = load_;
  if (options_.lookup.depth > 0) CutLookups(decoding, &load);
  PlanTuned(decoding, load);
}

void Speculator::PlanLookups(absl::Span<const Request* const> decoding) {
  for (const Request* request : decoding) {
    if (!request->options().speculate) continue;
    State& state = StateOf(*request);
    state.lookup = lookup_.Draft(request->id(), request->tokens(), state.depth,
                                 options_.lookup.depth * options_.lookup.branches,
                                 &lookup_learned_.Of(*request), state.lookup_factor.value(),
                                 &request->rules());
  }
}

// Tuned: of all lookups the nodes that pay.
void Speculator::CutLookups(absl::Span<const Request* const> decoding, StepLoad* load) {
  std::vector<double> chances;
  for (const Request* request : decoding) {
    const TokenTree& tree = StateOf(*request).lookup;
    for (int node = 1; node < tree.size(); ++node) chances.push_back(tree.chance(node));
  }
  std::sort(chances.rbegin(), chances.rend());
  load->nodes =
      ChooseNodes(*load, llm_cost_, chances, setup_.max_rows - load->decoding - load->other_rows);
  for (int i = 0; i < load->nodes; ++i) load->gain += chances[i];
  const double least = load->nodes > 0 ? chances[load->nodes - 1] : 2;
  for (const Request* request : decoding) {
    TokenTree& tree = StateOf(*request).lookup;
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
      part.drafts = part.nodes > 0;
    }
  }
}

// Requests for which the SSM could draft, the most promising first.
std::vector<const Request*> Speculator::Offered(int ssm,
                                                absl::Span<const Request* const> decoding) {
  std::vector<const Request*> out;
  for (const Request* request : decoding) {
    if (DepthFor(ssms_[ssm], *request, 1) > 0) out.push_back(request);
  }
  std::stable_sort(out.begin(), out.end(), [&](const Request* a, const Request* b) {
    return StateOf(*a).parts[ssm].factor.value() > StateOf(*b).parts[ssm].factor.value();
  });
  return out;
}

void Speculator::Choose(absl::Span<const Request* const> decoding, const StepLoad& load) {
  chosen_at_ = steps_;
  ++choices_;
  chosen_for_ = load.decoding;
  // The best SSM first; then each of the others as an addition. What a further one adds is less
  // than it would be worth alone: it counts only where the tokens of the first one fail.
  StepLoad with = load;
  const double plain = StepRate(load, llm_cost_);
  std::vector<bool> done(ssms_.size(), false);
  double missed = 1;
  gain_ = 1;
  trial_cost_ = kTrialLoss * StepSeconds(load, llm_cost_, load.nodes);
  for (size_t turn = 0; turn < ssms_.size(); ++turn) {
    int best = -1;
    DraftChoice best_choice;
    for (int s = 0; s < ssms(); ++s) {
      Ssm& ssm = ssms_[s];
      if (done[s]) continue;
      std::vector<DraftOffer> offers;
      int drawn = 0;
      for (const Request* request : Offered(s, decoding)) {
        const int behind = request->length() - 1 - ssm.drafter->kv().length(request->id());
        drawn += Draws(*request);
        offers.push_back({.factor = StateOf(*request).parts[s].factor.value() * missed,
                          .catch_up = std::max(0, behind)});
      }
      const bool mostly_drawn = drawn * 2 > static_cast<int>(offers.size());
      const DraftBounds bounds = {.depth = options_.max_depth,
                                  .nodes = options_.max_nodes,
                                  .rows = setup_.max_rows,
                                  .overhead = overhead_};
      const bool on = ssm.choice.requests > 0;
      // Of the best one it is for the clock to say whether it pays (payoff.h).
      const double margin = turn == 0 ? Payoff::kLeastGain - 1 : on ? 0 : kMargin;
      const DraftChoice choice =
          ChooseDraft(with, llm_cost_, ssm.cost, ssm.learned.acceptance[mostly_drawn ? 1 : 0],
                      offers, bounds, margin);
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
    trial_cost_ += ssms_[best].cost.Seconds(best_choice.catch_up);
    with.nodes += best_choice.requests * best_choice.nodes;
    with.gain += best_choice.gain;
    with.drafting += best_choice.seconds;
    missed *= 1 - ssms_[best].learned.acceptance[0].OfRank(1, 0);
  }
}

void Speculator::PlanTuned(absl::Span<const Request* const> decoding, StepLoad load) {
  plain_rate_ = StepRate(load, llm_cost_);
  if (decoding.empty() || ssms_.empty()) return;
  const int changed = std::abs(load.decoding - chosen_for_);
  // The first choices rest on little: they are made again soon.
  const int64_t every = std::min<int64_t>(kChooseEvery, 1 + choices_ / kChooseEvery);
  if (chosen_at_ < 0 || steps_ - chosen_at_ >= every || changed * 8 > chosen_for_) {
    Choose(decoding, load);
  }
  bool wanted = false;
  for (const Ssm& ssm : ssms_) wanted = wanted || (ssm.choice.requests > 0 && ssm.status.ok());
  // Steps with prompts cannot be compared by the clock: there the estimate has to do.
  const bool withheld =
      wanted &&
      (load.other_rows == 0 ? ssm_payoff_.Withholds(load.decoding, gain_, trial_cost_) : gain_ < 1);
  statistics_.withheld += withheld;
  for (int s = 0; s < ssms() && !withheld; ++s) {
    Ssm& ssm = ssms_[s];
    const DraftChoice& choice = ssm.choice;
    if (choice.requests == 0 || !ssm.status.ok()) continue;
    const std::vector<const Request*> offered = Offered(s, decoding);
    int free = ssm.drafter->kv().free_slots();
    for (int i = 0; i < std::min<int>(choice.requests, static_cast<int>(offered.size())); ++i) {
      Part& part = StateOf(*offered[i]).parts[s];
      if (Draws(*offered[i])) {
        part.depth = DepthFor(ssm, *offered[i], setup_.expansion.depth());
        while (part.depth > 0 && setup_.expansion.nodes(part.depth) > 2 * choice.nodes)
          --part.depth;
        part.nodes = setup_.expansion.nodes(part.depth);
      } else {
        // Larger than the average where this request's text is easier than others'.
        const bool easier = part.factor.value() > kEasier;
        part.depth = DepthFor(ssm, *offered[i],
                              std::min(choice.depth + (easier ? 1 : 0), options_.max_depth));
        const int room = (setup_.max_rows - load.decoding - load.other_rows) / choice.requests;
        part.nodes = std::min({2 * choice.nodes + 2, options_.max_nodes,
                               std::max(choice.nodes, room - load.nodes / load.decoding)});
      }
      // Never more than the SSM's pool holds: a request must not wait for slots of a draft.
      const int behind =
          offered[i]->length() - ssm.drafter->kv().length(offered[i]->id()) + part.nodes;
      part.drafts = part.depth > 0 && part.nodes > 0 && behind <= free;
      if (part.drafts) free -= behind;
      with_ssm_ = with_ssm_ || part.drafts;
    }
  }
  if (!with_ssm_) {
    ++statistics_.tuned_off;
    Probe(decoding, load);
  }
  for (int s = 0; s < ssms(); ++s) ReleaseIdle(s, decoding);
}

void Speculator::Probe(absl::Span<const Request* const> decoding, const StepLoad& load) {
  const int s = static_cast<int>(probe_turn_ % ssms());
  Ssm& ssm = ssms_[s];
  probe_credit_ += options_.probe_share * last_step_seconds_;
  const Request* cheapest = nullptr;
  int least = 0;
  for (const Request* request : decoding) {
    if (DepthFor(ssm, *request, Draws(*request) ? setup_.expansion.depth() : 1) == 0) continue;
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
                      StepSeconds(load, llm_cost_, load.nodes + kProbeNodes) -
                      StepSeconds(load, llm_cost_, load.nodes);
  if (probe_credit_ < cost || least + kProbeNodes > ssm.drafter->kv().free_slots()) return;
  probe_credit_ = std::min(probe_credit_ - cost, cost);
  probe_cost_ = cost;
  Part& part = StateOf(*cheapest).parts[s];
  part.drafts = part.probe = with_probe_ = true;
  part.depth = DepthFor(ssm, *cheapest, Draws(*cheapest) ? 1 : kProbeDepth);
  part.nodes = Draws(*cheapest) ? setup_.expansion.nodes(part.depth) : kProbeNodes;
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
  int nodes = state->second.lookup.drafted();
  for (const Part& part : state->second.parts) nodes += part.drafts ? part.nodes : 0;
  return nodes;
}

bool Speculator::TreeMayShrink(const Request& request) const { return !Draws(request); }

void Speculator::Draft(std::vector<DraftWork>& work) {
  const double start = Now();
  for (DraftWork& item : work) {
    const auto state = states_.find(item.request.id());
    if (!item.assignment.decodes || state == states_.end()) continue;
    TokenTree& lookup = state->second.lookup;
    // The scheduler may have had fewer rows.
    std::vector<bool> keep(lookup.size(), false);
    for (int node = 0; node < std::min(lookup.size(), item.assignment.tree_nodes + 1); ++node) {
      keep[node] = true;
    }
    if (lookup.drafted() > 0) item.tree = lookup.Keep(keep);
  }
  for (int s = 0; s < ssms(); ++s) {
    if (ssms_[s].status.ok()) DraftBySsm(s, work);
  }
  if (!options_.tune) return;
  KeepWhatPays(work, Now() - start);
  if (!with_ssm_ || with_probe_) return;
  double estimate = catching_up_;
  for (const Ssm& ssm : ssms_) estimate += ssm.choice.requests > 0 ? ssm.choice.seconds : 0;
  if (estimate <= 0) return;
  overhead_ *= 1 + kOverheadStep * std::clamp((Now() - start) / estimate - 1, -1.0, 1.0);
  overhead_ = std::clamp(overhead_, 1.0, kMostOverhead);
}

void Speculator::DraftBySsm(int s, std::vector<DraftWork>& work) {
  Ssm& ssm = ssms_[s];
  std::vector<Drafter::Job> jobs;
  int catch_up = setup_.max_rows;  // rows that this step may spend on running behind
  int rows = 0, once = 0;          // that it spends, and of them those that no later step will need
  for (DraftWork& item : work) {
    const Request& request = item.request;
    const Assignment& assignment = item.assignment;
    if (!Follows(ssm, request)) continue;
    State& state = StateOf(request);
    const Part& part = state.parts[s];
    if (options_.tune && !part.drafts) continue;
    Drafter::Job job{.request = request.id(),
                     .tokens = request.tokens(),
                     .follow = item.end,
                     .sampling = request.options().sampling,
                     .rules = &request.rules(),
                     .without_replacement = options_.sampled == SampledDrafts::kWithoutReplacement,
                     .tree = &item.tree};
    if (assignment.decodes && part.drafts) {
      // Shares of what the scheduler gave beside the lookup; the first SSMs get the remainder.
      int sources = 0, before = 0;
      for (int other = 0; other < ssms(); ++other) {
        if (!state.parts[other].drafts) continue;
        before += other < s;
        ++sources;
      }
      const int lookup = std::min(state.lookup.drafted(), assignment.tree_nodes);
      job.max_nodes = (assignment.tree_nodes - lookup + sources - 1 - before) / sources;
      job.depth = job.max_nodes > 0 ? part.depth : 0;
    }
    if (options_.max_nodes > 0 && !Draws(request)) {
      job.best_first = {.width = options_.max_width,
                        .acceptance = &ssm.learned.Of(request),
                        .factor = part.factor.value()};
      if (options_.tune && !part.probe) job.best_first.price = 0.5 * ssm.choice.price;
    }
    const int known = ssm.drafter->kv().length(request.id());
    if (options_.tune && job.follow - known > catch_up) {
      job.follow = known + catch_up;
      job.depth = 0;
    }
    // The root is left for the draft that will ask for its logits.
    if (job.depth == 0 && job.follow == request.length()) --job.follow;
    const int behind = std::max(0, job.follow - known);
    catch_up -= behind;
    rows += behind;
    once += std::max(0, behind - options_.max_depth - 1);
    if (job.depth > 0) ++ssm.drafts;
    jobs.push_back(job);
  }
  if (jobs.empty()) return;
  if (options_.tune) catching_up_ += ssm.cost.Seconds(rows) - ssm.cost.Seconds(rows - once);
  Drafter::WorthALevel worth;
  if (options_.tune && ssm.choice.requests > 0) {
    worth = [&](absl::Span<const double> chances) {
      double gain = 0;
      const double next = ssm.learned.acceptance[0].OfRank(2, 0);
      for (const double chance : chances) gain += std::max(0.0, chance * next - ssm.choice.price);
      return gain > ssm.choice.rate * ssm.cost.Seconds(static_cast<int>(chances.size()));
    };
  }
  if (absl::Status status = ssm.drafter->Draft(jobs, worth); !status.ok()) {
    SetAside(s, absl::Status(status.code(), absl::StrCat("SSM ", s, ": ", status.message())));
  }
}

// Of all nodes that were drafted, those whose verification pays; drawn trees stay whole.
void Speculator::KeepWhatPays(std::vector<DraftWork>& work, double drafting) {
  struct Node {
    double chance;
    size_t item;
    int node;
  };
  std::vector<Node> nodes;
  StepLoad load = {.drafting = drafting};
  for (size_t i = 0; i < work.size(); ++i) {
    const DraftWork& item = work[i];
    if (!item.assignment.decodes) {
      load.other_rows += item.assignment.rows;
      continue;
    }
    ++load.decoding;
    load.context += item.request.length();
    bool whole = Draws(item.request);
    for (const Part& part : StateOf(item.request).parts) whole = whole || part.probe;
    if (whole) {
      load.other_rows += item.tree.drafted();
      continue;
    }
    for (int node = 1; node < item.tree.size(); ++node) {
      nodes.push_back({item.tree.chance(node), i, node});
    }
  }
  if (nodes.empty()) return;
  load.context /= load.decoding;
  std::stable_sort(nodes.begin(), nodes.end(),
                   [](const Node& a, const Node& b) { return a.chance > b.chance; });
  std::vector<double> chances;
  for (const Node& node : nodes) chances.push_back(node.chance);
  const size_t kept = ChooseNodes(load, llm_cost_, chances, static_cast<int>(chances.size()));
  if (load.other_rows == 0) {
    likely_ = std::accumulate(chances.begin(), chances.begin() + static_cast<int64_t>(kept),
                              static_cast<double>(load.decoding));
  }
  if (kept == nodes.size()) return;
  std::vector<std::vector<bool>> keep(work.size());
  for (size_t i = kept; i < nodes.size(); ++i) {
    std::vector<bool>& of = keep[nodes[i].item];
    if (of.empty()) of.assign(work[nodes[i].item].tree.size(), true);
    of[nodes[i].node] = false;
  }
  for (size_t i = 0; i < work.size(); ++i) {
    if (!keep[i].empty()) work[i].tree = work[i].tree.Keep(keep[i]);
  }
}

void Speculator::Learn(Learned& learned, RequestFactor& factor, const Request& request,
                       absl::Span<const Trial> trials) {
  Acceptance& acceptance = learned.Of(request);
  for (const Trial& trial : trials) {
    factor.Observe(acceptance.OfProbability(trial.probability, trial.rank), trial.accepted);
    acceptance.Observe(trial);
  }
  if (trials.empty()) factor.Fade();
}

void Speculator::Commit(const Request& request, absl::Span<const int> accepted, int next) {
  State& state = StateOf(request);
  for (int s = 0; s < ssms(); ++s) {
    Ssm& ssm = ssms_[s];
    if (!ssm.status.ok()) continue;
    const absl::StatusOr<std::vector<Trial>> trials =
        ssm.drafter->Commit(request.id(), accepted, next);
    if (!trials.ok()) {
      SetAside(s, trials.status());
      continue;
    }
    Learn(ssm.learned, state.parts[s].factor, request, *trials);
    if (request.length() > ssm.limit) ssm.drafter->Release(request.id());
  }
  if (options_.lookup.depth == 0) return;
  Learn(lookup_learned_, state.lookup_factor, request,
        lookup_.Commit(request.id(), accepted, next));
}

void Speculator::Count(const TokenTree& tree, absl::Span<const int> path) {
  const auto from_lookup = [&](int node) {
    for (const Proposal& proposal : tree.proposals(tree.parent(node))) {
      if (proposal.node == node && proposal.source == LookupDrafter::kSource) return true;
    }
    return false;
  };
  for (int node = 1; node < tree.size(); ++node) statistics_.lookup_drafted += from_lookup(node);
  for (const int node : path) statistics_.lookup_accepted += from_lookup(node);
}

void Speculator::ObserveLlm(const StepWork& work, double seconds) {
  last_step_seconds_ = seconds;
  // Its cache holds requests now, which a calibration would write over: its steps must do.
  llm_calibrated_ = true;
  if (options_.tune) llm_cost_.Observe(work, seconds);
}

void Speculator::ObserveStep(int tokens, double seconds) {
  if (!options_.tune || load_.decoding == 0 || load_.other_rows > 0) return;
  if (with_probe_) {
    // What it took beyond the estimate is paid for, too, before the next one.
    probe_credit_ -= std::max(0.0, seconds - plain_seconds_ - probe_cost_);
    return;
  }
  if (!with_ssm_) plain_seconds_ = seconds;
  ssm_payoff_.Observe(load_.decoding, with_ssm_,
                      {.tokens = tokens,
                       .seconds = seconds,
                       .expected = plain_rate_ * (with_ssm_ ? gain_ : 1),
                       .likely = with_ssm_ ? likely_ : 0,
                       .catching_up = catching_up_});
  if (options_.lookup.depth > 0 && !with_ssm_) {
    lookup_payoff_.Observe(
        load_.decoding, with_lookups_,
        {.tokens = tokens, .seconds = seconds, .expected = StepRate(load_, llm_cost_)});
  }
}

void Speculator::Release(const Request& request, bool for_good) {
  for (Ssm& ssm : ssms_) ssm.drafter->Release(request.id());
  if (!for_good) return;
  lookup_.Release(request.id(), request.tokens(), request.usage().prompt_tokens);
  states_.erase(request.id());
}

void Speculator::SetAside(int s, const absl::Status& status) {
  Ssm& ssm = ssms_[s];
  ssm.status = status;
  ssm.choice = {};
  for (const auto& [id, state] : states_) ssm.drafter->Release(id);
}

SpeculationStatistics Speculator::statistics() const {
  SpeculationStatistics out = statistics_;
  for (const Ssm& ssm : ssms_) {
    out.ssm_status.push_back(ssm.status);
    out.ssm_drafts.push_back(ssm.drafts);
    out.choices.push_back(ssm.choice);
  }
  return out;
}

int64_t Speculator::batches() const {
  int64_t sum = 0;
  for (const Ssm& ssm : ssms_) sum += ssm.drafter->batches();
  return sum;
}

}  // namespace espalier
