// Part of Engine: verification of an LLM step's outputs and the tokens that requests get from it.
#include <algorithm>
#include <cmath>
#include <utility>

#include "serving/engine/engine.h"
#include "serving/sampling/sampler.h"
#include "serving/speculative/rejection_sampling.h"

namespace espalier {

absl::Status Engine::Verify(Work& work, int index, const StepOutput& logits) {
  const RequestId id = work.assignment.id;
  const auto found = requests_.find(id);
  if (found == requests_.end()) return absl::OkStatus();  // cancelled, or out of time
  Entry& entry = found->second;
  Request& request = *entry.request;
  if (options_.prefix_cache) {
    // A whole prompt: other choices of the same request start with all of it.
    const bool whole = work.end == request.length() && request.emitted() == 0;
    kv_.CacheBlocks(id, request.tokens(), NamespaceOf(request), whole);
  }
  for (int row = 0; row < work.prompt_rows; ++row) {
    if (const TokenLogprobs* known = logits.logprobs(index, row)) {
      request.AddPromptLogprobs(*known);
    } else if (const float* all = logits.at(index, row)) {
      request.AddPromptLogprobs(all, limits_.vocabulary);
    } else {
      return absl::InternalError("the model runner left out log-probabilities of a prompt");
    }
  }
  if (work.end < request.length()) return absl::OkStatus();  // in the middle of the prompt
  entry.busy = false;
  if (request.options().embed) {
    Embed(entry, logits.hidden(index, 0));
    return absl::OkStatus();
  }
  // After the prompt's rows come the root and the nodes, as the tree numbers them. Logits
  // processors apply before anything is compared or sampled; here, if the runner did not apply
  // them.
  std::vector<float> ruled;
  const auto row_of = [&](int node) -> absl::StatusOr<const float*> {
    const float* row = logits.at(index, work.prompt_rows + node);
    if (!request.logits_processor().active()) return row;
    ruled.assign(row, row + limits_.vocabulary);
    absl::Status status =
        request.logits_processor().Apply(work.tree.PathTo(node), ruled.data(), limits_.vocabulary);
    if (!status.ok()) return status;
    return ruled.data();
  };
  absl::StatusOr<Verification> verification;
  const SamplingParameters& sampling = request.options().sampling;
  const bool shared = UsesCoupledSampling(request.options(), options_.speculation.sampled);
  if (sampling.greedy() || shared || !work.tree.drawn()) {
    verification = VerifyGreedy(work.tree, [&](int node) -> absl::StatusOr<int> {
      const auto chosen = logits.choices(index, work.prompt_rows + node);
      if (!chosen.empty() && chosen[0].token < 0) {
        return absl::InternalError("the model runner left out a token that was to be chosen");
      }
      if (!chosen.empty()) return chosen[0].token;
      const absl::StatusOr<const float*> row = row_of(node);
      if (!row.ok()) return row.status();
      return SampleToken(absl::MakeConstSpan(*row, limits_.vocabulary), sampling, shared,
                         request.length() + work.tree.depth(node));
    });
  } else {
    RequestRng noise(request.options().sampling.seed, request.length() - 1);
    verification = VerifySampled(
        work.tree,
        [&](int node) -> absl::StatusOr<Distribution> {
          const absl::StatusOr<const float*> row = row_of(node);
          if (!row.ok()) return row.status();
          return SamplingDistribution(*row, limits_.vocabulary, request.options().sampling);
        },
        noise);
  }
  if (verification.ok()) return CommitTokens(entry, work, *verification, index, logits);
  // NaN logits and failing logits processors concern only this request.
  request.Finish(FinishReason::kError);
  EmitEvent(entry, verification.status());
  Retire(id);
  return absl::OkStatus();
}

void Engine::CountPrompt(const Usage& usage) {
  statistics_.whole_prompt_tokens += usage.prompt_tokens;
  statistics_.cached_prompt_tokens += usage.cached_tokens;
}

void Engine::Embed(Entry& entry, const float* hidden) {
  Request& request = *entry.request;
  CountPrompt(request.usage());
  request.usage().seconds_to_first_token = Now() - entry.arrived;
  std::vector<float> embedding(hidden, hidden + limits_.hidden);
  const bool finite = std::all_of(embedding.begin(), embedding.end(),
                                  [](float value) { return std::isfinite(value); });
  request.Finish(finite ? FinishReason::kStop : FinishReason::kError);
  EmitEvent(entry,
            finite
                ? absl::OkStatus()
                : absl::InternalError("the model's hidden state holds values that are no numbers"),
            finite ? std::move(embedding) : std::vector<float>());
  Retire(request.id());
}

absl::Status Engine::CommitTokens(Entry& entry, Work& work, const Verification& verification,
                                  int index, const StepOutput& logits) {
  Request& request = *entry.request;
  const RequestId id = request.id();
  Usage& usage = request.usage();
  if (request.emitted() == 0) {
    usage.seconds_to_first_token = Now() - entry.arrived;
    CountPrompt(usage);
  }
  if (work.assignment.decodes) {
    ++usage.verification_steps;
    ++statistics_.verifications;
  }
  if (work.tree.drafted() > 0) ++statistics_.trees;
  usage.drafted_tokens += work.tree.drafted();
  statistics_.drafted_tokens += work.tree.drafted();
  for (int node = 1; node < work.tree.size(); ++node) {
    ++statistics_.drafted_by_depth[work.tree.depth(node) - 1];
  }
  size_t accepted_nodes = 0;
  for (size_t i = 0; i < verification.tokens.size() && request.phase() != Phase::kFinished; ++i) {
    const int token = verification.tokens[i];
    TokenLogprobs logprobs;
    const bool reported = request.options().logprobs >= 0;
    if (reported) {
      const int row = work.prompt_rows + (i == 0 ? 0 : verification.path[i - 1]);
      if (const TokenLogprobs* known = logits.logprobs(index, row)) {
        logprobs = *known;
      } else if (const float* all = logits.at(index, row)) {
        logprobs = LogprobsOf(all, limits_.vocabulary, token, request.options().logprobs);
      }
      if (logprobs.token != token) {
        return absl::InternalError("the model runner left out the log-probabilities of a token");
      }
    }
    request.Emit(token, context_, reported ? &logprobs : nullptr);
    ++statistics_.generated_tokens;
    if (i < verification.path.size()) {
      ++accepted_nodes;
      ++usage.accepted_tokens;
      ++statistics_.accepted_tokens;
      ++statistics_.accepted_by_depth[i];
    }
  }
  speculator_->CountNgramTokens(work.tree,
                                absl::MakeConstSpan(verification.path).subspan(0, accepted_nodes));
  EmitEvent(entry);
  std::vector<int32_t> accepted;
  for (size_t i = 0; i < accepted_nodes; ++i) {
    accepted.push_back(work.slots[verification.path[i] - 1]);
  }
  absl::Status status = kv_.CommitScratch(id, accepted);
  kv_.DropScratch(id);
  if (!status.ok()) return status;
  if (request.phase() == Phase::kFinished) {
    // The next turn of a chat continues after the output.
    if (options_.prefix_cache) {
      kv_.CacheBlocks(id, request.tokens(), NamespaceOf(request), /*whole=*/true);
    }
    Retire(id);
    return absl::OkStatus();
  }
  const size_t accepted_tokens = verification.path.size();
  speculator_->Commit(request, absl::MakeConstSpan(verification.tokens).subspan(0, accepted_tokens),
                      verification.tokens[accepted_tokens]);
  return absl::OkStatus();
}

}  // namespace espalier
