// Batches of a dataset. The examples of a step are a pure function of (seed, step); each rank reads
// its own part. Besides the dataset's columns there are the weights of the batch's examples
// (storage/example_weights.h): with C labels that count in a batch of B examples with P labels each
// (C the number over the batch, or per batch over all held-out examples), the weight is B * P / C,
// and 0 for padding, so that (1 / (B * P)) * sum(weight * value) is the mean of the values over the
// labels that count: of one training batch, and of the whole held-out part after averaging over its
// batches. With weights of classes C is the sum of the labels' weights, which the loss multiplies
// the values with. All weights are 0 where no label counts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "storage/dataset.h"
#include "storage/example_weights.h"
#include "worker/executor/batch_source.h"

namespace espalier {

struct BatchLoaderOptions {
  int64_t batch_size = 0;
  uint64_t seed = 0;
  bool shuffle = true;  // of training examples; otherwise every epoch has them in order
  // Held-out batches go through the examples in order, each once. An incomplete last batch is
  // dropped, or filled with examples from the start, which weigh 0, with `pad_holdout`.
  bool holdout = false;
  bool pad_holdout = false;
  bool prefetch = true;  // loads the next step's batch on a thread
  // Batches go through the examples of SetRows in order, whichever part they are of; with `holdout`
  // as through held-out ones. Excludes `prefetch`.
  bool given_rows = false;
};

class BatchLoader : public BatchSource {
 public:
  // Returns InvalidArgument if that part of the dataset is smaller than one batch (of held-out
  // examples with padding: empty).
  static absl::StatusOr<std::unique_ptr<BatchLoader>> Create(std::shared_ptr<const Dataset> dataset,
                                                             const BatchLoaderOptions& options);
  ~BatchLoader() override;

  // Batches per epoch. Examples that do not fill a batch (different ones in every epoch) are
  // skipped.
  int64_t steps_per_epoch() const;
  int64_t training_examples() const { return dataset_->training_examples(); }
  // With given_rows: the indices of the examples that the following batches have. Returns
  // InvalidArgument for an index that there is not, no rows, or rows that do not fill batches
  // unless the last one is padded.
  absl::Status SetRows(std::vector<int64_t> rows);
  // Returns the index of the example in row `row` of the batch of `step`.
  int64_t ExampleAt(int64_t step, int64_t row) const;

  // Begins to load the batch of a step, which Load then need not wait for. No Prepare may follow.
  void Prefetch(int64_t step);

  absl::Status Prepare(const std::string& column, const TensorSpec& spec) override;
  absl::Status Load(const std::string& column, const TensorSpec& spec, int64_t step,
                    void* host) override;

 private:
  struct Request {
    std::string name;
    const Column* column;  // null: weights of examples
    TensorSpec spec;
    // For weights: how much the labels of each example count, and of all held-out examples that
    // are evaluated; the number of labels of an example.
    std::vector<double> counts;
    double holdout_count = 0;
    int64_t labels = 1;
  };
  // One prefetched step.
  struct Slot {
    int64_t step = -1;
    bool done = false;
    absl::Status status;
    std::vector<std::vector<char>> data;  // by request
  };

  BatchLoader(std::shared_ptr<const Dataset> dataset, const BatchLoaderOptions& options)
      : dataset_(std::move(dataset)), options_(options) {}

  int64_t examples() const;
  bool pads() const { return options_.holdout && options_.pad_holdout; }
  // Whether the row is not padding.
  bool IsExample(int64_t step, int64_t row) const;
  absl::Status PrepareWeights(const std::string& name, const ExampleWeightsColumn& weights,
                              const TensorSpec& spec);
  absl::Status Fill(const Request& request, int64_t step, char* out) const;
  void FillWeights(const Request& request, int64_t step, float* out) const;
  void StartPrefetch(int64_t step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PrefetchLoop();

  const std::shared_ptr<const Dataset> dataset_;
  const BatchLoaderOptions options_;
  std::vector<Request> requests_;  // fixed once the thread has started
  std::vector<int64_t> rows_;      // with given_rows

  absl::Mutex mutex_;
  absl::CondVar changed_;
  Slot slots_[2] ABSL_GUARDED_BY(mutex_);  // by step % 2
  int64_t wanted_ ABSL_GUARDED_BY(mutex_) = -1;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace espalier
