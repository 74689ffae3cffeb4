// Part of Speculator: runs the SSMs as planned, and prunes their trees.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "serving/engine/speculator.h"

namespace espalier {
namespace {

constexpr double kOverheadStep = 0.05;
constexpr double kMostOverhead = 1.5;
constexpr int kLookAhead = 3;  // levels
// Candidates are drafted down to this fraction of a row's average price, because rows cost by the
// block; of them, those that pay are verified.
constexpr double kCandidate = 0.5;

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
  if (options_.tune && step_.with_ssm) PruneTrees(work);
  drafting_seconds_ = Now() - start;
  if (!options_.tune || !step_.with_ssm) return;
  double expected = 0;
  for (const Ssm& ssm : ssms_) {
    if (ssm.tier.requests > 0) expected += ssm.drafter->expected_seconds();
  }
  if (expected <= 0) return;
  const double wrong = drafting_seconds_ / (overhead_ * expected) - 1;
  overhead_ *= 1 + kOverheadStep * std::clamp(wrong, -1.0, 1.0);
  overhead_ = std::clamp(overhead_, 1.0, kMostOverhead);
}

// Whether the best that could be verified with this level's children, or theirs and so on, is worth
// more than what was drafted by more than the SSM's time. Where rows cost by the block, it takes
// several levels to fill one.
bool Speculator::LevelPays(const Ssm& ssm, int depth, absl::Span<const double> chances,
                           absl::Span<const double> drafted) const {
  const StepLoad load = {.decoding = step_.load.decoding, .other_rows = step_.load.other_rows};
  const double before = StepSeconds(load, llm_latency_, 0);
  std::vector<double> nodes(drafted.begin(), drafted.end()), level(chances.begin(), chances.end());
  std::sort(nodes.rbegin(), nodes.rend());
  std::sort(level.rbegin(), level.rend());
  const auto value = [&] {
    // What is drawn is verified, whatever it turns out to be worth.
    const int verified = ssm.kind == kIndependent
                             ? static_cast<int>(nodes.size())
                             : ChooseNodes(load, llm_latency_, nodes, step_.rate);
    return std::accumulate(nodes.begin(), nodes.begin() + verified, 0.0) -
           step_.rate * (StepSeconds(load, llm_latency_, verified) - before);
  };
  const double without = value();
  double spent = 0;
  for (int ahead = 1; ahead <= kLookAhead && depth + ahead <= options_.max_depth; ++ahead) {
    spent += step_.rate * LevelSeconds(ssm, static_cast<int>(level.size()));
    const double next = ssm.acceptance().OfRank(depth + ahead, 0);
    for (double& chance : level) chance *= next;
    const auto middle = static_cast<int64_t>(nodes.size());
    nodes.insert(nodes.end(), level.begin(), level.end());
    std::inplace_merge(nodes.begin(), nodes.begin() + middle, nodes.end(), std::greater<>());
    if (value() - spent > without) return true;
  }
  return false;
}

void Speculator::DraftBySsm(int s, std::vector<DraftWork>& work) {
  Ssm& ssm = ssms_[s];
  const DraftTier& tier = ssm.tier;
  double least_parent = 0;
  if (tier.requests > 0) {
    // In tokens: of a child, and of a row in the run that finds it.
    const double row =
        (LevelSeconds(ssm, 2 * tier.requests) - LevelSeconds(ssm, tier.requests)) / tier.requests;
    least_parent = (tier.price + tier.rate * row) / ssm.acceptance().OfRank(2, 0) / step_.leniency;
  }
  std::vector<SsmDrafter::DraftRequest> jobs;
  int prefill_tokens = setup_.max_rows;  // rows that this step may spend on running behind
  for (DraftWork& item : work) {
    const Request& request = item.request;
    const Assignment& assignment = item.assignment;
    if (!Follows(ssm, request)) continue;
    State& state = StateOf(request);
    const Part& part = state.parts[s];
    if (options_.tune && !part.drafts) continue;
    SsmDrafter::DraftRequest job{.request = request.id(),
                                 .tokens = request.tokens(),
                                 .prefill = item.end,
                                 .cache_salt = request.options().cache_salt,
                                 .sampling = request.options().sampling,
                                 .logits_processor = &request.logits_processor(),
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
                        .acceptance = &ssm.acceptances[KindOf(request)],
                        .failing = part.factor.failing()};
      if (options_.tune) {
        job.best_first.price = (draws ? 1 : kCandidate) * tier.price / step_.leniency;
        job.best_first.parent = least_parent;
      }
    }
    const int known = ssm.drafter->kv().length(request.id());
    if (options_.tune && job.prefill - known > prefill_tokens) {
      job.prefill = known + prefill_tokens;
      step_.settling = step_.settling || job.depth > 0;
      job.depth = 0;
    }
    // The root is left for the draft that needs its logits.
    if (job.depth == 0 && job.prefill == request.length()) --job.prefill;
    prefill_tokens -= std::max(0, job.prefill - known);
    if (job.depth > 0) ++ssm.drafts;
    jobs.push_back(job);
  }
  if (jobs.empty()) return;
  SsmDrafter::LevelPays pays;
  if (options_.tune && tier.requests > 0) {
    pays = [&](int depth, absl::Span<const double> chances, absl::Span<const double> drafted) {
      return LevelPays(ssm, depth, chances, drafted);
    };
  }
  ssm.drafter->set_observes(!step_.warming_up);
  if (absl::Status status = ssm.drafter->Draft(jobs, pays); !status.ok()) {
    DisableSsm(s, absl::Status(status.code(), absl::StrCat("SSM ", s, ": ", status.message())));
  }
}

// Keeps the nodes whose verification pays, and all drawn ones.
void Speculator::PruneTrees(std::vector<DraftWork>& work) {
  struct Node {
    double chance;
    size_t item;
    int node;
  };
  std::vector<Node> nodes;
  StepLoad load;
  step_.tokens = 0;
  for (size_t i = 0; i < work.size(); ++i) {
    const DraftWork& item = work[i];
    if (!item.assignment.decodes) {
      load.other_rows += item.assignment.rows;
      continue;
    }
    ++load.decoding;
    for (int node = 1; node < item.tree.size(); ++node) {
      if (item.tree.drawn(node)) {
        ++load.other_rows;
        step_.tokens += item.tree.chance(node);
      } else {
        nodes.push_back({item.tree.chance(node), i, node});
      }
    }
  }
  std::stable_sort(nodes.begin(), nodes.end(),
                   [](const Node& a, const Node& b) { return a.chance > b.chance; });
  std::vector<double> chances;
  for (const Node& node : nodes) chances.push_back(node.chance);
  int kept = ChooseNodes(load, llm_latency_, chances, step_.rate);
  if (step_.leniency > 1) {
    kept = std::min(kept, 2 * verified_ + load.decoding);
  } else {
    verified_ = kept;
  }
  step_.tokens =
      std::accumulate(chances.begin(), chances.begin() + kept, step_.tokens + load.decoding);
  std::vector<std::vector<bool>> keep(work.size());
  for (size_t i = static_cast<size_t>(kept); i < nodes.size(); ++i) {
    std::vector<bool>& of = keep[nodes[i].item];
    if (of.empty()) of.assign(work[nodes[i].item].tree.size(), true);
    of[nodes[i].node] = false;
  }
  for (size_t i = 0; i < work.size(); ++i) {
    if (!keep[i].empty()) work[i].tree = work[i].tree.Keep(keep[i]);
  }
}

}  // namespace espalier
