// How a served model's keys and values are kept between steps.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ops/tensor/dtype.h"

namespace espalier {

// "f32" (and ""), "f16", "bf16" or "int8": whole numbers with a scale of each slot and head.
// InvalidArgument for anything else.
absl::StatusOr<DType> KvCacheDTypeOf(absl::string_view name);

// The name that KvCacheDTypeOf takes.
const char* KvCacheDTypeName(DType format);

}  // namespace espalier
