// The wrapper of oneDNN: an engine and a stream per kernel, and matrix multiplication. dnnl.hpp is
// slow to compile, so only the few files that need other primitives include it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ops/cpu/simd/activation.h"

namespace espalier {

// A matrix inside a larger array: element (i, j) of matrix number `batch` lies at
// batch * batch_stride + i * row_stride + j * column_stride. One of the two strides must be 1.
struct MatrixLayout {
  int64_t batch_stride = 0;
  int64_t row_stride = 0;
  int64_t column_stride = 1;
};

struct GemmSpec {
  int64_t batch = 1, m = 0, n = 0, k = 0;
  MatrixLayout a, b, c;                       // c must have column_stride 1
  bool bias = false;                          // bias[n], added to every row
  bool accumulate = false;                    // c += a b
  Activation activation = Activation::kNone;  // of the result; not with accumulate
};

// f32 C = activation(A B (+ bias)) by oneDNN's matmul primitive, created once and run many times.
// Not batch-invariant: the summation order depends on the shape and on the number of threads at
// creation.
class Gemm {
 public:
  // Returns null and sets *error to oneDNN's message on failure. Empty problems (a zero in the
  // spec) are allowed.
  static std::unique_ptr<Gemm> Make(const GemmSpec& spec, std::string* error);
  virtual ~Gemm() = default;
  virtual size_t workspace_bytes() const = 0;
  // Returns oneDNN's message on failure, an empty string on success.
  virtual std::string Run(const float* a, const float* b, const float* bias, float* c,
                          void* workspace) = 0;
};

}  // namespace espalier
