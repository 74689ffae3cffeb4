#include "server/distillation/check_distillation_spec.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/model.h"
#include "ops/optimizer/optimizer.h"
#include "ops/quantized/quantize_graph.h"
#include "serving/distillation/distillation_prompts.h"
#include "serving/models/check_same_vocabulary.h"
#include "serving/sampling/distribution.h"
#include "serving/sampling/logprobs.h"
#include "serving/speculative/expansion.h"

namespace espalier {
namespace {

constexpr int kMaxPrompts = 1 << 17;
constexpr int kMaxTokens = 1 << 16;           // of a prompt, and of a continuation
constexpr int64_t kMaxAllTokens = 1 << 25;    // of all prompts and continuations
constexpr int64_t kMaxPromptBytes = 1 << 28;  // of the file
constexpr int64_t kMaxSoftLabels = 1 << 26;   // of all continuations

absl::Status Field(const std::string& name, const absl::Status& problem) {
  return absl::Status(problem.code(), absl::StrCat("field '", name, "': ", problem.message()));
}

absl::Status Field(const std::string& name, const std::string& problem) {
  return Field(name, absl::InvalidArgumentError(problem));
}

absl::Status InRange(const std::string& name, int64_t value, int64_t most) {
  if (value >= 1 && value <= most) return absl::OkStatus();
  return Field(name,
               absl::StrCat("is ", value, ", expected 1 to ", most, ", or 0 for the default"));
}

// Checks single fields and fills in defaults.
absl::StatusOr<v1::DistillationSpec> Complete(const OpRegistry& operators,
                                              v1::DistillationSpec spec) {
  if (absl::Status s = CheckArtifactName(spec.name()); !s.ok()) return Field("name", s);
  if (spec.llm().empty()) return Field("llm", "names no artifact");
  if (spec.prompts().empty()) return Field("prompts", "names no artifact");
  if (spec.ssms().empty() || spec.ssms_size() > kMaxSsms) {
    return Field("ssms", absl::StrCat("has ", spec.ssms_size(), " entries, expected 1 to ",
                                      kMaxSsms, " models to tune"));
  }
  if (!v1::DistillationSpec::PromptFormat_IsValid(spec.prompt_format())) {
    return Field("prompt_format", absl::StrCat("is ", static_cast<int>(spec.prompt_format()),
                                               ", expected LIST or TEXT"));
  }
  const auto fill = [](auto value, auto fallback) { return value == 0 ? fallback : value; };
  spec.set_prompt_tokens(fill(spec.prompt_tokens(), 32));
  spec.set_max_prompts(fill(spec.max_prompts(), 512));
  spec.set_holdout_fraction(fill(spec.holdout_fraction(), 0.1));
  spec.set_continuation_tokens(fill(spec.continuation_tokens(), 32));
  spec.set_sample_tokens(fill(spec.sample_tokens(), 4));
  spec.set_batch_size(fill(spec.batch_size(), int64_t{16}));
  if (spec.epochs() == 0 && spec.steps() == 0) spec.set_epochs(4);
  if (spec.expansion().empty()) {
    for (int children : {1, 1, 3, 1, 1}) spec.add_expansion(children);
  }
  const std::pair<const char*, std::pair<int64_t, int64_t>> ranges[] = {
      {"prompt_tokens", {spec.prompt_tokens(), kMaxTokens}},
      {"max_prompts", {spec.max_prompts(), kMaxPrompts}},
      {"continuation_tokens", {spec.continuation_tokens(), kMaxTokens}},
      {"sample_tokens", {spec.sample_tokens(), spec.continuation_tokens()}}};
  for (const auto& [name, range] : ranges) {
    if (absl::Status s = InRange(name, range.first, range.second); !s.ok()) return s;
  }
  if (spec.soft_labels() < 0 || spec.soft_labels() > kMaxTopLogprobs) {
    return Field("soft_labels", absl::StrCat("is ", spec.soft_labels(),
                                             ", expected 0, for none, to ", kMaxTopLogprobs));
  }
  if (!(spec.holdout_fraction() > 0 && spec.holdout_fraction() < 1)) {
    return Field("holdout_fraction", "expected more than 0, less than 1");
  }
  // Training jobs would refuse these, too, but only after the continuations were generated.
  if (spec.batch_size() < 1 || spec.epochs() < 0 || spec.steps() < 0 ||
      (spec.epochs() > 0) == (spec.steps() > 0) || spec.checkpoint_every_steps() < 0) {
    return Field("epochs, steps, batch_size, checkpoint_every_steps",
                 "expected one of epochs and steps, a batch of at least 1, and no negative number");
  }
  if (absl::Status s = CheckOptimizer(operators, spec.optimizer()); !s.ok()) {
    return Field("optimizer", s);
  }
  if (absl::Status s = ValidateSampling({.temperature = spec.temperature()}); !s.ok()) return s;
  if (absl::Status s =
          Expansion::Create({spec.expansion().begin(), spec.expansion().end()}).status();
      !s.ok()) {
    return Field("expansion", s);
  }
  if (!spec.weights().empty()) {
    if (absl::Status s = WeightFormatOf(spec.weights()).status(); !s.ok())
      return Field("weights", s);
  }
  return spec;
}

absl::StatusOr<ModelDescription> Describe(const DistillationDependencies& tools,
                                          const std::string& artifact) {
  absl::StatusOr<v1::Artifact> found = tools.artifacts->Find(artifact);
  if (!found.ok()) return found.status();
  if (found->kind() != v1::Artifact::MODEL) {
    return absl::InvalidArgumentError(absl::StrCat("artifact '", artifact, "' is no model"));
  }
  return tools.describe(artifact);
}

// Soft labels are LLM probabilities over the same vocabulary.
absl::Status SameSize(const std::string& llm, const ModelDescription& large, const std::string& ssm,
                      const ModelDescription& small) {
  const int64_t wanted = large.model.facts.vocab_size, has = small.model.facts.vocab_size;
  if (wanted == has) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("'", ssm, "' has a vocabulary of ", has,
                                                 " tokens, the LLM '", llm, "' of ", wanted,
                                                 "; an SSM must have the LLM's"));
}

absl::Status LongEnough(const std::string& model, int64_t positions,
                        const v1::DistillationSpec& spec) {
  // One more than trained on: scoring needs a position for the next token.
  const int64_t needed = int64_t{spec.prompt_tokens()} + spec.continuation_tokens() + 1;
  if (positions >= needed) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      model, " has ", positions, " positions, but ", spec.prompt_tokens(), " tokens of prompt, ",
      spec.continuation_tokens(), " of continuation and one more need ", needed));
}

