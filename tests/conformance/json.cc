#include "tests/conformance/json.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <string>
#include <vector>

namespace espalier::conformance {

HostTensor TensorFromJson(const json& value) {
  if (value.is_null()) return {};
  HostTensor t =
      HostTensor::Zeros(TensorSpec::Whole({DTypeFromName(value.at("dtype").get<std::string>()),
                                           value.at("dims").get<std::vector<int64_t>>()}));
  const json& data = value.at("data");
  for (int64_t i = 0; i < t.spec.num_elements(); ++i) {
    const json& item = data.at(i);
    SetValue(&t, i, item.is_string() ? std::stod(item.get<std::string>()) : item.get<double>());
  }
  return t;
}

json ToJson(const HostTensor& t) {
  if (!t.present()) return nullptr;
  json data = json::array();
  for (int64_t i = 0; i < t.spec.num_elements(); ++i) {
    const double value = ValueAt(t, i);
    data.push_back(std::isfinite(value) ? json(value) : json(std::to_string(value)));
  }
  return {{"dtype", Name(t.spec.dtype)}, {"dims", t.spec.dims}, {"data", std::move(data)}};
}

Attributes AttributesFromJson(const json& value) {
  Attributes attributes;
  for (const auto& [name, v] : value.items()) {
    if (v.is_boolean()) {
      attributes.Set(name, v.get<bool>());
    } else if (v.is_number_integer()) {
      attributes.Set(name, v.get<int64_t>());
    } else if (v.is_number()) {
      attributes.Set(name, v.get<double>());
    } else if (v.is_string()) {
      attributes.Set(name, v.get<std::string>());
    } else if (std::any_of(v.begin(), v.end(), [](const json& e) { return e.is_number_float(); })) {
      attributes.Set(name, v.get<std::vector<double>>());
    } else {
      attributes.Set(name, v.get<std::vector<int64_t>>());
    }
  }
  return attributes;
}

const char* KindName(AxisKind kind) {
  switch (kind) {
    case AxisKind::kSample:
      return "sample";
    case AxisKind::kAttribute:
      return "attribute";
    case AxisKind::kParameter:
      return "parameter";
    case AxisKind::kReduction:
      return "reduction";
  }
  return "";
}

gpu_check::RunOptions OptionsOf(const json& request) {
  return {request.value("seed", uint64_t{0}), request.value("node_key", uint64_t{0}),
          request.value("step", int64_t{0}), request.value("training", true)};
}

}  // namespace espalier::conformance
