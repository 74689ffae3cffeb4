// Drafting for the engine: runs the SSMs and the n-gram drafter, and chooses what to draft at each
// step. Owns the SSMs' KV caches and the statistics of all drafters.
//
// Fixed speculation: every SSM drafts for every request that allows it, in the shape of the
// expansion or best-first up to a number of nodes. Tuned speculation (draft_policy.h): at each
// step, trees of any shape or none, for the highest expected throughput. An SSM that is tuned off
// is not run at all, not even over prompts; it prefills in bounded chunks when it is used again. At
// most SpeculationOptions::probe_share of the time goes into probes that find out when.
//
// An SSM that fails is disabled for good; one that is Unavailable is disabled until it is back with
// an empty cache (ModelRunner::cache_generation). Requests continue without it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
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
#include "serving/speculative/exploration_schedule.h"
#include "serving/speculative/ngram_drafter.h"
#include "serving/speculative/speculation_gate.h"
#include "serving/speculative/ssm_drafter.h"
#include "serving/speculative/step_latency_model.h"
#include "serving/speculative/token_tree.h"
#include "serving/speculative/warmup_steps.h"

namespace espalier {

// How sampled requests are drafted and verified. The output always has the LLM's distribution.
enum class SampledDrafting {
  kIndependent,         // independent draws, verified by rejection_sampling.h
  kWithoutReplacement,  // draws that all differ, verified in the same way
  // Gumbel coupling (sampling/gumbel_coupling.h): drafter and LLM use the same noise. The tokens of
  // a seed then equal those of incremental decoding, whatever is drafted. Trees may have any shape.
  kCoupled,
  // kCoupled for requests that must be reproducible. For the others independent draws, too, which
  // are accepted more often, if on arrival a chain of draws is expected to yield more than a tree.
  kCoupledIfSeeded,
};

// True if the drafts of such a request use the same noise as its output.
bool UsesCoupledSampling(const RequestOptions& request, SampledDrafting drafts);

struct SpeculationOptions {
  bool tune = false;  // requires the engine's clock
  // Nodes of a request's best-first tree, per SSM. 0: the expansion instead, or 32 if tuned.
  // Requests with independent draws use the expansion, unless tuned.
  int max_nodes = 0;
  int max_depth = 8;  // of best-first trees
  int max_width = 4;  // nodes of one level of a best-first tree, per request
  SampledDrafting sampled = SampledDrafting::kIndependent;
  NgramOptions ngram;
  double calibration_seconds = 2;  // approximately, per model, if tuned; 0: none
  double probe_share = 0.005;
};

struct SpeculationStatistics {
  std::vector<absl::Status> ssm_status;  // errors of disabled SSMs
  std::vector<int64_t> ssm_drafts;       // trees requested of each SSM
  std::vector<int> ssm_limits;           // longest sequence that each SSM drafts for
  int64_t ngram_drafted = 0, ngram_accepted = 0;
  int64_t tuned_off = 0;  // steps without SSM drafts, by choice
  int64_t withheld = 0;   // of these, because drafting yielded less than plain steps
  int64_t probes = 0;
  std::vector<DraftChoice> choices;  // the latest of each SSM
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

  // With kCoupledIfSeeded: whether new unseeded requests should be drafted by independent draws.
  bool prefers_draws() const { return prefers_draws_; }

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

  // Records the time of an LLM step, including verification.
  void ObserveLlm(const StepWork& work, double seconds);

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
  struct Learned {
    std::array<AcceptanceEstimator, kKinds> acceptance;
    double draws = 0;  // number of trials of draws; fades while there are none
  };
  struct Ssm {
    std::unique_ptr<SsmDrafter> drafter;
    int limit = 0;            // longest sequence that it drafts for
    uint64_t generation = 0;  // of the cache that the drafter describes
    bool calibrated = false;
    absl::Status status;
    StepLatencyModel cost;
    Learned learned;
    Kind kind = kGreedy;  // of most requests that it can draft for
    DraftChoice choice;

    // The sum of chances of a drawn level above which the next level is worth running.
    struct LeastSum {
      int depth;
      size_t level, drafted;  // nodes
      double sum;
    };
    std::vector<LeastSum> least_sums;  // memoized since the last choice

    const AcceptanceEstimator& acceptance() const { return learned.acceptance[kind]; }
    int64_t drafts = 0;
    int64_t batches = 0;  // until the last LLM step
  };
  // A request's part in the next draft of one SSM.
  struct Part {
    bool drafts = false;
    bool probe = false;
    int depth = 0;
    int nodes = 0;
    double adds = 1;  // fraction of the drafts' value beside n-gram drafts; 0: does not draft
    RequestAcceptance factor;
  };
  struct State {
    std::vector<Part> parts;  // by SSM
    TokenTree ngram{0};
    RequestAcceptance ngram_factor;
    int depth = 0;  // the deepest tree that the request can use
    // In its last step, no n-gram draft was likely to have the next token.
    bool was_open = false;
  };

  explicit Speculator(Setup setup);
  // Calibrates models that have not been, before they hold requests.
  absl::Status CalibrateAll();
  // Resets SSMs whose cache was replaced.
  void ResetLostCaches();

