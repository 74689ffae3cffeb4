// Reads the fields of one JSON object from outside: types and ranges are checked, the first error
// sticks, and a field that nobody asked for is refused by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/http/openai_error.h"

namespace espalier::openai {

// Fields keep their order: a schema's properties come in an answer as they do in the schema.
class JsonReader {
 public:
  // `object` must outlive the reader. `place` comes before the names in messages ("tools[0].").
  explicit JsonReader(const nlohmann::ordered_json& object, std::string place = "")
      : object_(object), place_(std::move(place)) {}

  // Parses a body into *object. Nothing but an object of bounded depth and
  // numbers of fields is accepted, and no field twice.
  static std::optional<Error> ParseBody(const std::string& body, nlohmann::ordered_json* object);

  const std::optional<Error>& error() const { return error_; }
  void Fail(const std::string& field, const std::string& message);

  // Null if the field is absent or null. From then on it counts as known.
  const nlohmann::ordered_json* Find(const std::string& field);

  void String(const std::string& field, bool required, std::string* out);
  void Number(const std::string& field, double low, double high, double* out);
  void Bool(const std::string& field, bool* out);
  template <typename T>
  void Integer(const std::string& field, int64_t low, int64_t high, T* out) {
    int64_t value = 0;
    if (ReadInteger(field, low, high, &value)) *out = static_cast<T>(value);
  }
  // Token ids, at most `most` of them.
  void Tokens(const std::string& field, size_t most, const std::function<void(int)>& add);
  void Strings(const std::string& field, size_t most,
               const std::function<void(const std::string&)>& add);

  // A field that is accepted only with a value that changes nothing.
  void Unsupported(const std::string& field,
                   const std::function<bool(const nlohmann::ordered_json&)>& neutral);
  // Fields that do not change the answer.
  void Ignore(std::initializer_list<const char*> fields);
  void RefuseUnknown();

 private:
  bool ReadInteger(const std::string& field, int64_t low, int64_t high, int64_t* out);

  const nlohmann::ordered_json& object_;
  const std::string place_;
  std::optional<Error> error_;
  std::set<std::string> seen_;
};

// A value that means that a feature is not wanted.
bool IsOff(const nlohmann::ordered_json& value);

// On the wire, bytes that are no UTF-8 become U+FFFD instead of an exception.
std::string Dump(const nlohmann::ordered_json& value);

// About as many bytes as Dump would write, without writing them.
size_t BytesOf(const nlohmann::ordered_json& value);

}  // namespace espalier::openai
