// The batches of a STREAM: files of examples that a job's client has pushed, by step.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/dataset.h"
#include "worker/data/batch_loader.h"
#include "worker/executor/batch_source.h"

namespace espalier {

// Keeps the part that is read in memory, and loads the next one meanwhile.
class StreamSource : public BatchSource {
 public:
  struct Part {
    int64_t first = 0, end = 0;  // steps [first, end)
    std::string path;            // of a file with that many batches
  };
  using Open = std::function<absl::StatusOr<std::shared_ptr<const Dataset>>(const std::string&)>;

  // `open` reads a part; it is called on another thread, too, and must outlive the source.
  StreamSource(int64_t batch_size, Open open) : batch_size_(batch_size), open_(std::move(open)) {}

  // The parts of the following steps, in the order of steps.
  void SetParts(std::vector<Part> parts) { parts_ = std::move(parts); }

  absl::Status Prepare(const std::string& column, const TensorSpec& spec) override;
  // Internal for a step that no part has; DataLoss if a part has not its examples.
  absl::Status Load(const std::string& column, const TensorSpec& spec, int64_t step,
                    void* host) override;

 private:
  using Loader = absl::StatusOr<std::unique_ptr<BatchLoader>>;

  absl::Status Choose(int64_t step);
  Loader Read(const Part& part) const;

  const int64_t batch_size_;
  const Open open_;
  std::vector<std::pair<std::string, TensorSpec>> prepared_;  // fixed before the first Load
  std::vector<Part> parts_;
  Part current_, next_;  // empty path: none
  std::unique_ptr<BatchLoader> loader_;
  std::future<Loader> loading_;  // of next_; last: its thread reads other members
};

}  // namespace espalier
