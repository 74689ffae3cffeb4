// Drafting for the engine: runs the SSMs and the n-gram drafter, and chooses what to draft at each
// step. Owns the SSMs' KV caches and the statistics of all drafters.
//
// Fixed speculation: every SSM drafts for every request that allows it, in the shape of the
// expansion or best-first up to a number of nodes. Tuned speculation (draft_policy.h): at each
// step, trees of any shape or none, for the highest expected throughput. An SSM that is tuned off
// is not run at all, not even over prompts; it prefills in bounded chunks when it is used again. At
// most SpeculationOptions::trial_share of the time goes into trials that find out when
// (speculation_gate.h).
//
// An SSM that fails is disabled for good; one that is Unavailable is disabled until it is back with
// an empty cache (ModelRunner::cache_generation). Requests continue without it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "serving/request/request.h"
#include "serving/runner/model_runner.h"
#include "serving/scheduler/scheduler.h"
#include "serving/speculative/acceptance_estimator.h"
#include "serving/speculative/draft_policy.h"
#include "serving/speculative/expansion.h"
#include "serving/speculative/ngram_drafter.h"
#include "serving/speculative/speculation_gate.h"
#include "serving/speculative/ssm_drafter.h"
#include "serving/speculative/step_latency.h"
#include "serving/speculative/token_tree.h"

namespace espalier {

// How sampled requests are drafted and verified. The output always has the LLM's distribution.
enum class SampledDrafting {
  kWithoutReplacement,  // draws that differ below a node, verified by rejection_sampling.h
  // Gumbel coupling (sampling/gumbel_coupling.h): drafter and LLM use the same noise. The tokens of
  // a seed then equal those of incremental decoding, whatever is drafted. Trees may have any shape.
  kCoupled,
  // kCoupled for requests that must be reproducible. For the others kWithoutReplacement, whose
  // drafts are accepted more often.
  kCoupledIfSeeded,
};

// True if the drafts of such a request use the same noise as its output.
bool UsesCoupledSampling(const RequestOptions& request, SampledDrafting drafts);

struct SpeculationOptions {
  bool tune = false;  // requires the engine's clock
  // Nodes of a request's best-first tree, per SSM. 0: the expansion instead, or 32 if tuned.
  // Requests with draws use the expansion, unless tuned.
  int max_nodes = 0;
  int max_depth = 8;  // of best-first trees
  int max_width = 4;  // nodes of one level of a best-first tree, per request
  SampledDrafting sampled = SampledDrafting::kWithoutReplacement;
  NgramOptions ngram;
  double calibration_seconds = 2;  // approximately, per model, if tuned; 0: none
  // Of the time, that steps may lose to find out whether drafts pay. 1: drafts at every step,
  // paying or not, to test them.
  double trial_share = 0.005;
};

struct SpeculationStatistics {
  std::vector<absl::Status> ssm_status;  // errors of disabled SSMs
  std::vector<int64_t> ssm_drafts;       // trees requested of each SSM
  std::vector<int> ssm_limits;           // longest sequence that each SSM drafts for
  int64_t ngram_drafted = 0, ngram_accepted = 0;
  int64_t tuned_off = 0;  // steps without SSM drafts, by choice
  int64_t withheld = 0;   // of these, because drafting yielded less than plain steps
  int64_t trials = 0;     // of steps with SSM drafts, or without, against the others
};

// One request's part of a step.
struct DraftWork {
  const Request& request;
  const Assignment& assignment;
  int end = 0;      // tokens in the LLM's KV cache after this step, without the tree
  TokenTree& tree;  // holds the root; the draft is added
};

class Speculator {
 public:
  struct Setup {
    ModelRunner* llm = nullptr;
    std::vector<ModelRunner*> ssms;
    Expansion expansion;
    SpeculationOptions options;
    bool share_prefixes = false;
    int max_rows = 0;  // of one LLM step
    std::function<double()> seconds;
  };
  // Returns InvalidArgument naming the option. If tuned, calibrates the models: returns errors of
  // the LLM; an SSM that fails is disabled. An Unavailable model is calibrated before its first
  // step.
  static absl::StatusOr<std::unique_ptr<Speculator>> Create(Setup setup);

