// Weights as FlexFlow Serve keeps them, for LLaMA and its kin: one raw file per tensor, without
// types or shapes, which the model's configuration must say.
//
// A file holds f32 or f16, row-major, or a matrix [out, in] compressed as FlexFlow's
// compress_llama_weights.py does: groups of 32 rows of one column share a minimum and a scale, f32
// or f16, [ceil(out / 32), in], and a weight is q / scale + minimum. They lie in three files, q in
// "<name>", one byte each with 8 bits as with 4, then "<name>_offset" and "<name>_scale"; or in one
// file as FlexFlow holds them in memory, q first (with 4 bits two in a byte, the first one in the
// high half), minima, scales. Which it is follows from the sizes of the files.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/weights/weight_files.h"

namespace espalier {

// Whether a file is one of FlexFlow's, by its name, and whether a folder with these files is.
bool IsFlexFlowWeight(const std::string& name);
bool IsFlexFlowFolder(const std::vector<std::string>& names);

// `names`: what the folder holds; `shapes`: what is expected in it. Tensors have the names in
// `shapes`. InvalidArgument for a file whose size fits none of the layouts, with those that would.
absl::StatusOr<std::unique_ptr<WeightFiles>> OpenFlexFlow(FileSystem& files,
                                                          const std::string& folder,
                                                          const std::vector<std::string>& names,
                                                          const TensorShapes& shapes);

}  // namespace espalier
