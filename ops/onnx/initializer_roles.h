// Tells parameters from other initializers of an ONNX model, for which ONNX has no field.
#pragma once

#include <map>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "ops/onnx/model_file.h"

namespace espalier::onnx_import {

struct InitializerRole {
  enum Kind {
    kTrained,
    kFrozen,    // a parameter that is not trained: a buffer, running statistics
    kConstant,  // a literal that the exporter wrote as an initializer
  };
  Kind kind = kTrained;
  std::string reason;
  // The file does not say it, and neither name nor use is clear.
  bool doubtful = false;
};
using InitializerRoles = std::map<std::string, InitializerRole>;

// Returns the roles of the floating-point initializers of the main graph that any node reads. By
// precedence:
//  - `parameters` names initializers that are trained;
//  - kTrainableKey (import.h) in ModelProto.metadata_props lists them;
//  - PyTorch's newer exporter says in ValueInfoProto.metadata_props which are parameters;
//  - otherwise they are inferred from names and uses.
// Elements are read only of tables of positions. Returns InvalidArgument if the list is no JSON
// list of names of initializers.
absl::StatusOr<InitializerRoles> RolesOfInitializers(const ModelFile& file,
                                                     const std::set<std::string>& parameters);

}  // namespace espalier::onnx_import
