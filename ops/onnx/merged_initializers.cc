#include "ops/onnx/merged_initializers.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "ops/onnx/initializer_names.h"
#include "ops/onnx/tensor_proto.h"
#include "ops/onnx/torch_metadata.h"

namespace espalier::onnx_import {
namespace {

// A use of an initializer: the node, and the input that is the initializer.
using InitializerUse = std::pair<onnx::NodeProto*, int>;

// "weight" of "layers.0.fc.weight".
absl::string_view MemberOf(absl::string_view name) { return name.substr(name.rfind('.') + 1); }

// The words behind % in the text of a traced operation, in order.
std::vector<std::string> NamesIn(absl::string_view text) {
  std::vector<std::string> names;
  for (size_t at = text.find('%'); at != text.npos; at = text.find('%', at)) {
    size_t end = ++at;
    while (end < text.size() && (absl::ascii_isalnum(text[end]) || text[end] == '_')) ++end;
    names.emplace_back(text.substr(at, end - at));
  }
  return names;
}

class Separator {
 public:
  explicit Separator(ModelFile* file) : file_(*file), graph_(*file->model.mutable_graph()) {
    for (const onnx::TensorProto& tensor : graph_.initializer()) {
      initializers_[tensor.name()] = &tensor;
    }
  }

  // Nodes Identity of PyTorch's first exporter.
  void ByCopies() {
    std::set<std::string> outputs;
    for (const onnx::ValueInfoProto& output : graph_.output()) outputs.insert(output.name());
    google::protobuf::RepeatedPtrField<onnx::NodeProto> nodes;
    for (onnx::NodeProto& node : *graph_.mutable_node()) {
      const bool copies = node.op_type() == "Identity" && node.domain().empty() &&
                          node.input_size() == 1 && node.output_size() == 1;
      // The result of a module nn.Identity has a name that the exporter made.
      if (copies && IsFloatInitializer(node.input(0)) && outputs.count(node.output(0)) == 0 &&
          initializers_.count(node.output(0)) == 0 &&
          KindOfName(node.output(0)) != NameKind::kExporter) {
        AddCopy(node.input(0), node.output(0));
      } else {
        *nodes.Add() = std::move(node);
      }
    }
    nodes.Swap(graph_.mutable_node());
  }

  // Parameters that the traced operations name, and of which the newer exporter left one.
  void ByOperations() {
    tensors_ = TorchTensorsOf(graph_);
    if (tensors_.empty()) return;
    for (const auto& [name, tensor] : tensors_) targets_[tensor.target] = tensor.kind;
    std::map<std::string, std::vector<InitializerUse>> operations;  // by their text
    std::set<std::string> named;
    for (onnx::NodeProto& node : *graph_.mutable_node()) {
      const std::string* operation = FindProperty(node.metadata_props(), kTorchOperation);
      if (operation == nullptr) continue;
      for (std::string& target : TargetsIn(*operation)) named.insert(std::move(target));
      for (int i = 0; i < node.input_size(); ++i) {
        if (targets_.count(node.input(i)) > 0 && IsFloatInitializer(node.input(i))) {
          operations[*operation].emplace_back(&node, i);
        }
      }
    }
    for (const auto& [target, kind] : targets_) {
      const bool gone = kind == "PARAMETER" && initializers_.count(target) == 0;
      if (gone && !named.empty() && named.count(target) == 0) left_out_.push_back(target);
    }
    for (const auto& [text, uses] : operations) {
      const std::vector<std::string> targets = TargetsIn(text);
      for (const auto& [node, i] : uses) {
        if (std::count(targets.begin(), targets.end(), node->input(i)) > 0) {
          used_by_name_.insert(node->input(i));
        }
      }
    }
    for (auto& [text, uses] : operations) Separate(TargetsIn(text), uses);
  }

  std::string Note() const {
    std::vector<std::string> notes;
    if (separated_ > 0) {
      notes.push_back(absl::StrCat(
          "the exporter has merged tensors because their values were equal, ", first_separated_,
          separated_ > 1 ? absl::StrCat(" and ", separated_ - 1, " more") : "",
          "; each is a tensor of its own here, as in the PyTorch module"));
    }
    if (!first_kept_.empty()) {
      notes.push_back(absl::StrCat(
          "the exporter has merged tensors of the PyTorch module because their values were equal, ",
          first_kept_, "; they are trained as one"));
    }
    if (!left_out_.empty()) {
      notes.push_back(absl::StrCat(
          "no operation in the file names these parameters of the PyTorch module: '", left_out_[0],
          "'", left_out_.size() > 1 ? absl::StrCat(" and ", left_out_.size() - 1, " more") : "",
          "; unless they are tied to others, the exporter has left them out or used their values, "
          "and they are not trained: export with optimize=False"));
    }
    return absl::StrJoin(notes, "; ");
  }

