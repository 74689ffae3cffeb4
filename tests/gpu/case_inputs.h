// Helpers to write cases: inputs of kernels.
#pragma once

#include <utility>
#include <vector>

#include "ops/kernel/packed_weights.h"
#include "tests/gpu/cases.h"
#include "tests/gpu/weight_formats.h"

namespace espalier::gpu_check {

using Ints = std::vector<int64_t>;
inline constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16, kF16 = DType::kF16,
                       kI32 = DType::kI32, kI64 = DType::kI64, kBool = DType::kBool;
inline const std::vector<DType> kFloats = {kF32, kBF16, kF16};
inline const std::vector<DType> kNumbers = {kF32, kBF16, kF16, kI32, kI64};

inline CaseInput Uniform(DType dtype, Dims dims) { return {{dtype, std::move(dims)}, {}}; }
inline CaseInput Positive(DType dtype, Dims dims) {
  return {{dtype, std::move(dims)}, {Content::kPositive, 0, {}}};
}
inline CaseInput Below(DType dtype, Dims dims, int64_t below) {
  return {{dtype, std::move(dims)}, {Content::kIntegers, below, {}}};
}
inline CaseInput Bits(Dims dims) { return {{kBool, std::move(dims)}, {Content::kBits, 0, {}}}; }
inline CaseInput Given(DType dtype, Ints values) {
  const int64_t n = static_cast<int64_t>(values.size());
  return {{dtype, {n}}, {Content::kGiven, 0, std::move(values)}};
}
inline CaseInput GivenAs(DType dtype, Dims dims, Ints values) {
  return {{dtype, std::move(dims)}, {Content::kGiven, 0, std::move(values)}};
}
// A packed matrix of 8 or 4 bits, `out` by `in`.
inline CaseInput Packed(int bits, int64_t out, int64_t in) {
  const PackedWeights shape{bits, out, in};
  return {{DType::kU8, {shape.blocks(), shape.block_bytes()}}, {Content::kPacked, bits, {in}}};
}
inline CaseInput Matrix(const Weights& weights, int64_t out, int64_t in) {
  return weights.bits < 16 ? Packed(weights.bits, out, in) : Uniform(weights.dtype, {out, in});
}
inline CaseInput Absent() { return {}; }
// Random numbers of this type.
inline CaseInput Number(DType dtype, Dims dims) {
  return IsFloat(dtype) ? Uniform(dtype, std::move(dims)) : Below(dtype, std::move(dims), 1000);
}

// Adds cases of serving: products of few and many rows with weights in every format, attention over
// long contexts.
void AddServingCases(std::vector<Case>* cases);
// Adds cases of losses, optimizers and mixed precision.
void AddTrainingCases(std::vector<Case>* cases);

}  // namespace espalier::gpu_check
