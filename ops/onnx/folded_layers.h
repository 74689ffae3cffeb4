// Finds layers that an exporter left out because it wrote the model for inference.
#pragma once

#include <string>
#include <vector>

#include "third_party/onnx/onnx.pb.h"

namespace espalier::onnx_import {

// Returns a sentence for the user about each kind of layer that the file shows to be missing:
// BatchNormalization that was folded into the weights before it, and dropout.
std::vector<std::string> NotesOnFoldedLayers(const onnx::ModelProto& model);

}  // namespace espalier::onnx_import
