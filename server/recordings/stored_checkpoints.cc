#include "server/recordings/stored_checkpoints.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "storage/manifest.h"

namespace espalier {
namespace {

constexpr absl::string_view kAttemptPrefix = "attempt-";

// Of "step-40-attempt-1", as workers name them (worker/trainer/checkpoint_observer.cc).
std::optional<int64_t> StepsInName(absl::string_view folder) {
  if (!absl::ConsumePrefix(&folder, "step-")) return std::nullopt;
  int64_t steps = 0;
  const absl::string_view digits = folder.substr(0, folder.find('-'));
  if (!absl::SimpleAtoi(digits, &steps) || steps < 0) return std::nullopt;
  return steps;
}

}  // namespace

int64_t StoredCheckpoints::bytes() const {
  int64_t sum = shared_bytes;
  for (const Checkpoint& checkpoint : checkpoints) sum += checkpoint.bytes;
  return sum;
}

std::vector<std::string> StoredCheckpoints::unused_shared() const {
  std::set<int32_t> used;
  for (const Checkpoint& checkpoint : checkpoints) used.insert(AttemptOf(checkpoint.directory));
  std::vector<std::string> unused;
  for (const std::string& file : shared) {
    if (!used.contains(AttemptOf(file))) unused.push_back(file);
  }
  return unused;
}

int32_t AttemptOf(const std::string& directory) {
  absl::string_view attempt = absl::string_view(directory).substr(0, directory.find('/'));
  int32_t number = 0;
  if (!absl::ConsumePrefix(&attempt, kAttemptPrefix)) return 0;
  return absl::SimpleAtoi(attempt, &number) ? number : 0;
}

absl::StatusOr<StoredCheckpoints> CheckpointsAmong(const std::vector<ObjectReader::Object>& objects,
                                                   const std::string& job, ObjectReader& store) {
  struct Folder {
    int64_t bytes = 0;
    bool whole = false;
  };
  std::map<std::string, Folder> folders;  // by the name within the job's
  StoredCheckpoints stored;
  for (const ObjectReader::Object& object : objects) {
    const std::vector<absl::string_view> parts = absl::StrSplit(object.name, '/');
    if (parts.size() < 3 || parts[0] != job || !absl::StartsWith(parts[1], kAttemptPrefix))
      continue;
    if (parts.size() == 3) {
      stored.shared.push_back(absl::StrCat(parts[1], "/", parts[2]));
      stored.shared_bytes += object.bytes;
    }
    if (parts.size() != 4) continue;
    Folder& folder = folders[absl::StrCat(parts[1], "/", parts[2])];
    folder.bytes += object.bytes;
    folder.whole = folder.whole || parts[3] == kManifestFile;
  }
  for (const auto& [directory, folder] : folders) {
    if (!folder.whole) {
      stored.incomplete.push_back(directory);
      continue;
    }
    std::optional<int64_t> steps =
        StepsInName(absl::string_view(directory).substr(directory.find('/') + 1));
    if (!steps.has_value()) {
      const absl::StatusOr<Manifest> manifest = ReadManifest(store, JoinPath(job, directory));
      if (absl::IsUnavailable(manifest.status())) return manifest.status();
      if (!manifest.ok()) continue;
      steps = manifest->steps_done;
    }
    stored.checkpoints.push_back({directory, *steps, folder.bytes});
  }
  std::stable_sort(stored.checkpoints.begin(), stored.checkpoints.end(),
                   [](const auto& a, const auto& b) { return a.steps_done < b.steps_done; });
  return stored;
}

absl::StatusOr<StoredCheckpoints> ListStoredCheckpoints(ObjectReader& store,
                                                        const std::string& job) {
  const absl::StatusOr<std::vector<ObjectReader::Object>> objects = store.List(job);
  if (!objects.ok()) return objects.status();
  return CheckpointsAmong(*objects, job, store);
}

}  // namespace espalier
