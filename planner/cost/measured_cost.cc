#include "planner/cost/measured_cost.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/json/bounded_json.h"
#include "nlohmann/json.hpp"
#include "planner/machine/rates.h"

namespace espalier {
namespace {

constexpr int64_t kMaxRuns = 1 << 20;  // cap of the count

std::string ToText(const AttributeValue& value) {
  struct Visitor {
    std::string operator()(int64_t v) const { return absl::StrCat(v); }
    std::string operator()(double v) const { return absl::StrCat(v); }
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(const std::string& v) const { return v; }
    std::string operator()(const std::vector<int64_t>& v) const { return ToString(v); }
    std::string operator()(const std::vector<double>& v) const {
      std::string out = "[";
      for (double d : v) absl::StrAppend(&out, d, ",");
      return out + "]";
    }
  };
  return std::visit(Visitor(), value);
}

std::string CorrectionKey(const OpDef& def, const v1::Device& device) {
  return absl::StrCat(def.name, " on ", DeviceKey(device));
}

bool IsNumber(const nlohmann::json& entry, const char* field) {
  auto it = entry.find(field);
  return it != entry.end() && it->is_number() && std::isfinite(it->get<double>());
}

bool IsCount(const nlohmann::json& entry, const char* field) {
  auto it = entry.find(field);
  return it != entry.end() && it->is_number_unsigned() && it->get<uint64_t>() < (1u << 30);
}

bool IsTime(const nlohmann::json& entry, const char* field) {
  return IsNumber(entry, field) && entry[field].get<double>() >= 0 &&
         entry[field].get<double>() <= kMaxTaskSeconds;
}

}  // namespace

std::string DeviceKey(const v1::Device& device) {
  return absl::StrCat(
      device.model().empty() ? v1::Device::Kind_Name(device.kind()) : device.model(), " x",
      device.threads());
}

std::string MeasurementKey(const OpDef& def, const NodeTypes& shard, const v1::Device& device) {
  std::string key = absl::StrCat(def.name, "{");
  for (const auto& [name, value] : shard.attributes.values()) {
    absl::StrAppend(&key, name, "=", ToText(value), ";");
  }
  absl::StrAppend(&key, "}");
  for (const TensorType& type : shard.inputs) absl::StrAppend(&key, " ", ToString(type));
  return absl::StrCat(key, " on ", DeviceKey(device));
}

MeasuredCost::MeasuredCost(CostModel* fallback, Measurer measurer)
    : base_(std::make_shared<Table>()), fallback_(fallback) {
  if (!measurer) return;
  shared_measurer_ = std::make_shared<SharedMeasurer>();
  shared_measurer_->measurer = std::move(measurer);
}

const MeasuredCost::Entry* MeasuredCost::Find(const std::string& key) const {
  for (const Table* table : {&own_, base_.get()}) {
    const auto found = table->entries.find(key);
    if (found != table->entries.end()) return &found->second;
  }
  return nullptr;
}

const MeasuredCost::Correction* MeasuredCost::FindCorrection(const std::string& kind) const {
  for (const Table* table : {&own_, base_.get()}) {
    const auto found = table->corrections.find(kind);
    if (found != table->corrections.end()) return &found->second;
  }
  return nullptr;
}

MeasuredCost::Entry& MeasuredCost::OwnEntry(const std::string& key) {
  const Entry* known = Find(key);
  return own_.entries.try_emplace(key, known == nullptr ? Entry() : *known).first->second;
}

std::shared_ptr<const MeasuredCost::Table> MeasuredCost::MergedTable() const {
  if (own_.entries.empty() && own_.corrections.empty()) return base_;
  auto all = std::make_shared<Table>(own_);
  all->entries.insert(base_->entries.begin(), base_->entries.end());
  all->corrections.insert(base_->corrections.begin(), base_->corrections.end());
  return all;
}

std::unique_ptr<CostModel> MeasuredCost::Fork() {
  std::unique_ptr<CostModel> fallback = fallback_->Fork();
  if (fallback == nullptr) return nullptr;
  base_ = MergedTable();
  own_ = {};
  auto fork = std::make_unique<MeasuredCost>(fallback.get());
  fork->base_ = base_;
  fork->own_fallback_ = std::move(fallback);
  fork->is_fork_ = true;
  if (shared_measurer_ != nullptr && shared_measurer_.use_count() == 1)
    shared_measurer_->answers.clear();
  fork->shared_measurer_ = shared_measurer_;
  return fork;
}

void MeasuredCost::Join(const CostModel& other) {
  const auto* fork = dynamic_cast<const MeasuredCost*>(&other);
  if (fork == nullptr) return;
  for (const auto& [key, observation] : fork->observations_) {
    if (Find(key) != nullptr) continue;
    own_.entries[key] = {observation.measured};
    UpdateCorrection(observation);
    if (is_fork_) observations_.emplace(key, observation);
  }
}

std::optional<CostModel::Times> MeasuredCost::AskMeasurer(const std::string& key, const OpDef& def,
                                                          const NodeTypes& shard,
                                                          const v1::Device& device) {
  if (shared_measurer_ == nullptr) return std::nullopt;
  absl::MutexLock lock(&shared_measurer_->mutex);
  if (const auto told = shared_measurer_->answers.find(key);
      told != shared_measurer_->answers.end())
    return told->second;
  std::optional<Times> times = shared_measurer_->measurer(def, shard, device);
  if (times.has_value() && shared_measurer_.use_count() > 1)
    shared_measurer_->answers[key] = *times;
  return times;
}

std::optional<CostModel::Times> MeasuredCost::Measured(const OpDef& def, const NodeTypes& shard,
                                                       const v1::Device& device) {
  const std::string key = MeasurementKey(def, shard, device);
  if (const Entry* entry = Find(key)) return entry->times;
  std::optional<Times> times = AskMeasurer(key, def, shard, device);
  if (times.has_value()) Record(def, shard, device, *times);
  return times;
}

CostModel::Times MeasuredCost::Measure(const OpDef& def, const NodeTypes& shard,
                                       const v1::Device& device) {
  if (std::optional<Times> measured = Measured(def, shard, device)) return *measured;
  Times times = fallback_->Measure(def, shard, device);
  if (const Correction* c = FindCorrection(CorrectionKey(def, device))) {
    if (c->forward_count > 0) times.forward *= std::exp(c->forward / c->forward_count);
    if (c->backward_count > 0) times.backward *= std::exp(c->backward / c->backward_count);
  }
  return times;
}

void MeasuredCost::UpdateCorrection(const Observation& observation) {
  const Correction* known = FindCorrection(observation.kind);
  Correction& correction =
      own_.corrections.try_emplace(observation.kind, known == nullptr ? Correction() : *known)
          .first->second;
  const auto learn = [](double measured, double expected, double* sum, int64_t* count) {
    if (measured <= 0 || expected <= 0) return;
    *sum += std::log(measured / expected);
    ++*count;
  };
  learn(observation.measured.forward, observation.expected.forward, &correction.forward,
        &correction.forward_count);
  learn(observation.measured.backward, observation.expected.backward, &correction.backward,
        &correction.backward_count);
}

void MeasuredCost::Record(const OpDef& def, const NodeTypes& shard, const v1::Device& device,
                          Times times) {
  const std::string key = MeasurementKey(def, shard, device);
  const bool is_new = Find(key) == nullptr;
  own_.entries[key] = {times};
  if (!is_new) return;
  const Observation observation{CorrectionKey(def, device), times,
                                fallback_->Measure(def, shard, device)};
  UpdateCorrection(observation);
  if (is_fork_) observations_.emplace(key, observation);
}

void MeasuredCost::Observe(const OpDef& def, const NodeTypes& shard, const v1::Device& device,
                           Times times) {
  const std::string key = MeasurementKey(def, shard, device);
  if (Find(key) == nullptr) {
    const Times guess = fallback_->Measure(def, shard, device);
    Record(def, shard, device,
           {times.forward < 0 ? guess.forward : times.forward,
            times.backward < 0 ? guess.backward : times.backward});
  }
  Entry& entry = OwnEntry(key);
  const auto blend = [](double told, double* known, int64_t* runs) {
    if (told < 0) return;
    *known = *runs == 0 ? told : (*known + told) / 2;
    *runs = std::min(*runs + 1, kMaxRuns);
  };
  blend(times.forward, &entry.times.forward, &entry.forward_runs);
  blend(times.backward, &entry.times.backward, &entry.backward_runs);
}

bool MeasuredCost::Has(const OpDef& def, const NodeTypes& shard, const v1::Device& device) const {
  return Find(MeasurementKey(def, shard, device)) != nullptr;
}

size_t MeasuredCost::size() const {
  size_t size = base_->entries.size();
  for (const auto& [key, entry] : own_.entries) size += base_->entries.count(key) == 0;
  return size;
}

MeasuredCost MeasuredCost::Snapshot(CostModel* fallback) const {
  MeasuredCost copy(fallback);
  copy.base_ = MergedTable();
  return copy;
}

std::string MeasuredCost::Save() const {
  const std::shared_ptr<const Table> all = MergedTable();
  nlohmann::json entries = nlohmann::json::array();
  for (const auto& [key, entry] : all->entries) {
    nlohmann::json one = {
        {"key", key}, {"forward", entry.times.forward}, {"backward", entry.times.backward}};
    if (entry.forward_runs > 0) one["forward_runs"] = entry.forward_runs;
    if (entry.backward_runs > 0) one["backward_runs"] = entry.backward_runs;
    entries.push_back(std::move(one));
  }
  nlohmann::json corrections = nlohmann::json::array();
  for (const auto& [kind, correction] : all->corrections) {
    corrections.push_back({{"kind", kind},
                           {"forward", correction.forward},
                           {"forward_count", correction.forward_count},
                           {"backward", correction.backward},
                           {"backward_count", correction.backward_count}});
  }
  const nlohmann::json root = {{"format_version", 1},
                               {"entries", std::move(entries)},
                               {"corrections", std::move(corrections)}};
  // Names of devices and nodes need not be UTF-8; replace rather than throw.
  return root.dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::Status MeasuredCost::Load(const std::string& text) {
  const auto root = ParseBoundedJson<nlohmann::json>(text).value_or(nlohmann::json());
  if (!root.is_object()) {
    return absl::InvalidArgumentError("measured costs: the text is not a JSON object");
  }
  const auto version = root.find("format_version");
  if (version == root.end() || *version != 1) {
    return absl::InvalidArgumentError("measured costs: field 'format_version' must be 1");
  }
  const auto list = root.find("entries");
  if (list == root.end() || !list->is_array()) {
    return absl::InvalidArgumentError("measured costs: field 'entries' must be an array");
  }
  std::map<std::string, Entry> loaded;
  for (size_t i = 0; i < list->size(); ++i) {
    const nlohmann::json& entry = (*list)[i];
    const bool has_key = entry.is_object() && entry.contains("key") && entry["key"].is_string();
    if (!has_key || !IsTime(entry, "forward") || !IsTime(entry, "backward")) {
      return absl::InvalidArgumentError(
          absl::StrCat("measured costs: entries[", i,
                       "] must have 'key' (string) and 'forward' and 'backward' (seconds, 0 to ",
                       kMaxTaskSeconds, ")"));
    }
    Entry& one = loaded[entry["key"].get<std::string>()];
    one.times = {entry["forward"].get<double>(), entry["backward"].get<double>()};
    for (auto [field, runs] : {std::pair("forward_runs", &one.forward_runs),
                               std::pair("backward_runs", &one.backward_runs)}) {
      if (!entry.contains(field)) continue;
      if (!IsCount(entry, field)) {
        return absl::InvalidArgumentError(absl::StrCat("measured costs: entries[", i, "].", field,
                                                       " must be a whole number below 2^30"));
      }
      *runs = entry[field].get<int64_t>();
    }
  }
  std::map<std::string, Correction> corrections;
  const auto learnt = root.find("corrections");
  for (size_t i = 0; learnt != root.end() && i < learnt->size(); ++i) {
    const nlohmann::json entry = learnt->is_array() ? (*learnt)[i] : nlohmann::json();
    const bool has_kind = entry.is_object() && entry.contains("kind") && entry["kind"].is_string();
    if (!has_kind || !IsNumber(entry, "forward") || !IsNumber(entry, "backward") ||
        !IsCount(entry, "forward_count") || !IsCount(entry, "backward_count")) {
      return absl::InvalidArgumentError(absl::StrCat(
          "measured costs: corrections[", i,
          "] must have 'kind' (string), 'forward', 'backward' (numbers) and their counts"));
    }
    corrections[entry["kind"].get<std::string>()] = {
        entry["forward"].get<double>(), entry["forward_count"].get<int64_t>(),
        entry["backward"].get<double>(), entry["backward_count"].get<int64_t>()};
  }
  for (auto& [key, entry] : loaded) own_.entries[key] = entry;
  for (auto& [kind, correction] : corrections) own_.corrections[kind] = correction;
  return absl::OkStatus();
}

}  // namespace espalier
