// Reads the fields of one untrusted JSON object: checks types and ranges, keeps the first error,
// and rejects unknown fields by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/nearest.h"
#include "server/http/openai_error.h"

namespace espalier::openai {

// Fields keep their order, so that a schema's properties are generated in the schema's order.
class JsonReader {
 public:
  // `object` must outlive the reader. `place` precedes field names in messages ("tools[0].").
  explicit JsonReader(const nlohmann::ordered_json& object, std::string place = "")
      : object_(object), place_(std::move(place)) {}

  // Parses a body into *object. Rejects anything but an object, duplicate fields, and more than the
  // allowed depth or number of values.
  static std::optional<Error> ParseBody(const std::string& body, nlohmann::ordered_json* object);

  const std::optional<Error>& error() const { return error_; }
  void Fail(const std::string& field, const std::string& message);

  // Returns null if the field is absent or null. Marks the field as known.
  const nlohmann::ordered_json* Find(const std::string& field);

  void String(const std::string& field, bool required, std::string* out);
  void Number(const std::string& field, double low, double high, double* out);
  void Bool(const std::string& field, bool* out);
  template <typename T>
  void Integer(const std::string& field, int64_t low, int64_t high, T* out) {
    int64_t value = 0;
    if (ReadInteger(field, low, high, &value)) *out = static_cast<T>(value);
  }
  // Reads at most `most` token ids.
  void Tokens(const std::string& field, size_t most, const std::function<void(int)>& add);
  void Strings(const std::string& field, size_t most,
               const std::function<void(const std::string&)>& add);

  // Accepts the field only with a value for which `neutral` returns true.
  void Unsupported(const std::string& field,
                   const std::function<bool(const nlohmann::ordered_json&)>& neutral);
  // Accepts fields that do not affect the answer.
  void Ignore(std::initializer_list<const char*> fields);
  // The error names the nearest field that was read and has an effect. Call it last.
  void RefuseUnknown();

 private:
  bool ReadInteger(const std::string& field, int64_t low, int64_t high, int64_t* out);

  const nlohmann::ordered_json& object_;
  const std::string place_;
  std::optional<Error> error_;
  std::set<std::string> seen_;
  std::set<std::string> without_effect_;  // of those
};

using ::espalier::DidYouMean;

// Returns whether a value means that a feature is off.
bool IsOff(const nlohmann::ordered_json& value);

// Serializes `value`. Invalid UTF-8 becomes U+FFFD instead of an exception.
std::string Dump(const nlohmann::ordered_json& value);

// Estimates the number of bytes that Dump would write, without writing them.
size_t BytesOf(const nlohmann::ordered_json& value);

}  // namespace espalier::openai
