// Parameters that an exporter has merged because their values were equal, as those of all new norms
// are.
#pragma once

#include <string>

#include "ops/onnx/model_file.h"

namespace espalier::onnx_import {

// Gives each tensor of the PyTorch module an initializer of its own:
//  - in evaluation mode the first exporter writes equal tensors once, with a node Identity by the
//    name of each other one (what modules share has one name in PyTorch);
//  - the newer exporter writes equal tensors of up to 1,024 elements once; its nodes name the
//    parameters of the operation that they come from. Equal tensors that are neither filled with
//    one value nor of copied layers (names that differ in digits) are taken for tied weights.
// Returns what the user must know, parameters that the newer exporter left out included; empty if
// there is nothing.
std::string SeparateMergedInitializers(ModelFile* file);

}  // namespace espalier::onnx_import
