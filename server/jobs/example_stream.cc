#include "server/jobs/example_stream.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace espalier {
namespace {

constexpr char kEndFile[] = "end";
constexpr char kSuffix[] = ".npz";
constexpr size_t kDigits = 12;

// Returns false for a file that is no part, such as one that a crash has left unfinished.
bool ParseName(absl::string_view name, int64_t* first, int64_t* end) {
  if (!absl::ConsumeSuffix(&name, kSuffix) || name.size() != 2 * kDigits + 1) return false;
  return name[kDigits] == '-' && absl::SimpleAtoi(name.substr(0, kDigits), first) &&
         absl::SimpleAtoi(name.substr(kDigits + 1), end) && *first >= 0 && *end > *first;
}

}  // namespace

ExampleStream::ExampleStream(ExampleStreamOptions options) : options_(std::move(options)) {
  status_ = Load();
}

absl::Status ExampleStream::Load() {
  absl::MutexLock lock(&mutex_);
  const absl::StatusOr<std::vector<std::string>> names = options_.files->List(options_.folder);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();  // nothing was pushed yet
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {  // sorted, and so in the order of steps
    if (name == kEndFile) ended_ = true;
    Part part;
    if (!ParseName(name, &part.first, &part.end)) continue;
    if (part.first != pushed_) {
      return absl::DataLossError(absl::StrCat("the examples of steps ", pushed_, " to ",
                                              part.first - 1, " that were pushed are not in ",
                                              options_.folder, " any more"));
    }
    part.path = JoinPath(options_.folder, name);
    pushed_ = part.end;
    parts_.push_back(std::move(part));
  }
  return absl::OkStatus();
}

std::string ExampleStream::PathOf(int64_t first, int64_t end) const {
  return JoinPath(options_.folder, absl::StrFormat("%012d-%012d%s", first, end, kSuffix));
}

absl::Status ExampleStream::CheckRepeats(const PushedBatches& batches) const {
  const int64_t end = batches.first_step + batches.steps;
  const std::string path = PathOf(batches.first_step, end);
  absl::Status other = absl::AlreadyExistsError(absl::StrCat(
      "first_step: the examples of step ", batches.first_step,
      " were pushed before, and not these in one call; the next to push are those of step ",
      steps_pushed()));
  const std::vector<Part> parts = PartsFrom(batches.first_step);
  const bool alike = !parts.empty() && parts[0].first == batches.first_step && parts[0].end == end;
  if (!alike) return other;
  const absl::StatusOr<std::string> npz = ReadWholeFile(
      *options_.files, path, std::max<int64_t>(1, static_cast<int64_t>(batches.npz.size())));
  if (npz.ok()) return *npz == batches.npz ? absl::OkStatus() : other;
  return absl::IsResourceExhausted(npz.status()) ? other : npz.status();  // it is larger
}

absl::Status ExampleStream::Write(const PushedBatches& batches, bool examples) const {
  absl::Status status = CreateDurableDirectories(*options_.files, options_.folder);
  if (status.ok() && examples) {
    const std::string path = PathOf(batches.first_step, batches.first_step + batches.steps);
    status = WriteFileAtomically(*options_.files, path, batches.npz);
    // It may have its name already, and was not acknowledged: what comes instead may differ.
    if (!status.ok()) options_.files->Remove(path).IgnoreError();
  }
  if (status.ok() && batches.end) {
    status = WriteFileAtomically(*options_.files, JoinPath(options_.folder, kEndFile), "");
  }
  return status;
}

