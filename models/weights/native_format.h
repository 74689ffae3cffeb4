// Weight formats closest to those of a model's files, for the matrices of served models.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/file_system.h"
#include "models/weights/weight_files.h"
#include "ops/quantized/quantize_graph.h"

namespace espalier {

// Keeps bf16 and f16. GGUF's 4-bit blocks of uniform quantization (Q4_0, Q4_1, Q4_K) become int4
// unchanged, except that Q4_K's scales are rounded to f16. Other GGUF blocks become int8, off by at
// most 1/254 of the largest of 32. All else is f32, including FlexFlow's raw files, which carry no
// type.
class NativeFormats {
 public:
  explicit NativeFormats(const WeightFiles& weights);
  // Reads a folder's formats from file headers only. Errors are those of OpenWeights.
  static absl::StatusOr<NativeFormats> Read(FileSystem& files, const std::string& folder);

  // Returns the format of a matrix made of these tensors; f32 if one is missing.
  WeightFormat Of(const std::vector<std::string>& tensors) const;
  // The format of most matrix elements.
  WeightFormat dominant() const { return dominant_; }

 private:
  NativeFormats() = default;

  std::map<std::string, WeightFormat> formats_;  // by tensor
  WeightFormat dominant_ = WeightFormat::kF32;
};

}  // namespace espalier
