#include "worker/trainer/checkpoint_observer.h"

#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/checkpoint.h"

namespace espalier {
namespace {

class ExecutorSource : public CheckpointSource {
 public:
  ExecutorSource(Executor& executor, std::vector<int> buffers)
      : executor_(executor), buffers_(std::move(buffers)) {}
  absl::Status Read(int entry, std::vector<char>* bytes) override {
    return executor_.ReadBuffer(buffers_[entry], bytes->data(),
                                static_cast<int64_t>(bytes->size()));
  }

 private:
  Executor& executor_;
  const std::vector<int> buffers_;
};

}  // namespace

bool IsCheckpointed(const Executor& executor, int buffer) {
  const v1::BufferKind kind = executor.buffer(buffer).kind();
  return (kind == v1::PARAMETER_SHARD || kind == v1::OPTIMIZER_STATE) && !executor.is_alias(buffer);
}

absl::StatusOr<v1::CheckpointShard> WriteShardOf(CheckpointStore& store, Executor& executor,
                                                 const std::string& directory, int64_t steps_done) {
  std::vector<CheckpointEntry> entries;
  std::vector<int> buffers;
  std::set<std::pair<std::string, Dims>> regions;
  for (int i = 0; i < executor.num_buffers(); ++i) {
    if (!IsCheckpointed(executor, i)) continue;
    if (executor.buffer(i).saved_elsewhere()) continue;
    const TensorSpec& spec = executor.spec(i);
    // Replicas on one rank hold equal values: save one.
    if (!regions.insert({executor.tensor_name(i), spec.offset}).second) continue;
    entries.push_back(
        {executor.tensor_name(i), spec, executor.buffer(i).kind() == v1::OPTIMIZER_STATE});
    buffers.push_back(i);
  }
  ExecutorSource source(executor, buffers);
  absl::StatusOr<ManifestFile> file =
      WriteCheckpointShard(store, directory, executor.program().rank(), entries, source);
  v1::CheckpointShard shard;
  shard.set_steps_done(steps_done);
  shard.set_directory(directory);
  if (absl::IsResourceExhausted(file.status())) {
    shard.set_not_written(std::string(file.status().message()));
    return shard;
  }
  if (!file.ok()) {
    return absl::Status(file.status().code(),
                        absl::StrCat("checkpoint after step ", steps_done, ": ",
                                     std::string(file.status().message())));
  }
  shard.set_file(file->name);
  shard.set_sha256(file->sha256);
  shard.set_bytes(file->bytes);
  return shard;
}

int64_t RequestedCheckpoints::Add(int64_t steps_done) {
  absl::MutexLock lock(&mutex_);
  if (steps_done > done_) wanted_.insert(steps_done);
  return done_;
}

bool RequestedCheckpoints::Take(int64_t steps_done) {
  absl::MutexLock lock(&mutex_);
  done_ = steps_done;
  const bool wanted = wanted_.count(steps_done) != 0;
  wanted_.erase(wanted_.begin(), wanted_.upper_bound(steps_done));
  return wanted;
}

CheckpointObserver::CheckpointObserver(CheckpointOptions options) : options_(std::move(options)) {}

absl::Status CheckpointObserver::OnRunBegin(TrainingRun& run) {
  const bool due = options_.at_begin && !options_.root.empty();
  return due ? WriteShard(run, run.begin()) : absl::OkStatus();
}

absl::Status CheckpointObserver::OnStepReported(TrainingRun& run, int64_t step,
                                                const StepReports&) {
  const int64_t done = step + 1;
  const int64_t every = options_.every_steps;
  const bool requested = options_.requested != nullptr && options_.requested->Take(done);
  const bool due =
      requested || (options_.at_end && done == run.end()) || (every > 0 && done % every == 0);
  return due && !options_.root.empty() ? WriteShard(run, done) : absl::OkStatus();
}

absl::Status CheckpointObserver::WriteShard(TrainingRun& run, int64_t steps_done) {
  // One directory per attempt, so that a stale attempt cannot overwrite a newer one's files.
  const std::string directory =
      JoinPath(options_.root, absl::StrCat("step-", steps_done, "-attempt-", options_.attempt));
  absl::StatusOr<v1::CheckpointShard> shard =
      WriteShardOf(*options_.store, *options_.executor, directory, steps_done);
  if (!shard.ok()) return shard.status();
  v1::RunEvent event;
  *event.mutable_shard() = *std::move(shard);
  return run.Emit(event);
}

}  // namespace espalier
