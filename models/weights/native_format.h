// In which form served matrices keep what a model's files hold, in as few bits.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/quantized/quantize_graph.h"
#include "base/file_system.h"
#include "models/weights/weight_files.h"

namespace espalier {

// bf16 and f16 stay what they are, and so do GGUF's blocks of 4 bits whose 32 numbers are equally
// far apart (Q4_0, Q4_1, Q4_K) as int4, but for Q4_K's scales, rounded to f16. Its other blocks are
// int8, which is off by no more than a 254th of the largest of 32. All else is f32, FlexFlow's raw
// files too, which do not say what they hold.
class NativeFormats {
 public:
  explicit NativeFormats(const WeightFiles& weights);
  // Of a folder, whose files are opened but not read. Errors as OpenWeights.
  static absl::StatusOr<NativeFormats> Read(FileSystem& files, const std::string& folder);

  // Of a matrix that these tensors make up together; f32 of one that is not there.
  WeightFormat Of(const std::vector<std::string>& tensors) const;
  // Of most numbers in matrices.
  WeightFormat most() const { return most_; }

 private:
  NativeFormats() = default;

  std::map<std::string, WeightFormat> formats_;  // by tensor
  WeightFormat most_ = WeightFormat::kF32;
};

}  // namespace espalier
