#include "server/replay/answer_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/recordings/recording_store.h"

namespace espalier {
namespace {

constexpr char kRowsSuffix[] = ".rows";
constexpr int64_t kLargestChunk = int64_t{1} << 30;

std::string FolderOf(const std::string& job_id, const std::string& replay_id) {
  const std::string answers = AnswersFolder(job_id);
  return replay_id.empty() ? answers : absl::StrCat(answers, "/", replay_id);
}

std::string NameOfChunk(const std::string& job_id, const AnswerChunk& chunk) {
  return absl::StrCat(FolderOf(job_id, chunk.replay_id), "/",
                      absl::StrFormat("%06d-%012d-%012d%s", chunk.segment, chunk.first_step,
                                      chunk.last_step, kRowsSuffix));
}

// The reverse, of what follows the job's folder; false for other names.
bool ParseChunk(absl::string_view name, AnswerChunk* chunk) {
  const std::vector<absl::string_view> path = absl::StrSplit(name, '/');
  if (path.size() != 2 || !absl::EndsWith(path[1], kRowsSuffix)) return false;
  const std::vector<absl::string_view> numbers =
      absl::StrSplit(absl::StripSuffix(path[1], kRowsSuffix), '-');
  chunk->replay_id = std::string(path[0]);
  return numbers.size() == 3 && absl::SimpleAtoi(numbers[0], &chunk->segment) &&
         absl::SimpleAtoi(numbers[1], &chunk->first_step) &&
         absl::SimpleAtoi(numbers[2], &chunk->last_step);
}

}  // namespace

absl::Status AnswerStore::Append(const std::string& job_id, const std::string& replay_id,
                                 int segment, const std::vector<v1::HistoryRow>& rows) {
  v1::QueryHistoryReply chunk;
  for (const v1::HistoryRow& row : rows) *chunk.add_rows() = row;
  const std::string name =
      NameOfChunk(job_id, {replay_id, segment, rows.front().step(), rows.back().step()});
  absl::StatusOr<std::unique_ptr<CheckpointStore::Upload>> upload = store_.Put(name);
  if (!upload.ok()) return upload.status();
  const std::string bytes = chunk.SerializeAsString();
  absl::Status status = (*upload)->Append(bytes.data(), static_cast<int64_t>(bytes.size()));
  return status.ok() ? (*upload)->Commit() : status;
}

absl::StatusOr<std::vector<AnswerChunk>> AnswerStore::List(const std::string& job_id,
                                                           const std::string& replay_id) const {
  const absl::StatusOr<std::vector<ObjectReader::Object>> objects =
      store_.List(FolderOf(job_id, replay_id));
  if (!objects.ok()) return objects.status();
  const std::string prefix = absl::StrCat(AnswersFolder(job_id), "/");
  std::vector<AnswerChunk> chunks;
  for (const ObjectReader::Object& object : *objects) {
    AnswerChunk chunk;
    absl::string_view name = object.name;
    if (absl::ConsumePrefix(&name, prefix) && ParseChunk(name, &chunk)) chunks.push_back(chunk);
  }
  std::sort(chunks.begin(), chunks.end());
  absl::MutexLock lock(&mutex_);
  std::erase_if(chunks, [&](const AnswerChunk& chunk) {
    mutex_.AssertHeld();
    return hidden_.contains(chunk.replay_id);
  });
  return chunks;
}

absl::StatusOr<v1::QueryHistoryReply> AnswerStore::Read(const std::string& job_id,
                                                        const AnswerChunk& chunk) const {
  const std::string name = NameOfChunk(job_id, chunk);
  const absl::StatusOr<std::string> bytes = ReadObject(store_, name, kLargestChunk);
  if (!bytes.ok()) return bytes.status();
  v1::QueryHistoryReply rows;
  if (!rows.ParseFromString(*bytes)) {
    return absl::DataLossError(absl::StrCat("answers of replay ", chunk.replay_id, ": ", name,
                                            " is damaged; run the replay again"));
  }
  return rows;
}

absl::Status AnswerStore::Remove(const std::string& job_id, const std::string& replay_id) {
  return store_.Delete(FolderOf(job_id, replay_id));
}

void AnswerStore::Hide(const std::string& replay_id, bool hidden) {
  absl::MutexLock lock(&mutex_);
  if (hidden) {
    hidden_.insert(replay_id);
  } else {
    hidden_.erase(replay_id);
  }
}

}  // namespace espalier
