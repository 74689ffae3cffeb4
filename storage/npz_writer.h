// Writes NumPy's .npz files, which npz.h reads.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "storage/npz.h"

namespace espalier {

// The bytes of a .npz with one stored (not deflated) member for each array, by name.
// InvalidArgument for types that NumPy has not (bf16), for data that is not its type's size, and
// for more than the 4 GiB that the format's old form takes.
absl::StatusOr<std::string> WriteNpz(const std::map<std::string, Array>& arrays);

}  // namespace espalier
