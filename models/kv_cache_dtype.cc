#include "models/kv_cache_dtype.h"

#include "absl/strings/str_cat.h"

namespace espalier {

absl::StatusOr<DType> KvCacheDTypeOf(absl::string_view name) {
  if (name.empty()) return DType::kF32;
  for (const DType format : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
    if (name == KvCacheDTypeName(format)) return format;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("KV cache format '", name, "', expected f32, f16, bf16 or int8"));
}

const char* KvCacheDTypeName(DType format) { return format == DType::kI8 ? "int8" : Name(format); }

}  // namespace espalier
