#include "ops/onnx/initializer_roles.h"

#include <cmath>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/json/bounded_json.h"
#include "ops/onnx/import.h"
#include "ops/onnx/initializer_names.h"
#include "ops/onnx/initializer_uses.h"
#include "ops/onnx/tensor_proto.h"
#include "ops/onnx/torch_metadata.h"

namespace espalier::onnx_import {
namespace {

// Larger literals stay parameters, so that programs stay small.
constexpr int64_t kMaxLiteral = 1024;
// Larger operands of elementwise operators are no constants of the kind that people write.
constexpr int64_t kMaxSmallOperand = 4096;
constexpr int64_t kMaxPositionBytes = 64 << 20;

absl::StatusOr<std::optional<std::set<std::string>>> ListedIn(const onnx::ModelProto& model) {
  const std::string* text = FindProperty(model.metadata_props(), kTrainableKey);
  std::optional<std::set<std::string>> listed;
  if (text == nullptr) return listed;
  const std::string place = absl::StrCat("metadata '", kTrainableKey, "' of the ONNX model ");
  absl::StatusOr<nlohmann::json> json = ParseBoundedJson<nlohmann::json>(*text);
  if (!json.ok()) return absl::InvalidArgumentError(absl::StrCat(place, json.status().message()));
  if (!json->is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(place, "is no JSON list of names"));
  }
  listed.emplace();
  std::set<std::string> known;
  for (const onnx::TensorProto& tensor : model.graph().initializer()) known.insert(tensor.name());
  for (const nlohmann::json& name : *json) {
    if (!name.is_string()) {
      return absl::InvalidArgumentError(absl::StrCat(place, "is no JSON list of names"));
    }
    listed->insert(name.get<std::string>());
    if (known.count(name.get<std::string>()) > 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(place, "names '", name.get<std::string>(),
                                                   "', which is no initializer of the model"));
  }
  return listed;
}

// What PyTorch's newer exporter (torch.onnx.export with dynamo=True) says of initializers.
struct TorchSignature {
  std::map<std::string, std::string> kinds;  // by name: PARAMETER, BUFFER, CONSTANT_TENSOR
  // All parameters of the module are initializers, so that none is hidden in another (transposed).
  bool complete = true;
};

TorchSignature SignatureOf(const onnx::GraphProto& graph) {
  TorchSignature signature;
  for (const auto* infos : {&graph.value_info(), &graph.input()}) {
    for (const onnx::ValueInfoProto& info : *infos) {
      const std::string* kind = FindProperty(info.metadata_props(), kTorchInputKind);
      if (kind != nullptr && *kind != "USER_INPUT") signature.kinds[info.name()] = *kind;
    }
  }
  std::set<std::string> names;
  for (const onnx::TensorProto& tensor : graph.initializer()) names.insert(tensor.name());
  for (const auto& [placeholder, tensor] : TorchTensorsOf(graph)) {
    if (tensor.kind == "PARAMETER") signature.complete &= names.count(tensor.target) > 0;
  }
  return signature;
}

// Whether each row of the table holds sines and cosines of the same angles, in turn or by halves
// (of quarters for tables of two dimensions): nobody learns such numbers.
bool IsSinusoidal(const Dims& dims, const std::vector<double>& numbers) {
  if (dims.size() < 2) return false;
  const size_t width = dims.back(), rows = width == 0 ? 0 : numbers.size() / width;
  if (rows < 4 || width < 4 || width % 2 != 0) return false;
  const auto pairs_up = [&](size_t block, size_t distance) {
    size_t used = 0;
    for (size_t row = 0; row < rows; ++row) {
      const double* values = numbers.data() + row * width;
      bool zeros = true;  // of padding, of a class token
      for (size_t i = 0; i < width; ++i) zeros = zeros && values[i] == 0;
      if (zeros) continue;
      ++used;
      for (size_t i = 0; i < width; ++i) {
        if (i % block >= distance) continue;
        const double norm = values[i] * values[i] + values[i + distance] * values[i + distance];
        if (!(std::abs(norm - 1) < 1e-3)) return false;
      }
    }
    return used >= 4 && std::memcmp(numbers.data() + (rows - 1) * width,
                                    numbers.data() + (rows - 2) * width, width * sizeof(double));
  };
  return pairs_up(2, 1) || pairs_up(width, width / 2) ||
         (width % 4 == 0 && pairs_up(width / 2, width / 4));
}

bool HoldsFixedPositions(const onnx::TensorProto& tensor, const TensorType& type,
                         const ModelFile& file) {
  if (type.dtype != DType::kF32 || type.bytes() > kMaxPositionBytes) return false;
  const absl::StatusOr<HostTensor> read = ReadTensor(tensor, file);
  return read.ok() && IsSinusoidal(type.dims, NumbersOf(type, read->bytes));
}

// What stands before "running_var" in the names of norms whose arithmetic is written out, such as
// torchvision's FrozenBatchNorm2d: exporters write those that learn as BatchNormalization.
std::set<std::string> FrozenNorms(const onnx::GraphProto& graph,
                                  const InitializerReaders& readers) {
  std::set<std::string> prefixes;
  for (const onnx::TensorProto& tensor : graph.initializer()) {
    absl::string_view prefix = tensor.name();
    if (!absl::ConsumeSuffix(&prefix, ".running_var")) continue;
    const InitializerUses uses = readers.UsesOf(tensor.name());
    if (uses.elementwise && !uses.statistics) prefixes.emplace(prefix);
  }
  return prefixes;
}

bool ScalesOrShiftsOneOf(const std::set<std::string>& norms, absl::string_view name,
                         const InitializerUses& uses) {
  const bool named = absl::ConsumeSuffix(&name, ".weight") || absl::ConsumeSuffix(&name, ".bias");
  return named && uses.weight_of == nullptr && norms.count(std::string(name)) > 0;
}

InitializerRole Literal(int64_t elements, std::string reason) {
  return {elements <= kMaxLiteral ? InitializerRole::kConstant : InitializerRole::kFrozen,
          std::move(reason)};
}

InitializerRole Inferred(const onnx::TensorProto& tensor, const TensorType& type,
                         const InitializerUses& uses) {
  using Role = InitializerRole;
  const int64_t elements = type.num_elements();
  const NameKind name = KindOfName(tensor.name());
  const auto operand = [&uses] { return absl::StrCat("operand of ", uses.weight_of->op_type()); };
  if (name == NameKind::kExporter) {
    // Exporters transpose weights of linear layers; other operands of MatMul are mostly tables.
    const bool weight = uses.weight_of != nullptr &&
                        (uses.weight_of->op_type() != "MatMul" || type.dims.size() == 2);
    if (weight) return {Role::kTrained, operand(), uses.weight_of->op_type() == "Gather"};
    Role role = Literal(elements, "a literal of the exporter");
    role.doubtful = elements > 1;
    return role;
  }
  if (name == NameKind::kParameter) return {Role::kTrained, "named like a parameter"};
  if (name == NameKind::kBuffer) return {Role::kFrozen, "named like a buffer"};
  if (uses.weight_of != nullptr) return {Role::kTrained, operand()};
  if (name == NameKind::kBufferLike) return {Role::kFrozen, "named like a buffer"};
  if (!uses.normalizes.empty()) {
    return {Role::kFrozen, absl::StrCat("combined with input '", uses.normalizes, "' alone"), true};
  }
  if (uses.other || name == NameKind::kMember || elements > kMaxSmallOperand) {
    return {Role::kTrained, "not named like a buffer", true};
  }
  return {Role::kFrozen, "a small operand that is not named like a parameter", true};
}

}  // namespace

