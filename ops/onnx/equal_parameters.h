// Parameters that were one tensor in the exported module, and are several in the file.
#pragma once

#include <string>

#include "ops/onnx/initializer_roles.h"
#include "ops/onnx/model_file.h"

namespace espalier::onnx_import {

// Exporters write tied weights, such as those of an embedding and of the layer before the logits,
// one by one, or transpose one of them; training then changes each on its own. Returns a sentence
// for the user about matrices that are trained and whose elements are equal, unless the names
// differ in digits only (layers that were made as copies); empty if there are none. Reads a few
// elements of each.
std::string NoteOnEqualParameters(const ModelFile& file, const InitializerRoles& roles);

}  // namespace espalier::onnx_import
