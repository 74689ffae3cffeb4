// oneDNN's own matrix products: what a prompt could reach if its rows' results might depend on how
// many rows there are, and on the number of threads.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace espalier {

enum class MatmulType { kF32, kBf16, kInt8 };  // kBf16: sums in f32; kInt8: u8 by s8, sums in s32
std::string Name(MatmulType type);

// c[m, n] = a[m, k] b[k, n], b in the layout that oneDNN likes best.
class OneDnnMatmul {
 public:
  // nullopt if oneDNN has no kernel of this type for this processor (but one for reference, or
  // none). Internal with oneDNN's words.
  static absl::StatusOr<std::optional<OneDnnMatmul>> Make(MatmulType type, int64_t m, int64_t n,
                                                           int64_t k, int threads);
  OneDnnMatmul(OneDnnMatmul&&) noexcept;
  OneDnnMatmul& operator=(OneDnnMatmul&&) noexcept;
  ~OneDnnMatmul();

  // Floating-point (or whole-number) operations per second, in 1e9: the median of ten runs.
  absl::StatusOr<double> Gflops();

 private:
  struct State;
  explicit OneDnnMatmul(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace espalier
