// Converts text to MachineSpec and back. Checks types, field names and units; machine_build.cc
// checks values.
#include "planner/machine/machine_file.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "planner/machine/quantity.h"

namespace espalier {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxText = 16 << 20;
constexpr int kMaxDepth = 8;  // a machine is 3 deep
constexpr int kFormatVersion = 1;

std::string ShownName(const std::string& text) {
  constexpr size_t kShown = 80;
  return absl::StrCat("\"", absl::Utf8SafeCHexEscape(text.substr(0, kShown)),
                      text.size() > kShown ? "..." : "", "\"");
}

// Finds syntax errors with their line, repeated fields, and deep nesting.
class SyntaxCheck : public nlohmann::json_sax<Json> {
 public:
  explicit SyntaxCheck(const std::string& text) : text_(text) {}
  bool null() override { return Value(); }
  bool boolean(bool) override { return Value(); }
  bool number_integer(number_integer_t) override { return Value(); }
  bool number_unsigned(number_unsigned_t) override { return Value(); }
  bool number_float(number_float_t, const string_t&) override { return Value(); }
  bool string(string_t&) override { return Value(); }
  bool binary(binary_t&) override { return Value(); }
  bool key(string_t& name) override {
    open_.back().key = name;
    if (open_.back().keys.insert(name).second) return true;
    error_ = absl::StrCat(Place(), ": is there twice; once is accepted");
    return false;
  }
  bool start_object(std::size_t) override { return Enter(); }
  bool start_array(std::size_t) override { return Enter(); }
  bool end_object() override { return Leave(); }
  bool end_array() override { return Leave(); }
  bool parse_error(std::size_t at, const std::string&,
                   const nlohmann::detail::exception& e) override {
    error_ = e.what();
    // Shortens "[json.exception.parse_error.101] parse error at line 3, column 17: ...". A number's
    // overflow comes without a line.
    const size_t end_of_id = error_.find("] ");
    if (end_of_id != std::string::npos) error_.erase(0, end_of_id + 2);
    if (error_.find("line ") == std::string::npos) {
      const auto end = text_.begin() + static_cast<std::ptrdiff_t>(std::min(at, text_.size()));
      absl::StrAppend(&error_, " in line ", 1 + std::count(text_.begin(), end, '\n'),
                      "; numbers up to 1.7e308 are accepted");
    }
    // Removes the quoted text, which may be long and arbitrary.
    for (char& c : error_) c = absl::ascii_isprint(c) ? c : '?';
    constexpr size_t kShown = 300;
    if (error_.size() > kShown) error_ = error_.substr(0, kShown) + "...";
    return false;
  }
  const std::string& error() const { return error_; }

 private:
  // An open object or array: the field or element being read.
  struct Open {
    std::string key;
    int64_t index = -1;
    std::set<std::string> keys;
  };
  bool Value() {
    if (!open_.empty()) ++open_.back().index;
    return true;
  }
  bool Enter() {
    Value();
    open_.emplace_back();
    if (open_.size() <= kMaxDepth) return true;
    error_ = absl::StrCat("nested more than ", kMaxDepth, " deep; a machine is 3 deep");
    return false;
  }
  bool Leave() {
    open_.pop_back();
    return true;
  }
  std::string Place() const {
    std::string place;
    for (const Open& open : open_) {
      if (open.key.empty()) {
        absl::StrAppend(&place, "[", open.index, "]");
      } else {
        constexpr size_t kShown = 80;
        absl::StrAppend(&place, place.empty() ? "" : ".",
                        absl::Utf8SafeCHexEscape(open.key.substr(0, kShown)));
      }
    }
    return place;
  }

  const std::string& text_;
  std::vector<Open> open_;
  std::string error_;
};

enum class Presence { kRequired, kOptional };
using enum Presence;

// Reads the fields of one object. After an error, further calls do nothing; Finish returns the
// first error.
class Fields {
 public:
  Fields(const Json& object, std::string place) : object_(object), place_(std::move(place)) {
    if (!object.is_object()) Fail("", absl::StrCat(IsA(object), "; it must be an object"));
  }

  void Text(const char* name, Presence presence, std::string* out) {
    const Json* value = Find(name, presence);
    if (value == nullptr) return;
    if (!value->is_string()) return Fail(name, absl::StrCat(IsA(*value), "; it must be a string"));
    *out = value->get<std::string>();
  }

  // An integer within the limits of Int; its meaning is checked later.
  template <typename Int>
  void Count(const char* name, Presence presence, Int* out) {
    const Json* value = Find(name, presence);
    if (value == nullptr) return;
    constexpr int64_t most = std::numeric_limits<Int>::max(), least = -most;
    const bool fits = value->is_number_unsigned()
                          ? value->get<uint64_t>() <= static_cast<uint64_t>(most)
                      : value->is_number_integer() ? value->get<int64_t>() >= least
                                                   : false;
    if (!fits) {
      return Fail(name, absl::StrCat(IsA(*value), "; it must be an integer of at most ", most));
    }
    *out = value->get<Int>();
  }

