// The batches of a session: of the dataset, in the job's order or by index, or given by the client.
#pragma once

#include <cstdint>
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

struct SessionSourceOptions {
  std::shared_ptr<const Dataset> dataset;  // null: all batches are given
  int64_t batch_size = 0;
  uint64_t seed = 0;
  bool shuffle = true;
  bool evaluation = false;  // batches weigh each example once over all of them
  bool pad = false;         // evaluation: fills the last batch with examples that weigh 0
};

class SessionSource : public BatchSource {
 public:
  static absl::StatusOr<std::unique_ptr<SessionSource>> Create(const SessionSourceOptions& options);

  // What the following batches have; they are numbered from 0, or in the job's order from its first
  // step. Columns of a given batch that are missing are zero. Errors as BatchLoader.
  absl::Status UseOwnOrder();  // evaluation: the held-out examples
  absl::Status UseRows(std::vector<int64_t> rows);
  absl::Status UseGiven(std::vector<Column> columns);
  void SetBatch(int64_t batch) { batch_ = batch; }
  // Batches of one pass over the examples.
  int64_t batches() const { return current_ == nullptr ? 0 : current_->steps_per_epoch(); }

  absl::Status Prepare(const std::string& column, const TensorSpec& spec) override;
  // `step` numbers random numbers only.
  absl::Status Load(const std::string& column, const TensorSpec& spec, int64_t step,
                    void* host) override;

 private:
  explicit SessionSource(const SessionSourceOptions& options) : options_(options) {}
  BatchLoaderOptions LoaderOptions() const;

  const SessionSourceOptions options_;
  std::vector<std::pair<std::string, TensorSpec>> prepared_;
  std::unique_ptr<BatchLoader> own_order_, rows_, given_;
  std::vector<std::string> missing_;  // columns of the given batch
  BatchLoader* current_ = nullptr;
  int64_t batch_ = 0;
};

}  // namespace espalier