 private:
  bool IsFloatInitializer(const std::string& name) const {
    const auto found = initializers_.find(name);
    if (found == initializers_.end()) return false;
    const absl::StatusOr<TensorType> type = TypeOf(*found->second);
    return type.ok() && IsFloat(type->dtype);
  }

  // Parameters and buffers named in the text of an operation, in order.
  std::vector<std::string> TargetsIn(const std::string& text) const {
    std::vector<std::string> targets;
    for (const std::string& name : NamesIn(text)) {
      const auto found = tensors_.find(name);
      if (found != tensors_.end()) targets.push_back(found->second.target);
    }
    return targets;
  }

  // All elements are equal, as those of new norms are.
  bool IsFilled(const std::string& name) const {
    const onnx::TensorProto& tensor = *initializers_.at(name);
    if (file_.left.count(&tensor) > 0) return false;
    const absl::StatusOr<HostTensor> read = ReadTensor(tensor, file_);
    if (!read.ok() || read->bytes.empty()) return false;
    const size_t size = read->bytes.size() / static_cast<size_t>(read->type.num_elements());
    return std::equal(read->bytes.begin() + static_cast<std::ptrdiff_t>(size), read->bytes.end(),
                      read->bytes.begin());
  }

  // `named` and `uses` belong to one operation.
  void Separate(const std::vector<std::string>& named, const std::vector<InitializerUse>& uses) {
    const auto is_left = [this](const std::string& target) {
      return initializers_.count(target) > 0 && added_.count(target) == 0;
    };
    bool in_order = named.size() == uses.size();
    for (size_t i = 0; i < uses.size() && in_order; ++i) {
      in_order = uses[i].first->input(uses[i].second) == named[i] || !is_left(named[i]);
    }
    if (in_order) {
      for (size_t i = 0; i < uses.size(); ++i) Assign(uses[i], named[i]);
      return;
    }
    // Some operations name parameters that the exporter transposed, or are several nodes.
    for (const InitializerUse& use : uses) {
      const std::string name = use.first->input(use.second);
      if (std::count(named.begin(), named.end(), name) > 0) continue;
      std::set<std::string> alike;
      bool complete = true;
      for (const std::string& target : named) {
        complete = complete && is_left(target);
        if (!is_left(target) && MemberOf(target) == MemberOf(name)) alike.insert(target);
      }
      if (alike.size() == 1) {
        Assign(use, *alike.begin());
      } else if (complete && used_by_name_.count(name) > 0) {
        // A literal of the same value.
        std::string own = absl::StrCat("val_0_", name);
        for (int n = 1; initializers_.count(own) > 0; ++n) own = absl::StrCat("val_", n, "_", name);
        AddCopy(name, own);
        use.first->set_input(use.second, own);
      }
    }
  }

  // The node reads what the module calls `target`.
  void Assign(const InitializerUse& use, const std::string& target) {
    const std::string name = use.first->input(use.second);
    if (name == target) return;
    if (added_.count(target) == 0) {
      // Layers that were copied have equal values, too; so have tied weights, which are one.
      if (!IsFilled(name) && NameWithoutDigits(name) != NameWithoutDigits(target)) {
        if (first_kept_.empty()) first_kept_ = absl::StrCat("'", target, "' and '", name, "'");
        return;
      }
      AddCopy(name, target);
      onnx::ValueInfoProto* const info = graph_.add_value_info();
      info->set_name(target);
      onnx::StringStringEntryProto* const kind = info->add_metadata_props();
      kind->set_key(kTorchInputKind);
      kind->set_value(targets_.at(target));
    }
    use.first->set_input(use.second, target);
  }

  // Adds an initializer `name` with the elements of `of`.
  void AddCopy(const std::string& of, const std::string& name) {
    const onnx::TensorProto* const tensor = initializers_.at(of);
    onnx::TensorProto* const own = graph_.add_initializer();
    *own = *tensor;
    own->set_name(name);
    if (const auto left = file_.left.find(tensor); left != file_.left.end()) {
      const ElementsInFile place = left->second;
      file_.left[own] = place;
    }
    initializers_[name] = own;
    added_.insert(name);
    if (separated_++ == 0) first_separated_ = absl::StrCat("'", name, "' and '", of, "'");
  }

  ModelFile& file_;
  onnx::GraphProto& graph_;
  std::map<std::string, const onnx::TensorProto*> initializers_;
  std::map<std::string, TorchTensor> tensors_;
  std::map<std::string, std::string> targets_;  // their kinds
  std::set<std::string> used_by_name_;          // initializers that an operation names and uses
  std::set<std::string> added_;
  int separated_ = 0;
  std::string first_separated_, first_kept_;
  std::vector<std::string> left_out_;  // parameters that no operation in the file names
};

}  // namespace

std::string SeparateMergedInitializers(ModelFile* file) {
  if (file->model.producer_name() != "pytorch") return "";
  Separator separator(file);
  separator.ByCopies();
  separator.ByOperations();
  return separator.Note();
}

}  // namespace espalier::onnx_import
