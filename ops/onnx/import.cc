#include "ops/onnx/import.h"

#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/onnx/dead_code.h"
#include "ops/onnx/equal_parameters.h"
#include "ops/onnx/folded_layers.h"
#include "ops/onnx/initializer_roles.h"
#include "ops/onnx/merged_initializers.h"
#include "ops/onnx/model_file.h"
#include "ops/onnx/tensor_proto.h"
#include "ops/onnx/translations.h"
#include "ops/onnx/translator.h"

namespace espalier {
namespace {

using onnx_import::Translations;
using onnx_import::Translator;

// A model is imported with two symbolic batch sizes. If it depends on the batch in another way than
// through sizes, the two graphs differ. The sizes differ by a prime larger than common divisors of
// the batch, so neither quotients nor remainders agree (N / 64, N - N / 2 * 2), and the second has
// many divisors (only for it N % 4 is 0). Only the first need be prime, because a size counts as
// the batch only if both imports say so.
constexpr int64_t kSymbolicBatches[] = {1000003, 1000003 - 375043};
static_assert(kSymbolicBatches[1] == 64 * 9 * 5 * 7 * 31);

absl::StatusOr<int> OpsetOf(const onnx::ModelProto& model) {
  int found = 0;
  for (const onnx::OperatorSetIdProto& opset : model.opset_import()) {
    if (!opset.domain().empty() && opset.domain() != "ai.onnx") {
      // Models of other domains only: their operators have their own meaning.
      if (found == 0 && opset.domain().rfind("ai.onnx", 0) == 0) found = kMaxOnnxOpset;
      continue;
    }
    // Before the first opset (Translator::TranslateNode).
    if (opset.version() < 1 || opset.version() > kMaxOnnxOpset) {
      return absl::UnimplementedError(absl::StrCat("ONNX opset ", opset.version(),
                                                   " is not read; export with opset ",
                                                   kMinOnnxOpset, " to ", kMaxOnnxOpset));
    }
    return static_cast<int>(opset.version());
  }
  if (found > 0) return found;
  return absl::InvalidArgumentError(
      "the ONNX model names no opset (field opset_import of domain \"\")");
}

absl::StatusOr<Dims> InputDims(const onnx::ValueInfoProto& input, const ImportOptions& options) {
  const auto given = options.shapes.find(input.name());
  if (!input.type().has_tensor_type() ||
      (!input.type().tensor_type().has_shape() && given == options.shapes.end())) {
    return absl::UnimplementedError(
        absl::StrCat("ONNX input '", input.name(), "' is no tensor with a known rank"));
  }
  if (given != options.shapes.end()) return given->second;
  Dims dims;
  for (const auto& dim : input.type().tensor_type().shape().dim()) {
    if (dim.has_dim_value() && dim.dim_value() >= 0) {
      dims.push_back(dim.dim_value());
    } else if (dims.empty() && !dim.has_dim_value()) {
      dims.push_back(-1);
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("ONNX input '", input.name(), "': dimension ", dims.size(),
                       " is symbolic or negative; only dimension 0 (the batch) may be symbolic"));
    }
  }
  return dims;
}

absl::StatusOr<DType> ElementType(absl::string_view what, const onnx::ValueInfoProto& value) {
  const int type = value.type().tensor_type().elem_type();
  const DType dtype = onnx_import::FromOnnx(type);
  if (value.type().has_tensor_type() && dtype != DType::kInvalid &&
      type != onnx::TensorProto::DOUBLE) {
    return dtype;
  }
  return absl::UnimplementedError(absl::StrCat(
      "ONNX ", what, " '", value.name(), "' has element type ",
      !value.type().has_tensor_type() ? "other than a tensor's"
      : onnx::TensorProto::DataType_IsValid(type)
          ? onnx::TensorProto::DataType_Name(static_cast<onnx::TensorProto::DataType>(type))
          : absl::StrCat(type),
      ", which is not taken"));
}

absl::Status AddInputs(const onnx::GraphProto& graph, const ImportOptions& options,
                       const onnx_import::MissingValues& missing, Translator* translator) {
  std::set<std::string> initializers;
  for (const onnx::TensorProto& tensor : graph.initializer()) initializers.insert(tensor.name());
  translator->AddInitializers(graph);
  for (const onnx::ValueInfoProto& input : graph.input()) {
    if (initializers.count(input.name()) > 0) continue;  // IR 3 lists initializers as inputs too
    if (const auto found = missing.find(input.name()); found != missing.end()) {
      translator->AddParameter(input.name(), found->second);
      continue;
    }
    absl::StatusOr<DType> dtype = ElementType("input", input);
    if (!dtype.ok()) return dtype.status();
    absl::StatusOr<Dims> dims = InputDims(input, options);
    if (!dims.ok()) return dims.status();
    translator->AddInput(input.name(), *dtype, *dims);
  }
  return translator->status();
}

absl::Status AddOutputs(const onnx::GraphProto& model, Translator* translator, Graph* graph) {
  std::set<std::string> names;
  for (const onnx::ValueInfoProto& output : model.output()) {
    const ValueId value = translator->Find(output.name());
    if (!translator->ok()) return translator->status();
    if (value == kNoValue) {
      return absl::InvalidArgumentError(
          absl::StrCat("ONNX output '", output.name(), "' is computed by no node"));
    }
    if (!names.insert(output.name()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("ONNX output '", output.name(), "' stands in the model twice"));
    }
    if (output.has_type()) {
      absl::StatusOr<DType> dtype = ElementType("output", output);
      if (!dtype.ok()) return dtype.status();
      if (*dtype != translator->DTypeOf(value)) {
        return absl::InvalidArgumentError(
            absl::StrCat("ONNX output '", output.name(), "' is declared as ", Name(*dtype),
                         " and computed as ", Name(translator->DTypeOf(value))));
      }
    }
    graph->outputs.emplace_back(output.name(), value);
  }
  if (graph->outputs.empty()) return absl::InvalidArgumentError("the ONNX model has no output");
  return absl::OkStatus();
}

// Names appear in messages whose strings must be UTF-8.
absl::Status CheckNames(const Graph& graph) {
  const auto valid = [](const std::string& text) {
    return google::protobuf::internal::IsStructurallyValidUTF8(text.data(),
                                                               static_cast<int>(text.size()));
  };
  bool good = valid(graph.name);
  for (const Value& value : graph.values()) good = good && valid(value.name);
  for (const Node& node : graph.nodes()) good = good && valid(node.name);
  for (const auto& [name, value] : graph.outputs) good = good && valid(name);
  return good ? absl::OkStatus()
              : absl::InvalidArgumentError("the ONNX model has names that are not valid UTF-8");
}

struct Translation {
  Graph graph;
  std::map<ValueId, const onnx::TensorProto*> deferred;  // Translator::deferred
};

// Removes dead code. A copy takes the name of its parameter if nothing else reads the parameter.
Translation Finished(const Translator& translator, Graph translated) {
  std::map<std::string, const onnx::TensorProto*> deferred;
  for (const auto& [value, tensor] : translator.deferred()) {
    deferred[translated.value(value).name] = tensor;
  }
  Translation result;
  result.graph = onnx_import::RemoveDeadCode(std::move(translated));
  std::map<std::string, ValueId> values;
  for (size_t v = 0; v < result.graph.values().size(); ++v) {
    const std::string& name = result.graph.values()[v].name;
    values.emplace(name, static_cast<ValueId>(v));
    const auto found = deferred.find(name);
    if (found != deferred.end()) result.deferred[static_cast<ValueId>(v)] = found->second;
  }
  for (const auto& [copy, name] : translator.copies()) {
    const auto found = values.find(copy);
    if (found == values.end() || !values.emplace(name, found->second).second) continue;
    result.graph.mutable_value(found->second).name = name;
  }
  return result;
}

void FillReport(const onnx::GraphProto& model, const onnx_import::InitializerRoles& roles,
                const Graph& graph, ImportReport* report) {
  for (const Value& value : graph.values()) {
    if (value.kind != ValueKind::kParameter) continue;
    const auto role = roles.find(value.name);
    ImportReport::Initializer& initializer = report->initializers[value.name];
    initializer = {value.type, value.trainable, "running statistics", false};  // if it is a copy
    if (role == roles.end() ||
        value.trainable != (role->second.kind == onnx_import::InitializerRole::kTrained)) {
      continue;
    }
    initializer.reason = role->second.reason;
    initializer.doubtful = role->second.doubtful;
  }
  for (const onnx::TensorProto& tensor : model.initializer()) {
    const auto role = roles.find(tensor.name());
    if (role == roles.end() || role->second.kind != onnx_import::InitializerRole::kConstant) {
      continue;
    }
    const absl::StatusOr<TensorType> type = onnx_import::TypeOf(tensor);
    if (!type.ok()) continue;  // the import has refused it, if it is read
    report->initializers[tensor.name()] = {*type, false, role->second.reason,
                                           role->second.doubtful};
  }
}

absl::StatusOr<Translation> Translate(const OpRegistry& registry,
                                      const onnx_import::ModelFile& file, int opset,
                                      const ImportOptions& options,
                                      const onnx_import::InitializerRoles& roles,
                                      const onnx_import::MissingValues& missing,
                                      int64_t symbolic_batch) {
  const onnx::ModelProto& model = file.model;
  Graph graph;
  graph.name = model.graph().name().empty() ? "onnx" : model.graph().name();
  graph.metadata["source"] = "onnx";
  Translator translator(registry, Translations(), options, file, roles, symbolic_batch, &graph);
  translator.AddFunctions(model);
  absl::Status status = AddInputs(model.graph(), options, missing, &translator);
  if (!status.ok()) return status;
  translator.TranslateNodes(model.graph().node(), opset);
  if (!translator.ok()) return translator.status();
  status = AddOutputs(model.graph(), &translator, &graph);
  if (!status.ok()) return status;
  return Finished(translator, std::move(graph));
}

}  // namespace