  // Nodes of the largest tree that the scheduler may not shrink.
  int largest_whole_tree() const;

  int ssms() const { return static_cast<int>(ssms_.size()); }
  const KvCache& kv(int ssm) const { return ssms_[ssm].drafter->kv(); }

  // Chooses what to draft in the coming step; the scheduler then limits the tree rows. `decoding`:
  // the requests that can take a tree. `prompt_rows`: rows of prompts in the same step. `context`:
  // the LLM's, in tokens.
  void Plan(absl::Span<const Request* const> decoding, int prompt_rows, int context);

  // For the scheduler, after Plan: tokens of the request in the SSM's KV cache, or -1 if the SSM
  // has no part in the coming step; the most nodes that the request can use; whether fewer will do.
  int Computed(int ssm, const Request& request) const;
  int TreeNodes(const Request& request) const;
  bool TreeMayShrink(const Request& request) const;

  // Drafts as planned, within the assignments, and prunes nodes that do not pay.
  void Draft(std::vector<DraftWork>& work);

  // Call after verification of a request that continues: the tokens of the accepted path, and the
  // next token.
  void Commit(const Request& request, absl::Span<const int> accepted, int next);

  // Counts the n-gram drafter's nodes in a verified tree; `path` holds the accepted nodes.
  void CountNgramTokens(const TokenTree& tree, absl::Span<const int> path);

  // Records the rows and the time of an LLM step, including verification.
  void ObserveLlm(int rows, double seconds);

  // Records the tokens and the time of a whole step, from its planning to its last token.
  void ObserveStep(int tokens, double seconds);

  // Releases the request's slots (preemption) or, with `for_good`, everything of it.
  void Release(const Request& request, bool for_good);

  SpeculationStatistics statistics() const;
  int64_t batches() const;

 private:
  // Acceptance is estimated separately for these kinds of requests.
  enum Kind { kGreedy, kCoupled, kIndependent, kKinds };
  Kind KindOf(const Request& request) const;
  using Acceptances = std::array<AcceptanceEstimator, kKinds>;
  struct Ssm {
    std::unique_ptr<SsmDrafter> drafter;
    int limit = 0;            // longest sequence that it drafts for
    uint64_t generation = 0;  // of the cache that the drafter describes
    bool calibrated = false;
    absl::Status status;
    StepLatency latency;
    Acceptances acceptances;
    Kind kind = kGreedy;  // of most requests of the step
    DraftShapes shapes;   // for this kind
    // Chosen since the shapes were made, by decoding requests, rows of prompts, and candidates.
    std::map<std::array<int, 4>, DraftTier> tiers;
    DraftTier tier;  // of the step
    int64_t drafts = 0;

    const AcceptanceEstimator& acceptance() const { return acceptances[kind]; }
  };
  // A request's part in the next draft of one SSM.
  struct Part {
    bool drafts = false;
    int depth = 0;
    int nodes = 0;
    RequestAcceptance factor;
  };
  struct State {
    std::vector<Part> parts;  // by SSM
    TokenTree ngram{0};
    RequestAcceptance ngram_factor;
    int depth = 0;  // the deepest tree that the request can use
  };
  // A request that an SSM can draft for.
  struct Candidate {
    const Request* request;
    double factor;  // its acceptance relative to the average, beside n-gram drafts
    bool open;      // no n-gram draft is likely to know its next token
    int behind;     // tokens that the SSM has not run yet, without the last one
  };
  // The coming step, if tuned.
  struct Step {
    StepLoad load;            // with n-gram drafts
    bool with_ngram = false;  // the n-gram drafter drafts
    bool with_ssm = false;    // an SSM drafts
    bool open = false;        // some candidate is open
    bool settling = false;    // a draft was due, but its SSM had too much to prefill
    bool warming_up = false;  // first steps of a trial
    double rate = 0;          // long-run tokens per second, at which time is charged
    double leniency = 1;      // exploration: time counts so many times less
    double tokens = 0;        // expected, by the trees as they are verified
  };

