// Request errors that name the field they are about, by its HTTP name (the OpenAI error's "param").
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace espalier {

inline constexpr char kFieldPayload[] = "espalier/field";

// Keeps a field that is already set, since the finder of the error set the most precise one.
inline absl::Status InField(absl::string_view field, absl::Status status) {
  if (!status.ok() && !status.GetPayload(kFieldPayload)) {
    status.SetPayload(kFieldPayload, absl::Cord(field));
  }
  return status;
}

inline absl::Status FieldError(absl::string_view field, absl::string_view message) {
  return InField(field, absl::InvalidArgumentError(message));
}

// Reports that the value of `field`, described by `what` ("text"), is invalid. Turns
// ResourceExhausted, which would tell the client that the queue is full, into InvalidArgument:
// retrying cannot help.
inline absl::Status InvalidContent(absl::string_view field, absl::string_view what,
                                   const absl::Status& status) {
  if (!absl::IsResourceExhausted(status)) return InField(field, status);
  return FieldError(field, absl::StrCat(status.message(), "; shorten the ", what));
}

// Returns the field, or "" if there is none.
inline std::string FieldOf(const absl::Status& status) {
  const auto field = status.GetPayload(kFieldPayload);
  return field ? std::string(*field) : std::string();
}

}  // namespace espalier
