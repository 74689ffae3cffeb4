#include "client/cli/loss_flags.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "client/cli/operators.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

constexpr char kDefaultLoss[] = "sparse_categorical_crossentropy";
constexpr char kClassWeights[] = "class_weights";

template <typename Keep>
std::string NamesWhere(Keep keep) {
  std::vector<std::string> names;
  for (const OpDef* def : Operators().All()) {
    if (keep(*def)) names.push_back(def->name);
  }
  return absl::StrJoin(names, ", ");
}

// The attributes that a user may set: not those that the coordinator fills in.
std::vector<AttributeSpec> SettableAttributes(const OpDef& def) {
  std::vector<AttributeSpec> specs;
  for (const AttributeSpec& spec : def.attributes) {
    if (spec.name != "count") specs.push_back(spec);
  }
  if (def.prediction == Prediction::kValues) return specs;
  for (const auto& [name, kind] :
       {std::pair("from_logits", AttributeKind::kBool), std::pair("axis", AttributeKind::kInt)}) {
    bool known = false;
    for (const AttributeSpec& spec : specs) known = known || spec.name == name;
    if (!known) specs.push_back({.name = name, .kind = kind});
  }
  return specs;
}

bool TakesClassWeights(const OpDef& def) {
  return def.is_loss && std::any_of(def.inputs.begin(), def.inputs.end(),
                                    [](const auto& input) { return input.name == "weights"; });
}

absl::Status SetClassWeights(const std::string& flag, const std::string& text, v1::Head* head) {
  for (absl::string_view piece : absl::StrSplit(text, ',')) {
    float weight = 0;
    if (!absl::SimpleAtof(piece, &weight) || !std::isfinite(weight) || weight < 0) {
      return UsageError(absl::StrCat("--", flag, ": ", kClassWeights, " holds \"", Printable(piece),
                                     "\"; accepted: one number for each class, 0 or more"));
    }
    head->add_class_weights(weight);
  }
  return absl::OkStatus();
}

absl::Status SetHeadAttribute(const std::string& flag, const OpDef& def, absl::string_view pair,
                              bool is_loss, v1::Head* head) {
  const std::vector<std::string> parts = absl::StrSplit(pair, absl::MaxSplits('=', 1));
  std::vector<AttributeSpec> specs = SettableAttributes(def);
  const bool class_weights = is_loss && TakesClassWeights(def);
  if (class_weights && parts.size() == 2 && parts[0] == kClassWeights) {
    return SetClassWeights(flag, parts[1], head);
  }
  for (const AttributeSpec& spec : specs) {
    if (parts.size() != 2 || spec.name != parts[0]) continue;
    v1::Attribute& attribute = (*head->mutable_attributes())[spec.name];
    bool flag_value = false;
    double number = 0;
    int64_t integer = 0;
    if (spec.kind == AttributeKind::kBool && absl::SimpleAtob(parts[1], &flag_value)) {
      attribute.set_b(flag_value);
    } else if (spec.kind == AttributeKind::kFloat && absl::SimpleAtod(parts[1], &number)) {
      attribute.set_f(number);
    } else if (spec.kind == AttributeKind::kInt && absl::SimpleAtoi(parts[1], &integer)) {
      attribute.set_i(integer);
    } else if (spec.kind == AttributeKind::kString) {
      attribute.set_s(parts[1]);
    } else {
      return UsageError(absl::StrCat("--", flag, ": ", spec.name, " is \"", Printable(parts[1]),
                                     "\"; accepted: ",
                                     spec.kind == AttributeKind::kBool  ? "true, false"
                                     : spec.kind == AttributeKind::kInt ? "an integer"
                                                                        : "a number"));
    }
    return absl::OkStatus();
  }
  if (class_weights) specs.push_back({.name = kClassWeights, .kind = AttributeKind::kFloats});
  return UsageError(absl::StrCat(
      "--", flag, " holds \"", Printable(pair), "\"; accepted is KEY=VALUE with ",
      absl::StrJoin(specs, ", ",
                    [](std::string* out, const AttributeSpec& a) { out->append(a.name); })));
}

// Splits at commas, but not between the class weights of "class_weights=1,2,5,ignore_index=0".
std::vector<std::string> SplitPairs(absl::string_view text) {
  std::vector<std::string> pairs;
  for (absl::string_view piece : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const bool more = !absl::StrContains(piece, '=') && !pairs.empty() &&
                      absl::StartsWith(pairs.back(), absl::StrCat(kClassWeights, "="));
    if (more) {
      absl::StrAppend(&pairs.back(), ",", piece);
    } else {
      pairs.emplace_back(piece);
    }
  }
  return pairs;
}

