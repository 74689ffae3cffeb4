// The engine's drafting side: SSMs and n-gram drafts, what each was worth so far, and the choice of what
// to draft at each step. Owns the SSMs' KV caches and all that was learned.
//
// Fixed: every SSM drafts for every request that allows it, in the shape of the expansion or best
// first up to a number of nodes. Tuned (tuning.h): trees of any shape, or none, are chosen at each
// step for the highest expected throughput. Tuned off, an SSM costs nothing: it is not run, not
// even over prompts; it catches up, in bounded chunks, when its turn comes. To find out that its
// turn has come, at most SpeculationOptions::probe_share of the time goes into drafts for one
// request.
//
// An SSM that fails is set aside, and requests go on without it: for good, or, where it was only
// away (Unavailable), until it is there again, with an empty cache (ModelRunner::cache_generation).
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
#include "serving/runner/model_runner.h"
#include "serving/request/request.h"
#include "serving/scheduler/scheduler.h"
#include "serving/speculative/acceptance_estimator.h"
#include "serving/speculative/warmup_steps.h"
#include "serving/speculative/step_latency_model.h"
#include "serving/speculative/ssm_drafter.h"
#include "serving/speculative/expansion.h"
#include "serving/speculative/ngram_drafter.h"
#include "serving/speculative/speculation_gate.h"
#include "serving/speculative/exploration_schedule.h"
#include "serving/speculative/token_tree.h"
#include "serving/speculative/draft_policy.h"

namespace espalier {

// How sampled requests are drafted and verified; the law of the answers is the LLM's each time.
enum class SampledDrafting {
  kIndependent,               // independent draws, traversal verification (verify.h)
  kWithoutReplacement,  // draws of which no two are alike, verified in the same way
  // Chosen for the request's own noise (sampling/coupled.h). A seed's answer is then token for
  // token that of incremental decoding, whatever is drafted. Trees may have any shape.
  kCoupled,
  // Requests that must be reproducible as with kCoupled. The others by draws, too, which are right
  // more often, if a chain of them is expected to yield more than a tree when they come.
  kCoupledIfSeeded,
};

// Whether drafts for such a request and its answer draw from the same noise.
bool UsesCoupledSampling(const RequestOptions& request, SampledDrafting drafts);

struct SpeculationOptions {
  bool tune = false;  // needs the engine's clock
  // Of a request's best-first tree, by each SSM; 0: the expansion instead, unless tuned (then 32).
  // Requests whose drafts are drawn have the expansion's shape, too, unless tuned.
  int max_nodes = 0;
  int max_depth = 8;  // of best-first trees
  int max_width = 4;  // nodes that one level of a best-first tree runs, for one request
  SampledDrafting sampled = SampledDrafting::kIndependent;
  NgramOptions ngram;
  double calibration_seconds = 2;  // about, per model, when tuned; 0: none
  double probe_share = 0.005;
};

struct SpeculationStatistics {
  std::vector<absl::Status> ssm_status;  // what went wrong with an SSM that was set aside
  std::vector<int64_t> ssm_drafts;       // trees asked of each SSM
  std::vector<int> ssm_limits;           // longest sequence that each of them drafts for
  int64_t ngram_drafted = 0, ngram_accepted = 0;
  int64_t tuned_off = 0;  // steps that decoded without any SSM, by choice
  int64_t withheld = 0;   // of these: because drafting had yielded less than plain steps
  int64_t probes = 0;
  std::vector<DraftChoice> choices;  // the last one of each SSM
};

// One request's part of a step.
struct DraftWork {
  const Request& request;
  const Assignment& assignment;
  int end = 0;      // tokens in the LLM's KV cache after this step, the tree apart
  TokenTree& tree;  // the root; the draft is added
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
  // InvalidArgument naming the option. Calibrates if tuned: errors of the LLM; an SSM that fails is
  // set aside. Who is away (Unavailable) is calibrated before the first step that it can run.
  static absl::StatusOr<std::unique_ptr<Speculator>> Create(Setup setup);

