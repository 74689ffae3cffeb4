// Reads a message that a job store wrote.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message_lite.h"

namespace espalier {

// `what`: for the error, as "plan".
inline absl::Status ParseStored(const std::string& bytes, absl::string_view what,
                                google::protobuf::MessageLite* message) {
  if (message->ParseFromString(bytes)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("job store: a ", what, " does not parse"));
}

}  // namespace espalier