  void Rate(const char* name, Presence presence, QuantityKind kind, double* out) {
    const Json* value = Find(name, presence);
    if (value == nullptr) return;
    if (value->is_number()) {
      *out = value->get<double>();
    } else if (value->is_string()) {
      const absl::StatusOr<double> parsed = ParseQuantity(value->get<std::string>(), kind);
      if (!parsed.ok()) return Fail(name, std::string(parsed.status().message()));
      *out = *parsed;
    } else {
      Fail(name, absl::StrCat(IsA(*value), "; it must be a number of ", BaseUnit(kind),
                              " or text of a number and a unit"));
    }
  }

  void Bytes(const char* name, Presence presence, int64_t* out) {
    double bytes = static_cast<double>(*out);
    Rate(name, presence, QuantityKind::kBytes, &bytes);
    if (!status_.ok()) return;
    constexpr double kExact = 0x1p53;
    if (std::abs(bytes) > kExact || bytes != std::floor(bytes)) {
      return Fail(name,
                  absl::StrCat("is ", bytes, " bytes; it must be an integer of at most 2^53"));
    }
    *out = static_cast<int64_t>(bytes);
  }

  // Returns the array of a field, or null if it is absent.
  const Json* Array(const char* name, Presence presence) {
    const Json* value = Find(name, presence);
    if (value == nullptr || value->is_array()) return value;
    Fail(name, absl::StrCat(IsA(*value), "; it must be an array"));
    return nullptr;
  }

  void Fail(const std::string& field, const std::string& what) {
    if (!status_.ok()) return;
    const std::string at = field.empty() ? place_ : Place(field);
    status_ = absl::InvalidArgumentError(
        absl::StrCat("machine: ", at.empty() ? "the text" : at, ": ", what));
  }

  // Unread fields are errors.
  absl::Status Finish() {
    if (!status_.ok()) return status_;
    for (const auto& [name, value] : object_.items()) {
      if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
      std::string accepted;
      for (const std::string& known : known_) {
        absl::StrAppend(&accepted, accepted.empty() ? "" : ", ", known);
      }
      constexpr size_t kShown = 80;
      Fail(absl::Utf8SafeCHexEscape(name.substr(0, kShown)),
           absl::StrCat("unknown field; accepted: ", accepted));
      break;
    }
    return status_;
  }

 private:
  static std::string IsA(const Json& value) {
    if (value.is_number()) return absl::StrCat("is the number ", value.dump());
    if (value.is_string()) return absl::StrCat("is the text ", ShownName(value.get<std::string>()));
    return absl::StrCat("is of type ", value.type_name());
  }

  std::string Place(const std::string& field) const {
    return place_.empty() ? field : absl::StrCat(place_, ".", field);
  }

  const Json* Find(const char* name, Presence presence) {
    known_.push_back(name);
    if (!status_.ok()) return nullptr;
    const auto it = object_.find(name);
    if (it != object_.end()) return &*it;
    if (presence == kRequired) Fail(name, "is missing");
    return nullptr;
  }