absl::StatusOr<ImportedModel> ImportOnnxFile(const OpRegistry& registry,
                                             std::shared_ptr<const ReadableFile> file,
                                             const ImportOptions& options, ImportReport* report) {
  const absl::StatusOr<std::unique_ptr<onnx_import::ModelFile>> read =
      onnx_import::ReadModelFile(std::move(file), options.folder);
  if (!read.ok()) return read.status();
  const std::string merged = onnx_import::SeparateMergedInitializers(read->get());
  const onnx::ModelProto& model = (*read)->model;
  absl::StatusOr<int> opset = OpsetOf(model);
  if (!opset.ok()) return opset.status();
  const absl::StatusOr<onnx_import::InitializerRoles> roles =
      onnx_import::RolesOfInitializers(**read, options.parameters);
  if (!roles.ok()) return roles.status();
  const onnx_import::MissingValues missing =
      onnx_import::FindMissingValues(model, options.has_data, options.parameters);
  absl::StatusOr<Translation> translation =
      Translate(registry, **read, *opset, options, *roles, missing, kSymbolicBatches[0]);
  if (!translation.ok()) return translation.status();
  ImportedModel result{std::move(translation->graph), {}};
  const Graph& graph = result.graph;
  if (absl::Status status = CheckNames(graph); !status.ok()) return status;
  if (report != nullptr) {
    FillReport(model.graph(), *roles, graph, report);
    for (const auto& [name, value] : missing) {
      report->initializers[name] = {value.type, value.trained, value.reason, false};
    }
    report->notes = onnx_import::NotesOnFoldedLayers(model);
    if (!merged.empty()) report->notes.push_back(merged);
    std::string equal = onnx_import::NoteOnEqualParameters(**read, *roles);
    if (!equal.empty()) report->notes.push_back(std::move(equal));
    for (std::string& note : onnx_import::NotesOnMissingValues(missing)) {
      report->notes.push_back(std::move(note));
    }
  }
  bool symbolic = false;
  for (const Value& value : graph.values()) {
    if (value.kind != ValueKind::kInput) continue;
    symbolic = symbolic || (!value.type.dims.empty() && value.type.dims[0] < 0);
  }
  if (symbolic) {
    const absl::StatusOr<Translation> again =
        Translate(registry, **read, *opset, options, *roles, missing, kSymbolicBatches[1]);
    if (!again.ok()) return again.status();
    const std::string different = onnx_import::FirstDifference(graph, again->graph);
    if (!different.empty()) {
      return absl::UnimplementedError(absl::StrCat(
          "ONNX node '", different,
          "': its shape or value depends on the batch size in a way that "
          "a graph for any batch cannot say; export the model with a fixed batch size"));
    }
  }
  for (const auto& [value, tensor] : translation->deferred) {
    absl::StatusOr<InitialValue> deferred = onnx_import::DeferredTensor(*tensor, **read);
    if (!deferred.ok()) return deferred.status();
    deferred->name = graph.value(value).name;
    result.values.push_back(*std::move(deferred));
  }
  return result;
}

absl::StatusOr<Graph> ImportOnnx(const OpRegistry& registry, std::string bytes,
                                 const ImportOptions& options, ImportReport* report) {
  absl::StatusOr<ImportedModel> model =
      ImportOnnxFile(registry, onnx_import::MemoryFile(std::move(bytes)), options, report);
  if (!model.ok()) return model.status();
  for (const InitialValue& initial : model->values) {
    Value& value = model->graph.mutable_value(model->graph.FindValue(initial.name));
    value.initializer = {};
    value.constant.resize(static_cast<size_t>(initial.type.bytes()));
    absl::Status status = initial.read(0, initial.type.bytes(), value.constant.data());
    if (!status.ok()) return status;
  }
  return std::move(model->graph);
}

std::vector<std::string> SupportedOnnxOperators(const OpRegistry& registry) {
  std::set<std::string> names;
  for (const auto& [name, translate] : Translations()) names.insert(name);
  for (const OpDef* def : registry.All()) {
    if (def->onnx.has_value()) names.insert(def->onnx->op_type);
  }
  return {names.begin(), names.end()};
}

}  // namespace espalier
