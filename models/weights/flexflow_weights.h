// FlexFlow Serve's weight files for LLaMA-like models: one raw file per tensor without type or
// shape, which the model's configuration must give.
//
// A file holds f32 or f16, row-major, or a matrix [out, in] compressed by FlexFlow's
// compress_llama_weights.py: groups of 32 rows of a column share a minimum and a scale, f32 or f16,
// [ceil(out / 32), in], and a weight is q / scale + minimum. Either three files: "<name>" with q,
// one byte each even for 4 bits, "<name>_offset" and "<name>_scale"; or one file in FlexFlow's
// memory layout: q (for 4 bits two per byte, the first in the high half), minima, scales. The file
// sizes tell which.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/weights/weight_files.h"

namespace espalier {

// True if the file name is one of FlexFlow's; true if a folder with these files is FlexFlow's.
bool IsFlexFlowWeight(const std::string& name);
bool IsFlexFlowFolder(const std::vector<std::string>& names);

// `names` are the folder's files; `shapes` the expected tensors, whose names the result uses.
// Returns InvalidArgument for a file whose size fits no layout, with the sizes that would.
absl::StatusOr<std::unique_ptr<WeightFiles>> OpenFlexFlow(FileSystem& files,
                                                          const std::string& folder,
                                                          const std::vector<std::string>& names,
                                                          const TensorShapes& shapes);

}  // namespace espalier
