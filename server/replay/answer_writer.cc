#include "server/replay/answer_writer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace espalier {
namespace {

// Rows wait so long, or until there are so many, to be stored together.
constexpr absl::Duration kStoreEvery = absl::Seconds(1);
constexpr size_t kStoreBytes = 4 << 20;
constexpr char kMakeRoom[] =
    "; make room there and start the replay again (the answers that are stored stay)";

}  // namespace

AnswerWriter::AnswerWriter(const ReplayTools& tools, v1::HistoryRow run,
                           const std::string& replay_id, int segment)
    : tools_(tools), run_(std::move(run)), replay_id_(replay_id), segment_(segment) {}

void AnswerWriter::Add(std::vector<v1::HistoryRow> rows) {
  for (v1::HistoryRow& row : rows) {
    row.set_experiment(run_.experiment());
    row.set_version(run_.version());
    row.set_job_id(run_.job_id());
    row.set_source(v1::HistoryRow::REPLAY);
    row.set_replay_id(replay_id_);
    row.set_unix_ms(tools_.clock->NowUnixMillis());
    bytes_ += row.ByteSizeLong();
    rows_.push_back(std::move(row));
  }
  if (due_ == absl::InfiniteFuture()) due_ = absl::Now() + kStoreEvery;
  if (bytes_ >= kStoreBytes) due_ = absl::InfinitePast();
}

absl::Status AnswerWriter::Store(int64_t last_step) {
  due_ = absl::InfiniteFuture();
  bytes_ = 0;
  const auto later = std::find_if(rows_.begin(), rows_.end(), [&](const v1::HistoryRow& row) {
    return row.step() > last_step;
  });
  if (later == rows_.begin()) return absl::OkStatus();
  const std::vector<v1::HistoryRow> rows(std::make_move_iterator(rows_.begin()),
                                         std::make_move_iterator(later));
  rows_.erase(rows_.begin(), later);
  const absl::Status status = tools_.answers->Append(run_.job_id(), replay_id_, segment_, rows);
  if (!status.ok()) {
    return absl::Status(status.code(),
                        absl::StrCat("answers cannot be stored: ", status.message(),
                                     absl::IsResourceExhausted(status) ? kMakeRoom : ""));
  }
  stored_rows_ += static_cast<int64_t>(rows.size());
  return absl::OkStatus();
}

}  // namespace espalier
