#include "server/jobs/trained_parameters.h"

#include <algorithm>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/graph/graph_proto.h"
#include "ops/graph/name_pattern.h"

namespace espalier {
namespace {

using Patterns = google::protobuf::RepeatedPtrField<std::string>;

constexpr size_t kNamesShown = 8;

// The first pattern that matches; null if none does.
const std::string* FirstMatch(const Patterns& patterns, const std::string& name) {
  const auto found =
      std::find_if(patterns.begin(), patterns.end(),
                   [&](const std::string& pattern) { return MatchesPattern(pattern, name); });
  return found == patterns.end() ? nullptr : &*found;
}

std::string Several(const std::vector<std::string>& names) {
  const std::vector<std::string> shown(names.begin(),
                                       names.begin() + std::min(names.size(), kNamesShown));
  const std::string more = names.size() > shown.size()
                               ? absl::StrCat(" and ", names.size() - shown.size(), " more")
                               : "";
  return absl::StrCat("'", absl::StrJoin(shown, "', '"), "'", more);
}

v1::TensorType TypeToProto(const TensorType& type) {
  v1::TensorType message;
  message.set_dtype(ToProto(type.dtype));
  message.mutable_dims()->Assign(type.dims.begin(), type.dims.end());
  return message;
}

std::set<ValueId> RunningStatistics(const Graph& graph) {
  std::set<ValueId> found;
  for (const Node& node : graph.nodes()) {
    if (node.op != "batch_norm") continue;
    for (size_t i = 3; i < node.inputs.size(); ++i) found.insert(node.inputs[i]);
  }
  return found;
}

absl::Status CheckPatterns(const std::string& field, const Patterns& patterns,
                           const std::map<std::string, v1::ParameterUse>& uses) {
  for (const std::string& pattern : patterns) {
    const bool matches = std::any_of(uses.begin(), uses.end(), [&](const auto& use) {
      return MatchesPattern(pattern, use.first);
    });
    if (matches) continue;
    std::vector<std::string> names;
    for (const auto& [name, use] : uses) names.push_back(name);
    return absl::InvalidArgumentError(absl::StrCat("spec.", field, ": '", pattern,
                                                   "' matches no parameter; the model has ",
                                                   names.empty() ? "none" : Several(names)));
  }
  return absl::OkStatus();
}

}  // namespace

std::set<std::string> NamedForTraining(const v1::TrainingSpec& spec) {
  std::set<std::string> names;
  for (const std::string& pattern : spec.train_only()) {
    if (!absl::StrContains(pattern, "*")) names.insert(pattern);
  }
  return names;
}

absl::StatusOr<std::vector<v1::ParameterUse>> ChooseTrained(const v1::TrainingSpec& spec,
                                                            const ImportReport& report,
                                                            Graph* graph) {
  const std::set<ValueId> statistics = RunningStatistics(*graph);
  const std::set<std::string> named = NamedForTraining(spec);
  std::map<std::string, v1::ParameterUse> uses;
  for (const auto& [name, initializer] : report.initializers) {
    v1::ParameterUse& use = uses[name];
    use.set_name(name);
    *use.mutable_type() = TypeToProto(initializer.type);
    use.set_reason(initializer.reason);
  }
  int64_t trained = 0, parameters = 0;
  for (ValueId v = 0; v < static_cast<ValueId>(graph->values().size()); ++v) {
    Value& value = graph->mutable_value(v);
    if (value.kind != ValueKind::kParameter) continue;
    v1::ParameterUse& use = uses[value.name];
    use.set_name(value.name);
    *use.mutable_type() = TypeToProto(value.type);
    if (statistics.count(v) > 0) {
      value.trainable = false;
      use.set_reason("running statistics");
    } else if (named.count(value.name) > 0 && IsFloat(value.type.dtype)) {
      value.trainable = true;
      use.set_reason("named in train_only");
    } else if (spec.train_only_size() > 0 && FirstMatch(spec.train_only(), value.name) == nullptr) {
      value.trainable = false;
      use.set_reason("not in train_only");
    } else if (use.reason().empty()) {
      use.set_reason(value.trainable ? "parameter of the graph" : "frozen in the graph");
    }
    const std::string* frozen = FirstMatch(spec.freeze(), value.name);
    if (frozen != nullptr && statistics.count(v) == 0) {
      value.trainable = false;
      use.set_reason(absl::StrCat("freeze '", *frozen, "'"));
    }
    use.set_trained(value.trainable);
    ++parameters;
    trained += value.trainable ? 1 : 0;
  }
  absl::Status status = CheckPatterns("freeze", spec.freeze(), uses);
  if (status.ok()) status = CheckPatterns("train_only", spec.train_only(), uses);
  if (!status.ok()) return status;
  if (parameters > 0 && trained == 0) {
    const auto& [name, use] = *uses.begin();
    return absl::InvalidArgumentError(absl::StrCat(
        "no parameter of the model would be trained; the first, '", name,
        "', is not because of: ", use.reason(), "; name in `train_only` what is to be trained"));
  }
  std::vector<v1::ParameterUse> result;
  for (auto& [name, use] : uses) result.push_back(std::move(use));
  return result;
}

std::string DoubtsOf(const std::vector<v1::ParameterUse>& uses, const ImportReport& report) {
  std::vector<std::string> trained, others;
  for (const v1::ParameterUse& use : uses) {
    const auto initializer = report.initializers.find(use.name());
    if (initializer == report.initializers.end() || !initializer->second.doubtful ||
        initializer->second.reason != use.reason()) {
      continue;
    }
    (use.trained() ? trained : others).push_back(use.name());
  }
  std::string note;
  if (!trained.empty()) {
    absl::StrAppend(&note, "trained, though the file does not say whether they are buffers: ",
                    Several(trained), " (if they are, name them in `freeze`)");
  }
  if (!others.empty()) {
    absl::StrAppend(&note, note.empty() ? "" : "; ",
                    "not trained, though the file does not say whether they are parameters: ",
                    Several(others), " (if they are, name '*' and them in `train_only`)");
  }
  return note;
}

v1::TrainedParameters CountTrained(const std::vector<v1::ParameterUse>& uses) {
  v1::TrainedParameters count;
  for (const v1::ParameterUse& use : uses) {
    int64_t elements = 1;
    for (const int64_t dim : use.type().dims()) elements *= dim;
    if (use.trained()) {
      count.set_tensors(count.tensors() + 1);
      count.set_elements(count.elements() + elements);
    } else {
      count.set_other_tensors(count.other_tensors() + 1);
      count.set_other_elements(count.other_elements() + elements);
    }
  }
  return count;
}

}  // namespace espalier
