// Interface through which LoadBatch instructions read their data. The executor owns it; worker/data
// implements it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "ops/tensor/view.h"

namespace espalier {

// Not thread-safe.
class BatchSource {
 public:
  virtual ~BatchSource() = default;

  // Called once per LoadBatch instruction when the program is loaded. `spec` gives the region of
  // the batch (dimension 0) and of each example; spec.global is the whole batch. Returns
  // InvalidArgument naming the column and what it holds.
  virtual absl::Status Prepare(const std::string& column, const TensorSpec& spec) = 0;

  // Fills `host` (spec.bytes() bytes) with that region of the batch of `step`. A pure function of
  // the arguments and the source's seed.
  virtual absl::Status Load(const std::string& column, const TensorSpec& spec, int64_t step,
                            void* host) = 0;
};

}  // namespace espalier