  // With kCoupledIfSeeded: whether requests that come now should be drafted for by draws, if they may.
  bool prefers_draws() const { return prefers_draws_; }

  // Nodes of the largest tree that may not shrink.
  int largest_whole_tree() const;

  int ssms() const { return static_cast<int>(ssms_.size()); }
  const KvCache& kv(int ssm) const { return ssms_[ssm].drafter->kv(); }

  // Chooses what to draft in the coming step, whose tree rows the scheduler will then bound.
  // `decoding`: the requests that could take a tree; `prompt_rows`: those that will ride along.
  // `context`: the LLM's, in tokens.
  void Plan(absl::Span<const Request* const> decoding, int prompt_rows, int context);

  // For the scheduler, after Plan: tokens of the request that the SSM has run, -1 if it has no part
  // in the coming step; nodes that it can use at most; whether fewer will do.
  int Computed(int ssm, const Request& request) const;
  int TreeNodes(const Request& request) const;
  bool TreeMayShrink(const Request& request) const;

  // Drafts as planned, within the assignments, and keeps the nodes that pay.
  void Draft(std::vector<DraftWork>& work);

  // After verification of a request that goes on: tokens of the accepted path, and the next one.
  void Commit(const Request& request, absl::Span<const int> accepted, int next);

  // Counts what n-gram drafts had in a verified tree; `path` are its accepted nodes.
  void CountNgramTokens(const TokenTree& tree, absl::Span<const int> path);

  // What a step of the LLM took, verification included.
  void ObserveLlm(const StepWork& work, double seconds);

  // What the whole step yielded and took, from its planning to its last token.
  void ObserveStep(int tokens, double seconds);

  // The request is preempted, or (for good) ends: forgets its slots, or all of it.
  void Release(const Request& request, bool for_good);

  SpeculationStatistics statistics() const;
  int64_t batches() const;

 private:
  // Of requests whose trials differ.
  enum Kind { kGreedy, kCoupled, kIndependent, kKinds };
  Kind KindOf(const Request& request) const;
  struct Learned {
    std::array<AcceptanceEstimator, kKinds> acceptance;
    double draws = 0;  // trials of them; forgotten while there are none
  };
  struct Ssm {
    std::unique_ptr<SsmDrafter> drafter;
    int limit = 0;            // the longest sequence that it follows
    uint64_t generation = 0;  // of its cache, that the drafter speaks of
    bool calibrated = false;
    absl::Status status;
    StepLatencyModel cost;
    Learned learned;
    Kind kind = kGreedy;  // of most requests that it could draft for
    DraftChoice choice;

    // What the chances of a drawn level have to sum up to, so that the next one is worth running.
    struct LeastSum {
      int depth;
      size_t level, drafted;  // nodes
      double sum;
    };
    std::vector<LeastSum> least_sums;  // as far as asked, since the last choice

    const AcceptanceEstimator& acceptance() const { return learned.acceptance[kind]; }
    int64_t drafts = 0;
    int64_t batches = 0;  // until the LLM's last step
  };
  // A request's part in the next draft of one SSM.
  struct Part {
    bool drafts = false;
    bool probe = false;
    int depth = 0;
    int nodes = 0;
    double adds = 1;  // share of its drafts' worth that n-gram drafts leave; 0: it is not asked
    RequestAcceptance factor;
  };
  struct State {
    std::vector<Part> parts;  // by SSM
    TokenTree ngram{0};
    RequestAcceptance ngram_factor;
    int depth = 0;  // the deepest tree that the request can use
    // No n-gram draft was likely to know the next token in its last step.
    bool was_open = false;
  };

