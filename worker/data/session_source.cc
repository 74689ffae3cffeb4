#include "worker/data/session_source.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace espalier {

absl::StatusOr<std::unique_ptr<SessionSource>> SessionSource::Create(
    const SessionSourceOptions& options) {
  std::unique_ptr<SessionSource> source(new SessionSource(options));
  if (options.dataset == nullptr) return source;
  const int64_t held_out = options.dataset->holdout_examples();
  const bool has_order = options.evaluation
                             ? held_out >= (options.pad ? 1 : options.batch_size)
                             : options.dataset->training_examples() >= options.batch_size;
  for (const bool rows : {false, true}) {
    if (!rows && !has_order) continue;
    BatchLoaderOptions loading = source->LoaderOptions();
    loading.given_rows = rows;
    loading.prefetch = !rows;
    absl::StatusOr<std::unique_ptr<BatchLoader>> loader =
        BatchLoader::Create(options.dataset, loading);
    if (!loader.ok()) return loader.status();
    (rows ? source->rows_ : source->own_order_) = *std::move(loader);
  }
  return source;
}

BatchLoaderOptions SessionSource::LoaderOptions() const {
  BatchLoaderOptions loading;
  loading.batch_size = options_.batch_size;
  loading.seed = options_.seed;
  loading.shuffle = options_.shuffle;
  loading.holdout = options_.evaluation;
  loading.pad_holdout = options_.pad;
  return loading;
}

absl::Status SessionSource::Prepare(const std::string& column, const TensorSpec& spec) {
  prepared_.emplace_back(column, spec);
  for (BatchLoader* loader : {own_order_.get(), rows_.get()}) {
    if (loader == nullptr) continue;
    if (absl::Status s = loader->Prepare(column, spec); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status SessionSource::UseOwnOrder() {
  if (own_order_ == nullptr) {
    return absl::FailedPreconditionError("the session's dataset has no such batches");
  }
  current_ = own_order_.get();
  missing_.clear();
  return absl::OkStatus();
}

absl::Status SessionSource::UseRows(std::vector<int64_t> rows) {
  if (rows_ == nullptr) return absl::FailedPreconditionError("the session has no dataset");
  if (absl::Status s = rows_->SetRows(std::move(rows)); !s.ok()) return s;
  current_ = rows_.get();
  missing_.clear();
  return absl::OkStatus();
}

absl::Status SessionSource::UseGiven(std::vector<Column> columns) {
  absl::StatusOr<std::shared_ptr<const Dataset>> examples =
      Dataset::FromColumns(std::move(columns), /*holdout_fraction=*/0);
  if (!examples.ok()) return examples.status();
  BatchLoaderOptions loading = LoaderOptions();
  loading.given_rows = true;
  loading.prefetch = false;
  absl::StatusOr<std::unique_ptr<BatchLoader>> loader = BatchLoader::Create(*examples, loading);
  if (!loader.ok()) return loader.status();
  missing_.clear();
  for (const auto& [column, spec] : prepared_) {
    absl::Status s = (*loader)->Prepare(column, spec);
    if (absl::IsNotFound(s)) {
      missing_.push_back(column);
    } else if (!s.ok()) {
      return s;
    }
  }
  std::vector<int64_t> all(static_cast<size_t>((*examples)->examples()));
  std::iota(all.begin(), all.end(), int64_t{0});
  if (absl::Status s = (*loader)->SetRows(std::move(all)); !s.ok()) return s;
  given_ = *std::move(loader);
  current_ = given_.get();
  return absl::OkStatus();
}

absl::Status SessionSource::Load(const std::string& column, const TensorSpec& spec, int64_t,
                                 void* host) {
  if (current_ == nullptr) return absl::FailedPreconditionError("no batch was chosen");
  if (std::find(missing_.begin(), missing_.end(), column) != missing_.end()) {
    std::memset(host, 0, static_cast<size_t>(spec.bytes()));
    return absl::OkStatus();
  }
  return current_->Load(column, spec, batch_, host);
}

}  // namespace espalier