// Parses NAME[:KEY=VALUE,...][@OUTPUT[:WEIGHT]].
absl::Status ParseHead(const std::string& flag, absl::string_view text, bool is_loss,
                       v1::Head* head) {
  const std::vector<std::string> sides = absl::StrSplit(text, absl::MaxSplits('@', 1));
  const std::vector<std::string> parts = absl::StrSplit(sides[0], absl::MaxSplits(':', 1));
  const OpDef* def = Operators().Find(parts[0]);
  const auto accepted = [is_loss](const OpDef& op) {
    return op.is_loss || (!is_loss && op.is_metric);
  };
  if (def == nullptr || !accepted(*def)) {
    return UsageError(absl::StrCat("--", flag, " is \"", Printable(parts[0]), "\"; accepted: ",
                                   is_loss ? "" : "none, ", NamesWhere(accepted)));
  }
  head->set_op(def->name);
  if (parts.size() > 1) {
    for (const std::string& pair : SplitPairs(parts[1])) {
      if (absl::Status s = SetHeadAttribute(flag, *def, pair, is_loss, head); !s.ok()) return s;
    }
  }
  if (sides.size() == 1) return absl::OkStatus();
  std::string output = sides[1];
  const size_t colon = output.rfind(':');
  double weight = 0;
  if (is_loss && colon != std::string::npos &&
      absl::SimpleAtod(output.substr(colon + 1), &weight)) {
    if (!(weight > 0)) {
      return UsageError(absl::StrCat(
          "--", flag, " is \"", Printable(text), "\", a weight of ", weight,
          "; accepted: more than 0. Of an output whose name ends so, give the weight, too: ",
          Printable(text), ":1"));
    }
    head->set_weight(weight);
    output.resize(colon);
  }
  if (output.empty()) {
    return UsageError(absl::StrCat("--", flag, " is \"", Printable(text),
                                   "\"; accepted: an output of the model after @"));
  }
  head->set_output(output);
  return absl::OkStatus();
}

// Splits at commas, but not between the attributes of one metric: "top_k_accuracy:k=3,a=1,loss".
std::vector<std::string> SplitMetrics(const std::string& text) {
  std::vector<std::string> items;
  for (absl::string_view piece : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const bool attribute = absl::StrContains(piece, '=') && !absl::StrContains(piece, ':');
    if (attribute && !items.empty()) {
      absl::StrAppend(&items.back(), ",", piece);
    } else {
      items.emplace_back(piece);
    }
  }
  return items;
}

}  // namespace

std::vector<FlagSpec> LossFlags() {
  const auto of = [](std::initializer_list<Prediction> kinds) {
    return NamesWhere([&](const OpDef& def) {
      bool any = false;
      for (Prediction kind : kinds) any = any || def.prediction == kind;
      return def.is_loss && any;
    });
  };
  return {
      {"loss", FlagType::kText, "LOSS[:KEY=VALUE,...][@OUTPUT[:WEIGHT]]",
       absl::StrCat("for ONNX (", kDefaultLoss, "); several add up. Of logits: ",
                    of({Prediction::kClassLogits, Prediction::kBinaryLogits}),
                    "; they skip a softmax or sigmoid that ends the model, and "
                    "from_logits=true or false says what the output holds. Of log-probabilities: ",
                    of({Prediction::kLogProbabilities}), ". Of values: ", of({Prediction::kValues}),
                    ". class_weights=1,5,... weighs the classes of ",
                    NamesWhere(TakesClassWeights)),
       0, 0, 0, true},
      {"loss-output", FlagType::kText, "OUTPUT",
       "the model's output for losses without @OUTPUT (the first)"},
      {"metrics", FlagType::kText, "LIST",
       absl::StrCat("for ONNX (accuracy with ", kDefaultLoss,
                    "): none, or NAME[:KEY=VALUE]"
                    "[@OUTPUT] of losses, ",
                    NamesWhere([](const OpDef& def) { return def.is_metric; }))},
  };
}

absl::StatusOr<v1::Objective> ChooseObjective(const ParsedFlags& flags) {
  v1::Objective objective;
  std::vector<std::string> losses = flags.Values("loss");
  if (losses.empty()) losses = {kDefaultLoss};
  for (const std::string& loss : losses) {
    v1::Head* head = objective.add_losses();
    if (absl::Status s = ParseHead("loss", loss, true, head); !s.ok()) return s;
    if (head->output().empty()) head->set_output(flags.Text("loss-output"));
  }
  const std::string metrics =
      flags.Text("metrics", objective.losses(0).op() == kDefaultLoss ? "accuracy" : "none");
  if (metrics == "none") return objective;
  for (const std::string& metric : SplitMetrics(metrics)) {
    absl::Status s = ParseHead("metrics", metric, false, objective.add_metrics());
    if (!s.ok()) return s;
  }
  return objective;
}

}  // namespace espalier
