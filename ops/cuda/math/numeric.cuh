// Element types on the device: conversion to and from f32, and dispatch from DType to a C++ type.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <string>

#include "ops/kernel/kernel.h"
#include "ops/tensor/dtype.h"

namespace espalier {

__device__ __forceinline__ float ToFloat(float x) { return x; }
__device__ __forceinline__ float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float ToFloat(__half x) { return __half2float(x); }

// Rounds to nearest even.
template <typename T>
__device__ __forceinline__ T FromFloat(float x);
template <>
__device__ __forceinline__ float FromFloat<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ __nv_bfloat16 FromFloat<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ __half FromFloat<__half>(float x) {
  return __float2half_rn(x);
}

// A type as a value, for generic lambdas: `[&](auto type) { using T = typename decltype(type)::T;
// }`.
template <typename Element>
struct TypeTag {
  using T = Element;
};

inline KernelStatus UnsupportedType(const char* op, DType dtype) {
  return KernelStatus::Error(std::string(op) + ": element type " + Name(dtype) +
                             " is not supported on CUDA");
}

template <typename Function>
KernelStatus DispatchFloat(DType dtype, const char* op, Function function) {
  switch (dtype) {
    case DType::kF32:
      return function(TypeTag<float>());
    case DType::kBF16:
      return function(TypeTag<__nv_bfloat16>());
    case DType::kF16:
      return function(TypeTag<__half>());
    default:
      return UnsupportedType(op, dtype);
  }
}

template <typename Function>
KernelStatus DispatchNumber(DType dtype, const char* op, Function function) {
  switch (dtype) {
    case DType::kI32:
      return function(TypeTag<int32_t>());
    case DType::kI64:
      return function(TypeTag<int64_t>());
    default:
      return DispatchFloat(dtype, op, function);
  }
}

template <typename Function>
KernelStatus DispatchInteger(DType dtype, const char* op, Function function) {
  switch (dtype) {
    case DType::kI32:
      return function(TypeTag<int32_t>());
    case DType::kI64:
      return function(TypeTag<int64_t>());
    default:
      return UnsupportedType(op, dtype);
  }
}

// Type of sums and products of T: f32 for floating-point types, unsigned for integers, so that
// overflow wraps.
template <typename T>
struct Compute {
  using Type = float;
  static __device__ __forceinline__ float Load(T x) { return ToFloat(x); }
  static __device__ __forceinline__ T Store(float x) { return FromFloat<T>(x); }
};
template <>
struct Compute<int32_t> {
  using Type = uint32_t;
  static __device__ __forceinline__ uint32_t Load(int32_t x) { return static_cast<uint32_t>(x); }
  static __device__ __forceinline__ int32_t Store(uint32_t x) { return static_cast<int32_t>(x); }
};
template <>
struct Compute<int64_t> {
  using Type = uint64_t;
  static __device__ __forceinline__ uint64_t Load(int64_t x) { return static_cast<uint64_t>(x); }
  static __device__ __forceinline__ int64_t Store(uint64_t x) { return static_cast<int64_t>(x); }
};

}  // namespace espalier
