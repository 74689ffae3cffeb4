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

// Where a row is, in the order of the rows of one name: what was recorded in a step is before what
// was answered later.
struct RowPlace {
  int64_t step = 0;
  bool recorded = false;
  int64_t unix_ms = 0;
  size_t chunk = 0;  // of answers
  int row = 0;       // in it

  bool operator<(const RowPlace& other) const {
    return std::tuple(step, !recorded, unix_ms, chunk, row) <
           std::tuple(other.step, !other.recorded, other.unix_ms, other.chunk, other.row);
  }
};

// Reads the chunks of a job's answers, and keeps some.
class AnswerReader {
 public:
  AnswerReader(const AnswerStore& store, std::string job_id)
      : store_(store), job_id_(std::move(job_id)) {}

  absl::Status List() {
    absl::StatusOr<std::vector<AnswerChunk>> chunks = store_.List(job_id_);
    if (!chunks.ok()) return chunks.status();
    chunks_ = *std::move(chunks);
    return absl::OkStatus();
  }
  size_t chunks() const { return chunks_.size(); }

  // Valid until the next call.
  absl::StatusOr<const v1::QueryHistoryReply*> Read(size_t chunk) {
    if (const auto known = cache_.find(chunk); known != cache_.end()) return &known->second;
    absl::StatusOr<v1::QueryHistoryReply> rows = store_.Read(job_id_, chunks_[chunk]);
    if (!rows.ok()) return rows.status();
    if (cached_ > kCachedBytes) {
      cache_.clear();
      cached_ = 0;
    }
    cached_ += rows->ByteSizeLong();
    return &cache_.emplace(chunk, *std::move(rows)).first->second;
  }

 private:
  const AnswerStore& store_;
  const std::string job_id_;
  std::vector<AnswerChunk> chunks_;
  std::map<size_t, v1::QueryHistoryReply> cache_;
  size_t cached_ = 0;
};

}  // namespace

std::string ProbeTextOf(const v1::HistoryRow& row) {
  const std::string& reduction = row.reduction();
  if (reduction.empty() || reduction == "full") return row.name();
  const size_t arguments = reduction.find('(');
  if (arguments == std::string::npos) return absl::StrCat(reduction, "(", row.name(), ")");
  return absl::StrCat(reduction.substr(0, arguments + 1), row.name(), ", ",
                      reduction.substr(arguments + 1));
}

absl::StatusOr<HistoryQuery::Recorded> HistoryQuery::ReadRecorded(
    const v1::QueryHistoryRequest& request, const std::string& job_id) const {
  Recorded recorded;
  int64_t after = 0;
  while (true) {
    const absl::StatusOr<std::vector<JobLogEntry>> page =
        jobs_.Log(job_id, after, request.first_step(), kLogEntries);
    if (!page.ok()) return page.status();
    for (const JobLogEntry& entry : *page) {
      const v1::StepReport* report = std::get_if<v1::StepReport>(&entry.entry);
      if (const auto* validation = std::get_if<LoggedValidation>(&entry.entry)) {
        report = &validation->report;
      }
      if (report == nullptr) continue;
      for (const auto& [name, value] : report->values()) {
        recorded[name][report->step()] = {value, report->unix_ms()};
      }
    }
    if (page->size() < kLogEntries) break;
    after = page->back().sequence;
  }
  return recorded;
}

absl::Status HistoryQuery::SendRun(const v1::QueryHistoryRequest& request,
                                   const v1::HistoryRow& run, const Send& send,
                                   bool* goes_on) const {
  std::map<std::pair<std::string, std::string>, std::vector<RowPlace>> order;  // name, reduction
  Recorded recorded;
  if (!request.has_source() || request.source() == v1::HistoryRow::FORWARD) {
    absl::StatusOr<Recorded> read = ReadRecorded(request, run.job_id());
    if (!read.ok()) return read.status();
    recorded = *std::move(read);
  }
  const auto recorded_row = [&](const std::string& name, int64_t step) {
    const RecordedValue& value = recorded.at(name).at(step);
    v1::HistoryRow row = run;
    row.set_step(step);
    row.set_name(name);
    row.mutable_value()->set_scalar(value.value);
    row.set_unix_ms(value.unix_ms);
    return row;
  };
  for (const auto& [name, steps] : recorded) {
    for (const auto& [step, value] : steps) {
      if (!IsAsked(request, recorded_row(name, step))) continue;
      order[{name, ""}].push_back({.step = step, .recorded = true});
    }
  }
  AnswerReader answers(answers_, run.job_id());
  if (!request.has_source() || request.source() == v1::HistoryRow::REPLAY) {
    if (absl::Status s = answers.List(); !s.ok()) return s;
  }
  for (size_t chunk = 0; chunk < answers.chunks(); ++chunk) {
    const absl::StatusOr<const v1::QueryHistoryReply*> rows = answers.Read(chunk);
    if (absl::IsNotFound(rows.status())) continue;  // its replay was deleted meanwhile
    if (!rows.ok()) return rows.status();
    for (int i = 0; i < (*rows)->rows_size(); ++i) {
      const v1::HistoryRow& row = (*rows)->rows(i);
      if (!IsAsked(request, row)) continue;
      order[{row.name(), row.reduction()}].push_back(
          {row.step(), /*recorded=*/false, row.unix_ms(), chunk, i});
    }
  }
  RowSender sender(send, goes_on);
  for (auto& [label, places] : order) {
    std::sort(places.begin(), places.end());
    for (const RowPlace& place : places) {
      if (place.recorded) {
        sender.Add(recorded_row(label.first, place.step));
      } else {
        const absl::StatusOr<const v1::QueryHistoryReply*> rows = answers.Read(place.chunk);
        if (absl::IsNotFound(rows.status())) continue;
        if (!rows.ok()) return rows.status();
        sender.Add((*rows)->rows(place.row));
      }
      if (!sender.goes_on()) return absl::OkStatus();
    }
    places = {};
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
    absl::Status status = SendRun(request, run, send, &goes_on);
    if (!status.ok() || !goes_on) return status;
  }
  return absl::OkStatus();
}

}  // namespace espalier
