// Operators that order elements along an axis by size: top_k, arg_top_k, sort, argsort, arg_max,
// arg_min.
#pragma once

#include <string>

#include "ops/schema/op_def.h"

namespace espalier {

// top_k and arg_top_k: attributes, inference of the dimensions of each output, split.
OpDef MakeTopK(const std::string& name, const std::string& doc, DType indices, bool values);

// sort and argsort: every element, with its place (i64) or the places alone.
OpDef MakeSort(const std::string& name, const std::string& doc, bool values);

// arg_max and arg_min.
OpDef MakeArgExtreme(const std::string& name, const std::string& doc);

}  // namespace espalier