absl::Status CheckStart(const DistillationDependencies& tools, const v1::DistillationSpec& spec,
                        const ModelDescription& llm, const v1::DistillationStart& start) {
  switch (start.start_case()) {
    case v1::DistillationStart::kArtifact: {
      absl::StatusOr<ModelDescription> ssm = Describe(tools, start.artifact());
      if (!ssm.ok()) return ssm.status();
      absl::Status status = SameSize(spec.llm(), llm, start.artifact(), *ssm);
      if (status.ok()) status = CheckSameVocabulary(spec.llm(), llm, start.artifact(), *ssm);
      if (!status.ok()) return status;
      // Fewer models can be trained than served.
      status = BuildTraining(*tools.operators, ssm->model, 1).status();
      if (!status.ok()) {
        return absl::Status(status.code(), absl::StrCat("'", start.artifact(),
                                                        "' cannot be trained: ", status.message()));
      }
      return LongEnough(absl::StrCat("'", start.artifact(), "'"), ssm->model.facts.max_positions,
                        spec);
    }
    case v1::DistillationStart::kConfig: {
      absl::StatusOr<LanguageModel> model = ReadModel(start.config());
      if (!model.ok()) return model.status();
      absl::Status status = BuildTraining(*tools.operators, *model, 1).status();
      if (!status.ok()) return status;
      if (model->facts.vocab_size != llm.model.facts.vocab_size) {
        return absl::InvalidArgumentError(absl::StrCat(
            "the configuration has a vocabulary of ", model->facts.vocab_size, " tokens, the LLM '",
            spec.llm(), "' of ", llm.model.facts.vocab_size, "; an SSM must have the LLM's"));
      }
      return LongEnough("the configuration", model->facts.max_positions, spec);
    }
    case v1::DistillationStart::START_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("names neither an artifact nor a configuration");
}

// Returns the artifacts that the job writes. They must not be among those that it reads.
absl::StatusOr<std::vector<std::string>> Outputs(const DistillationDependencies& tools,
                                                 const v1::DistillationSpec& spec) {
  std::set<std::string> read = {spec.llm(), spec.prompts()};
  for (const v1::DistillationStart& start : spec.ssms()) read.insert(start.artifact());
  std::vector<std::string> outputs;
  for (int k = 0; k < spec.ssms_size(); ++k) {
    outputs.push_back(DistilledArtifact(spec.name(), k));
    if (absl::Status s = CheckClientArtifactName(outputs.back()); !s.ok()) return Field("name", s);
    const absl::StatusOr<v1::Artifact> there = tools.artifacts->Find(outputs.back());
    if (read.count(outputs.back()) > 0 || (there.ok() && there->kind() != v1::Artifact::MODEL)) {
      return Field("name", absl::AlreadyExistsError(absl::StrCat(
                               "the job would write artifact '", outputs.back(),
                               "', which it reads or which is no model; choose another name")));
    }
  }
  return outputs;
}

absl::StatusOr<v1::DistillationPrompts> ReadPrompts(const DistillationDependencies& tools,
                                                    const v1::DistillationSpec& spec,
                                                    const Tokenizer& tokenizer) {
  absl::StatusOr<std::string> path = tools.artifacts->SingleFile(spec.prompts());
  if (!path.ok()) return path.status();
  absl::StatusOr<std::string> bytes = ReadWholeFile(*tools.files, *path, kMaxPromptBytes);
  if (!bytes.ok()) return bytes.status();
  const PromptLimits limits{.max_tokens = spec.prompt_tokens(), .max_prompts = spec.max_prompts()};
  absl::StatusOr<std::vector<std::vector<int>>> read =
      spec.prompt_format() == v1::DistillationSpec::TEXT ? PromptsOfText(*bytes, tokenizer, limits)
                                                         : PromptsOfList(*bytes, tokenizer, limits);
  if (!read.ok()) return read.status();
  const int64_t count = static_cast<int64_t>(read->size());
  const int64_t held_out = std::max<int64_t>(
      1, static_cast<int64_t>(std::floor(static_cast<double>(count) * spec.holdout_fraction())));
  if (held_out >= count) {
    return absl::InvalidArgumentError(
        absl::StrCat("there are ", count, " prompts, of which ", held_out,
                     " are held out; at least one must be left to train on"));
  }
  if (count * (spec.prompt_tokens() + spec.continuation_tokens()) > kMaxAllTokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        count, " prompts of up to ", spec.prompt_tokens(), " + ", spec.continuation_tokens(),
        " tokens are more than ", kMaxAllTokens, " tokens; take fewer prompts"));
  }
  if (count * spec.continuation_tokens() * spec.soft_labels() > kMaxSoftLabels) {
    return absl::InvalidArgumentError(
        absl::StrCat(count, " continuations of ", spec.continuation_tokens(), " tokens with ",
                     spec.soft_labels(), " soft labels each are more than ", kMaxSoftLabels,
                     "; take fewer prompts or labels"));
  }
  v1::DistillationPrompts prompts;
  for (int64_t i = 0; i < count; ++i) {
    v1::DistillationPrompt* prompt =
        i < count - held_out ? prompts.add_prompts() : prompts.add_held_out();
    const std::vector<int>& tokens = (*read)[static_cast<size_t>(i)];
    prompt->mutable_prompt()->Assign(tokens.begin(), tokens.end());
  }
  return prompts;
}

}  // namespace

