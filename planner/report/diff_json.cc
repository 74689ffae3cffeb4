// PlanDiffToJson (diff.h).
#include "nlohmann/json.hpp"
#include "planner/report/diff.h"

namespace espalier {
namespace {

// Keeps the insertion order.
using Json = nlohmann::ordered_json;

Json SideJson(const OperatorChange::Side& side) {
  return {{"op", side.op},
          {"split", side.split},
          {"devices", side.devices},
          {"predicted_seconds", side.seconds}};
}

Json OperatorsJson(const std::vector<OperatorChange>& changes) {
  Json list = Json::array();
  for (const OperatorChange& change : changes) {
    Json entry = {{"node", change.node}};
    entry["a"] = change.kind == OperatorChange::kOnlyInB ? Json() : SideJson(change.a);
    entry["b"] = change.kind == OperatorChange::kOnlyInA ? Json() : SideJson(change.b);
    list.push_back(std::move(entry));
  }
  return list;
}

// Null if the plan lacks it.
Json TextOrNull(const std::string& text) { return text.empty() ? Json() : Json(text); }

Json AlternativeJson(const std::optional<AlternativeChange::Side>& side) {
  if (!side.has_value()) return Json();
  return {{"step_seconds", side->step_seconds}, {"fits", side->fits}};
}

template <typename Pair>
Json PairsJson(const std::vector<Pair>& pairs) {
  Json object = Json::object();
  for (const Pair& pair : pairs) object[pair.name] = {{"a", pair.a}, {"b", pair.b}};
  return object;
}

}  // namespace

std::string PlanDiffToJson(const PlanDiff& diff, absl::string_view name_a,
                           absl::string_view name_b) {
  Json json = {{"a", std::string(name_a)}, {"b", std::string(name_b)}, {"equal", diff.equal()}};
  json["identity"] = PairsJson(diff.identity);
  json["step"] = PairsJson(diff.step);
  json["batch_size"] = {{"a", diff.batch_a}, {"b", diff.batch_b}};
  Json& devices = json["devices"] = Json::array();
  for (const DeviceChange& change : diff.devices) {
    devices.push_back(
        {{"index", change.index}, {"a", TextOrNull(change.a)}, {"b", TextOrNull(change.b)}});
  }
  json["operators"] = OperatorsJson(diff.operators);
  json["retimed_operators"] = {{"count", diff.retimed}, {"seconds", diff.retimed_seconds}};
  Json& parallel = json["parallel_operators"] = Json::array();
  for (const ParallelChange& change : diff.parallel) {
    parallel.push_back({{"kind", change.kind},
                        {"removed", change.removed},
                        {"removed_bytes", change.removed_bytes},
                        {"added", change.added},
                        {"added_bytes", change.added_bytes},
                        {"altered", change.altered},
                        {"altered_bytes", change.altered_bytes}});
  }
  json["prediction"] = PairsJson(diff.prediction);
  Json& alternatives = json["alternatives"] = Json::array();
  for (const AlternativeChange& change : diff.alternatives) {
    alternatives.push_back({{"name", change.name},
                            {"a", AlternativeJson(change.a)},
                            {"b", AlternativeJson(change.b)}});
  }
  json["search"] = PairsJson(diff.search);
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace espalier
