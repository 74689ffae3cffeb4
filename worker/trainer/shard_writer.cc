#include "worker/trainer/shard_writer.h"

#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/machine_memory.h"
#include "base/thread_priority.h"
#include "ops/cpu/threading/parallel.h"
#include "ops/program/unchanged_parameters.h"

namespace espalier {
namespace {

// Several ranks of a host may take memory at the same time.
constexpr int64_t kPartOfAvailable = 4;
constexpr int64_t kStagingAlignment = 64;
constexpr int64_t kTouchedAtOnce = 4 << 20;
// One more durable file takes as long as writing this many bytes, and if it is damaged, so are all
// checkpoints of the attempt: fewer bytes, or a smaller part of what a rank saves, are not worth
// it.
constexpr int64_t kLeastUnchanged = 64 << 10;
constexpr int64_t kLeastUnchangedPart = 20;  // a twentieth

double ThreadCpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Makes pages of fresh memory present without writing to them.
void Touch(char* data, int64_t bytes) {
#ifdef MADV_POPULATE_WRITE  // Linux 5.14; otherwise the first copy takes longer
  (void)madvise(data, static_cast<size_t>(bytes), MADV_POPULATE_WRITE);
#endif
}

// Buffers that this rank writes to checkpoints.
std::vector<int> SavedBuffers(const Executor& executor) {
  std::vector<int> saved;
  std::set<std::pair<std::string, Dims>> regions;
  for (int i = 0; i < executor.num_buffers(); ++i) {
    if (!IsCheckpointed(executor, i)) continue;
    if (executor.buffer(i).saved_elsewhere()) continue;
    // Replicas on one rank hold equal values: save one.
    if (regions.insert({executor.tensor_name(i), executor.spec(i).offset}).second) {
      saved.push_back(i);
    }
  }
  return saved;
}

CheckpointEntry EntryOf(const Executor& executor, int buffer) {
  return {executor.tensor_name(buffer), executor.spec(buffer),
          executor.buffer(buffer).kind() == v1::OPTIMIZER_STATE};
}

// Which of the buffers belong in the file of unchanged values.
std::set<int> Unchanged(const Executor& executor, const std::vector<int>& saved) {
  const std::vector<bool> is_unchanged = UnchangedParameters(executor.program());
  std::set<int> unchanged;
  int64_t all = 0, bytes = 0;
  for (const int i : saved) {
    all += executor.spec(i).bytes();
    if (!is_unchanged[i]) continue;
    bytes += executor.spec(i).bytes();
    unchanged.insert(i);
  }
  const bool matters = bytes >= kLeastUnchanged && bytes >= all / kLeastUnchangedPart;
  return matters ? unchanged : std::set<int>();
}

// A full disk is no error. `file` is what came of writing a file of the shard; nullopt: go on.
std::optional<absl::StatusOr<v1::CheckpointShard>> NotWritten(const absl::Status& file,
                                                              v1::CheckpointShard shard) {
  if (file.ok()) return std::nullopt;
  if (absl::IsResourceExhausted(file)) {
    shard.set_not_written(std::string(file.message()));
    return shard;
  }
  return absl::Status(file.code(), absl::StrCat("checkpoint after step ", shard.steps_done(), ": ",
                                                std::string(file.message())));
}

absl::StatusOr<v1::CheckpointShard> WriteEntries(CheckpointStore& store, int rank,
                                                 const std::vector<CheckpointEntry>& entries,
                                                 v1::CheckpointShard shard,
                                                 CheckpointSource& source) {
  const absl::StatusOr<ManifestFile> file =
      WriteCheckpointShard(store, shard.directory(), rank, entries, source);
  if (auto failed = NotWritten(file.status(), shard); failed.has_value()) return *failed;
  shard.set_file(file->name);
  shard.set_sha256(file->sha256);
  shard.set_bytes(file->bytes);
  return shard;
}

v1::CheckpointShard ShardIn(const std::string& directory, int64_t steps_done) {
  v1::CheckpointShard shard;
  shard.set_directory(directory);
  shard.set_steps_done(steps_done);
  return shard;
}

int64_t Absent(const std::vector<char*>& places) {
  return std::count(places.begin(), places.end(), nullptr);
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
  const std::vector<int> buffers = SavedBuffers(executor);
  std::vector<CheckpointEntry> entries;
  for (const int i : buffers) entries.push_back(EntryOf(executor, i));
  ExecutorSource source(executor, buffers);
  return WriteEntries(store, executor.program().rank(), entries, ShardIn(directory, steps_done),
                      source);
}

// What the thread writes to a file.
class ShardWriter::Values : public CheckpointSource {
 public:
  Values(ShardWriter& writer, const Entries& entries) : writer_(writer), entries_(entries) {}

