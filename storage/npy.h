// An .npy that comes in pieces and is not kept.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "storage/npz.h"

namespace espalier {

// Not thread-safe. After an error only destruction is allowed.
class NpyScanner {
 public:
  // Of so many bytes, header included. Errors begin with `name`, and are those of ParseNpy.
  NpyScanner(const std::string& name, int64_t bytes, int64_t limit);
  ~NpyScanner();

  // The first piece has the whole header: it is 1 MiB or all that there is.
  absl::Status Take(absl::string_view piece);
  absl::StatusOr<ArraySummary> Finish();

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace espalier
