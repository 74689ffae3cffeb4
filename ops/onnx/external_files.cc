#include "ops/onnx/external_files.h"

#include "third_party/onnx/onnx.pb.h"

namespace espalier {
namespace {

class LocationFinder {
 public:
  void AddGraph(const onnx::GraphProto& graph) {
    for (const onnx::TensorProto& tensor : graph.initializer()) AddTensor(tensor);
    for (const onnx::SparseTensorProto& sparse : graph.sparse_initializer()) AddSparse(sparse);
    AddNodes(graph.node());
  }

  void AddNodes(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes) {
    for (const onnx::NodeProto& node : nodes) {
      for (const onnx::AttributeProto& attribute : node.attribute()) {
        if (attribute.has_t()) AddTensor(attribute.t());
        for (const onnx::TensorProto& tensor : attribute.tensors()) AddTensor(tensor);
        if (attribute.has_sparse_tensor()) AddSparse(attribute.sparse_tensor());
        if (attribute.has_g()) AddGraph(attribute.g());
        for (const onnx::GraphProto& body : attribute.graphs()) AddGraph(body);
      }
    }
  }

  std::set<std::string> locations;

 private:
  void AddTensor(const onnx::TensorProto& tensor) {
    if (tensor.data_location() != onnx::TensorProto::EXTERNAL) return;
    for (const onnx::StringStringEntryProto& entry : tensor.external_data()) {
      if (entry.key() == "location") locations.insert(entry.value());
    }
  }
  void AddSparse(const onnx::SparseTensorProto& sparse) {
    AddTensor(sparse.values());
    AddTensor(sparse.indices());
  }
};

}  // namespace

absl::StatusOr<std::set<std::string>> ExternalFilesOf(const std::string& bytes) {
  onnx::ModelProto model;
  if (!model.ParseFromString(bytes) || !model.has_graph()) {
    return absl::InvalidArgumentError(
        "it is no complete ONNX model: the file is cut short, damaged or of another format");
  }
  LocationFinder finder;
  finder.AddGraph(model.graph());
  for (const onnx::FunctionProto& function : model.functions()) finder.AddNodes(function.node());
  return std::move(finder.locations);
}

}  // namespace espalier
