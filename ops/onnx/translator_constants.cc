// Initializers, constant folding, and shorthands for common nodes.
#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/onnx/tensor_proto.h"
#include "ops/onnx/translator.h"

namespace espalier::onnx_import {
namespace {

// Resource limits for small files.
constexpr int64_t kMaxFolded = 8 << 20;    // bytes of one value that becomes a constant
constexpr int64_t kMaxKnown = 64 << 20;    // bytes of one value that is read at import
constexpr int64_t kMaxKnownAll = 1 << 30;  // bytes of all of them
constexpr int kMaxChain = 2000;            // nodes behind a value that is computed at import
constexpr int64_t kConstantBytes = 256;    // overhead of a constant

}  // namespace

// Values known at import.

bool Translator::Fold(const OpDef& def, const NodeTypes& types, const std::vector<ValueId>& inputs,
                      std::vector<ValueId>* results) {
  if (!options_.evaluator || def.random) return false;
  for (ValueId v : inputs) {
    if (v != kNoValue && graph_->value(v).kind != ValueKind::kConstant) return false;
  }
  int64_t bytes = 0;
  for (const TensorType& type : types.outputs) bytes += type.bytes();
  if (bytes > kMaxFolded || (bytes_folded_ += bytes) > kMaxKnownAll) return false;
  std::vector<const std::string*> operands;
  for (ValueId v : inputs) {
    operands.push_back(v == kNoValue ? nullptr : &graph_->value(v).constant);
  }
  absl::StatusOr<std::vector<std::string>> computed = options_.evaluator(def.name, types, operands);
  if (!computed.ok()) {
    SetStatus(computed.status());
    return false;
  }
  std::optional<std::vector<std::string>> at_one =
      FoldAtBatchOne(def, types, inputs, operands, *computed);
  if (!at_one.has_value()) return false;
  for (size_t k = 0; k < results->size(); ++k) {
    (*results)[k] = AddConstant(types.outputs[k], std::move((*computed)[k]));
    if (!(*at_one)[k].empty()) at_one_[(*results)[k]] = std::move((*at_one)[k]);
  }
  return true;
}

const std::string* Translator::Known(ValueId value) {
  return ok() && value != kNoValue ? KnownAt(value, 0) : nullptr;
}

const std::string* Translator::KnownAt(ValueId id, int depth) {
  const Value& value = graph_->value(id);
  if (auto it = computed_.find(id); it != computed_.end()) return &it->second;
  if (auto it = deferred_.find(id); it != deferred_.end()) {
    absl::StatusOr<HostTensor> read = ReadTensor(*it->second, file_);
    if (!read.ok()) return nullptr;
    return &(computed_[id] = std::move(read->bytes));
  }
  if (value.kind == ValueKind::kConstant) return &value.constant;
  if (value.kind == ValueKind::kParameter) {
    const bool missing = value.constant.empty() && types_[id].num_elements() > 0;
    return missing ? nullptr : &value.constant;
  }
  if (value.kind == ValueKind::kInput) {
    auto it = options_.constants.find(value.name);
    if (it == options_.constants.end() || it->second.type != types_[id]) return nullptr;
    return &it->second.bytes;
  }
  if (unknown_.count(id) > 0 || !options_.evaluator || depth > kMaxChain) return nullptr;
  const Node node = graph_->node(value.producer);
  const OpDef& def = *registry_.Find(node.op);
  NodeTypes types;
  types.attributes = node.attributes;
  std::vector<const std::string*> operands;
  bool known = !def.random;
  for (ValueId v : node.inputs) {
    types.inputs.push_back(v == kNoValue ? TensorType{} : types_[v]);
    operands.push_back(v == kNoValue || !known ? nullptr : KnownAt(v, depth + 1));
    known = known && (v == kNoValue || operands.back() != nullptr);
  }
  int64_t bytes = 0;
  known = known && InferNode(def, &types).ok();
  for (const TensorType& type : types.outputs) bytes += type.bytes();
  known = known && bytes <= kMaxKnown && (bytes_folded_ += bytes) <= kMaxKnownAll;
  if (known) {
    absl::StatusOr<std::vector<std::string>> results = options_.evaluator(node.op, types, operands);
    if (!results.ok()) {
      SetStatus(results.status());
    } else if (auto at_one = FoldAtBatchOne(def, types, node.inputs, operands, *results)) {
      for (size_t k = 0; k < node.outputs.size(); ++k) {
        computed_[node.outputs[k]] = std::move((*results)[k]);
        if (!(*at_one)[k].empty()) at_one_[node.outputs[k]] = std::move((*at_one)[k]);
      }
      return &computed_[id];
    }
  }
  unknown_.insert(id);
  return nullptr;
}

std::vector<double> Translator::KnownNumbers(ValueId value, absl::string_view what) {
  if (!ok()) return {};
  const DType dtype = DTypeOf(value);
  if (dtype == DType::kF16 || dtype == DType::kBF16) value = Cast(value, DType::kF32);
  const std::string* bytes = Known(value);
  if (bytes == nullptr) {
    Refuse(absl::StrCat(what,
                        " must be known when the model is imported (a constant, an "
                        "initializer or computed from shapes)"));
    return {};
  }
  return NumbersOf(types_[value], *bytes);
}

std::vector<int64_t> Translator::KnownInts(ValueId value, absl::string_view what) {
  if (!ok()) return {};
  if (value != kNoValue && !IsInteger(DTypeOf(value)) && DTypeOf(value) != DType::kBool) {
    Fail(absl::StrCat(what, " must be integers, found ", Name(DTypeOf(value))));
    return {};
  }
  const std::string* bytes = Known(value);
  if (bytes == nullptr) {
    Refuse(absl::StrCat(what,
                        " must be integers that are known when the model is imported (a "
                        "constant, an initializer or computed from shapes)"));
    return {};
  }
  return IntegersOf(types_[value], *bytes);
}

std::vector<int64_t> Translator::ConstantInts(int index) {
  return KnownInts(Required(index), absl::StrCat("input ", index));
}

std::vector<double> Translator::ConstantNumbers(int index) {
  return KnownNumbers(Required(index), absl::StrCat("input ", index));
}

double Translator::ConstantNumber(int index) {
  const std::vector<double> values = ConstantNumbers(index);
  if (ok() && values.size() != 1) {
    Fail(absl::StrCat("input ", index, " must be one number, it has ", values.size()));
  }
  return ok() ? values[0] : 0;
}

bool Translator::CheckConstantBytes(DType type, int64_t elements) {
  return CheckConstantBytes(elements * static_cast<int64_t>(SizeOf(type)));
}

bool Translator::Reserve(int64_t bytes) {
  if (!CheckConstantBytes(bytes)) return false;
  bytes_made_ += bytes + kConstantBytes;
  return true;
}

bool Translator::CheckConstantBytes(int64_t bytes) {
  if (bytes_made_ + bytes + kConstantBytes > options_.max_constant_bytes) {
    Refuse(absl::StrCat("with it the constants that the model's nodes make are more than ",
                        options_.max_constant_bytes, " bytes"));
  }
  return ok();
}

ValueId Translator::Constant(TensorType type, std::string bytes) {
  if (!ok() || !Reserve(static_cast<int64_t>(bytes.size()))) return kNoValue;
  return AddConstant(std::move(type), std::move(bytes));
}

ValueId Translator::Constant(const onnx::TensorProto& tensor, TensorType type, std::string bytes) {
  return ok() && read_.insert(&tensor).second ? AddConstant(std::move(type), std::move(bytes))
                                              : Constant(std::move(type), std::move(bytes));
}

ValueId Translator::MaterializeConstant(Scope* scope, const std::string& name,
                                        const onnx::TensorProto& tensor) {
  absl::StatusOr<TensorType> type = TypeOf(tensor);
  if (!type.ok()) {
    SetStatus(type.status());
    return kNoValue;
  }
  const auto found = scope == &root_ ? roles_.find(name) : roles_.end();
  const InitializerRole role = found == roles_.end() ? InitializerRole() : found->second;
  const bool parameter =
      IsFloat(type->dtype) && scope == &root_ && role.kind != InitializerRole::kConstant;
  const bool deferred = parameter && type->bytes() > kMaxElementsInMemory;
  absl::StatusOr<HostTensor> read;
  if (deferred) {
    read = HostTensor{*type, {}};
    if (absl::Status status = CheckTensor(tensor, file_); !status.ok()) read = status;
  } else {
    read = ReadTensor(tensor, file_);
  }
  if (!read.ok()) {
    SetStatus(read.status());
    return kNoValue;
  }
  std::string bytes = std::move(read->bytes);
  ValueId id;
  if (parameter) {
    types_.push_back(*type);
    id = graph_->AddValue({.name = name,
                           .type = *type,
                           .kind = ValueKind::kParameter,
                           .trainable = role.kind == InitializerRole::kTrained,
                           .initializer = {deferred ? Initializer::kStored : Initializer::kZeros},
                           .constant = std::move(bytes)});
    if (deferred) deferred_[id] = &tensor;
  } else {
    // A body's constants may be read again in each iteration.
    id = scope == &root_ ? AddConstant(*type, std::move(bytes))
                         : Constant(tensor, *type, std::move(bytes));
    if (id == kNoValue) return kNoValue;
    graph_->mutable_value(id).name = scope == &root_ ? name : Unique(name);
  }
  scope->values[name] = id;
  return id;
}

ValueId Translator::AddConstant(TensorType type, std::string bytes) {
  if (!ok()) return kNoValue;
  types_.push_back(type);
  return graph_->AddValue({.name = Unique("constant"),
                           .type = std::move(type),
                           .kind = ValueKind::kConstant,
                           .constant = std::move(bytes)});
}

ValueId Translator::NonTrainableInput(int index, const std::vector<ValueId>& layer) {
  const ValueId value = Required(index);
  if (!IsParameter(value)) return value;
  const std::set<ValueId> different(layer.begin(), layer.end());
  const bool is_shared =
      different.size() == layer.size() &&
      std::none_of(layer.begin(), layer.end(), [this](ValueId v) { return IsConstant(v); });
  const auto key = std::pair(layer, index);
  if (const auto it = frozen_.find(key); it != frozen_.end()) return it->second;
  Value copy = graph_->value(value);
  const auto deferred = deferred_.find(value);
  const int64_t bytes = deferred != deferred_.end() ? types_[value].bytes()
                                                    : static_cast<int64_t>(copy.constant.size());
  if (!Reserve(bytes)) return kNoValue;
  copies_.emplace_back(Unique(copy.name), copy.name);
  copy.name = copies_.back().first;
  copy.trainable = false;
  types_.push_back(types_[value]);
  const ValueId id = graph_->AddValue(std::move(copy));
  if (deferred != deferred_.end()) deferred_[id] = deferred->second;
  if (is_shared) frozen_[key] = id;
  return id;
}

ValueId Translator::Numbers(DType dtype, const Dims& dims, const std::vector<double>& values) {
  const bool narrow = dtype == DType::kF16 || dtype == DType::kBF16;
  if (narrow) return Cast(Numbers(DType::kF32, dims, values), dtype);
  std::string bytes;
  for (double value : values) AppendNumber(dtype, value, &bytes);
  return Constant({dtype, dims}, std::move(bytes));
}

ValueId Translator::Integers(const std::vector<int64_t>& values, const Dims& dims) {
  return Constant({DType::kI64, dims},
                  std::string(reinterpret_cast<const char*>(values.data()), values.size() * 8));
}

// Shorthands.

ValueId Translator::Cast(ValueId x, DType dtype) {
  return DTypeOf(x) == dtype ? x : Emit("cast", {x}, {{"to", std::string(Name(dtype))}});
}

ValueId Translator::Transpose(ValueId x, const std::vector<int64_t>& perm) {
  return std::is_sorted(perm.begin(), perm.end()) ? x : Emit("transpose", {x}, {{"perm", perm}});
}

ValueId Translator::Reduce(const std::string& op, ValueId x, std::vector<int64_t> axes,
                           bool keepdims) {
  return Emit(op, {x}, {{"axes", std::move(axes)}, {"keepdims", keepdims}});
}

// Sizes with the symbolic batch become "copy" or "infer", so that the graph fits any batch.
ValueId Translator::Reshape(ValueId x, const Dims& dims) {
  if (!ok()) return kNoValue;
  if (dims == DimsOf(x)) return x;
  if (std::count(dims.begin(), dims.end(), 0) > 0) {  // in the attribute a 0 copies
    if (NumElements(DimsOf(x)) != 0) {
      Fail(absl::StrCat("cannot reshape ", ToString(DimsOf(x)), " to ", ToString(dims)));
    }
    return Emit("fill", {}, {{"dims", dims}, {"dtype", std::string(Name(DTypeOf(x)))}});
  }
  std::vector<int64_t> shape = dims;
  int inferred = 0;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (!IsSymbolicBatch(shape[i])) continue;
    if (i < DimsOf(x).size() && DimsOf(x)[i] == shape[i]) {
      shape[i] = 0;
    } else {
      shape[i] = -1;
      ++inferred;
    }
  }
  if (inferred > 1) Refuse("more than one dimension of the new shape depends on the batch");
  return Emit("reshape", {x}, {{"shape", shape}});
}