  const char* Data(int entry) override {
    return writer_.abandoned_ ? nullptr : entries_.places[static_cast<size_t>(entry)];
  }
  absl::Status Read(int entry, std::vector<char>* bytes) override {
    return writer_.AwaitValues(entries_.buffers[static_cast<size_t>(entry)], bytes);
  }

 private:
  ShardWriter& writer_;
  const Entries& entries_;
};

ShardWriter::ShardWriter(const ShardWriterOptions& options) : options_(options) {
  Executor& executor = *options_.executor;
  const std::vector<int> saved = SavedBuffers(executor);
  const std::set<int> unchanged = Unchanged(executor, saved);
  for (const int i : saved) {
    Entries& entries = unchanged.contains(i) ? unchanged_ : changing_;
    entries.entries.push_back(EntryOf(executor, i));
    entries.buffers.push_back(i);
    // No step writes what is unchanged, so the thread may read it where it is.
    entries.places.push_back(unchanged.contains(i) ? reinterpret_cast<char*>(executor.HostData(i))
                                                   : nullptr);
  }
}

ShardWriter::~ShardWriter() {
  Abandon();
  if (!thread_.joinable()) return;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

std::unique_ptr<HostMemory> ShardWriter::TakeHostMemory(Entries* entries, int64_t* room) const {
  int64_t taken = 0;
  std::vector<std::pair<size_t, int64_t>> offsets;  // by entry
  for (size_t i = entries->entries.size(); i-- > 0;) {
    if (entries->places[i] != nullptr) continue;
    const int64_t bytes = (entries->entries[i].spec.bytes() + kStagingAlignment - 1) /
                          kStagingAlignment * kStagingAlignment;
    if (taken + bytes > *room) break;
    offsets.emplace_back(i, taken);
    taken += bytes;
  }
  if (taken == 0) return nullptr;
  absl::StatusOr<std::unique_ptr<HostMemory>> memory = options_.device->is_host()
                                                           ? MapHostMemory(taken, /*folder=*/"")
                                                           : options_.device->AllocateHost(taken);
  if (!memory.ok()) {
    spdlog::warn("no host memory for a copy of what checkpoints hold: {}",
                 memory.status().ToString());
    return nullptr;
  }
  *room -= taken;
  for (const auto& [i, offset] : offsets) entries->places[i] = (*memory)->data() + offset;
  return *std::move(memory);
}

void ShardWriter::Prepare() {
  if (thread_.joinable()) return;
  int64_t room = options_.most_host_bytes >= 0 ? options_.most_host_bytes
                                               : AvailableMemory() / kPartOfAvailable;
  staging_ = TakeHostMemory(&changing_, &room);
  staging_once_ = TakeHostMemory(&unchanged_, &room);
  int64_t all = 0, copied = 0;
  for (const Entries* entries : {&changing_, &unchanged_}) {
    for (size_t i = 0; i < entries->entries.size(); ++i) {
      const int64_t bytes = entries->entries[i].spec.bytes();
      all += bytes;
      if (entries->places[i] != nullptr) copied += bytes;
    }
  }
  if (copied < all) {
    spdlog::warn(
        "host memory has room for a copy of {} of the {} bytes that this rank writes to a "
        "checkpoint: steps wait while the rest is written",
        copied, all);
  }
  thread_ = std::thread([this] { Loop(); });
}

absl::Status ShardWriter::Copy(const Entries& entries) {
  struct Part {
    char* to;
    const uint8_t* from;
    int64_t bytes;
  };
  std::vector<Part> parts;
  std::vector<int64_t> blocks;  // of the parts
  for (size_t i = 0; i < entries.entries.size(); ++i) {
    if (entries.places[i] == nullptr) continue;
    const int64_t bytes = entries.entries[i].spec.bytes();
    const uint8_t* const from = options_.executor->HostData(entries.buffers[i]);
    if (from != nullptr) {
      parts.push_back({entries.places[i], from, bytes});
      blocks.push_back((bytes + kStagingAlignment - 1) / kStagingAlignment);
      continue;
    }
    absl::Status s = options_.executor->ReadBuffer(entries.buffers[i], entries.places[i], bytes);
    if (!s.ok()) return s;
  }
  // Where there is much, by all threads that compute the steps: they have nothing to do now.
  ParallelArrays(
      blocks, kStagingAlignment / sizeof(float), [&](size_t which, int64_t first, int64_t last) {
        const Part& part = parts[which];
        const int64_t begin = first * kStagingAlignment;
        const int64_t end = std::min(last * kStagingAlignment, part.bytes);
        std::memcpy(part.to + begin, part.from + begin, static_cast<size_t>(end - begin));
      });
  return absl::OkStatus();
}

absl::Status ShardWriter::Begin(const std::string& directory, int64_t steps_done) {
  const absl::Time begin = absl::Now();
  Prepare();
  absl::Status copied = Copy(changing_);
  if (copied.ok() && staging_once_ != nullptr && !unchanged_file_.has_value()) {
    copied = Copy(unchanged_);
  }
  if (!copied.ok()) return copied;
  finished_ = false;
  busy_ = true;
  steps_done_ = steps_done;
  {
    absl::MutexLock lock(&mutex_);
    to_serve_ = Absent(changing_.places);
    if (!unchanged_file_.has_value()) to_serve_ += Absent(unchanged_.places);
    result_.reset();
    next_ = Shard{directory, steps_done};
  }
  Serve();
  stall_ = absl::Now() - begin;
  return absl::OkStatus();
}

void ShardWriter::Serve() {
  absl::MutexLock lock(&mutex_);
  const auto wants_or_has_all = [this] {
    mutex_.AssertReaderHeld();
    return wanted_.has_value() || to_serve_ == 0 || result_.has_value();
  };
  while (true) {
    mutex_.Await(absl::Condition(&wants_or_has_all));
    if (!wanted_.has_value()) return;
    served_ = options_.executor->ReadBuffer(*wanted_, wanted_bytes_->data(),
                                            static_cast<int64_t>(wanted_bytes_->size()));
    wanted_.reset();
    --to_serve_;
    // After an error the thread gives up, and Take returns the error.
  }
}

absl::Status ShardWriter::AwaitValues(int buffer, std::vector<char>* bytes) {
  if (abandoned_) return absl::CancelledError("the run has ended");
  absl::MutexLock lock(&mutex_);
  wanted_ = buffer;
  wanted_bytes_ = bytes;
  const auto is_served = [this] {
    mutex_.AssertReaderHeld();
    return !wanted_.has_value();
  };
  mutex_.Await(absl::Condition(&is_served));
  return served_;
}

void ShardWriter::Loop() {
  LowerThreadPriority();
  const auto has_work = [this] {
    mutex_.AssertReaderHeld();
    return stopping_ || next_.has_value();
  };
  const int64_t touched = options_.device->is_host() && staging_ != nullptr ? staging_->bytes() : 0;
  for (int64_t at = 0; at < touched; at += kTouchedAtOnce) {
    {
      absl::MutexLock lock(&mutex_);
      if (has_work()) break;
    }
    Touch(staging_->data() + at, std::min(kTouchedAtOnce, touched - at));
  }
  while (true) {
    Shard shard;
    {
      absl::MutexLock lock(&mutex_, absl::Condition(&has_work));
      if (stopping_) return;
      shard = *std::exchange(next_, std::nullopt);
    }
    absl::StatusOr<v1::CheckpointShard> written = Write(shard);
    absl::MutexLock lock(&mutex_);
    result_ = std::move(written);
    finished_ = true;
  }
}

absl::StatusOr<v1::CheckpointShard> ShardWriter::Write(const Shard& shard) {
  const absl::Time begin = absl::Now();
  const double cpu_before = ThreadCpuSeconds();
  const int rank = options_.executor->program().rank();
  v1::CheckpointShard message = ShardIn(shard.directory, shard.steps_done);
  if (!unchanged_.entries.empty() && !unchanged_file_.has_value()) {
    Values values(*this, unchanged_);
    absl::StatusOr<ManifestFile> file =
        WriteUnchangedShard(*options_.store, shard.directory, rank, unchanged_.entries, values);
    if (auto failed = NotWritten(file.status(), message); failed.has_value()) return *failed;
    unchanged_file_ = *std::move(file);
  }
  if (unchanged_file_.has_value()) {
    message.mutable_unchanged()->set_file(unchanged_file_->name);
    message.mutable_unchanged()->set_sha256(unchanged_file_->sha256);
    message.mutable_unchanged()->set_bytes(unchanged_file_->bytes);
  }
  Values values(*this, changing_);
  absl::StatusOr<v1::CheckpointShard> written =
      WriteEntries(*options_.store, rank, changing_.entries, std::move(message), values);
  if (written.ok()) {
    written->set_writer_cpu_seconds(ThreadCpuSeconds() - cpu_before);
    written->set_write_seconds(absl::ToDoubleSeconds(absl::Now() - begin));
  }
  return written;
}

void ShardWriter::AwaitResult() {
  const auto is_over = [this] {
    mutex_.AssertReaderHeld();
    return result_.has_value();
  };
  absl::MutexLock lock(&mutex_, absl::Condition(&is_over));
}

absl::StatusOr<v1::CheckpointShard> ShardWriter::Take() {
  const absl::Time begin = absl::Now();
  AwaitResult();
  busy_ = false;
  stall_ += absl::Now() - begin;
  if (unchanged_file_.has_value()) staging_once_.reset();
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<v1::CheckpointShard> result = *std::move(result_);
  if (result.ok()) result->set_stall_seconds(absl::ToDoubleSeconds(stall_));
  return result;
}

void ShardWriter::Abandon() {
  if (!busy_) return;
  abandoned_ = true;
  AwaitResult();
  abandoned_ = false;
  busy_ = false;
}

}  // namespace espalier
