// Writes NumPy's .npz files (see npz.h).
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "storage/npz.h"

namespace espalier {

// Returns a .npz with one stored (not deflated) member per array, by name. Returns InvalidArgument
// for types that NumPy lacks (bf16), for data of the wrong size, and beyond the 4 GiB of ZIP
// without ZIP64.
absl::StatusOr<std::string> WriteNpz(const std::map<std::string, ArrayPieces>& arrays);
absl::StatusOr<std::string> WriteNpz(const std::map<std::string, Array>& arrays);

}  // namespace espalier