// Bools of shape 1, except the batch in `dim`; only the shape matters.
ValueId Translator::BatchCondition(int rank, int dim) {
  for (ValueId v = 0; v < static_cast<ValueId>(graph_->values().size()); ++v) {
    const Value& value = graph_->value(v);
    if (value.kind != ValueKind::kInput || value.type.dims.empty() || value.type.dims[0] >= 0) {
      continue;
    }
    Dims dims(rank, 1);
    dims[dim] = symbolic_batch_;
    std::vector<int64_t> axes, starts, ends;
    for (int d = 1; d < RankOf(v); ++d) {
      if (DimsOf(v)[d] == 0) return kNoValue;
      axes.push_back(d);
      starts.push_back(0);
      ends.push_back(1);
    }
    ValueId one = v;
    if (!axes.empty())
      one = Emit("slice", {v}, {{"axes", axes}, {"starts", starts}, {"ends", ends}});
    return Reshape(Emit("equal", {one, one}), dims);
  }
  return kNoValue;
}

ValueId Translator::Expand(ValueId x, const Dims& wanted) {
  if (!ok()) return kNoValue;
  const size_t rank = std::max(wanted.size(), DimsOf(x).size());
  Dims dims(rank, 1);
  std::copy(wanted.begin(), wanted.end(), dims.begin() + (rank - wanted.size()));
  Dims own(rank, 1);
  std::copy(DimsOf(x).begin(), DimsOf(x).end(), own.begin() + (rank - DimsOf(x).size()));
  int batch = -1;
  for (size_t d = 0; d < rank; ++d) {
    if (dims[d] == 1) dims[d] = own[d];
    if (dims[d] < 0 || (own[d] != 1 && own[d] != dims[d])) {
      Fail(absl::StrCat("cannot broadcast ", ToString(DimsOf(x)), " to ", ToString(wanted)));
      return kNoValue;
    }
    if (!IsSymbolicBatch(dims[d]) || own[d] == dims[d]) continue;
    if (batch >= 0 || dims[d] != symbolic_batch_) {
      Refuse("broadcasts to two dimensions that depend on the batch, or to a multiple of it");
      return kNoValue;
    }
    batch = static_cast<int>(d);
    dims[d] = 1;
  }
  if (own.size() != DimsOf(x).size()) x = Reshape(x, own);
  const bool holds_batch =
      std::any_of(dims.begin(), dims.end(), [&](int64_t d) { return IsSymbolicBatch(d); });
  if (dims != DimsOf(x)) {
    if (holds_batch) {
      // The attribute of `expand` cannot say "the batch"; ones broadcast as well.
      Dims ones = dims;
      for (int64_t& d : ones) d = IsSymbolicBatch(d) ? 1 : d;
      const ValueId condition =
          Emit("fill", {}, {{"dims", ones}, {"value", 1.0}, {"dtype", std::string("bool")}});
      x = Emit("where", {condition, x, x});
    } else {
      x = Emit("expand", {x}, {{"shape", dims}});
    }
  }
  if (batch < 0) return x;
  const ValueId condition = BatchCondition(static_cast<int>(rank), batch);
  if (ok() && condition == kNoValue) Refuse("no input says how large the batch is");
  return Emit("where", {condition, x, x});
}

}  // namespace espalier::onnx_import
