#include "server/jobs/prepare_validation.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "ops/graph/operators_proto.h"
#include "server/jobs/training_dataset.h"
#include "server/jobs/validation_history.h"

namespace espalier {
namespace {

constexpr int64_t kMaxPeriod = int64_t{1} << 40;

absl::Status BadField(const std::string& name, const std::string& problem) {
  return absl::InvalidArgumentError(absl::StrCat("spec.", name, ": ", problem));
}

absl::Status CheckDataset(const v1::TrainingSpec& spec) {
  const v1::Dataset& dataset = spec.validation().dataset();
  if (dataset.uri().empty()) {
    return BadField(
        "validation.dataset.uri",
        "give artifact:<name>, s3://bucket/key or an absolute path, or no validation.dataset");
  }
  if (spec.dataset().holdout_fraction() > 0) {
    return BadField("dataset.holdout_fraction",
                    absl::StrCat("it keeps examples apart for the evaluation, and so does "
                                 "validation.dataset; give one of them"));
  }
  const bool streams = spec.dataset().format() == v1::Dataset::STREAM;
  if (dataset.format() != (streams ? v1::Dataset::NPZ : spec.dataset().format())) {
    return BadField("validation.dataset.format",
                    streams ? "must be NPZ, as dataset is a STREAM"
                            : absl::StrCat("must be that of dataset, ",
                                           v1::Dataset::Format_Name(spec.dataset().format())));
  }
  if (dataset.holdout_fraction() != 0 || dataset.has_shuffle()) {
    return BadField("validation.dataset.holdout_fraction, shuffle",
                    "all its examples are evaluated, in order; leave them unset");
  }
  if (!dataset.columns().empty()) {
    return BadField("validation.dataset.columns",
                    "the columns are those of dataset.columns; leave them unset, and name the "
                    "columns alike");
  }
  if (dataset.sequence_length() != 0 &&
      dataset.sequence_length() != spec.dataset().sequence_length()) {
    return BadField(
        "validation.dataset.sequence_length",
        absl::StrCat("must be that of dataset, ", spec.dataset().sequence_length(), ", or unset"));
  }
  return absl::OkStatus();
}

absl::Status CheckEarlyStopping(const v1::TrainingSpec& spec) {
  const v1::EarlyStopping& rule = spec.early_stopping();
  if (!spec.has_validation()) {
    return BadField("early_stopping", "it needs validation, whose results it judges by");
  }
  if (!v1::EarlyStopping::Mode_IsValid(rule.mode())) {
    return BadField("early_stopping.mode", "AUTO, MIN and MAX are accepted");
  }
  if (rule.patience() < 0) {
    return BadField("early_stopping.patience", "0 (never stop) or more validations");
  }
  if (!(rule.min_delta() >= 0) || std::isinf(rule.min_delta())) {
    return BadField("early_stopping.min_delta", "0 or a positive number");
  }
  if (rule.has_baseline() && !std::isfinite(rule.baseline())) {
    return BadField("early_stopping.baseline", "a number, or unset");
  }
  return absl::OkStatus();
}

struct Reported {
  std::string name;
  bool larger_is_better;
};

// The outputs whose values an evaluation reports.
std::vector<Reported> ReportedValues(const OpRegistry& registry, const Graph& graph) {
  std::vector<Reported> values;
  for (const auto& [name, value] : graph.outputs) {
    const Value& output = graph.value(value);
    const OpDef* producer =
        output.producer == kNoNode ? nullptr : registry.Find(graph.node(output.producer).op);
    const bool reported = producer != nullptr && output.producer_output == 0 &&
                          output.type.dims.empty() && (producer->is_metric || producer->is_loss);
    if (name != "loss" && !reported) continue;
    values.push_back({name, producer != nullptr && LargerIsBetter(*producer)});
  }
  return values;
}

}  // namespace

absl::Status CheckValidationFields(const v1::TrainingSpec& spec) {
  if (spec.has_early_stopping()) {
    if (absl::Status s = CheckEarlyStopping(spec); !s.ok()) return s;
  }
  if (!spec.has_validation()) return absl::OkStatus();
  const v1::Validation& validation = spec.validation();
  for (const auto& [name, every] : {std::pair{"every_steps", validation.every_steps()},
                                    std::pair{"every_epochs", validation.every_epochs()}}) {
    if (every >= 0 && every <= kMaxPeriod) continue;
    return BadField(absl::StrCat("validation.", name),
                    absl::StrCat("is ", every, "; accepted: 0 to ", kMaxPeriod));
  }
  if (validation.every_steps() > 0 && validation.every_epochs() > 0) {
    return BadField("validation.every_steps, every_epochs", "give one of them, not both");
  }
  if (validation.has_dataset()) return CheckDataset(spec);
  if (spec.dataset().holdout_fraction() > 0) return absl::OkStatus();
  return BadField("validation",
                  "there are no held-out examples to evaluate; give dataset.holdout_fraction or "
                  "validation.dataset");
}

v1::Dataset ValidationDataset(const v1::TrainingSpec& spec) {
  v1::Dataset dataset = spec.validation().dataset();
  dataset.set_holdout_fraction(1);
  if (dataset.sequence_length() == 0) {
    dataset.set_sequence_length(spec.dataset().sequence_length());
  }
  return dataset;
}

absl::StatusOr<ValidationExamples> OpenValidation(const v1::TrainingSpec& spec,
                                                  const ArtifactStore& artifacts,
                                                  const DatasetRoots& roots,
                                                  const JobTokenizer& tokenizer,
                                                  std::shared_ptr<const Dataset> training) {
  if (!spec.validation().has_dataset()) return ValidationExamples{std::move(training), nullptr};
  const v1::Dataset dataset = ValidationDataset(spec);
  const auto in_field = [](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat("spec.validation.dataset: ", status.message()));
  };
  ValidationExamples examples;
  if (tokenizer.tokenizer != nullptr && dataset.format() == v1::Dataset::TEXT) {
    absl::StatusOr<TokenizedText> text = TokenizeText(dataset, artifacts, roots, tokenizer);
    if (!text.ok()) return in_field(text.status());
    examples.dataset = examples.tokens = std::move(text->dataset);
    return examples;
  }
  absl::StatusOr<std::shared_ptr<const Dataset>> outline =
      OutlineDataset(dataset, artifacts, roots);
  if (!outline.ok()) return in_field(outline.status());
  examples.dataset = *std::move(outline);
  return examples;
}

