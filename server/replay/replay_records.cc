#include "server/replay/replay_records.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace espalier {
namespace {

// The store cannot list its blobs: this one has the others' ids.
constexpr char kReplayIds[] = "replays/ids";

std::string ReplayBlob(const std::string& id) { return absl::StrCat("replays/", id, "/replay"); }

}  // namespace

absl::StatusOr<std::vector<v1::StoredReplay>> ReplayRecords::Load() {
  ids_.clear();
  std::vector<v1::StoredReplay> replays;
  const absl::StatusOr<std::string> ids = jobs_.GetBlob(kReplayIds);
  if (absl::IsNotFound(ids.status())) return replays;
  if (!ids.ok()) return ids.status();
  const std::vector<std::string> all = absl::StrSplit(*ids, '\n', absl::SkipEmpty());
  for (const std::string& id : all) {
    const absl::StatusOr<std::string> bytes = jobs_.GetBlob(ReplayBlob(id));
    if (absl::IsNotFound(bytes.status())) continue;  // it was being removed
    if (!bytes.ok()) return bytes.status();
    v1::StoredReplay& replay = replays.emplace_back();
    if (!replay.ParseFromString(*bytes)) {
      return absl::DataLossError(absl::StrCat("job store: replay ", id, " is damaged"));
    }
    ids_.push_back(id);
  }
  return replays;
}

absl::Status ReplayRecords::PutIds() {
  return jobs_.PutBlob(kReplayIds, absl::StrJoin(ids_, "\n"));
}

absl::Status ReplayRecords::Put(const v1::StoredReplay& replay) {
  const std::string& id = replay.info().id();
  absl::Status status = jobs_.PutBlob(ReplayBlob(id), replay.SerializeAsString());
  if (!status.ok() || std::find(ids_.begin(), ids_.end(), id) != ids_.end()) return status;
  ids_.push_back(id);
  status = PutIds();
  if (!status.ok()) ids_.pop_back();
  return status;
}

absl::Status ReplayRecords::Remove(const std::string& id) {
  absl::Status status = jobs_.DeleteBlob(ReplayBlob(id));
  if (!status.ok()) return status;
  std::erase(ids_, id);
  return PutIds();
}

}  // namespace espalier