  bool always_drafts() const { return options_.trial_share >= 1; }

  explicit Speculator(Setup setup);
  // Calibrates models that have not been, before they hold requests.
  absl::Status CalibrateAll();
  // Resets SSMs whose cache was replaced.
  void ResetLostCaches();

  bool Draws(const Request& request) const { return KindOf(request) == kIndependent; }
  bool Follows(const Ssm& ssm, const Request& request) const;
  int DepthFor(const Ssm& ssm, const Request& request, int depth) const;
  State& StateOf(const Request& request);
  // Whether n-gram drafts pay in the coming step.
  bool NgramDraftsPay();
  void PlanNgramDrafts(absl::Span<const Request* const> decoding);
  void PruneNgramDrafts(absl::Span<const Request* const> decoding);
  void PlanFixed(absl::Span<const Request* const> decoding);
  void PlanTuned(absl::Span<const Request* const> decoding);
  // Returns the SSMs' candidates, the most promising first.
  std::vector<Candidate> CandidatesOf(int ssm, absl::Span<const Request* const> decoding);
  // Chooses the tier of each SSM. Returns the rate with their drafts over that without; 1: none
  // drafts. `prefill`: seconds for what they have not run yet.
  double ChooseTiers(absl::Span<const std::vector<Candidate>> candidates, double* prefill);
  void AssignParts(int ssm, absl::Span<const Candidate> candidates);
  // Masks for tree nodes would delay all other requests.
  static bool ConstraintTooSlow(const Request& request) {
    return request.logits_processor().costly();
  }
  void ReleaseIdle(int ssm, absl::Span<const Request* const> decoding);
  double LevelSeconds(const Ssm& ssm, int rows) const {
    return overhead_ * ssm.latency.Seconds(rows);
  }
  bool LevelPays(const Ssm& ssm, int depth, absl::Span<const double> chances,
                 absl::Span<const double> drafted) const;
  void DraftBySsm(int ssm, std::vector<DraftWork>& work);
  void PruneTrees(std::vector<DraftWork>& work);
  void Learn(Acceptances& acceptances, RequestAcceptance& factor, const Request& request,
             absl::Span<const DraftTrial> trials);
  void DisableSsm(int ssm, const absl::Status& status);
  double Now() const { return setup_.seconds ? setup_.seconds() : 0; }

  Setup setup_;
  SpeculationOptions& options_;
  StepLatency llm_latency_;
  bool llm_calibrated_ = false;
  std::vector<Ssm> ssms_;
  NgramDrafter ngram_;
  Acceptances ngram_acceptances_;
  std::map<RequestId, State> states_;
  SpeculationGate ssm_gate_, ngram_gate_;
  double ngram_gain_ = 1;  // estimated rate with n-gram drafts over that without, recent average
  int ngram_gains_ = 0;    // steps in it, at most
  Step step_;
  int64_t steps_ = 0;
  int explore_in_ = 0, explorations_ = 0;  // steps until the next exploration; how many there were
  int verified_ = 0;     // nodes that the last step without exploration kept of SSM trees
  double overhead_ = 1;  // drafting time over the time of the SSMs' steps
  // Seconds of a step outside the LLM and drafting: recent average; of the last step; steps in the
  // average, at most.
  double host_seconds_ = 0, llm_seconds_ = 0, drafting_seconds_ = 0;
  int host_steps_ = 0;
  // Tokens of steps, as they came and as they were expected, by who drafted: sums that decay.
  struct Yield {
    double tokens = 0, expected = 0;
  };
  std::array<std::array<Yield, 2>, 2> yields_;  // by SSM, n-gram drafter
  SpeculationStatistics statistics_;
};

}  // namespace espalier
