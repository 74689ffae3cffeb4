// Graph inputs that are parameters exported without their values (PyTorch's export_params=False).
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "ops/graph/graph.h"
#include "third_party/onnx/onnx.pb.h"

namespace espalier::onnx_import {

struct MissingValue {
  TensorType type;
  Initializer initializer;  // that it starts from
  bool trained = false;
  std::string reason;  // for ImportReport
};
using MissingValues = std::map<std::string, MissingValue>;

// By name: the inputs of the main graph that are parameters. Such an input has no column
// (`has_data` is false), no initializer, a floating-point type and a fixed shape, and is
//  - named in `parameters`, or
//  - only the running mean or variance of batch norms, or
//  - named like a parameter ("fc.weight") and read by a node that is no setting.
// They start as in FlexFlow: weights from Glorot's uniform distribution, biases from 0; scales of
// norms and running variances from 1, running means from 0, slopes of PRelu from 0.25.
MissingValues FindMissingValues(const onnx::ModelProto& model,
                                const std::function<bool(const std::string&)>& has_data,
                                const std::set<std::string>& parameters);

// Sentences for the user: which inputs start how. None if `missing` is empty.
std::vector<std::string> NotesOnMissingValues(const MissingValues& missing);

}  // namespace espalier::onnx_import
