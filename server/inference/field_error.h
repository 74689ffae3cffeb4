// Errors of a request that know which of its fields they are about, by the name that HTTP has for
// it (the OpenAI error's "param").
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace espalier {

inline constexpr char kFieldPayload[] = "espalier/field";

// The first to name a field is right: who found the error knows best.
inline absl::Status InField(absl::string_view field, absl::Status status) {
  if (!status.ok() && !status.GetPayload(kFieldPayload)) {
    status.SetPayload(kFieldPayload, absl::Cord(field));
  }
  return status;
}

inline absl::Status FieldError(absl::string_view field, absl::string_view message) {
  return InField(field, absl::InvalidArgumentError(message));
}

// Of what a request brought, as `what` ("text"): too much for a bound is so the next time, too, and
// ResourceExhausted would say to whoever asked that the queue is full.
inline absl::Status Unreadable(absl::string_view field, absl::string_view what,
                               const absl::Status& status) {
  if (!absl::IsResourceExhausted(status)) return InField(field, status);
  return FieldError(field, absl::StrCat(status.message(), "; shorten the ", what));
}

// Empty if none is known.
inline std::string FieldOf(const absl::Status& status) {
  const auto field = status.GetPayload(kFieldPayload);
  return field ? std::string(*field) : std::string();
}

}  // namespace espalier
