#include "ops/onnx/translations.h"

namespace espalier::onnx_import {

#define ESPALIER_TRANSLATIONS(Name) void Register##Name##Translations(TranslationTable&);
#include "ops/onnx/translations.inc"
#undef ESPALIER_TRANSLATIONS

const TranslationTable& Translations() {
  static const TranslationTable* const table = [] {
    auto* built = new TranslationTable;
#define ESPALIER_TRANSLATIONS(Name) Register##Name##Translations(*built);
#include "ops/onnx/translations.inc"
#undef ESPALIER_TRANSLATIONS
    return built;
  }();
  return *table;
}

}  // namespace espalier::onnx_import
