// The only file here that uses nlohmann's exceptions; they do not leave it.
#include "models/config_reader.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/json/bounded_json.h"
#include "models/neutral_fields.h"

namespace espalier {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostSize = int64_t{1} << 24;

// Integers that fit; nlohmann would wrap larger ones.
bool IsInteger(const Json& value) {
  if (!value.is_number_integer()) return false;
  return !value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t{1} << 62;
}

}  // namespace

struct ConfigReader::State {
  Json object;
  std::string file;  // its name, for messages
  std::string path;  // of nested objects: "rope_scaling."
  // Shared by nested readers.
  std::shared_ptr<absl::Status> status = std::make_shared<absl::Status>();
  // Paths of the fields that were asked for, and of the objects that were opened.
  std::shared_ptr<std::set<std::string>> read = std::make_shared<std::set<std::string>>();
  std::shared_ptr<std::set<std::string>> opened = std::make_shared<std::set<std::string>>();

  const Json* Find(const std::string& field) const {
    read->insert(path + field);
    const auto it = object.find(field);
    return it == object.end() || it->is_null() ? nullptr : &*it;
  }
};

absl::StatusOr<ConfigReader> ConfigReader::Parse(absl::string_view text, const std::string& file) {
  const auto wrong = [&file](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": ", std::string(what)));
  };
  if (text.size() > (size_t{1} << 20)) {
    return wrong("more than 1 MiB; accepted: a model's configuration");
  }
  absl::StatusOr<Json> object = ParseBoundedJson<Json>(text, {.depth = 64});
  if (!object.ok()) return wrong(object.status().message());
  auto state = std::make_shared<State>();
  state->file = file;
  state->object = *std::move(object);
  if (!state->object.is_object()) return wrong("the text is no JSON object");
  return ConfigReader(std::move(state));
}

bool ConfigReader::Has(const std::string& field) const { return state_->Find(field) != nullptr; }

bool ConfigReader::HasOrIsNull(const std::string& field) const {
  state_->read->insert(state_->path + field);
  return state_->object.contains(field);
}

int64_t ConfigReader::Size(const std::string& field) {
  if (!Has(field)) {
    Fail(absl::InvalidArgumentError(
        absl::StrCat(state_->file, ": field \"", state_->path, field, "\" is missing")));
    return 1;
  }
  return Size(field, 1);
}

int64_t ConfigReader::Size(const std::string& field, int64_t otherwise) {
  return Int(field, otherwise, 1, kMostSize);
}

int64_t ConfigReader::Int(const std::string& field, int64_t otherwise, int64_t least,
                          int64_t most) {
  const Json* value = state_->Find(field);
  if (value == nullptr) return otherwise;
  if (!IsInteger(*value) || value->get<int64_t>() < least || value->get<int64_t>() > most) {
    Refuse(field, absl::StrCat("an integer from ", least, " to ", most));
    return otherwise;
  }
  return value->get<int64_t>();
}

double ConfigReader::Number(const std::string& field, double otherwise) {
  const Json* value = state_->Find(field);
  if (value == nullptr) return otherwise;
  if (!value->is_number() || !std::isfinite(value->get<double>())) {
    Refuse(field, "a number");
    return otherwise;
  }
  return value->get<double>();
}

double ConfigReader::Positive(const std::string& field, double otherwise) {
  const double value = Number(field, otherwise);
  if (Has(field) && !(value > 0)) {
    Refuse(field, "a number above 0");
    return otherwise;
  }
  return value;
}

bool ConfigReader::Flag(const std::string& field, bool otherwise) {
  const Json* value = state_->Find(field);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) {
    Refuse(field, "true or false");
    return otherwise;
  }
  return value->get<bool>();
}

std::string ConfigReader::Text(const std::string& field, const std::string& otherwise) {
  const Json* value = state_->Find(field);
  if (value == nullptr) return otherwise;
  if (!value->is_string()) {
    Refuse(field, "a string");
    return otherwise;
  }
  return value->get<std::string>();
}

std::vector<double> ConfigReader::Numbers(const std::string& field) {
  std::vector<double> numbers;
  const Json* value = state_->Find(field);
  if (value == nullptr) return numbers;
  const bool all =
      value->is_array() && std::all_of(value->begin(), value->end(), [](const Json& v) {
        return v.is_number() && std::isfinite(v.get<double>());
      });
  if (!all) {
    Refuse(field, "a list of numbers");
    return numbers;
  }
  for (const Json& number : *value) numbers.push_back(number.get<double>());
  return numbers;
}

std::vector<int64_t> ConfigReader::Ints(const std::string& field) {
  std::vector<int64_t> numbers;
  const Json* value = state_->Find(field);
  if (value == nullptr) return numbers;
  if (!value->is_array() || !std::all_of(value->begin(), value->end(), IsInteger)) {
    Refuse(field, "a list of integers");
    return numbers;
  }
  for (const Json& number : *value) numbers.push_back(number.get<int64_t>());
  return numbers;
}

std::vector<std::string> ConfigReader::Texts(const std::string& field) {
  std::vector<std::string> texts;
  const Json* value = state_->Find(field);
  if (value == nullptr) return texts;
  const bool all = value->is_array() && std::all_of(value->begin(), value->end(),
                                                    [](const Json& v) { return v.is_string(); });
  if (!all) {
    Refuse(field, "a list of strings");
    return texts;
  }
  for (const Json& text : *value) texts.push_back(text.get<std::string>());
  return texts;
}