  explicit Speculator(Setup setup);
  // All that have not been, before they serve a request.
  absl::Status CalibrateAll();
  // SSMs whose cache is another one than before: what was known of it is forgotten.
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
  // What the SSM is offered, the most promising first; `kinds` counts the requests' kinds.
  std::vector<DraftCandidate> CandidatesFor(int ssm, absl::Span<const Request* const> decoding,
                                   double missed, std::array<int, kKinds>* kinds);
  std::vector<const Request*> Offered(int ssm, absl::Span<const Request* const> decoding);
  bool MayDraft(int ssm, const Request& request);
  // Masks of a tree's nodes would hold up all others.
  static bool ConstraintTooSlow(const Request& request) { return request.logits_processor().costly(); }
  // By how much more steps of such requests yield than is estimated.
  double Correction(Kind kind) const;
  void NoteCovered(absl::Span<const Request* const> decoding, const StepLoad& load);
  // `known`: chances that an n-gram draft has the token, by depth; `level`, `row`: prices in tokens.
  double AddedBeside(const Ssm& ssm, absl::Span<const double> known, double level,
                     double row) const;
  // What a token is worth that an SSM drafts: less than one if an n-gram draft would know it a step later,
  // for a part of the time that a step takes.
  double SsmToken() const { return 1 - covered_next_ * (1 - 1 / yield_); }
  void ExploreDraftSize(absl::Span<const Request* const> decoding, const StepLoad& load);
  void Probe(absl::Span<const Request* const> decoding, const StepLoad& load);
  void ReleaseIdle(int ssm, absl::Span<const Request* const> decoding);
  double LevelSeconds(const Ssm& ssm, int rows) const;
  // Tokens per second of steps with such drafts as were chosen.
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
  // By the kind of most requests: what one kind's drafts lose another's may win.
  std::array<SpeculationGate, kKinds> ssm_gates_;
  SpeculationGate ngram_gate_;
  StepLoad load_;  // of the coming step
  // Of the coming step: n-gram drafts were asked, an SSM drafts, an SSM is only probed.
  bool with_ngram_ = false, with_ssm_ = false, with_probe_ = false;
  bool covered_ = false;     // n-gram drafts leave no request to the SSMs
  double plain_tokens_ = 0;  // expected of the step without SSMs
  double covered_next_ = 0;  // how often an n-gram draft knows more one step after none did, of late
  double yield_ = 1;         // tokens of a request's step, of late
  bool prefilling_ = false;    // a draft was due, but its SSM was too far behind
  double prefill_seconds_ = 0;   // seconds of it in which SSMs run what they will not have to run again
  bool prefers_draws_ = true;  // for requests of which only the law matters
  double gain_ = 1;            // what the choices' drafts are expected to do to the rate
  double trial_cost_ = 0;      // seconds that these may lose before it is known whether they pay
  double plain_rate_ = 0;      // expected of the step without drafts of SSMs, tokens per second
  // Of steps with drafts: tokens, and what their time would have yielded as estimated. They fade.
  double yielded_ = 1, expected_ = 1;
  // The same of steps whose requests were all of one kind, against the kind's own estimate.
  struct Yield {
    double tokens = 0, expected = 0, steps = 0;
  };
  std::map<int, std::array<Yield, kKinds>> yields_;  // by SpeculationGate::LoadBucket of the load
  Kind most_ = kGreedy;                              // of most requests of the step
  bool alike_ = false;                               // of all of them
  double expected_tokens_ = 0;    // tokens of it, by the chances of the trees; 0: not known
  double overhead_ = 1;  // DraftBounds.overhead, of the last drafts
  int64_t steps_ = 0;
  int64_t chosen_at_ = -1;  // step
  int chosen_for_ = -1;     // decoding requests
  int chosen_of_ = 0;       // of these that were offered
  int64_t choices_ = 0;
  int64_t idle_steps_ = 0;    // since an SSM drafted
  WarmupSteps warmup_;            // of those without prompts
  double probe_credit_ = 0;   // seconds
  double probe_cost_ = 0;     // of the last one, as estimated
  double plain_seconds_ = 0;  // of the last step without SSMs
  int64_t probe_turn_ = 0;    // whose SSM's probe is next
  double last_step_seconds_ = 0;
  ExplorationSchedule ngram_exploration_, ssm_exploration_;
  double price_scale_ = 1;     // what time costs in this step, of what it does in others
  size_t explored_nodes_ = 0;  // that the step shall have for its size to be known; 0: those that pay
  SpeculationStatistics statistics_;
};

}  // namespace espalier
