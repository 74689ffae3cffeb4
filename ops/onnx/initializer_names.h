// What the name of an ONNX initializer says: exporters keep the names that a model's author gave.
#pragma once

#include <string>

namespace espalier::onnx_import {

enum class NameKind {
  kParameter,   // "fc.weight", "layer_scale"
  kBuffer,      // "running_mean", "inv_freq"
  kBufferLike,  // of a kind that buffers often have: "attention_mask", "cos"
  kExporter,    // made by the exporter: "onnx::Mul_123", "val_12"
  kMember,      // of a module, or usual for a learned scalar: "block.0.tau", "scale"
  kUnknown,
};

NameKind KindOfName(const std::string& name);

// "layers..fc.weight" of "layers.0.fc.weight": equal for copies of a layer.
std::string NameWithoutDigits(std::string name);

// Whether the name speaks of positions: "pe", "embed_positions.weight".
bool NamesPositions(const std::string& name);

}  // namespace espalier::onnx_import