  bool Draws(const Request& request) const { return KindOf(request) == kIndependent; }
  bool Follows(const Ssm& ssm, const Request& request) const;
  int DepthFor(const Ssm& ssm, const Request& request, int depth) const;
  State& StateOf(const Request& request);
  void PlanNgramDrafts(absl::Span<const Request* const> decoding);
  void PruneNgramDrafts(absl::Span<const Request* const> decoding, StepLoad* load);
  void PlanFixed(absl::Span<const Request* const> decoding);
  void PlanTuned(absl::Span<const Request* const> decoding, StepLoad load);
  void Choose(absl::Span<const Request* const> decoding, const StepLoad& load);
  void Prefer(absl::Span<const Request* const> decoding, const StepLoad& load);
  DraftBounds Bounds() const;
  // The requests that the SSM can draft for, the most promising first; `kinds` counts them by kind.
  std::vector<DraftCandidate> CandidatesFor(int ssm, absl::Span<const Request* const> decoding,
                                            double missed, std::array<int, kKinds>* kinds);
  std::vector<const Request*> Offered(int ssm, absl::Span<const Request* const> decoding);
  bool MayDraft(int ssm, const Request& request);
  // Masks for tree nodes would delay all other requests.
  static bool ConstraintTooSlow(const Request& request) {
    return request.logits_processor().costly();
  }
  // Measured over estimated goodput of steps with this kind of requests.
  double Correction(Kind kind) const;
  void NoteCovered(absl::Span<const Request* const> decoding, const StepLoad& load);
  // `known`: chance that an n-gram draft has the token, by depth; `level`, `row`: prices in tokens.
  double AddedBeside(const Ssm& ssm, absl::Span<const double> known, double level,
                     double row) const;
  // Value of a token drafted by an SSM: less than one if an n-gram draft would have it one step
  // later.
  double SsmToken() const { return 1 - covered_next_ * (1 - 1 / yield_); }
  void ExploreDraftSize(absl::Span<const Request* const> decoding, const StepLoad& load);
  void Probe(absl::Span<const Request* const> decoding, const StepLoad& load);
  void ReleaseIdle(int ssm, absl::Span<const Request* const> decoding);
  double LevelSeconds(const Ssm& ssm, int rows) const;
  // Tokens per second of steps with the chosen drafts.
  double LongRunRate() const;
  bool LevelPays(Ssm& ssm, DraftValue& value, int depth, absl::Span<const double> chances,
                 absl::Span<const double> drafted);
  double LeastSum(Ssm& ssm, DraftValue& value, int depth, size_t level, size_t drafted);
  void DraftBySsm(int ssm, std::vector<DraftWork>& work);
  void PruneTrees(std::vector<DraftWork>& work, double drafting);
  void Learn(Learned& learned, RequestAcceptance& factor, const Request& request,
             absl::Span<const DraftTrial> trials);
  void DisableSsm(int ssm, const absl::Status& status);
  double Now() const { return setup_.seconds ? setup_.seconds() : 0; }

  Setup setup_;
  SpeculationOptions& options_;
  RunnerLimits limits_;
  StepLatencyModel llm_latency_;
  bool llm_calibrated_ = false;
  std::vector<Ssm> ssms_;
  NgramDrafter ngram_;
  Learned ngram_learned_;
  std::map<RequestId, State> states_;
  // By the kind of most requests, because kinds may differ in sign.
  std::array<SpeculationGate, kKinds> ssm_gates_;
  SpeculationGate ngram_gate_;
  StepLoad load_;  // of the coming step
  // In the coming step: the n-gram drafter drafts, an SSM drafts, an SSM is only probed.
  bool with_ngram_ = false, with_ssm_ = false, with_probe_ = false;
  bool covered_ = false;     // n-gram drafts leave no request to the SSMs
  double plain_tokens_ = 0;  // expected in the step without SSMs
  // recent rate at which an n-gram draft appears one step after there was none
  double covered_next_ = 0;
  double yield_ = 1;            // recent tokens per request and step
  bool prefilling_ = false;     // a draft was due, but its SSM had too much to prefill
  double prefill_seconds_ = 0;  // of the step: SSM prefill that is not repeated
  bool prefers_draws_ = true;   // for unseeded requests
  double gain_ = 1;             // expected rate with the chosen drafts over that without
  double trial_cost_ = 0;       // seconds that a trial may lose
  double plain_rate_ = 0;       // expected tokens per second without SSM drafts
  // Of steps with drafts: tokens, and the estimate for their time. Decaying sums.
  double yielded_ = 1, expected_ = 1;
  // The same for steps with requests of one kind only.
  struct Yield {
    double tokens = 0, expected = 0, steps = 0;
  };
  std::map<int, std::array<Yield, kKinds>> yields_;  // by SpeculationGate::LoadBucket of the load
  Kind most_ = kGreedy;                              // of most requests of the step
  bool alike_ = false;                               // all requests of the step have this kind
  double expected_tokens_ = 0;  // of the step, by the chances of the trees; 0: unknown
  double overhead_ = 1;         // DraftBounds::overhead of the last drafts
  int64_t steps_ = 0;
  int64_t chosen_at_ = -1;  // step
  int chosen_for_ = -1;     // decoding requests
  int chosen_of_ = 0;       // of these, candidates
  int64_t choices_ = 0;
  int64_t idle_steps_ = 0;    // since an SSM drafted
  WarmupSteps warmup_;        // of steps without prompts
  double probe_credit_ = 0;   // seconds
  double probe_cost_ = 0;     // estimate for the last probe
  double plain_seconds_ = 0;  // of the last step without SSMs
  int64_t probe_turn_ = 0;    // the SSM of the next probe
  double last_step_seconds_ = 0;
  ExplorationSchedule ngram_exploration_, ssm_exploration_;
  double price_scale_ = 1;     // price of time in this step, relative to others
  size_t explored_nodes_ = 0;  // nodes of a step that explores a size; 0: no exploration
  SpeculationStatistics statistics_;
};

}  // namespace espalier
