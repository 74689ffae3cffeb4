#include "server/replay/run_values.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "ops/graph/graph_proto.h"
#include "ops/graph/name_pattern.h"
#include "ops/probe/expression.h"
#include "server/replay/probe_set.h"
#include "server/replay/program_questions.h"

namespace espalier {
namespace {

constexpr char kAnyName[] = "*";

v1::RunValue::Kind KindOf(ProbeTarget::Kind kind) {
  switch (kind) {
    case ProbeTarget::kParam:
      return v1::RunValue::PARAMETER;
    case ProbeTarget::kBatch:
      return v1::RunValue::BATCH_INPUT;
    case ProbeTarget::kState:
      return v1::RunValue::OPTIMIZER_STATE;
    default:
      return v1::RunValue::VALUE;
  }
}

// Collects what was found, by kind, name and slot.
class FoundNames {
 public:
  // A target that can be read. `type`: of a gradient or update, nobody needs it.
  void Add(const ProbeTarget& target, const std::optional<TensorType>& type, bool recomputed) {
    if (target.kind == ProbeTarget::kUpdate) {
      updates_.insert(target.name);
    } else if (target.kind == ProbeTarget::kGrad) {
      gradients_.emplace(target.name, recomputed);
    } else {
      v1::RunValue& value = values_[{KindOf(target.kind), target.name, target.slot}];
      value.set_kind(KindOf(target.kind));
      value.set_name(target.name);
      value.set_slot(target.slot);
      value.set_log(ToString(target));
      value.set_recomputed(recomputed);
      if (!type.has_value()) return;
      value.mutable_type()->set_dtype(ToProto(type->dtype));
      value.mutable_type()->mutable_dims()->Assign(type->dims.begin(), type->dims.end());
    }
  }

  // Values of floating-point numbers that have none yet.
  std::vector<std::string> WithoutGradient() const {
    std::vector<std::string> names;
    for (const auto& [key, value] : values_) {
      if (value.kind() == v1::RunValue::VALUE && !gradients_.contains(value.name()) &&
          value.has_type() && IsFloat(FromProto(value.type().dtype()))) {
        names.push_back(value.name());
      }
    }
    return names;
  }

  void SetOutput(const std::string& output, const std::string& value) {
    const auto found = values_.find({v1::RunValue::VALUE, output, ""});
    if (found != values_.end()) found->second.set_output_of(value);
  }

  // Values in the order of `graph`; others, and all other kinds, in that of names.
  std::vector<v1::RunValue> Take(const Graph& graph) {
    std::map<std::string, size_t> place;
    for (const Value& value : graph.values()) place.emplace(value.name, place.size());
    const auto order = [&](const v1::RunValue& value) {
      const bool ordered = value.kind() == v1::RunValue::VALUE;
      const auto found = ordered ? place.find(value.name()) : place.end();
      const size_t at = found != place.end() ? found->second : ordered ? place.size() : 0;
      // Inputs before what is computed of them.
      constexpr int kPlaces[] = {0, 1, 3, 2, 4};  // by kind
      return std::tuple(kPlaces[value.kind()], at);
    };
    std::vector<v1::RunValue> values;
    for (auto& [key, value] : values_) {
      const bool parameter = value.kind() == v1::RunValue::PARAMETER;
      if (const auto gradient = gradients_.find(value.name());
          gradient != gradients_.end() && (parameter || value.kind() == v1::RunValue::VALUE)) {
        value.set_gradient(true);
        value.set_gradient_recomputed(gradient->second);
      }
      value.set_update(parameter && updates_.contains(value.name()));
      values.push_back(std::move(value));
    }
    std::stable_sort(
        values.begin(), values.end(),
        [&](const v1::RunValue& a, const v1::RunValue& b) { return order(a) < order(b); });
    return values;
  }

