#include "serving/distillation/distillation_samples.h"

#include <algorithm>

namespace espalier {
namespace {

bool Left(const DistillationPrompt& prompt, int sample) {
  return sample >= static_cast<int>(prompt.learned_by.size()) || prompt.learned_by[sample] == 0;
}

int LeftOf(const DistillationPrompt& prompt, int width) {
  int left = 0;
  for (int s = 0; s < SamplesOf(prompt, width); ++s) left += Left(prompt, s) ? 1 : 0;
  return left;
}

// Adds the soft labels of token `t` of the continuation, from index `at` on.
void AddSoftLabels(const DistillationPrompt& prompt, size_t t, size_t at,
                   DistillationRound* round) {
  const size_t last = at + static_cast<size_t>(round->soft) - 1;
  bool drawn_is_among = false;
  if (t < prompt.likely.size()) {
    for (const LikelyToken& label : prompt.likely[t]) {
      if (at == last) break;
      round->soft_tokens[at] = label.token;
      round->soft_weights[at++] = label.probability;
      drawn_is_among = drawn_is_among || label.token == prompt.continuation[t];
    }
  }
  if (drawn_is_among) return;
  round->soft_tokens[last] = prompt.continuation[t];
  round->soft_weights[last] = 1;
}

}  // namespace

int SamplesOf(const DistillationPrompt& prompt, int width) {
  return (static_cast<int>(prompt.continuation.size()) + width - 1) / width;
}

int64_t CountSamples(absl::Span<const DistillationPrompt> prompts, int width) {
  int64_t count = 0;
  for (const DistillationPrompt& prompt : prompts) count += SamplesOf(prompt, width);
  return count;
}

int64_t CountLeft(absl::Span<const DistillationPrompt> prompts, int width) {
  int64_t count = 0;
  for (const DistillationPrompt& prompt : prompts) count += LeftOf(prompt, width);
  return count;
}

int64_t MarkLearned(const std::vector<bool>& agrees, int width, int ssm,
                    DistillationPrompt* prompt) {
  const int samples = SamplesOf(*prompt, width);
  prompt->learned_by.resize(samples, 0);
  int64_t marked = 0;
  for (int s = 0; s < samples; ++s) {
    const auto begin = agrees.begin() + s * width;
    const auto end = agrees.begin() + std::min<int64_t>((s + 1) * width, agrees.size());
    if (prompt->learned_by[s] != 0 || begin >= end ||
        !std::all_of(begin, end, [](bool b) { return b; })) {
      continue;
    }
    prompt->learned_by[s] = ssm;
    ++marked;
  }
  return marked;
}

DistillationRound MakeRound(absl::Span<const DistillationPrompt> prompts, int width, int likely) {
  DistillationRound round;
  round.soft = likely > 0 ? likely + 1 : 0;
  for (const DistillationPrompt& prompt : prompts) {
    // The last token is only a target.
    round.columns = std::max<int64_t>(
        round.columns, static_cast<int64_t>(prompt.prompt.size() + prompt.continuation.size()) - 1);
  }
  for (const DistillationPrompt& prompt : prompts) {
    const int left = LeftOf(prompt, width);
    if (left == 0) continue;
    round.samples += left;
    const size_t row = static_cast<size_t>(round.rows++ * round.columns);
    round.tokens.resize(row + static_cast<size_t>(round.columns), 0);
    round.targets.resize(row + static_cast<size_t>(round.columns), DistillationRound::kIgnored);
    std::vector<int> all = prompt.prompt;
    all.insert(all.end(), prompt.continuation.begin(), prompt.continuation.end());
    std::copy(all.begin(), all.end() - 1, round.tokens.begin() + static_cast<int64_t>(row));
    const size_t soft = static_cast<size_t>(round.soft);
    round.soft_tokens.resize(round.tokens.size() * soft, 0);
    round.soft_weights.resize(round.tokens.size() * soft, 0);
    const size_t answer = prompt.prompt.size();
    for (size_t t = 0; t < prompt.continuation.size(); ++t) {
      if (!Left(prompt, static_cast<int>(t) / width)) continue;
      const size_t place = row + answer + t - 1;
      round.targets[place] = prompt.continuation[t];
      if (soft > 0) AddSoftLabels(prompt, t, place * soft, &round);
    }
  }
  return round;
}

}  // namespace espalier
