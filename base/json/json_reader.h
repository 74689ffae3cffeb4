// Reads untrusted JSON field by field and keeps the first error with its place, so that a reader of
// many fields checks once at its end.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

// Parses a text. Returns InvalidArgument naming `file` if it is not JSON or is nested deeper than
// 64 levels.
absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text, absl::string_view file);

// A value with its place, such as "tokenizer.json: model.vocab". Cheap to copy; the value and the
// status must outlive it. After the first error everything reads as its default or empty.
class JsonReader {
 public:
  JsonReader(const nlohmann::json& value, std::string place, absl::Status* status)
      : value_(&value), place_(std::move(place)), status_(status) {}

  bool ok() const { return status_->ok(); }
  const std::string& place() const { return place_; }
  const nlohmann::json& value() const { return *value_; }

  void Invalid(absl::string_view what) const { Fail(absl::StatusCode::kInvalidArgument, what); }
  void Unknown(absl::string_view what) const { Fail(absl::StatusCode::kUnimplemented, what); }
  // Records an error found elsewhere.
  void Take(const absl::Status& error) const { Fail(error.code(), error.message()); }

  // Reads fields. Without a fallback the field is required; null counts as absent.
  bool Has(absl::string_view key) const;
  JsonReader Get(absl::string_view key) const;
  std::string String(absl::string_view key,
                     std::optional<std::string> fallback = std::nullopt) const;
  bool Bool(absl::string_view key, std::optional<bool> fallback = std::nullopt) const;
  int64_t Int(absl::string_view key, int64_t low, int64_t high,
              std::optional<int64_t> fallback = std::nullopt) const;
  double Number(absl::string_view key, std::optional<double> fallback = std::nullopt) const;

  // Reads this value.
  std::string AsString() const;
  int64_t AsInt(int64_t low, int64_t high) const;
  double AsNumber() const;
  bool IsObject() const { return value_->is_object(); }
  // Reads this value as an array; an error if it is not one.
  size_t size() const;
  JsonReader At(size_t i) const;

 private:
  void Fail(absl::StatusCode code, absl::string_view what) const;

  const nlohmann::json* value_;
  std::string place_;
  absl::Status* status_;
};

}  // namespace espalier
