// UnsupportedOperators (import.h). Translates nothing, so one unsupported operator does not hide
// the next.
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/onnx/import.h"
#include "ops/onnx/model_file.h"

namespace espalier {
namespace {

constexpr int kMaxListedNesting = 32;  // as in the import

using Nodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;

class Walk {
 public:
  Walk(const OpRegistry& registry, const onnx::ModelProto& model) {
    for (const std::string& name : SupportedOnnxOperators(registry)) read_.insert(name);
    for (const onnx::FunctionProto& function : model.functions()) {
      functions_.emplace(Key(function.domain(), function.name()), function.overload());
    }
  }

  void Visit(const Nodes& nodes, int depth) {
    if (depth > kMaxListedNesting) return;
    for (const onnx::NodeProto& node : nodes) {
      const std::string key = Key(node.domain(), node.op_type());
      if (functions_.count({key, node.overload()}) == 0 && read_.count(key) == 0) Add(key, node);
      for (const onnx::AttributeProto& attribute : node.attribute()) {
        if (attribute.has_g()) Visit(attribute.g().node(), depth + 1);
        for (const onnx::GraphProto& graph : attribute.graphs()) Visit(graph.node(), depth + 1);
      }
    }
  }

  std::vector<UnsupportedOperator> Take() { return std::move(found_); }

 private:
  static std::string Key(const std::string& domain, const std::string& op_type) {
    return domain.empty() || domain == "ai.onnx" ? op_type : absl::StrCat(domain, ".", op_type);
  }

  void Add(const std::string& key, const onnx::NodeProto& node) {
    const auto [at, inserted] = index_.try_emplace(key, found_.size());
    if (inserted) {
      const auto known = UnsupportedOnnxOperators().find(key);
      const bool named = !node.name().empty() || node.output_size() == 0;
      found_.push_back(
          {key, 0, named ? node.name() : node.output(0),
           known == UnsupportedOnnxOperators().end() ? "it is not known" : known->second});
    }
    ++found_[at->second].nodes;
  }

  std::set<std::string> read_;
  std::set<std::pair<std::string, std::string>> functions_;  // operator, overload
  std::map<std::string, size_t> index_;
  std::vector<UnsupportedOperator> found_;
};

}  // namespace

std::vector<UnsupportedOperator> UnsupportedOperators(const OpRegistry& registry,
                                                      std::shared_ptr<const ReadableFile> file) {
  const auto read = onnx_import::ReadModelFile(std::move(file), /*folder=*/"");
  if (!read.ok()) return {};
  const onnx::ModelProto& model = (*read)->model;
  Walk walk(registry, model);
  walk.Visit(model.graph().node(), 0);
  for (const onnx::FunctionProto& function : model.functions()) walk.Visit(function.node(), 0);
  return walk.Take();
}

std::vector<UnsupportedOperator> UnsupportedOperators(const OpRegistry& registry,
                                                      std::string bytes) {
  return UnsupportedOperators(registry, onnx_import::MemoryFile(std::move(bytes)));
}

}  // namespace espalier
