// How the nodes of an ONNX model use an initializer.
#pragma once

#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "third_party/onnx/onnx.pb.h"

namespace espalier::onnx_import {

// The uses of one value, also through nodes that only change its shape, or apply a function to each
// element of it alone.
struct InitializerUses {
  // A node that multiplies, looks up or scales by it as layers do; null if there is none.
  const onnx::NodeProto* weight_of = nullptr;
  bool elementwise = false;  // operand of +, -, *, /, ... together with another value
  bool setting = false;      // what an attribute could say: bounds of Clip, scales of Resize
  bool statistics = false;   // running mean or variance
  bool other = false;
  // The graph's input that all elementwise uses take it with, before any layer; empty: not so.
  std::string normalizes;

  bool none() const {
    return weight_of == nullptr && !elementwise && !setting && !statistics && !other;
  }
};

// Bodies of branches and loops count as part of the graph.
class InitializerReaders {
 public:
  // `model` must outlive this object and what UsesOf returns.
  explicit InitializerReaders(const onnx::ModelProto& model);

  InitializerUses UsesOf(const std::string& name) const;

 private:
  void AddNodes(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes);
  void FindRawInputs(const onnx::GraphProto& graph);

  std::unordered_map<std::string, std::vector<std::pair<const onnx::NodeProto*, int>>> readers_;
  std::set<std::pair<std::string, std::string>> functions_;  // domain, name
  // Values that are an input of the graph but for constants and shape -> that input's name.
  std::unordered_map<std::string, std::string> raw_;
};

}  // namespace espalier::onnx_import
