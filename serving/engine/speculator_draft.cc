// Part of Speculator: runs the SSMs as planned, and prunes their trees.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "serving/engine/speculator.h"

namespace espalier {
namespace {

constexpr double kOverheadStep = 0.05;
constexpr double kMostOverhead = 1.5;
constexpr int kLookAhead = 3;  // levels
// What a level must be worth, in what it takes: of its tokens the n-gram drafts of the steps to
// come would have known some.
constexpr double kLevel = 1.1;
constexpr double kCandidate = 0.5;  // of the price: what rows cost is an average

}  // namespace

void Speculator::Draft(std::vector<DraftWork>& work) {
  const double start = Now();
  for (DraftWork& item : work) {
    const auto state = states_.find(item.request.id());
    if (!item.assignment.decodes || state == states_.end()) continue;
    TokenTree& ngram = state->second.ngram;
    // The scheduler may have granted fewer rows.
    std::vector<bool> keep(ngram.size(), false);
    for (int node = 0; node < std::min(ngram.size(), item.assignment.tree_nodes + 1); ++node) {
      keep[node] = true;
    }
    if (ngram.drafted() > 0) item.tree = ngram.Keep(keep);
  }
  for (int s = 0; s < ssms(); ++s) {
    if (ssms_[s].status.ok()) DraftBySsm(s, work);
  }
  if (!options_.tune) return;
  // Of n-gram drafts alone the nodes that pay are all there is (PruneNgramDrafts).
  if (!with_ssm_ && !with_probe_) return;
  PruneTrees(work, Now() - start);
  if (with_probe_) return;
  double expected = 0;
  for (const Ssm& ssm : ssms_) {
    if (ssm.choice.requests > 0) expected += ssm.drafter->expected_seconds();
  }
  if (expected <= 0) return;
  const double wrong = (Now() - start) / (overhead_ * expected) - 1;
  overhead_ *= 1 + kOverheadStep * std::clamp(wrong, -1.0, 1.0);
  overhead_ = std::clamp(overhead_, 1.0, kMostOverhead);
}

// The correction is limited: beyond, drafting itself is in doubt (speculation_gate.h).
double Speculator::LongRunRate() const {
  return price_scale_ * plain_rate_ * gain_ *
         std::clamp(yielded_ / expected_, SpeculationGate::kLeastGain,
                    1 / SpeculationGate::kLeastGain);
}

// Seconds of one level of this many rows.
double Speculator::LevelSeconds(const Ssm& ssm, int rows) const {
  const double visible = rows * load_.context;
  const double context = std::min(rows, ssm.choice.requests) * load_.context;
  return overhead_ * ssm.cost.Seconds({.rows = rows, .visible = visible, .context = context});
}

// Whether the best that could be verified with this level's children, or theirs and so on, is worth
// more than what was drafted by more than the SSM's time. Where rows cost by the block, it takes
// several levels to fill one.
bool Speculator::LevelPays(Ssm& ssm, DraftValue& value, int depth, absl::Span<const double> chances,
                           absl::Span<const double> drafted) {
  if (ssm.kind == kIndependent) {
    return std::accumulate(chances.begin(), chances.end(), 0.0) >
           LeastSum(ssm, value, depth, chances.size(), drafted.size());
  }
  std::vector<double> nodes(drafted.begin(), drafted.end());
  for (double& chance : nodes) chance *= SsmToken();
  std::sort(nodes.rbegin(), nodes.rend());
  const double without = value.Of(nodes).tokens;
  std::vector<double> level(chances.begin(), chances.end());
  for (double& chance : level) chance *= SsmToken();
  std::sort(level.rbegin(), level.rend());
  double spent = 0;
  for (int ahead = 1; ahead <= kLookAhead && depth + ahead <= options_.max_depth; ++ahead) {
    spent += kLevel * LongRunRate() * LevelSeconds(ssm, static_cast<int>(level.size()));
    const double next = ssm.acceptance().OfRank(depth + ahead, 0);
    for (double& chance : level) chance *= next;
    const auto middle = static_cast<int64_t>(nodes.size());
    nodes.insert(nodes.end(), level.begin(), level.end());
    std::inplace_merge(nodes.begin(), nodes.begin() + middle, nodes.end(), std::greater<>());
    if (value.Of(nodes).tokens - spent > without) return true;
  }
  return false;
}

// What is drawn is verified, whatever it turns out to be worth: each further level of so many nodes
// has its price, and all that is known of its chances is what they are now. It changes slowly, and
// a small model's levels are run in little time: it is found once for all steps until the next
// choice.
double Speculator::LeastSum(Ssm& ssm, DraftValue& value, int depth, size_t level, size_t drafted) {
  const bool usual = price_scale_ == 1;
  for (const Ssm::LeastSum& known : ssm.least_sums) {
    const bool same = known.depth == depth && known.level == level && known.drafted == drafted;
    if (usual && same) return known.sum;
  }
  double least = std::numeric_limits<double>::infinity();
  double chance = 1, chances = 0, spent = 0;  // per unit of the level's sum, and in tokens
  for (int ahead = 1; ahead <= kLookAhead && depth + ahead <= options_.max_depth; ++ahead) {
    spent += LongRunRate() * LevelSeconds(ssm, static_cast<int>(level));
    chance *= ssm.acceptance().OfRank(depth + ahead, 0);
    chances += chance;
    const size_t nodes = drafted + static_cast<size_t>(ahead) * level;
    const double price = value.Price(nodes) - value.Price(drafted);
    least = std::min(least, (spent + price) / (chances * SsmToken()));
  }
  if (usual) ssm.least_sums.push_back({depth, level, drafted, least});
  return least;
}

void Speculator::DraftBySsm(int s, std::vector<DraftWork>& work) {
  Ssm& ssm = ssms_[s];
  const double next = ssm.acceptance().OfRank(2, 0);
  double least_parent = 0;
  if (const int drafting = ssm.choice.requests; drafting > 0) {
    // In tokens: of a child, and of a row in the run that finds it.
    const double row = (LevelSeconds(ssm, 2 * drafting) - LevelSeconds(ssm, drafting)) / drafting;
    least_parent = price_scale_ * (ssm.choice.price + ssm.choice.rate * row) / next;
  }
  std::vector<SsmDrafter::DraftRequest> jobs;
  int prefill_tokens = setup_.max_rows;  // rows that this step may spend on running behind
  int rows = 0, once = 0;  // that it spends, and of them those that no later step will need
  // After its own tree, an SSM has not run the last token, nor the one before if it was a leaf.
  const int usual = ssms() > 1 || with_ngram_ ? options_.max_depth + 1 : 2;
  for (DraftWork& item : work) {
    const Request& request = item.request;
    const Assignment& assignment = item.assignment;
    if (!Follows(ssm, request)) continue;
    State& state = StateOf(request);
    const Part& part = state.parts[s];
    if (options_.tune && !part.drafts) continue;
    SsmDrafter::DraftRequest job{
        .request = request.id(),
        .tokens = request.tokens(),
        .prefill = item.end,
        .cache_salt = request.options().cache_salt,
        .sampling = request.options().sampling,
        .logits_processor = &request.logits_processor(),
        .without_replacement = options_.sampled == SampledDrafting::kWithoutReplacement ||
                               options_.sampled == SampledDrafting::kCoupledIfSeeded,
        .tree = &item.tree};
    if (assignment.decodes && part.drafts) {
      // The rows beside the n-gram draft are shared by the SSMs; the first ones get the remainder.
      int sources = 0, before = 0;
      for (int other = 0; other < ssms(); ++other) {
        if (!state.parts[other].drafts) continue;
        before += other < s;
        ++sources;
      }
      const int ngram = std::min(state.ngram.drafted(), assignment.tree_nodes);
      job.max_nodes = (assignment.tree_nodes - ngram + sources - 1 - before) / sources;
      job.depth = job.max_nodes > 0 ? part.depth : 0;
    }
    const bool draws = Draws(request);
    // Coupled candidates are not drawn, so only the size of the expansion matters.
    const bool sized = options_.max_nodes > 0 && !draws;
    if (options_.tune || sized || KindOf(request) == kCoupled) {
      job.best_first = {.width = options_.max_width,
                        .draws = draws,
                        .acceptance = &ssm.learned.acceptance[KindOf(request)],
                        .failing = part.factor.failing()};
      if (options_.tune && !part.probe) {
        // What is drawn is verified, whatever it turns out to be.
        job.best_first.price = price_scale_ * (draws ? 1 : kCandidate) * ssm.choice.price;
        job.best_first.parent = least_parent;
      }
    }
    const int known = ssm.drafter->kv().length(request.id());
    if (options_.tune && job.prefill - known > prefill_tokens) {
      job.prefill = known + prefill_tokens;
      prefilling_ = prefilling_ || job.depth > 0;
      job.depth = 0;
    }
    // The root is left for the draft that needs its logits.
    if (job.depth == 0 && job.prefill == request.length()) --job.prefill;
    const int behind = std::max(0, job.prefill - known);
    prefill_tokens -= behind;
    rows += behind;
    once += std::max(0, behind - usual);
    if (job.depth > 0) ++ssm.drafts;
    jobs.push_back(job);
  }
  if (jobs.empty()) return;
  if (options_.tune) prefill_seconds_ += ssm.cost.Seconds(rows) - ssm.cost.Seconds(rows - once);
  SsmDrafter::LevelPays worth;
  DraftValue value(load_, llm_latency_, LongRunRate());
  if (options_.tune && ssm.choice.requests > 0) {
    worth = [&](int depth, absl::Span<const double> chances, absl::Span<const double> drafted) {
      return LevelPays(ssm, value, depth, chances, drafted);
    };
  }
  if (absl::Status status = ssm.drafter->Draft(jobs, worth); !status.ok()) {
    DisableSsm(s, absl::Status(status.code(), absl::StrCat("SSM ", s, ": ", status.message())));
  }
}

// Keeps the nodes whose verification pays, and all drawn ones.
void Speculator::PruneTrees(std::vector<DraftWork>& work, double drafting) {
  struct Node {
    double chance;
    size_t item;
    int node;
  };
  std::vector<Node> nodes;
  StepLoad load = {.drafting = drafting};
  int prompt_rows = 0;
  double likely = 0;
  for (size_t i = 0; i < work.size(); ++i) {
    const DraftWork& item = work[i];
    if (!item.assignment.decodes) {
      prompt_rows += item.assignment.rows;
      continue;
    }
    ++load.decoding;
    load.context += item.request.length();
    const std::vector<Part>& parts = StateOf(item.request).parts;
    const bool probe =
        std::any_of(parts.begin(), parts.end(), [](const Part& part) { return part.probe; });
    for (int node = 1; node < item.tree.size(); ++node) {
      if (!probe && !item.tree.drawn(node)) {
        nodes.push_back({item.tree.chance(node), i, node});
      } else {
        ++load.other_rows;
        likely += item.tree.chance(node);
      }
    }
  }
  if (prompt_rows == 0) expected_tokens_ = load.decoding + likely;
  if (nodes.empty()) return;
  load.other_rows += prompt_rows;
  load.context /= load.decoding;
  std::stable_sort(nodes.begin(), nodes.end(),
                   [](const Node& a, const Node& b) { return a.chance > b.chance; });
  std::vector<double> chances;
  for (const Node& node : nodes) chances.push_back(node.chance);
  const size_t kept =
      explored_nodes_ > 0 ? std::min(explored_nodes_, nodes.size())
      : !with_probe_      ? DraftValue(load, llm_latency_, LongRunRate()).Of(chances).nodes
                     : ChooseNodes(load, llm_latency_, chances, static_cast<int>(chances.size()));
  if (prompt_rows == 0) {
    expected_tokens_ = std::accumulate(
        chances.begin(), chances.begin() + static_cast<int64_t>(kept), expected_tokens_);
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

}  // namespace espalier
