// oneDNN matrix multiplications, as a reference for prefill: their results may depend on the number
// of rows and threads (they are not batch-invariant).
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace espalier {

enum class MatmulType { kF32, kBf16, kInt8 };  // kBf16: f32 accumulation; kInt8: u8 x s8, s32
std::string Name(MatmulType type);

// c[m, n] = a[m, k] b[k, n], with b in oneDNN's preferred layout.
class OneDnnMatmul {
 public:
  // Returns nullopt if oneDNN has no optimized kernel of this type for this processor; Internal
  // with oneDNN's message on its errors.
  static absl::StatusOr<std::optional<OneDnnMatmul>> Make(MatmulType type, int64_t m, int64_t n,
                                                          int64_t k, int threads);
  OneDnnMatmul(OneDnnMatmul&&) noexcept;
  OneDnnMatmul& operator=(OneDnnMatmul&&) noexcept;
  ~OneDnnMatmul();

  // Returns 1e9 operations per second, the median of ten runs.
  absl::StatusOr<double> Gflops();

 private:
  struct State;
  explicit OneDnnMatmul(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace espalier
