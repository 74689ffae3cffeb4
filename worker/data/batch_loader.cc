#include "worker/data/batch_loader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/data/permutation.h"

namespace espalier {
namespace {

double CountOf(const std::vector<int64_t>& labels, const ExampleWeightsColumn& weights) {
  const auto classes = static_cast<int64_t>(weights.class_weights.size());
  double count = 0;
  for (const int64_t label : labels) {
    if (label == weights.ignore_index) continue;
    if (classes == 0) {
      count += 1;
    } else if (label >= 0 && label < classes) {  // the loss refuses others
      count += static_cast<double>(weights.class_weights[static_cast<size_t>(label)]);
    }
  }
  return count;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BatchLoader>> BatchLoader::Create(
    std::shared_ptr<const Dataset> dataset, const BatchLoaderOptions& options) {
  const int64_t have = options.given_rows ? options.batch_size
                       : options.holdout  ? dataset->holdout_examples()
                                          : dataset->training_examples();
  if (options.batch_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch size ", options.batch_size, "; it must be 1 or more"));
  }
  if (have < (options.holdout && options.pad_holdout ? 1 : options.batch_size)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ", options.holdout ? "held-out" : "training", " part of the dataset has ",
                     have, " examples, fewer than the batch of ", options.batch_size,
                     "; use a smaller batch, or another dataset.holdout_fraction"));
  }
  return std::unique_ptr<BatchLoader>(new BatchLoader(std::move(dataset), options));
}

BatchLoader::~BatchLoader() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

int64_t BatchLoader::examples() const {
  if (options_.given_rows) return static_cast<int64_t>(rows_.size());
  return options_.holdout ? dataset_->holdout_examples() : dataset_->training_examples();
}

int64_t BatchLoader::steps_per_epoch() const {
  return (examples() + (pads() ? options_.batch_size - 1 : 0)) / options_.batch_size;
}

int64_t BatchLoader::ExampleAt(int64_t step, int64_t row) const {
  const int64_t steps = steps_per_epoch();
  const int64_t position = (step % steps) * options_.batch_size + row;
  if (options_.given_rows) return rows_[static_cast<size_t>(position % examples())];
  if (options_.holdout) return dataset_->training_examples() + position % examples();
  if (!options_.shuffle) return position;
  return ShuffledIndex(options_.seed, step / steps, dataset_->training_examples(), position);
}

absl::Status BatchLoader::SetRows(std::vector<int64_t> rows) {
  const auto count = static_cast<int64_t>(rows.size());
  if (count == 0 || (!pads() && count % options_.batch_size != 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(count, " rows do not fill batches of ", options_.batch_size));
  }
  for (const int64_t row : rows) {
    if (row >= 0 && row < dataset_->examples()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("row ", row, "; the dataset has ", dataset_->examples(), " examples"));
  }
  rows_ = std::move(rows);
  for (Request& request : requests_) {
    request.holdout_count = 0;
    if (!options_.holdout || request.column != nullptr) continue;
    for (const int64_t row : rows_) request.holdout_count += request.counts[row];
  }
  return absl::OkStatus();
}

bool BatchLoader::IsExample(int64_t step, int64_t row) const {
  return (step % steps_per_epoch()) * options_.batch_size + row < examples();
}

absl::Status BatchLoader::PrepareWeights(const std::string& name,
                                         const ExampleWeightsColumn& weights,
                                         const TensorSpec& spec) {
  if (spec.dtype != DType::kF32 || spec.global != Dims{options_.batch_size}) {
    return absl::InvalidArgumentError(absl::StrCat("weights of examples are f32 [",
                                                   options_.batch_size, "], the program has ",
                                                   ToString(TensorType{spec.dtype, spec.global})));
  }
  Request request{name, nullptr, spec, {}};
  if (weights.labels.empty()) {
    request.counts.assign(static_cast<size_t>(dataset_->examples()), 1);
  } else {
    absl::StatusOr<const Column*> column = dataset_->Find(weights.labels);
    if (!column.ok()) return column.status();
    if (absl::Status s = Dataset::CheckConversion(**column, DType::kI64); !s.ok()) return s;
    const Dims& dims = (*column)->example.dims;
    request.labels = (*column)->example.num_elements();
    std::vector<int64_t> labels(static_cast<size_t>(request.labels));
    for (int64_t example = 0; example < dataset_->examples(); ++example) {
      absl::Status s = dataset_->Read(**column, example, Dims(dims.size(), 0), dims, DType::kI64,
                                      reinterpret_cast<char*>(labels.data()));
      if (!s.ok()) return s;
      request.counts.push_back(CountOf(labels, weights));
    }
  }
  const int64_t evaluated = std::min(examples(), steps_per_epoch() * options_.batch_size);
  for (int64_t i = 0; options_.holdout && !options_.given_rows && i < evaluated; ++i) {
    request.holdout_count += request.counts[dataset_->training_examples() + i];
  }
  requests_.push_back(std::move(request));
  return absl::OkStatus();
}

absl::Status BatchLoader::Prepare(const std::string& name, const TensorSpec& spec) {
  if (thread_.joinable()) return absl::FailedPreconditionError("Prepare after the first Load");
  if (const auto weights = ExampleWeightsColumn::Parse(name); weights.has_value()) {
    return PrepareWeights(name, *weights, spec);
  }
  absl::StatusOr<const Column*> column = dataset_->Find(name);
  if (!column.ok()) return column.status();
  const Dims& example = (*column)->example.dims;
  const bool same_rank = spec.global.size() == example.size() + 1;
  if (!same_rank || Dims(spec.global.begin() + 1, spec.global.end()) != example) {
    return absl::InvalidArgumentError(absl::StrCat(
        "column '", name, "' has examples of shape ", ToString(example), ", the model wants ",
        ToString(Dims(spec.global.begin() + std::min<size_t>(1, spec.global.size()),
                      spec.global.end()))));
  }
  if (spec.global[0] != options_.batch_size) {
    return absl::InvalidArgumentError(absl::StrCat("the program was made for batches of ",
                                                   spec.global[0], ", the job has ",
                                                   options_.batch_size));
  }
  if (absl::Status s = Dataset::CheckConversion(**column, spec.dtype); !s.ok()) return s;
  if (absl::Status s = dataset_->CheckFinite(**column); !s.ok()) return s;
  requests_.push_back({name, *column, spec, {}});
  return absl::OkStatus();
}

void BatchLoader::FillWeights(const Request& request, int64_t step, float* out) const {
  const int64_t batch = options_.batch_size;
  double all = static_cast<double>(batch * request.labels);
  double counting = 0;
  if (options_.holdout) {
    all *= static_cast<double>(steps_per_epoch());
    counting = request.holdout_count;
  } else {
    for (int64_t row = 0; row < batch; ++row) counting += request.counts[ExampleAt(step, row)];
  }
  const float weight = counting > 0 ? static_cast<float>(all / counting) : 0;
  for (int64_t row = 0; row < request.spec.dims[0]; ++row) {
    out[row] = IsExample(step, request.spec.offset[0] + row) ? weight : 0.0f;
  }
}

absl::Status BatchLoader::Fill(const Request& request, int64_t step, char* out) const {
  const TensorSpec& spec = request.spec;
  if (request.column == nullptr) {
    FillWeights(request, step, reinterpret_cast<float*>(out));
    return absl::OkStatus();
  }
  const Dims start(spec.offset.begin() + 1, spec.offset.end());
  const Dims size(spec.dims.begin() + 1, spec.dims.end());
  const int64_t row_bytes = spec.bytes() / spec.dims[0];
  for (int64_t row = 0; row < spec.dims[0]; ++row) {
    const int64_t example = ExampleAt(step, spec.offset[0] + row);
    absl::Status s =
        dataset_->Read(*request.column, example, start, size, spec.dtype, out + row * row_bytes);
    if (!s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status BatchLoader::Load(const std::string& name, const TensorSpec& spec, int64_t step,
                               void* host) {
  size_t request = 0;
  while (request < requests_.size() &&
         (requests_[request].name != name || !(requests_[request].spec == spec))) {
    ++request;
  }
  if (request == requests_.size()) {
    return absl::FailedPreconditionError(absl::StrCat("column '", name, "' was not prepared"));
  }
  if (step < 0) return absl::InvalidArgumentError(absl::StrCat("step ", step));
  if (!options_.prefetch) return Fill(requests_[request], step, static_cast<char*>(host));
  if (!thread_.joinable()) thread_ = std::thread([this] { PrefetchLoop(); });
  bool found = false;
  {
    absl::MutexLock lock(&mutex_);
    Slot& slot = slots_[step % 2];
    if (slot.step == step) {
      while (!slot.done) changed_.Wait(&mutex_);
      if (!slot.status.ok()) return slot.status;
      std::memcpy(host, slot.data[request].data(), slot.data[request].size());
      found = true;
    }
    StartPrefetch(step + 1);
  }
  return found ? absl::OkStatus() : Fill(requests_[request], step, static_cast<char*>(host));
}

void BatchLoader::Prefetch(int64_t step) {
  if (!thread_.joinable()) thread_ = std::thread([this] { PrefetchLoop(); });
  absl::MutexLock lock(&mutex_);
  StartPrefetch(step);
}

void BatchLoader::StartPrefetch(int64_t step) {
  Slot& slot = slots_[step % 2];
  if (slot.step == step) return;
  // Prefetches one step at a time: a requested step is always filled, since a reader may wait for
  // it.
  for (const Slot& other : slots_) {
    if (other.step >= 0 && !other.done) return;
  }
  slot.step = step;
  slot.done = false;
  wanted_ = step;
  changed_.SignalAll();
}

void BatchLoader::PrefetchLoop() {
  std::vector<std::vector<char>> data;
  while (true) {
    int64_t step = -1;
    {
      absl::MutexLock lock(&mutex_);
      while (wanted_ < 0 && !stopping_) changed_.Wait(&mutex_);
      if (stopping_) return;
      step = std::exchange(wanted_, -1);
    }
    absl::Status status;
    data.resize(requests_.size());
    for (size_t i = 0; i < requests_.size() && status.ok(); ++i) {
      data[i].resize(static_cast<size_t>(requests_[i].spec.bytes()));
      status = Fill(requests_[i], step, data[i].data());
    }
    absl::MutexLock lock(&mutex_);
    Slot& slot = slots_[step % 2];
    std::swap(slot.data, data);
    slot.status = status;
    slot.done = true;
    changed_.SignalAll();
  }
}

}  // namespace espalier
