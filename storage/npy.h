// Streaming reader of .npy files that keeps no values.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "storage/npz.h"

namespace espalier {

// Not thread-safe. After an error it may only be destroyed.
class NpyScanner {
 public:
  // `bytes` includes the header. Errors start with `name` and are those of ParseNpy.
  NpyScanner(const std::string& name, int64_t bytes, int64_t limit);
  ~NpyScanner();

  // The first piece must hold the whole header: it is 1 MiB or the whole file.
  absl::Status Take(absl::string_view piece);
  absl::StatusOr<ArraySummary> Finish();

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace espalier