absl::StatusOr<InitializerRoles> RolesOfInitializers(const ModelFile& file,
                                                     const std::set<std::string>& parameters) {
  using Role = InitializerRole;
  const onnx::ModelProto& model = file.model;
  const absl::StatusOr<std::optional<std::set<std::string>>> listed = ListedIn(model);
  if (!listed.ok()) return listed.status();
  const InitializerReaders readers(model);
  const TorchSignature signature = SignatureOf(model.graph());
  const std::set<std::string> frozen_norms = FrozenNorms(model.graph(), readers);
  InitializerRoles roles;
  for (const onnx::TensorProto& tensor : model.graph().initializer()) {
    const std::string& name = tensor.name();
    const absl::StatusOr<TensorType> type = TypeOf(tensor);
    if (!type.ok() || !IsFloat(type->dtype)) continue;  // the import says what is wrong
    const InitializerUses uses = readers.UsesOf(name);
    if (uses.none()) continue;
    const bool statistics = uses.statistics && uses.weight_of == nullptr && !uses.elementwise;
    const bool setting = uses.setting && uses.weight_of == nullptr && !uses.elementwise;
    const auto kind = signature.kinds.find(name);
    const bool made_by_torch = !signature.kinds.empty() && signature.complete;
    Role& role = roles[name];
    if (statistics) {
      role = {Role::kFrozen, "running statistics"};
    } else if (parameters.count(name) > 0) {
      role = {Role::kTrained, "named in train_only"};
    } else if (setting && !uses.other) {
      role = Literal(type->num_elements(), "a setting of an operator");
    } else if (listed->has_value() && (*listed)->count(name) > 0) {
      role = {Role::kTrained, absl::StrCat("listed in ", kTrainableKey)};
    } else if (listed->has_value()) {
      const std::string reason = absl::StrCat("not listed in ", kTrainableKey);
      role = KindOfName(name) == NameKind::kExporter ? Literal(type->num_elements(), reason)
                                                     : Role{Role::kFrozen, reason};
    } else if (kind != signature.kinds.end()) {
      const std::string reason = absl::StrCat(kind->second, " of PyTorch's module");
      role = kind->second == "PARAMETER" ? Role{Role::kTrained, reason}
             : kind->second == "BUFFER"  ? Role{Role::kFrozen, reason}
                                         : Literal(type->num_elements(), reason);
    } else if (made_by_torch) {
      role = Literal(type->num_elements(), "a literal of the exporter");
    } else if (ScalesOrShiftsOneOf(frozen_norms, name, uses)) {
      role = {Role::kFrozen, "of a norm whose running statistics are constants", true};
    } else {
      role = Inferred(tensor, *type, uses);
    }
    const bool stated = listed->has_value() || parameters.count(name) > 0;
    const bool may_be_fixed =
        !stated && (role.doubtful || (role.kind == Role::kTrained && NamesPositions(name)));
    if (may_be_fixed && HoldsFixedPositions(tensor, *type, file)) {
      role = {Role::kFrozen, "sines and cosines of positions"};
    }
  }
  return roles;
}

}  // namespace espalier::onnx_import