absl::StatusOr<v1::EarlyStopping> ResolveEarlyStopping(const OpRegistry& registry,
                                                       const Graph& graph,
                                                       const v1::TrainingSpec& spec) {
  v1::EarlyStopping rule = spec.early_stopping();
  if (rule.monitor().empty()) rule.set_monitor(kDefaultMonitor);
  const std::vector<Reported> values = ReportedValues(registry, graph);
  absl::string_view name = rule.monitor();
  const bool prefixed = absl::ConsumePrefix(&name, kValidationPrefix);
  const auto found = std::find_if(values.begin(), values.end(),
                                  [&](const Reported& value) { return value.name == name; });
  if (!prefixed || found == values.end()) {
    return BadField(
        "early_stopping.monitor",
        absl::StrCat("a validation does not report '", rule.monitor(), "'; it reports ",
                     absl::StrJoin(values, ", ", [](std::string* out, const auto& value) {
                       absl::StrAppend(out, kValidationPrefix, value.name);
                     })));
  }
  if (rule.mode() == v1::EarlyStopping::AUTO) {
    rule.set_mode(found->larger_is_better ? v1::EarlyStopping::MAX : v1::EarlyStopping::MIN);
  }
  return rule;
}

int64_t ValidationPeriod(const v1::TrainingSpec& spec, int64_t steps_per_epoch) {
  if (!spec.has_validation()) return 0;
  if (spec.validation().every_steps() > 0) return spec.validation().every_steps();
  const int64_t epochs = std::max<int64_t>(1, spec.validation().every_epochs());
  // Not beyond the last step of any job.
  return epochs > kMaxPeriod / steps_per_epoch ? kMaxPeriod : epochs * steps_per_epoch;
}

}  // namespace espalier
