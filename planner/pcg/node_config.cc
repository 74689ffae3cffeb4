#include "planner/pcg/node_config.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/pcg/layout.h"

namespace espalier {
namespace {

bool HasHalo(const std::vector<Halo>& halos, size_t input, size_t dim) {
  return std::any_of(halos.begin(), halos.end(), [&](const Halo& halo) {
    return halo.input == static_cast<int>(input) && halo.dim == static_cast<int>(dim);
  });
}

// An empty axis has one part.
bool Follows(int64_t extent, int64_t axis_size) {
  return axis_size > 0 ? extent % axis_size == 0 : extent == 0 && axis_size == 0;
}

absl::Status CompleteSide(const OpDef& def, const char* side, const std::vector<TensorType>& types,
                          const std::vector<Axis>& axes, const std::vector<Halo>& halos,
                          std::vector<std::vector<int>>* map) {
  map->resize(types.size());
  for (size_t i = 0; i < types.size(); ++i) {
    (*map)[i].resize(types[i].dims.size(), kNotSplit);
    for (size_t d = 0; d < types[i].dims.size(); ++d) {
      const int axis = (*map)[i][d];
      if (axis == kNotSplit) continue;
      if (axis < 0 || axis >= static_cast<int>(axes.size()) ||
          (!Follows(types[i].dims[d], axes[axis].size) && !HasHalo(halos, i, d))) {
        return absl::InternalError(absl::StrCat("operator '", def.name, "': ", side, " ", i,
                                                " of type ", ToString(types[i]),
                                                " cannot follow axis ", axis, " in dimension ", d,
                                                "; the split rule of the operator is wrong"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SplitRule> CompleteSplitRule(const OpDef& def, const NodeTypes& types) {
  SplitRule rule = SplitOf(def, types);
  absl::Status status =
      CompleteSide(def, "input", types.inputs, rule.axes, rule.halos, &rule.inputs);
  if (status.ok()) {
    status = CompleteSide(def, "output", types.outputs, rule.axes, {}, &rule.outputs);
  }
  if (!status.ok()) return status;
  return rule;
}

std::vector<int> LegalDegrees(const Axis& axis, int most) {
  std::vector<int> degrees;
  for (int degree = 1; degree <= most && degree <= std::max<int64_t>(1, axis.size); ++degree) {
    if (axis.size % degree == 0) degrees.push_back(degree);
  }
  return degrees;
}

absl::Status CheckConfig(const SplitRule& rule, const NodeConfig& config, int num_devices) {
  if (config.degrees.size() != rule.axes.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "has ", config.degrees.size(), " degrees, the operator has ", rule.axes.size(), " axes"));
  }
  int64_t parts = 1;
  for (size_t a = 0; a < rule.axes.size(); ++a) {
    const std::vector<int> legal = LegalDegrees(rule.axes[a], num_devices);
    if (std::find(legal.begin(), legal.end(), config.degrees[a]) == legal.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "axis '", rule.axes[a].name, "' of size ", rule.axes[a].size, " cannot have degree ",
          config.degrees[a], " on ", num_devices, " devices; legal: ", absl::StrJoin(legal, ", ")));
    }
    parts *= config.degrees[a];
    if (parts > num_devices) {
      return absl::InvalidArgumentError(
          absl::StrCat("is cut into more parts than there are (", num_devices, ") devices"));
    }
  }
  if (static_cast<int64_t>(config.devices.size()) != parts) {
    return absl::InvalidArgumentError(absl::StrCat("names ", config.devices.size(), " devices for ",
                                                   parts,
                                                   " parts; there must be one for each part"));
  }
  std::set<int> seen;
  for (int device : config.devices) {
    if (device < 0 || device >= num_devices) {
      return absl::InvalidArgumentError(
          absl::StrCat("names device ", device, "; legal: 0 to ", num_devices - 1));
    }
    if (!seen.insert(device).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("names device ", device, " twice; the parts must be on different devices"));
    }
  }
  return absl::OkStatus();
}

NodeTypes LocalTypes(const NodeTypes& whole, const SplitRule& rule,
                     const std::vector<int>& degrees) {
  NodeTypes local = whole;
  auto shrink = [&](std::vector<TensorType>* types, const std::vector<std::vector<int>>& map) {
    for (size_t i = 0; i < types->size(); ++i) {
      for (size_t d = 0; d < (*types)[i].dims.size(); ++d) {
        if (map[i][d] != kNotSplit) (*types)[i].dims[d] /= degrees[map[i][d]];
      }
    }
  };
  shrink(&local.inputs, rule.inputs);
  for (const Halo& halo : rule.halos) {
    const int axis = rule.inputs[halo.input][halo.dim];
    const int64_t extent = whole.inputs[halo.input].dims[halo.dim];
    const auto [first, end] = WindowedPart({halo, rule.axes[axis].size}, extent, degrees[axis], 0);
    local.inputs[halo.input].dims[halo.dim] = end - first;
  }
  shrink(&local.outputs, rule.outputs);
  return local;
}

NodeConfig OnDevice(const SplitRule& rule, int device) {
  return {std::vector<int>(rule.axes.size(), 1), {device}};
}

NodeConfig DataParallel(const SplitRule& rule, int num_devices) {
  NodeConfig config = OnDevice(rule, 0);
  for (size_t a = 0; a < rule.axes.size(); ++a) {
    if (rule.axes[a].kind != AxisKind::kSample) continue;
    config.degrees[a] = LegalDegrees(rule.axes[a], num_devices).back();
    config.devices.resize(config.degrees[a]);
    std::iota(config.devices.begin(), config.devices.end(), 0);
    break;
  }
  return config;
}

}  // namespace espalier
