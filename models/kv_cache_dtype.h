// The element type of a served model's KV cache.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ops/tensor/dtype.h"

namespace espalier {

// Parses "f32" (and ""), "f16", "bf16" or "int8" (integers with one scale per slot and head).
// Returns InvalidArgument for anything else.
absl::StatusOr<DType> KvCacheDTypeOf(absl::string_view name);

// The inverse of KvCacheDTypeOf.
const char* KvCacheDTypeName(DType format);

}  // namespace espalier