absl::StatusOr<bool> ExampleStream::Push(const PushedBatches& batches, absl::Duration wait) {
  if (!status_.ok()) return status_;
  if (batches.steps > options_.backlog) {
    return absl::InvalidArgumentError(
        absl::StrCat("a call brings ", batches.steps, " batches; at most ", options_.backlog,
                     " may wait (dataset.stream.backlog), so bring fewer at once"));
  }
  const absl::Time deadline = absl::Now() + wait;
  bool repeats = false;
  {
    absl::MutexLock lock(&mutex_);
    while (true) {
      if (removed_) {
        return absl::FailedPreconditionError("the job is over and takes no more examples");
      }
      if (!writing_) {
        if (batches.first_step > pushed_ || batches.first_step < 0) {
          return absl::OutOfRangeError(absl::StrCat("first_step: is ", batches.first_step,
                                                    "; the next examples are those of step ",
                                                    pushed_));
        }
        repeats = batches.steps > 0 && batches.first_step < pushed_;
        if (batches.steps == 0 && batches.first_step < pushed_) {
          return absl::AlreadyExistsError(
              absl::StrCat("first_step: is ", batches.first_step, ", but the examples up to step ",
                           pushed_ - 1, " were pushed; the stream can end after those"));
        }
        if (repeats || batches.steps == 0) break;
        if (ended_) {
          return absl::FailedPreconditionError(absl::StrCat("the stream has ended after ", pushed_,
                                                            " batches and takes no more examples"));
        }
        if (pushed_ + batches.steps > options_.max_steps) {
          return absl::OutOfRangeError(
              absl::StrCat("the job trains ", options_.max_steps, " steps (spec.steps); with ",
                           pushed_, " batches pushed, a call can bring ",
                           options_.max_steps - pushed_, ", not ", batches.steps));
        }
        if (HasRoom(batches.steps)) break;
      }
      if (absl::Now() >= deadline) return false;
      changed_.WaitWithDeadline(&mutex_, deadline);
    }
    writing_ = true;
  }
  const absl::Cleanup written = [this] {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    changed_.SignalAll();
  };
  if (repeats) {
    if (absl::Status s = CheckRepeats(batches); !s.ok()) return s;
    const int64_t end = batches.first_step + batches.steps;
    if (batches.end && end != steps_pushed()) {
      return absl::AlreadyExistsError(
          absl::StrCat("end: batches behind step ", end - 1, " were pushed"));
    }
  }
  const bool ends = batches.end && !ended();
  if ((batches.steps > 0 && !repeats) || ends) {
    if (absl::Status s = Write(batches, !repeats && batches.steps > 0); !s.ok()) return s;
  }
  absl::MutexLock lock(&mutex_);
  if (batches.steps > 0 && !repeats) {
    const int64_t end = batches.first_step + batches.steps;
    parts_.push_back({batches.first_step, end, PathOf(batches.first_step, end)});
    pushed_ = end;
  }
  ended_ = ended_ || batches.end;
  if (batches.steps > 0 || batches.end) last_push_ = options_.clock->Now();
  return true;
}

void ExampleStream::SetStepsDone(int64_t steps) {
  absl::MutexLock lock(&mutex_);
  done_ = steps;
  changed_.SignalAll();
}

int64_t ExampleStream::steps_pushed() const {
  absl::MutexLock lock(&mutex_);
  return pushed_;
}

bool ExampleStream::ended() const {
  absl::MutexLock lock(&mutex_);
  return ended_;
}

std::vector<ExampleStream::Part> ExampleStream::PartsFrom(int64_t step) const {
  absl::MutexLock lock(&mutex_);
  const auto from = std::partition_point(parts_.begin(), parts_.end(),
                                         [&](const Part& part) { return part.end <= step; });
  return {from, parts_.end()};
}

absl::Duration ExampleStream::SilentSince(absl::Time begin) const {
  absl::MutexLock lock(&mutex_);
  return options_.clock->Now() - std::max(begin, last_push_);
}

void ExampleStream::Remove() {
  absl::MutexLock lock(&mutex_);
  removed_ = true;
  changed_.SignalAll();
  while (writing_) changed_.Wait(&mutex_);
  parts_.clear();
  std::error_code ignored;
  std::filesystem::remove_all(options_.folder, ignored);
}

}  // namespace espalier
