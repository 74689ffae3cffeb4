// In which form a served model's matrices keep what its files hold, in as few bits.
#pragma once

#include "absl/status/statusor.h"
#include "ops/quantized/quantize_graph.h"
#include "worker/checkpoint/file_system.h"
#include "worker/weights/weight_files.h"

namespace espalier {

// By most of the numbers in matrices: bf16 and f16 as they are, GGUF's quantised blocks as int8,
// which is off by a part of what the file is off itself (a 254th of the largest of 32), f32
// otherwise.
WeightFormat OwnFormat(const WeightFiles& weights);

// The same of a folder, whose files are opened but not read; f32 of FlexFlow's raw files, which do
// not say what they hold. Errors as OpenWeights.
absl::StatusOr<WeightFormat> ReadOwnFormat(FileSystem& files, const std::string& folder);

}  // namespace espalier
