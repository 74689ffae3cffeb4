// The translations of all ONNX operators. Each translate_*.cc defines a
// `void Register<Name>Translations(TranslationTable&)`; the list is made from the files.
#pragma once

#include "ops/onnx/translator.h"

namespace espalier::onnx_import {

const TranslationTable& Translations();

}  // namespace espalier::onnx_import
