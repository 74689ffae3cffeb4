#include "models/weights/native_format.h"

#include <algorithm>
#include <cstdint>
#include <memory>

#include "absl/strings/match.h"
#include "models/model.h"
#include "models/weights/flexflow_weights.h"

namespace espalier {
namespace {

WeightFormat FormatOf(const WeightFiles::Tensor& tensor) {
  const std::string& dtype = tensor.dtype;
  if (!tensor.readable) return WeightFormat::kF32;  // loading reports the error
  if (dtype == "BF16") return WeightFormat::kBF16;
  if (dtype == "F16") return WeightFormat::kF16;
  if (dtype == "Q4_0" || dtype == "Q4_1" || dtype == "Q4_K") return WeightFormat::kInt4;
  return absl::StartsWith(dtype, "Q") ? WeightFormat::kInt8 : WeightFormat::kF32;
}

// The format that holds the values of both.
WeightFormat Wider(WeightFormat a, WeightFormat b) {
  if (a == b) return a;
  const auto whole = [](WeightFormat format) {
    return format == WeightFormat::kInt8 || format == WeightFormat::kInt4;
  };
  if (whole(a) && whole(b)) return WeightFormat::kInt8;
  return WeightFormat::kF32;
}

}  // namespace

NativeFormats::NativeFormats(const WeightFiles& weights) {
  std::map<WeightFormat, int64_t> numbers;
  for (const auto& [name, tensor] : weights.tensors()) {
    const WeightFormat format = formats_[name] = FormatOf(tensor);
    if (tensor.dims.size() >= 2) numbers[format] += NumElements(tensor.dims);
  }
  const auto most =
      std::max_element(numbers.begin(), numbers.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most != numbers.end()) dominant_ = most->first;
}

absl::StatusOr<NativeFormats> NativeFormats::Read(FileSystem& files, const std::string& folder) {
  const absl::StatusOr<std::vector<std::string>> names = files.List(folder);
  if (!names.ok()) return names.status();
  if (IsFlexFlowFolder(*names)) return NativeFormats();
  const absl::StatusOr<std::unique_ptr<WeightFiles>> weights = OpenWeights(files, folder);
  if (!weights.ok()) return weights.status();
  return NativeFormats(**weights);
}

WeightFormat NativeFormats::Of(const std::vector<std::string>& tensors) const {
  WeightFormat format = WeightFormat::kF32;
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto found = formats_.end();
    for (const std::string& name : TensorNames(tensors[i])) {
      if (found == formats_.end()) found = formats_.find(name);
    }
    const WeightFormat own = found == formats_.end() ? WeightFormat::kF32 : found->second;
    format = i == 0 ? own : Wider(format, own);
  }
  return format;
}

}  // namespace espalier
