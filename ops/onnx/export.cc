#include "ops/onnx/export.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/onnx/dead_code.h"
#include "ops/onnx/import.h"
#include "ops/onnx/tensor_proto.h"
#include "ops/onnx/writer.h"

namespace espalier {
namespace onnx_export {

#define ESPALIER_WRITERS(Name) void Register##Name##Writers(WriterTable&);
#include "ops/onnx/writers.inc"
#undef ESPALIER_WRITERS

}  // namespace onnx_export

namespace {

constexpr char kLossOutput[] = "loss";

using onnx_export::Writer;
using onnx_export::WriterTable;

const WriterTable& Writers() {
  static const WriterTable* const table = [] {
    auto* built = new WriterTable;
#define ESPALIER_WRITERS(Name) onnx_export::Register##Name##Writers(*built);
#include "ops/onnx/writers.inc"
#undef ESPALIER_WRITERS
    return built;
  }();
  return *table;
}

// By value: whether losses or metrics are among what it is computed from, as a weighted sum of
// losses is.
std::vector<bool> DependsOnLoss(const OpRegistry& registry, const Graph& graph) {
  std::vector<bool> depends(graph.values().size(), false);
  for (const Node& node : graph.nodes()) {
    const OpDef* def = registry.Find(node.op);
    const bool loss = def != nullptr && (def->is_loss || def->is_metric);
    const bool any = std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) {
      return v != kNoValue && depends[static_cast<size_t>(v)];
    });
    for (const ValueId v : node.outputs) {
      if (v != kNoValue && (loss || any)) depends[static_cast<size_t>(v)] = true;
    }
  }
  return depends;
}

// The outputs to export. A loss of basic operators is known by its name only: it stays if it is all
// that the graph computes.
std::vector<std::pair<std::string, ValueId>> WantedOutputs(const OpRegistry& registry,
                                                           const Graph& graph,
                                                           const ExportOptions& options) {
  std::vector<std::pair<std::string, ValueId>> wanted;
  if (const std::vector<std::string>& list = options.outputs; !list.empty()) {
    std::copy_if(graph.outputs.begin(), graph.outputs.end(), std::back_inserter(wanted),
                 [&](const auto& output) {
                   return std::find(list.begin(), list.end(), output.first) != list.end();
                 });
    return wanted;
  }
  const std::vector<bool> depends = DependsOnLoss(registry, graph);
  std::copy_if(graph.outputs.begin(), graph.outputs.end(), std::back_inserter(wanted),
               [&](const auto& output) { return !depends[static_cast<size_t>(output.second)]; });
  if (wanted.size() > 1) {
    std::erase_if(wanted, [](const auto& output) { return output.first == kLossOutput; });
  }
  return wanted;
}

// The part of the graph that computes the requested outputs.
absl::StatusOr<Graph> Wanted(const OpRegistry& registry, const Graph& graph,
                             const ExportOptions& options) {
  Graph part = graph;
  part.outputs = WantedOutputs(registry, graph, options);
  if (part.outputs.empty() || part.outputs.size() < options.outputs.size()) {
    const std::string known =
        absl::StrJoin(graph.outputs, ", ",
                      [](std::string* out, const auto& output) { out->append(output.first); });
    return absl::InvalidArgumentError(
        options.outputs.empty()
            ? absl::StrCat("the graph has no output but losses and metrics (", known,
                           "); give its predictions a name as an output of the graph")
            : absl::StrCat("there is no such output to export; the graph's are: ", known));
  }
  return onnx_import::RemoveDeadCode(std::move(part));
}

void SetType(const std::string& name, const TensorType& type, onnx::ValueInfoProto* info) {
  info->set_name(name);
  onnx::TypeProto::Tensor* tensor = info->mutable_type()->mutable_tensor_type();
  tensor->set_elem_type(onnx_import::ToOnnx(type.dtype));
  tensor->mutable_shape();
  for (int64_t dim : type.dims) {
    onnx::TensorShapeProto::Dimension* d = tensor->mutable_shape()->add_dim();
    if (dim == Writer::kBatch) {
      d->set_dim_param("batch");
    } else if (!Writer::IsBatch(dim)) {
      d->set_dim_value(dim);
    }
  }
}