std::string DistilledArtifact(const std::string& name, int k) {
  return absl::StrCat(name, "-", k + 1);
}

absl::StatusOr<CheckedDistillation> CheckDistillationSpec(const DistillationDependencies& tools,
                                                          const v1::DistillationSpec& given) {
  absl::StatusOr<v1::DistillationSpec> spec = Complete(*tools.operators, given);
  if (!spec.ok()) return spec.status();
  absl::StatusOr<ModelDescription> llm = Describe(tools, spec->llm());
  if (!llm.ok()) return Field("llm", llm.status());
  absl::Status status =
      LongEnough(absl::StrCat("'", spec->llm(), "'"), llm->model.facts.max_positions, *spec);
  if (!status.ok()) return Field("llm", status);
  if (spec->soft_labels() > llm->model.facts.vocab_size) {
    return Field("soft_labels", absl::StrCat("is ", spec->soft_labels(), ", the LLM has ",
                                             llm->model.facts.vocab_size, " tokens"));
  }
  for (int k = 0; k < spec->ssms_size(); ++k) {
    status = CheckStart(tools, *spec, *llm, spec->ssms(k));
    if (!status.ok()) return Field(absl::StrCat("ssms[", k, "]"), status);
  }
  absl::StatusOr<std::vector<std::string>> outputs = Outputs(tools, *spec);
  if (!outputs.ok()) return outputs.status();
  absl::StatusOr<v1::DistillationPrompts> prompts = ReadPrompts(tools, *spec, *llm->tokenizer);
  if (!prompts.ok()) return Field("prompts", prompts.status());
  return CheckedDistillation{*std::move(spec), *std::move(prompts), *std::move(outputs)};
}

}  // namespace espalier