 private:
  using Key = std::tuple<int, std::string, std::string>;
  std::map<Key, v1::RunValue> values_;
  std::map<std::string, bool> gradients_;  // whether they are computed again
  std::set<std::string> updates_;
};

ProbeExpression AskedInFull(ProbeTarget::Kind kind, const std::string& name) {
  ProbeTarget target{kind, name, ""};
  if (kind == ProbeTarget::kState) target.slot = kAnyName;
  return {{std::move(target)}, Reduction{Reduction::kFull}};
}

// Adds what a replay with these questions would answer. Returns what it would lack.
std::vector<std::string> AddFound(const ProgramQuestions& found,
                                  const std::vector<v1::Program>& programs, FoundNames* names) {
  const ProgramProbes& probes = found.probes;
  // The last are read for those that are computed again.
  const size_t asked = probes.read.probes.size() - probes.derived.sources().size();
  for (size_t i = 0; i < asked; ++i) {
    const NamedProbe& probe = probes.read.probes[i];
    names->Add(probe.probe.targets[0], TypeOfRead(probe, probes.read, programs),
               /*recomputed=*/false);
  }
  for (const ProbeExpression& probe : probes.derived.probes()) {
    names->Add(probe.targets[0], probes.derived.TypeOf(probe), /*recomputed=*/true);
  }
  std::vector<std::string> lacking;
  for (const auto& [probe, why] : probes.read.lacking) lacking.push_back(probe);
  return lacking;
}

// As ParseProbe; "state(NAME)" means all slots.
absl::StatusOr<ProbeExpression> ParsePattern(const std::string& pattern) {
  absl::StatusOr<ProbeExpression> probe = ParseProbe(pattern);
  if (probe.ok() || !absl::EndsWith(pattern, ")")) return probe;
  const absl::string_view open = absl::string_view(pattern).substr(0, pattern.size() - 1);
  absl::StatusOr<ProbeExpression> slots = ParseProbe(absl::StrCat(open, ", ", kAnyName, ")"));
  return slots.ok() && slots->targets[0].kind == ProbeTarget::kState ? slots : probe;
}

}  // namespace

absl::StatusOr<std::vector<v1::RunValue>> ValuesOfPrograms(const OpRegistry& registry,
                                                           const ProbePoints& points,
                                                           const std::vector<v1::Program>& programs,
                                                           const Graph& original) {
  const auto find = [&](std::vector<ProbeExpression> probes) {
    return FindQuestions(registry, points, programs, {std::move(probes), {}},
                         [&]() -> absl::StatusOr<Graph> { return original; });
  };
  FoundNames names;
  // Adds those that a replay can read. What all together are too much can be asked for one by one.
  const auto add_each = [&](const std::vector<ProbeExpression>& probes) {
    absl::StatusOr<ProgramQuestions> found = find(probes);
    if (found.ok()) AddFound(*found, programs, &names);
    for (size_t i = 0; i < probes.size() && !found.ok() && probes.size() > 1; ++i) {
      const absl::StatusOr<ProgramQuestions> one = find({probes[i]});
      if (one.ok()) AddFound(*one, programs, &names);
    }
  };
  std::vector<ProbeExpression> all;
  for (const ProbeTarget::Kind kind :
       {ProbeTarget::kParam, ProbeTarget::kBatch, ProbeTarget::kValue, ProbeTarget::kGrad,
        ProbeTarget::kUpdate, ProbeTarget::kState}) {
    all.push_back(AskedInFull(kind, kAnyName));
  }
  all.push_back(AskedInFull(ProbeTarget::kBatch, absl::StrCat(kInternalNames, kAnyName)));
  absl::StatusOr<ProgramQuestions> found = find(std::move(all));
  if (!found.ok()) return found.status();
  std::vector<ProbeExpression> left;  // what wildcards do not mean, though it can be asked for
  for (const std::string& lacking : AddFound(*found, programs, &names)) {
    absl::StatusOr<ProbeExpression> probe = ParseProbe(lacking);
    if (probe.ok() && !probe->targets[0].has_wildcard()) left.push_back(*std::move(probe));
  }
  add_each(left);
  left.clear();
  for (const auto& [output, value] : points.outputs()) {
    left.push_back(AskedInFull(ProbeTarget::kValue, output));
    left.push_back(AskedInFull(ProbeTarget::kGrad, output));
  }
  for (const std::string& name : names.WithoutGradient()) {
    left.push_back(AskedInFull(ProbeTarget::kGrad, name));
  }
  add_each(left);
  for (const auto& [output, value] : points.outputs()) names.SetOutput(output, value);
  return names.Take(original);
}

absl::Status KeepMatching(const std::string& pattern, std::vector<v1::RunValue>* values) {
  if (!absl::StrContains(pattern, kInternalNames)) {
    std::erase_if(*values, [](const v1::RunValue& value) {
      return absl::StartsWith(value.name(), kInternalNames);
    });
  }
  if (pattern.empty()) return absl::OkStatus();
  const std::vector<v1::RunValue> all = std::move(*values);
  values->clear();
  std::vector<ProbeTarget> targets;  // none: names of any kind
  if (absl::StrContains(pattern, '(')) {
    absl::StatusOr<ProbeExpression> probe = ParsePattern(pattern);
    if (!probe.ok()) {
      return absl::Status(probe.status().code(),
                          absl::StrCat("pattern: ", probe.status().message()));
    }
    targets = std::move(probe->targets);
  }
  std::set<std::string> names;
  const auto matches = [&](const v1::RunValue& value) {
    if (targets.empty()) {
      names.insert(value.name());
      return MatchesPattern(pattern, value.name());
    }
    return std::any_of(targets.begin(), targets.end(), [&](const ProbeTarget& target) {
      const bool of_kind = target.kind == ProbeTarget::kGrad ? value.gradient()
                           : target.kind == ProbeTarget::kUpdate
                               ? value.update()
                               : value.kind() == KindOf(target.kind);
      if (!of_kind) return false;
      names.insert(value.name());
      return MatchesPattern(target.name, value.name()) &&
             (target.kind != ProbeTarget::kState || MatchesPattern(target.slot, value.slot()));
    });
  };
  for (const v1::RunValue& value : all) {
    if (matches(value)) values->push_back(value);
  }
  if (!values->empty()) return absl::OkStatus();
  const std::string& name = targets.empty() ? pattern : targets[0].name;
  return absl::NotFoundError(
      absl::StrCat("nothing matches '", pattern, "'; ", NamesThatThereAre(name, names)));
}

std::string WhereNamesAre(absl::string_view run) {
  return absl::StrCat("; espalier runs values ", run, " lists what can be asked for");
}

}  // namespace espalier