std::vector<int> ConfigReader::TokenIds(const std::string& field) {
  std::vector<int> ids;
  const Json* value = state_->Find(field);
  if (value == nullptr) return ids;
  const Json list = value->is_array() ? *value : Json::array({*value});
  for (const Json& id : list) {
    if (!IsInteger(id) || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX) {
      Refuse(field, "null, a token id or a list of them");
      return {};
    }
    ids.push_back(static_cast<int>(id.get<int64_t>()));
  }
  return ids;
}

ConfigReader ConfigReader::Nested(const std::string& field) const {
  auto state = std::make_shared<State>();
  state->object = Json::object();
  state->file = state_->file;
  state->path = absl::StrCat(state_->path, field, ".");
  state->status = state_->status;
  state->read = state_->read;
  state->opened = state_->opened;
  const auto it = state_->object.find(field);
  if (it != state_->object.end() && it->is_object()) state->object = *it;
  return ConfigReader(std::move(state));
}

ConfigReader ConfigReader::Object(const std::string& field) {
  const Json* value = state_->Find(field);
  if (value != nullptr && !value->is_object()) Refuse(field, "null or an object");
  state_->opened->insert(state_->path + field);
  return Nested(field);
}

void ConfigReader::Default(const std::string& field, int64_t value) {
  if (!Has(field)) state_->object[field] = value;
}

void ConfigReader::DefaultFlag(const std::string& field, bool value) {
  if (!Has(field)) state_->object[field] = value;
}

void ConfigReader::RequireFlag(const std::string& field, bool supported, bool otherwise) {
  if (Flag(field, otherwise) == supported) return;
  if (Has(field)) {
    Refuse(field, supported ? "true" : "false", /*unsupported=*/true);
  } else {
    Fail(absl::UnimplementedError(
        absl::StrCat(state_->file, ": field \"", state_->path, field, "\" is missing, which means ",
                     otherwise ? "true" : "false", "; accepted: ", supported ? "true" : "false")));
  }
}

void ConfigReader::RequireText(const std::string& field,
                               const std::vector<std::string>& supported) {
  if (!Has(field)) return;
  const std::string text = Text(field, supported.front());
  if (std::find(supported.begin(), supported.end(), text) != supported.end()) return;
  std::string accepted;
  for (const std::string& s : supported) {
    absl::StrAppend(&accepted, accepted.empty() ? "\"" : ", \"", s, "\"");
  }
  Refuse(field, accepted, /*unsupported=*/true);
}

void ConfigReader::RequireAbsent(const std::string& field, absl::string_view because) {
  if (Has(field)) {
    Refuse(field, absl::StrCat("null: ", std::string(because)), /*unsupported=*/true);
  }
}

void ConfigReader::RequireOff(const std::string& field) {
  const Json* value = state_->Find(field);
  const bool empty = value == nullptr || *value == false ||
                     ((value->is_object() || value->is_array()) && value->empty());
  if (!empty) Refuse(field, "null, false or nothing in it", /*unsupported=*/true);
}

void ConfigReader::RequireOthersOff(const std::vector<std::string>& known) {
  for (const auto& [field, value] : state_->object.items()) {
    if (std::find(known.begin(), known.end(), field) == known.end()) RequireOff(field);
  }
}

void ConfigReader::Ignore(const std::vector<std::string>& fields) {
  for (const std::string& field : fields) state_->read->insert(state_->path + field);
}

void ConfigReader::RequireAllRead() {
  for (const auto& [field, value] : state_->object.items()) {
    const std::string path = state_->path + field;
    if (state_->opened->contains(path)) {
      Nested(field).RequireAllRead();
      continue;
    }
    const bool zero = value.is_number() && value == 0;
    const bool off = value.is_null() || value == false || zero || value == "" ||
                     (value.is_structured() && value.empty());
    if (off || state_->read->contains(path) || IsNeutralField(field)) continue;
    Refuse(field,
           "null, as this kind of model has no such field here, and it may change results; if it "
           "changes none, remove it",
           /*unsupported=*/true);
  }
}

bool ConfigReader::IsText(const std::string& field) const {
  const Json* value = state_->Find(field);
  return value != nullptr && value->is_string();
}

std::string ConfigReader::OneOf(const std::vector<std::string>& fields) {
  const std::string* first = nullptr;
  for (const std::string& field : fields) {
    const Json* value = state_->Find(field);
    if (value == nullptr) continue;
    if (first == nullptr) {
      first = &field;
    } else if (*value != *state_->Find(*first)) {
      Refuse(field, absl::StrCat("what \"", *first, "\" is, which means the same"));
    }
  }
  return first == nullptr ? fields.front() : *first;
}

void ConfigReader::Refuse(const std::string& field, absl::string_view accepted, bool unsupported) {
  const Json* value = state_->Find(field);
  std::string text =
      value == nullptr ? "null" : value->dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 60) text.replace(57, std::string::npos, "...");
  // A field's name may come from the file.
  const std::string name = absl::CHexEscape(absl::StrCat(state_->path, field.substr(0, 100)));
  const std::string message = absl::StrCat(state_->file, ": field \"", name, "\" is ", text,
                                           "; accepted: ", std::string(accepted));
  Fail(unsupported ? absl::UnimplementedError(message) : absl::InvalidArgumentError(message));
}

void ConfigReader::Fail(absl::Status status) {
  if (state_->status->ok()) *state_->status = std::move(status);
}

absl::Status ConfigReader::status() const { return *state_->status; }

}  // namespace espalier
