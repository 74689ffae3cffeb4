#include "ops/onnx/equal_parameters.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/onnx/initializer_names.h"
#include "ops/onnx/tensor_proto.h"

namespace espalier::onnx_import {
namespace {

constexpr int64_t kProbes = 8;

struct Probed {
  // Dimensions in order of size, and elements of the diagonal: a transposed matrix has the same.
  std::pair<int64_t, int64_t> dims;
  std::vector<float> diagonal;

  bool operator<(const Probed& other) const {
    return std::tie(dims, diagonal) < std::tie(other.dims, other.diagonal);
  }
};

// Nothing for tensors that are no matrices of distinct numbers.
std::optional<Probed> ProbeOf(const onnx::TensorProto& tensor, const ModelFile& file) {
  const absl::StatusOr<InitialValue> value = DeferredTensor(tensor, file);
  if (!value.ok() || value->type.dtype != DType::kF32 || value->type.dims.size() != 2) return {};
  const int64_t rows = value->type.dims[0], columns = value->type.dims[1];
  Probed probed{std::minmax(rows, columns), {}};
  const int64_t count = std::min(probed.dims.first, kProbes);
  if (count < 2) return {};
  for (int64_t i = 0; i < count; ++i) {
    float element = 0;
    const int64_t at = (i * columns + i) * static_cast<int64_t>(sizeof(element));
    if (!value->read(at, sizeof(element), reinterpret_cast<char*>(&element)).ok()) return {};
    probed.diagonal.push_back(element);
  }
  std::vector<float> distinct = probed.diagonal;
  std::sort(distinct.begin(), distinct.end());
  const bool differ = std::adjacent_find(distinct.begin(), distinct.end()) == distinct.end();
  return differ ? std::optional(std::move(probed)) : std::nullopt;
}

}  // namespace

std::string NoteOnEqualParameters(const ModelFile& file, const InitializerRoles& roles) {
  std::map<Probed, std::string> first;
  for (const onnx::TensorProto& tensor : file.model.graph().initializer()) {
    const auto role = roles.find(tensor.name());
    if (role == roles.end() || role->second.kind != InitializerRole::kTrained) continue;
    std::optional<Probed> probed = ProbeOf(tensor, file);
    if (!probed.has_value()) continue;
    const auto [other, added] = first.emplace(*std::move(probed), tensor.name());
    if (added || NameWithoutDigits(other->second) == NameWithoutDigits(tensor.name())) continue;
    return absl::StrCat("'", other->second, "' and '", tensor.name(),
                        "' hold the same numbers and are trained apart: if they are one parameter ",
                        "(tied weights), export it as one (docs/guide/onnx.md)");
  }
  return "";
}

}  // namespace espalier::onnx_import
