#include "serving/speculative/speculation_gate.h"

#include <algorithm>
#include <cmath>

namespace espalier {
namespace {

// By which the corrected gain must be better to begin drafting, and worse to end it.
constexpr double kMargin = 0.02, kEndMargin = 0.01;
constexpr double kGainMemory = 32;          // steps
constexpr double kHope = 0.15;              // of the logarithm of the gain, at first
constexpr double kHopeSteps = 256;          // until it is gone
constexpr int kPresentSteps = 16;           // before a trial
constexpr int kTrialSteps = 8;              // that count
constexpr int kTrialWarmupSteps = 2;        // steps of a trial before these
constexpr double kTrialMemory = 16;         // trials
constexpr double kPriorGateTrials = 2;      // that the estimate is worth
constexpr double kDraftTrialWeight = 0.25;  // at least, of a trial of drafts
constexpr double kFewTrials = 4;            // while there were fewer, plain steps are tried sooner
constexpr double kInterruptedRatio = 4;     // a step that took longer than so many usual ones

int LoadBucket(int load) { return static_cast<int>(std::log2(std::max(load, 1))); }

}  // namespace

bool SpeculationGate::in_trial(int load) const {
  const auto known = buckets_.find(LoadBucket(load));
  return known != buckets_.end() && known->second.in_trial;
}

bool SpeculationGate::ShouldDraft(int load, double gain, double seconds, double prefill,
                                  bool may_try) {
  Bucket& bucket = buckets_[LoadBucket(load)];
  warming_up_ = bucket.in_trial && bucket.warmup > 0;
  bucket.asked = std::min(bucket.asked + 1, kGainMemory);
  bucket.log_gain += (std::log(std::clamp(gain, 0.1, 10.0)) - bucket.log_gain) / bucket.asked;
  if (bucket.in_trial) return !bucket.drafting;
  const double corrected = bucket.log_gain + bucket.correction;
  // At first drafts get the benefit of the doubt: only drafting shows what they are worth.
  const double hope = kHope * std::max(0.0, 1 - bucket.seen++ / kHopeSteps);
  const bool drafting = corrected > (bucket.drafting ? -kEndMargin : kMargin) - hope;
  if (drafting != bucket.drafting) bucket.present = {};
  bucket.drafting = drafting;
  const double loss = 1 - std::exp(drafting ? -corrected : corrected);  // of a trial's time
  double cost = (kTrialSteps + kTrialWarmupSteps) * seconds * std::max(loss, kMargin);
  cost = drafting ? cost * std::min(1.0, bucket.trials / kFewTrials) : cost + prefill;
  if (!may_try || bucket.present.steps < kPresentSteps || bucket.credit < cost) return drafting;
  bucket.credit = cost;  // credit for more than one trial is not kept
  bucket.in_trial = true;
  bucket.warmup = kTrialWarmupSteps;
  bucket.trial = {};
  bucket.trial_seconds = 0;
  ++trials_;
  warming_up_ = true;
  return !drafting;
}

void SpeculationGate::Observe(int load, const Step& step) {
  Bucket& bucket = buckets_[LoadBucket(load)];
  bucket.credit += trial_share_ * step.seconds;
  const bool as_chosen = !step.open || step.drafted == (bucket.drafting != bucket.in_trial);
  double seconds = step.seconds;
  if (const Arm& usual = bucket.present; usual.steps >= kPresentSteps) {
    seconds = std::min(seconds, kInterruptedRatio * usual.seconds / usual.weight);
  }
  if (!bucket.in_trial) {
    if (step.settling || !as_chosen) return;
    Arm& present = bucket.present;
    present.tokens += step.tokens - present.tokens / kGainMemory;
    present.seconds += seconds - present.seconds / kGainMemory;
    present.weight += 1 - present.weight / kGainMemory;
    present.steps += step.open;
    return;
  }
  bucket.trial_seconds += step.seconds;
  if (step.open && (step.settling || bucket.warmup > 0)) {
    if (!step.settling) --bucket.warmup;
    return;
  }
  bucket.trial.tokens += step.tokens;
  bucket.trial.seconds += seconds;
  if (step.open && as_chosen && ++bucket.trial.steps == kTrialSteps) EndTrial(bucket);
}

void SpeculationGate::EndTrial(Bucket& bucket) {
  const double present = bucket.present.tokens / bucket.present.seconds;
  const double trial = bucket.trial.tokens / bucket.trial.seconds;
  const double measured = std::log(trial / present) * (bucket.drafting ? -1 : 1);
  bucket.trials = std::min(bucket.trials + 1, kTrialMemory);
  // A trial of drafts shows what they are worth now, where the estimates are old.
  const double weight =
      std::max(1 / (bucket.trials + kPriorGateTrials), bucket.drafting ? 0 : kDraftTrialWeight);
  bucket.correction += weight * (measured - bucket.log_gain - bucket.correction);
  bucket.credit -= std::max(0.0, bucket.trial_seconds - bucket.trial.tokens / present);
  bucket.in_trial = false;
}

}  // namespace espalier
