#include "models/training_builder.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "models/distillation.h"

namespace espalier {
namespace {

Attributes SliceOf(int64_t axis, int64_t begin, int64_t end) {
  return {{"axes", Dims{axis}}, {"starts", Dims{begin}}, {"ends", Dims{end}}};
}

// "model.layers.3.mlp" -> "layers.3.": up to the first number between dots.
std::string LayerOf(const std::string& name) {
  for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    size_t end = dot + 1;
    while (end < name.size() && absl::ascii_isdigit(static_cast<unsigned char>(name[end]))) ++end;
    if (end > dot + 1 && end < name.size() && name[end] == '.') return name.substr(0, end + 1);
  }
  return "";
}

}  // namespace

TrainingBuilder::TrainingBuilder(const OpRegistry& registry, const LanguageModel& model,
                                 int64_t sequence_length, int64_t soft_labels)
    : ModelBuilder(registry, model,
                   {.graph_name = absl::StrCat(model.facts.family, "_training"),
                    .leading = 2,
                    .longest_sequence = sequence_length}),
      length_(sequence_length),
      soft_labels_(soft_labels) {
  tokens_ = b_.Input("tokens", DType::kI32, {-1, length_});
  targets_ = b_.Input("targets", DType::kI32, {-1, length_});
}

std::string TrainingBuilder::NodeName(const std::string& op, const std::string& name) {
  if (!name.empty()) {
    const std::string short_name(absl::StripPrefix(name, "model."));
    scope_ = LayerOf(short_name);
    return short_name;
  }
  const std::string stem = absl::StrCat(scope_, op);
  const int before = unnamed_[stem]++;
  return before == 0 ? stem : absl::StrCat(stem, "_", before + 1);
}

ValueId TrainingBuilder::Parameter(const std::string& name, Dims dims, Initializer start,
                                   WeightSource source) {
  if (!source.pieces.empty()) {
    status_.Update(absl::UnimplementedError(
        absl::StrCat("parameter '", name,
                     "' is made of other tensors of the model's files; training accepts families "
                     "whose parameters are tensors of their files")));
  }
  return b_.Parameter(name, DType::kF32, std::move(dims), start);
}

ValueId TrainingBuilder::PositionEmbedding(const std::string& name, int64_t count, int64_t size,
                                           int64_t skipped) {
  const ValueId table =
      Parameter(name + ".weight", {count + skipped, size}, {Initializer::kNormal, 0.02});
  return Op("slice", {table}, SliceOf(0, skipped, skipped + length_), name);
}

ValueId TrainingBuilder::WholeLinear(const std::string& name, ValueId x, int64_t out, int64_t in,
                                     const LinearOptions& options) {
  // Keeps the variance of the residual stream independent of depth (GPT-2).
  const double layers = static_cast<double>(std::max<int64_t>(1, facts_.layers));
  const double scale = options.residual ? 1 / std::sqrt(2 * layers) : 1;
  const Dims dims = options.transposed ? Dims{in, out} : Dims{out, in};
  ValueId weight = Parameter(name + ".weight", dims, {Initializer::kNormal, 0.02 * scale});
  if (options.transposed) {
    weight = Op("transpose", {weight}, {{"perm", Dims{1, 0}}}, name + ".transposed");
  }
  std::vector<ValueId> inputs = {x, weight};
  if (options.bias) inputs.push_back(Parameter(name + ".bias", {out}, {Initializer::kZeros}));
  return Op("linear", inputs, {}, name);
}

ValueId TrainingBuilder::Columns(ValueId x, const FusedRows& fused, const std::string& name) {
  if (fused.rows.size() == 1) {
    return Op("slice", {x}, SliceOf(-1, fused.rows[0].first, fused.rows[0].second), name);
  }
  std::vector<ValueId> parts;
  for (const auto& [begin, end] : fused.rows) {
    parts.push_back(Op("slice", {x}, SliceOf(-1, begin, end)));
  }
  return Op("concat", parts, {{"axis", int64_t{-1}}}, name);
}

ValueId TrainingBuilder::Linear(const std::string& name, ValueId x, int64_t out, int64_t in,
                                const LinearOptions& options) {
  if (options.fused.tensor.empty()) return WholeLinear(name, x, out, in, options);
  // Fused layers read the same values.
  const auto [whole, is_new] = fused_.try_emplace(options.fused.tensor, kNoValue);
  if (is_new) whole->second = WholeLinear(options.fused.tensor, x, options.fused.out, in, options);
  return Columns(whole->second, options.fused, name);
}

