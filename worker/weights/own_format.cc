#include "worker/weights/own_format.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "worker/weights/flexflow_weights.h"

namespace espalier {
namespace {

WeightFormat FormatOf(const WeightFiles::Tensor& tensor) {
  if (tensor.dtype == "BF16") return WeightFormat::kBF16;
  if (tensor.dtype == "F16") return WeightFormat::kF16;
  const bool block = absl::StartsWith(tensor.dtype, "Q") && tensor.readable;  // "Q4_K"
  return block ? WeightFormat::kInt8 : WeightFormat::kF32;
}

}  // namespace

WeightFormat OwnFormat(const WeightFiles& weights) {
  std::map<WeightFormat, int64_t> numbers;
  for (const auto& [name, tensor] : weights.tensors()) {
    int64_t count = tensor.dims.size() < 2 ? 0 : 1;
    for (const int64_t dim : tensor.dims) count *= dim;
    numbers[FormatOf(tensor)] += count;
  }
  const auto most =
      std::max_element(numbers.begin(), numbers.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == numbers.end() ? WeightFormat::kF32 : most->first;
}

absl::StatusOr<WeightFormat> ReadOwnFormat(FileSystem& files, const std::string& folder) {
  const absl::StatusOr<std::vector<std::string>> names = files.List(folder);
  if (!names.ok()) return names.status();
  if (IsFlexFlowFolder(*names)) return WeightFormat::kF32;
  const absl::StatusOr<std::unique_ptr<WeightFiles>> weights = OpenWeights(files, folder);
  if (!weights.ok()) return weights.status();
  return OwnFormat(**weights);
}

}  // namespace espalier