  const Json& object_;
  const std::string place_;
  std::vector<std::string> known_;
  absl::Status status_;
};

void TakeNode(Fields& fields, MachineNode* node) {
  fields.Text("name", kRequired, &node->name);
  fields.Text("parent", kOptional, &node->parent);
  fields.Count("count", kOptional, &node->count);
  const Presence link = node->parent.empty() ? kOptional : kRequired;
  fields.Rate("bandwidth", link, QuantityKind::kBytesPerSecond, &node->bandwidth);
  fields.Rate("flow_bandwidth", kOptional, QuantityKind::kBytesPerSecond, &node->flow_bandwidth);
  fields.Rate("latency_seconds", link, QuantityKind::kSeconds, &node->latency_seconds);
}

void TakeDevices(Fields& fields, MachineDevices* d) {
  TakeNode(fields, &d->node);
  std::string kind;
  fields.Text("kind", kRequired, &kind);
  if (kind == "cpu") d->kind = v1::Device::CPU;
  if (kind == "cuda") d->kind = v1::Device::CUDA;
  if (d->kind == v1::Device::KIND_UNSPECIFIED) {
    fields.Fail("kind", absl::StrCat("is ", ShownName(kind), "; accepted: \"cpu\", \"cuda\""));
  }
  fields.Text("model", kOptional, &d->model);
  fields.Bytes("memory_bytes", kRequired, &d->memory_bytes);
  fields.Rate("matmul_flops", kRequired, QuantityKind::kFlopPerSecond, &d->matmul_flops);
  fields.Rate("memory_bandwidth", kRequired, QuantityKind::kBytesPerSecond, &d->memory_bandwidth);
  fields.Rate("op_overhead_seconds", kRequired, QuantityKind::kSeconds, &d->op_overhead_seconds);
  fields.Count("threads", kOptional, &d->threads);
  fields.Bytes("host_memory_bytes", kOptional, &d->host_memory_bytes);
  fields.Rate("host_bandwidth", kOptional, QuantityKind::kBytesPerSecond, &d->host_bandwidth);
}

absl::Status Parse(const Json& root, MachineSpec* spec) {
  Fields fields(root, "");
  int version = kFormatVersion;
  fields.Count("format_version", kRequired, &version);
  if (version != kFormatVersion) {
    fields.Fail("format_version", absl::StrCat("is ", version, "; it must be ", kFormatVersion));
  }
  fields.Text("name", kRequired, &spec->name);
  fields.Text("description", kOptional, &spec->description);
  const Json* nodes = fields.Array("nodes", kOptional);
  const Json* devices = fields.Array("devices", kRequired);
  if (absl::Status s = fields.Finish(); !s.ok()) return s;
  for (size_t i = 0; nodes != nullptr && i < nodes->size(); ++i) {
    Fields entry((*nodes)[i], absl::StrCat("nodes[", i, "]"));
    TakeNode(entry, &spec->nodes.emplace_back());
    if (absl::Status s = entry.Finish(); !s.ok()) return s;
  }
  for (size_t i = 0; i < devices->size(); ++i) {
    Fields entry((*devices)[i], absl::StrCat("devices[", i, "]"));
    TakeDevices(entry, &spec->devices.emplace_back());
    if (absl::Status s = entry.Finish(); !s.ok()) return s;
  }
  return absl::OkStatus();
}

using Written = nlohmann::ordered_json;

Written Quantity(double value, QuantityKind kind) {
  const std::string text = FormatQuantity(value, kind);
  return text.empty() ? Written(value) : Written(text);
}

Written Bytes(int64_t bytes) {
  const std::string text = FormatQuantity(static_cast<double>(bytes), QuantityKind::kBytes);
  return text.empty() ? Written(bytes) : Written(text);
}

Written ToJson(const MachineNode& node) {
  Written out = {{"name", node.name}};
  if (!node.parent.empty()) out["parent"] = node.parent;
  if (node.count != 1) out["count"] = node.count;
  if (node.parent.empty()) return out;
  out["bandwidth"] = Quantity(node.bandwidth, QuantityKind::kBytesPerSecond);
  if (node.flow_bandwidth != 0) {
    out["flow_bandwidth"] = Quantity(node.flow_bandwidth, QuantityKind::kBytesPerSecond);
  }
  out["latency_seconds"] = Quantity(node.latency_seconds, QuantityKind::kSeconds);
  return out;
}

Written ToJson(const MachineDevices& d) {
  Written out = ToJson(d.node);
  out["kind"] = d.kind == v1::Device::CUDA ? "cuda" : "cpu";
  if (!d.model.empty()) out["model"] = d.model;
  out["memory_bytes"] = Bytes(d.memory_bytes);
  out["matmul_flops"] = Quantity(d.matmul_flops, QuantityKind::kFlopPerSecond);
  out["memory_bandwidth"] = Quantity(d.memory_bandwidth, QuantityKind::kBytesPerSecond);
  out["op_overhead_seconds"] = Quantity(d.op_overhead_seconds, QuantityKind::kSeconds);
  if (d.threads != 0) out["threads"] = d.threads;
  if (d.host_memory_bytes != 0) out["host_memory_bytes"] = Bytes(d.host_memory_bytes);
  if (d.host_bandwidth != 0) {
    out["host_bandwidth"] = Quantity(d.host_bandwidth, QuantityKind::kBytesPerSecond);
  }
  return out;
}

}  // namespace

absl::StatusOr<MachineModel> ReadMachine(const std::string& text) {
  if (text.size() > kMaxText) {
    return absl::ResourceExhaustedError(absl::StrCat("machine: the text has ", text.size(),
                                                     " bytes; at most ", kMaxText,
                                                     " are accepted; use \"count\""));
  }
  SyntaxCheck syntax(text);
  if (!Json::sax_parse(text, &syntax)) {
    return absl::InvalidArgumentError(absl::StrCat("machine: ", syntax.error()));
  }
  const Json root = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  MachineSpec spec;
  if (absl::Status s = Parse(root, &spec); !s.ok()) return s;
  return BuildMachine(spec);
}

absl::StatusOr<MachineSpec> ParseMachine(const std::string& text) {
  absl::StatusOr<MachineModel> model = ReadMachine(text);
  if (!model.ok()) return model.status();
  return std::move(model->spec);
}

std::string WriteMachine(const MachineSpec& spec) {
  Written root = {{"format_version", kFormatVersion}, {"name", spec.name}};
  if (!spec.description.empty()) root["description"] = spec.description;
  if (!spec.nodes.empty()) root["nodes"] = Written::array();
  for (const MachineNode& node : spec.nodes) root["nodes"].push_back(ToJson(node));
  root["devices"] = Written::array();
  for (const MachineDevices& d : spec.devices) root["devices"].push_back(ToJson(d));
  // A programmatic spec may contain text that is not UTF-8; replace rather than throw.
  return root.dump(2, ' ', false, Written::error_handler_t::replace) + "\n";
}

}  // namespace espalier