// ONNX has no field that tells parameters from buffers and constants.
void AddTrainable(const Graph& graph, onnx::ModelProto* out) {
  nlohmann::json names = nlohmann::json::array();
  for (const Value& value : graph.values()) {
    if (value.kind == ValueKind::kParameter && value.trainable) names.push_back(value.name);
  }
  onnx::StringStringEntryProto* entry = out->add_metadata_props();
  entry->set_key(kTrainableKey);
  entry->set_value(names.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

absl::Status AddWeight(const Value& value, const ExportOptions& options, onnx::GraphProto* out) {
  OnnxWeight weight{value.constant, "", 0};
  if (value.kind == ValueKind::kParameter && options.weight) {
    absl::StatusOr<OnnxWeight> given = options.weight(value);
    if (!given.ok()) return given.status();
    weight = *std::move(given);
  }
  onnx::TensorProto* tensor = out->add_initializer();
  tensor->set_name(value.name);
  tensor->set_data_type(onnx_import::ToOnnx(value.type.dtype));
  for (int64_t dim : value.type.dims) tensor->add_dims(dim);
  if (!weight.location.empty()) {
    tensor->set_data_location(onnx::TensorProto::EXTERNAL);
    for (const auto& [key, text] :
         std::map<std::string, std::string>{{"location", weight.location},
                                            {"offset", std::to_string(weight.offset)},
                                            {"length", std::to_string(value.type.bytes())}}) {
      onnx::StringStringEntryProto* entry = tensor->add_external_data();
      entry->set_key(key);
      entry->set_value(text);
    }
    return absl::OkStatus();
  }
  if (static_cast<int64_t>(weight.bytes.size()) != value.type.bytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("parameter '", value.name, "' has ", weight.bytes.size(), " bytes, its type ",
                     ToString(value.type), " needs ", value.type.bytes()));
  }
  tensor->set_raw_data(std::move(weight.bytes));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ExportOnnx(const OpRegistry& registry, const Graph& graph,
                                       const ExportOptions& options) {
  absl::StatusOr<Graph> part = Wanted(registry, graph, options);
  if (!part.ok()) return part.status();
  if (absl::Status status = BindAndInfer(registry, Writer::kBatch, &*part); !status.ok()) {
    return status;
  }
  onnx::ModelProto model;
  model.set_ir_version(10);
  model.set_producer_name("espalier");
  onnx::OperatorSetIdProto* opset = model.add_opset_import();
  opset->set_domain("");
  opset->set_version(kExportedOnnxOpset);
  AddTrainable(*part, &model);
  onnx::GraphProto* out = model.mutable_graph();
  out->set_name(graph.name.empty() ? "espalier" : graph.name);
  const auto readers = part->Consumers(), readers_before = graph.Consumers();
  for (size_t v = 0; v < part->values().size(); ++v) {
    const Value& value = part->value(static_cast<ValueId>(v));
    // Labels of a loss that is not exported.
    if (value.kind == ValueKind::kInput && readers[v].empty() &&
        !readers_before[graph.FindValue(value.name)].empty()) {
      continue;
    }
    if (value.kind == ValueKind::kInput) SetType(value.name, value.type, out->add_input());
    if (value.kind == ValueKind::kState) {
      return absl::UnimplementedError(
          absl::StrCat("'", value.name, "' is kept between runs, which ONNX cannot say"));
    }
    if (value.kind != ValueKind::kParameter && value.kind != ValueKind::kConstant) continue;
    if (absl::Status status = AddWeight(value, options, out); !status.ok()) return status;
  }
  Writer writer(registry, *part, out);
  for (size_t n = 0; n < part->nodes().size() && writer.ok(); ++n) {
    writer.Write(Writers(), static_cast<NodeId>(n));
  }
  if (!writer.ok()) return writer.status();
  for (const auto& [name, id] : part->outputs) {
    const Value& value = part->value(id);
    if (value.name != name) {
      onnx::NodeProto* node = out->add_node();
      node->set_op_type("Identity");
      node->set_name(absl::StrCat(name, "/output"));
      node->add_input(value.name);
      node->add_output(name);
    }
    SetType(name, value.type, out->add_output());
  }
  return model.SerializeAsString();
}

std::vector<std::string> ExportableOperators() {
  std::vector<std::string> names;
  for (const auto& [name, write] : Writers()) names.push_back(name);
  return names;
}

}  // namespace espalier
