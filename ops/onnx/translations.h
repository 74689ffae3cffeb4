// The table of ONNX operators and their translations. Each translate_*.cc defines a `void
// Register<Name>Translations(TranslationTable&)`; the build generates the list from the files.
#pragma once

#include "ops/onnx/translator.h"

namespace espalier::onnx_import {

const TranslationTable& Translations();

}  // namespace espalier::onnx_import