ValueId TrainingBuilder::NormWeight(const std::string& tensor, int64_t size, double add) {
  if (add == 0) return Parameter(tensor, {size}, {Initializer::kOnes});
  const ValueId weight =
      Parameter(tensor, {size}, {.kind = Initializer::kConstant, .mean = 1 - add});
  return Op("add_scalar", {weight}, {{"value", add}}, absl::StrCat(tensor, ".added"));
}

ValueId TrainingBuilder::Logits(ValueId hidden, int64_t size, const std::string& tied) {
  if (!tied.empty()) Ignore({"lm_head.weight"});
  const ValueId weight = tied.empty() ? Parameter("lm_head.weight", {facts_.vocab_size, size},
                                                  {Initializer::kNormal, 0.02})
                                      : Table(tied);
  return Op("linear", {hidden, weight}, {}, "lm_head");
}

ValueId TrainingBuilder::Loss(ValueId logits) {
  if (soft_labels_ == 0) {
    return b_.Op("sparse_categorical_crossentropy", {logits, targets_}, {}, "loss");
  }
  const Dims labels = {-1, length_, soft_labels_};
  const ValueId tokens = b_.Input("soft_tokens", DType::kI32, labels);
  const ValueId weights = b_.Input("soft_weights", DType::kF32, labels);
  const ValueId all = b_.Op("log_softmax", {logits}, {}, "soft_labels.log_probabilities");
  const ValueId at =
      b_.Op("gather_elements", {all, tokens}, {{"axis", int64_t{-1}}}, "soft_labels.of_labels");
  const ValueId weighted = b_.Op("multiply", {at, weights}, {}, "soft_labels.weighted");
  // The loss is a mean over all labels; this one is over positions.
  const ValueId values = b_.Op("multiply_scalar", {weighted},
                               {{"value", -static_cast<double>(soft_labels_)}}, "soft_labels");
  return b_.Op("identity_loss", {values}, {}, "loss");
}

absl::StatusOr<TrainingModel> TrainingBuilder::Finish(ValueId logits) {
  if (!status_.ok()) return status_;
  b_.Output("loss", Loss(logits));
  b_.Output("accuracy", b_.Op("accuracy", {logits, targets_}, {}, "accuracy"));
  absl::StatusOr<Graph> graph = b_.Build();
  if (!graph.ok()) return graph.status();
  return TrainingModel{*std::move(graph), std::move(weights_.ignored)};
}

namespace {

absl::StatusOr<TrainingModel> BuildTrainingModel(const OpRegistry& registry,
                                                 const LanguageModel& model,
                                                 int64_t sequence_length, int64_t soft_labels) {
  const ModelFacts& facts = model.facts;
  if (facts.packed_bits != 0) {
    return absl::UnimplementedError(absl::StrCat(
        "the weights are packed in ", facts.packed_bits,
        " bits; training accepts f32, bf16 and f16: give the model that was quantized"));
  }
  if (facts.text_part) {
    return absl::UnimplementedError(
        absl::StrCat("'", facts.family,
                     "' reads images, too; training accepts a model of its text part alone: with "
                     "\"text_config\", and the outer \"eos_token_id\", as its config.json, and "
                     "tensors whose names lose \"",
                     kTextPart, "\""));
  }
  if (facts.experts) {
    return absl::UnimplementedError(absl::StrCat(
        "'", facts.family, "' is a mixture of experts; training accepts dense families"));
  }
  if (sequence_length < 1 || sequence_length > facts.max_positions) {
    return absl::InvalidArgumentError(absl::StrCat("examples have ", sequence_length,
                                                   " tokens; accepted: 1 to ", facts.max_positions,
                                                   ", the positions of the model"));
  }
  TrainingBuilder builder(registry, model, sequence_length, soft_labels);
  const ValueId logits = model.build(builder);
  return builder.Finish(logits);
}

}  // namespace

absl::StatusOr<TrainingModel> BuildTraining(const OpRegistry& registry, const LanguageModel& model,
                                            int64_t sequence_length) {
  return BuildTrainingModel(registry, model, sequence_length, /*soft_labels=*/0);
}

absl::StatusOr<TrainingModel> BuildDistillation(const OpRegistry& registry,
                                                const LanguageModel& model, int64_t sequence_length,
                                                int64_t soft_labels) {
  return BuildTrainingModel(registry, model, sequence_length, soft_labels);
}

}  // namespace espalier
