// Which rank an error is about that says that a peer cannot be reached.
#pragma once

#include <optional>

#include "absl/status/status.h"

namespace espalier {

absl::Status WithUnreachableRank(absl::Status status, int rank);
// Also of an error that was annotated (AnnotateError); nothing for other errors.
std::optional<int> UnreachableRank(const absl::Status& status);

}  // namespace espalier
