// Saves the parameters of a serving program to a file.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/safetensors.h"
#include "worker/executor/executor.h"

namespace espalier {

// Receives the bytes written so far and in total; an error ends the save.
using SaveProgress = std::function<absl::Status(int64_t done, int64_t total)>;

// Writes every parameter under its own name and shape; LoadWeights with an empty WeightMap restores
// it bit for bit. Stores f32 as BF16 or F16 where that is lossless.
absl::StatusOr<SafetensorsWriter::Written> SaveWeights(
    Executor& executor, FileSystem& files, const std::string& path,
    const std::map<std::string, std::string>& metadata, const SaveProgress& progress = nullptr);

}  // namespace espalier
