#include "worker/trainer/shard_writer.h"

#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/machine_memory.h"

namespace espalier {
namespace {

// Of the thread that writes: it uses processors that the training leaves idle, and about a tenth of
// one if none is.
constexpr int kWriterNice = 10;
// Several ranks of a host may take memory at the same time.
constexpr int64_t kPartOfAvailable = 4;
constexpr int64_t kStagingAlignment = 64;

void LowerPriority() {
  // On Linux a thread has its own. Writing works without, so an error is none.
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kWriterNice);
}

double ThreadCpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void ListEntries(const Executor& executor, std::vector<CheckpointEntry>* entries,
                 std::vector<int>* buffers) {
  std::set<std::pair<std::string, Dims>> regions;
  for (int i = 0; i < executor.num_buffers(); ++i) {
    if (!IsCheckpointed(executor, i)) continue;
    if (executor.buffer(i).saved_elsewhere()) continue;
    const TensorSpec& spec = executor.spec(i);
    // Replicas on one rank hold equal values: save one.
    if (!regions.insert({executor.tensor_name(i), spec.offset}).second) continue;
    entries->push_back(
        {executor.tensor_name(i), spec, executor.buffer(i).kind() == v1::OPTIMIZER_STATE});
    buffers->push_back(i);
  }
}

absl::StatusOr<v1::CheckpointShard> WriteEntries(CheckpointStore& store, int rank,
                                                 const std::vector<CheckpointEntry>& entries,
                                                 const std::string& directory, int64_t steps_done,
                                                 CheckpointSource& source) {
  absl::StatusOr<ManifestFile> file = WriteCheckpointShard(store, directory, rank, entries, source);
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
  ListEntries(executor, &entries, &buffers);
  ExecutorSource source(executor, std::move(buffers));
  return WriteEntries(store, executor.program().rank(), entries, directory, steps_done, source);
}

// What the writing thread writes.
class ShardWriter::StagedValues : public CheckpointSource {
 public:
  explicit StagedValues(ShardWriter& writer) : writer_(writer) {}

  const char* Data(int entry) override {
    const auto index = static_cast<size_t>(entry);
    if (index < writer_.first_staged_ || writer_.abandoned_) return nullptr;
    return writer_.staging_->data() + writer_.places_[index];
  }
  absl::Status Read(int entry, std::vector<char>* bytes) override {
    return writer_.AwaitValues(entry, bytes);
  }

 private:
  ShardWriter& writer_;
};

ShardWriter::ShardWriter(const ShardWriterOptions& options) : options_(options) {
  ListEntries(*options_.executor, &entries_, &buffers_);
}

ShardWriter::~ShardWriter() { Abandon(); }

void ShardWriter::TakeHostMemory() {
  has_taken_memory_ = true;
  const int64_t most = options_.most_host_bytes >= 0 ? options_.most_host_bytes
                                                     : AvailableMemory() / kPartOfAvailable;
  // The last ones are copied: they are the last to be written.
  int64_t staged = 0, all = 0;
  first_staged_ = entries_.size();
  places_.assign(entries_.size(), 0);
  for (size_t i = entries_.size(); i-- > 0;) {
    const int64_t bytes = entries_[i].spec.bytes();
    const int64_t room = (bytes + kStagingAlignment - 1) / kStagingAlignment * kStagingAlignment;
    all += room;
    if (first_staged_ != i + 1 || staged + room > most) continue;
    places_[i] = staged;
    staged += room;
    first_staged_ = i;
  }
  if (staged > 0) {
    absl::StatusOr<std::unique_ptr<HostMemory>> memory =
        options_.device->is_host() ? MapHostMemory(staged, /*folder=*/"")
                                   : options_.device->AllocateHost(staged);
    if (memory.ok()) {
      staging_ = *std::move(memory);
    } else {
      spdlog::warn("no host memory for a copy of what checkpoints hold: {}",
                   memory.status().ToString());
      staged = 0;
      first_staged_ = entries_.size();
    }
  }
  if (staged < all) {
    spdlog::warn(
        "host memory has room for a copy of {} of the {} bytes that this rank writes to a "
        "checkpoint: steps wait while the rest is written",
        staged, all);
  }
}

absl::Status ShardWriter::Begin(const std::string& directory, int64_t steps_done) {
  const absl::Time begin = absl::Now();
  if (!has_taken_memory_) TakeHostMemory();
  for (size_t i = first_staged_; i < entries_.size(); ++i) {
    absl::Status s = options_.executor->ReadBuffer(buffers_[i], staging_->data() + places_[i],
                                                   entries_[i].spec.bytes());
    if (!s.ok()) return s;
  }
  finished_ = false;
  {
    absl::MutexLock lock(&mutex_);
    wanted_.reset();
    all_served_ = first_staged_ == 0;
  }
  thread_ = std::thread([this, directory, steps_done] { Write(directory, steps_done); });
  Serve();
  stall_ = absl::Now() - begin;
  return absl::OkStatus();
}

void ShardWriter::Serve() {
  absl::MutexLock lock(&mutex_);
  const auto needs_something = [this] {
    mutex_.AssertReaderHeld();
    return all_served_ || wanted_.has_value();
  };
  while (true) {
    mutex_.Await(absl::Condition(&needs_something));
    if (all_served_) return;
    const int entry = *wanted_;
    served_ = options_.executor->ReadBuffer(buffers_[entry], wanted_bytes_->data(),
                                            static_cast<int64_t>(wanted_bytes_->size()));
    wanted_.reset();
    // The thread ends with the error, and Take returns it.
  }
}

absl::Status ShardWriter::AwaitValues(int entry, std::vector<char>* bytes) {
  if (abandoned_) return absl::CancelledError("the run has ended");
  absl::MutexLock lock(&mutex_);
  wanted_ = entry;
  wanted_bytes_ = bytes;
  const auto is_served = [this] {
    mutex_.AssertReaderHeld();
    return !wanted_.has_value();
  };
  mutex_.Await(absl::Condition(&is_served));
  if (static_cast<size_t>(entry) + 1 == first_staged_) all_served_ = true;
  return served_;
}

void ShardWriter::Write(const std::string& directory, int64_t steps_done) {
  LowerPriority();
  const absl::Time begin = absl::Now();
  StagedValues values(*this);
  absl::StatusOr<v1::CheckpointShard> shard =
      WriteEntries(*options_.store, options_.executor->program().rank(), entries_, directory,
                   steps_done, values);
  if (shard.ok()) {
    shard->set_writer_cpu_seconds(ThreadCpuSeconds());
    shard->set_write_seconds(absl::ToDoubleSeconds(absl::Now() - begin));
  }
  result_ = std::move(shard);
  finished_ = true;
  absl::MutexLock lock(&mutex_);
  all_served_ = true;
}

absl::StatusOr<v1::CheckpointShard> ShardWriter::Take() {
  const absl::Time begin = absl::Now();
  thread_.join();
  stall_ += absl::Now() - begin;
  absl::StatusOr<v1::CheckpointShard> result = std::move(result_);
  if (result.ok()) result->set_stall_seconds(absl::ToDoubleSeconds(stall_));
  return result;
}

void ShardWriter::Abandon() {
  if (!busy()) return;
  abandoned_ = true;
  thread_.join();
  abandoned_ = false;
}

}  // namespace espalier
