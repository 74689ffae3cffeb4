#include "server/replay/history_query.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/graph/name_pattern.h"
#include "ops/probe/expression.h"

namespace espalier {
namespace {

constexpr int kLogEntries = 1000;
constexpr int kRowsPerReply = 500;
constexpr size_t kBytesPerReply = 1 << 20;
// Answers that are kept in memory while they are put in order.
constexpr size_t kCachedBytes = 64 << 20;

// Puts rows together to messages of some size.
class RowSender {
 public:
  RowSender(const HistoryQuery::Send& send, bool* goes_on) : send_(send), goes_on_(*goes_on) {}

  void Add(v1::HistoryRow row) {
    bytes_ += row.ByteSizeLong();
    *reply_.add_rows() = std::move(row);
    if (reply_.rows_size() >= kRowsPerReply || bytes_ >= kBytesPerReply) Flush();
  }
  void Flush() {
    if (reply_.rows_size() > 0 && goes_on_) goes_on_ = send_(reply_);
    reply_.Clear();
    bytes_ = 0;
  }
  bool goes_on() const { return goes_on_; }

 private:
  const HistoryQuery::Send& send_;
  bool& goes_on_;
  v1::QueryHistoryReply reply_;
  size_t bytes_ = 0;
};

bool IsAsked(const v1::QueryHistoryRequest& request, const v1::HistoryRow& row) {
  if (row.step() < request.first_step()) return false;
  if (request.end_step() > 0 && row.step() >= request.end_step()) return false;
  if (request.log().empty()) return true;
  const std::string probe = ProbeTextOf(row);
  return std::any_of(request.log().begin(), request.log().end(), [&](const std::string& wanted) {
    if (MatchesPattern(wanted, row.name()) || MatchesPattern(wanted, probe)) return true;
    // As the user wrote it: other spaces, defaults left out.
    const absl::StatusOr<ProbeExpression> parsed = ParseProbe(wanted);
    return parsed.ok() && MatchesPattern(ToString(*parsed), probe);
  });
}

}  // namespace

std::string ProbeTextOf(const v1::HistoryRow& row) {
  const std::string& reduction = row.reduction();
  if (reduction.empty() || reduction == "full") return row.name();
  const size_t arguments = reduction.find('(');
  if (arguments == std::string::npos) return absl::StrCat(reduction, "(", row.name(), ")");
  return absl::StrCat(reduction.substr(0, arguments + 1), row.name(), ", ",
                      reduction.substr(arguments + 1));
}

absl::Status HistoryQuery::SendRecorded(const v1::QueryHistoryRequest& request,
                                        const v1::HistoryRow& run, const Send& send,
                                        bool* goes_on) const {
  struct Value {
    double value;
    int64_t unix_ms;
  };
  std::map<std::string, std::map<int64_t, Value>> series;
  int64_t after = 0;
  while (true) {
    const absl::StatusOr<std::vector<JobLogEntry>> page =
        jobs_.Log(run.job_id(), after, request.first_step(), kLogEntries);
    if (!page.ok()) return page.status();
    for (const JobLogEntry& entry : *page) {
      const v1::StepReport* report = std::get_if<v1::StepReport>(&entry.entry);
      if (const auto* validation = std::get_if<LoggedValidation>(&entry.entry)) {
        report = &validation->report;
      }
      if (report == nullptr) continue;
      for (const auto& [name, value] : report->values()) {
        series[name][report->step()] = {value, report->unix_ms()};
      }
    }
    if (page->size() < kLogEntries) break;
    after = page->back().sequence;
  }
  RowSender sender(send, goes_on);
  for (const auto& [name, steps] : series) {
    for (const auto& [step, value] : steps) {
      v1::HistoryRow row = run;
      row.set_step(step);
      row.set_name(name);
      row.mutable_value()->set_scalar(value.value);
      row.set_unix_ms(value.unix_ms);
      if (IsAsked(request, row)) sender.Add(std::move(row));
      if (!sender.goes_on()) return absl::OkStatus();
    }
  }
  sender.Flush();
  return absl::OkStatus();
}

absl::Status HistoryQuery::SendAnswers(const v1::QueryHistoryRequest& request,
                                       const v1::HistoryRow& run, const Send& send,
                                       bool* goes_on) const {
  const absl::StatusOr<std::vector<AnswerChunk>> chunks = answers_.List(run.job_id());
  if (!chunks.ok()) return chunks.status();
  std::map<size_t, v1::QueryHistoryReply> cache;
  size_t cached = 0;
  const auto read = [&](size_t chunk) -> absl::StatusOr<v1::QueryHistoryReply*> {
    if (const auto known = cache.find(chunk); known != cache.end()) return &known->second;
    absl::StatusOr<v1::QueryHistoryReply> rows = answers_.Read(run.job_id(), (*chunks)[chunk]);
    if (!rows.ok()) return rows.status();
    if (cached > kCachedBytes) {
      cache.clear();
      cached = 0;
    }
    cached += rows->ByteSizeLong();
    return &cache.emplace(chunk, *std::move(rows)).first->second;
  };
  // Name, reduction, replay, step, chunk and number of the row in it.
  std::vector<std::tuple<std::string, std::string, std::string, int64_t, size_t, int>> order;
  for (size_t chunk = 0; chunk < chunks->size(); ++chunk) {
    const absl::StatusOr<v1::QueryHistoryReply*> rows = read(chunk);
    if (!rows.ok()) return rows.status();
    for (int i = 0; i < (*rows)->rows_size(); ++i) {
      const v1::HistoryRow& row = (*rows)->rows(i);
      if (!IsAsked(request, row)) continue;
      order.emplace_back(row.name(), row.reduction(), row.replay_id(), row.step(), chunk, i);
    }
  }
  std::sort(order.begin(), order.end());
  RowSender sender(send, goes_on);
  for (const auto& [name, reduction, replay, step, chunk, i] : order) {
    const absl::StatusOr<v1::QueryHistoryReply*> rows = read(chunk);
    if (!rows.ok()) return rows.status();
    sender.Add((*rows)->rows(i));
    if (!sender.goes_on()) return absl::OkStatus();
  }
  sender.Flush();
  return absl::OkStatus();
}

absl::Status HistoryQuery::Query(const v1::QueryHistoryRequest& request, const Caller& caller,
                                 const Send& send) const {
  if (request.first_step() < 0 || request.end_step() < 0) {
    return absl::InvalidArgumentError("first_step, end_step: must not be negative");
  }
  const absl::StatusOr<std::vector<std::string>> jobs = planner_.Find(request.run(), caller);
  if (!jobs.ok()) return jobs.status();
  std::vector<v1::HistoryRow> runs;
  for (const std::string& job : *jobs) {
    const absl::StatusOr<v1::Recording> facts = recordings_.LoadFacts(job);
    if (!facts.ok()) return facts.status();
    v1::HistoryRow& run = runs.emplace_back();
    run.set_experiment(facts->experiment());
    run.set_version(facts->version());
    run.set_job_id(job);
  }
  std::stable_sort(runs.begin(), runs.end(), [](const auto& a, const auto& b) {
    return std::pair(a.experiment(), a.version()) < std::pair(b.experiment(), b.version());
  });
  bool goes_on = true;
  for (const v1::HistoryRow& run : runs) {
    absl::Status status;
    if (!request.has_source() || request.source() == v1::HistoryRow::FORWARD) {
      status = SendRecorded(request, run, send, &goes_on);
    }
    if (!status.ok() || !goes_on) return status;
    if (!request.has_source() || request.source() == v1::HistoryRow::REPLAY) {
      status = SendAnswers(request, run, send, &goes_on);
    }
    if (!status.ok() || !goes_on) return status;
  }
  return absl::OkStatus();
}

}  // namespace espalier
