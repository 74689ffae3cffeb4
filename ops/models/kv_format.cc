#include "ops/models/kv_format.h"

#include "absl/strings/str_cat.h"

namespace espalier {

absl::StatusOr<DType> KvFormatOf(absl::string_view name) {
  if (name.empty()) return DType::kF32;
  for (const DType format : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
    if (name == KvFormatName(format)) return format;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("KV cache format '", name, "', expected f32, f16, bf16 or int8"));
}

const char* KvFormatName(DType format) { return format == DType::kI8 ? "int8" : Name(format); }

}  // namespace espalier
