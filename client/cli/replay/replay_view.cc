#include "client/cli/replay/replay_view.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "client/cli/history/row_values.h"
#include "client/cli/history/table_view.h"
#include "client/cli/proto_json.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

std::string Counted(int64_t count, absl::string_view unit) {
  return absl::StrCat(count, " ", unit, count == 1 ? "" : "s");
}

}  // namespace

int64_t StepsOf(const v1::ReplaySegment& segment) {
  if (segment.kind() != v1::ReplaySegment::TRAINING) return segment.checkpoints();
  return segment.end_step() - segment.checkpoint_step();
}

std::string ReplayStateName(v1::ReplayState state) {
  const std::string name = v1::ReplayState_Name(state);
  return absl::AsciiStrToLower(absl::StripPrefix(name, "REPLAY_"));
}

std::string DescribeDifference(const v1::ReplayInfo& replay) {
  const v1::ReplayDifference& difference = replay.difference();
  return absl::StrCat("the replay differs from the recording of ", Printable(difference.job_id()),
                      " at step ", difference.step(), ": loss ", ExactNumber(difference.replayed()),
                      ", recorded ", ExactNumber(difference.recorded()), "; ",
                      Printable(difference.cause()));
}

std::string RenderNotes(const v1::ReplayEstimate& estimate) {
  std::string text;
  for (const v1::ReplayEstimate::Lacking& lacking : estimate.lacking()) {
    for (int i = 0; i < lacking.log_size(); ++i) {
      absl::StrAppend(&text, Printable(lacking.run()), " has no ", Printable(lacking.log(i)));
      if (i < lacking.reasons_size()) absl::StrAppend(&text, ": ", Printable(lacking.reasons(i)));
      absl::StrAppend(&text, "\n");
    }
  }
  for (const std::string& note : estimate.notes()) absl::StrAppend(&text, Printable(note), "\n");
  return text;
}

std::string RenderEstimate(const v1::ReplayEstimate& estimate, const Terminal& terminal) {
  std::string text;
  int64_t checkpoints = 0;
  for (const v1::ReplaySegment& segment : estimate.segments()) {
    checkpoints += segment.checkpoints();
  }
  absl::StrAppend(
      &text, checkpoints > 0 ? "reads " : "replays ",
      checkpoints > 0 ? Counted(checkpoints, "checkpoint") : Counted(estimate.steps(), "step"),
      " in ", Counted(estimate.segments_size(), "segment"), ", about ",
      FormatSeconds(estimate.seconds(), terminal.unicode));
  if (estimate.rows() > 0) {
    absl::StrAppend(&text, "; ", Counted(estimate.rows(), "answer"), ", about ",
                    FormatBytes(static_cast<double>(estimate.bytes())));
  }
  absl::StrAppend(&text, "\n");
  for (const v1::ReplayEstimate::Fetched& fetched : estimate.fetched()) {
    absl::StrAppend(&text, "copies ", Counted(fetched.checkpoints(), "checkpoint"), ", ",
                    FormatBytes(static_cast<double>(fetched.bytes())), ", back from ",
                    Printable(fetched.spool()), "\n");
  }
  return text;
}

std::string RenderComparison(const v1::ReplayInfo& replay) {
  int64_t to_the_bit = 0;
  std::map<std::string, std::pair<int64_t, double>> within;  // by reason: losses, the largest
  double tolerance = 0;
  for (const v1::ReplaySegment& segment : replay.segments()) {
    const v1::ReplayComparison& comparison = segment.comparison();
    if (comparison.bits()) {
      to_the_bit += comparison.compared();
    } else if (comparison.compared() > 0) {
      auto& [losses, largest] = within[comparison.reason()];
      losses += comparison.compared();
      largest = std::max(largest, comparison.largest());
      tolerance = comparison.tolerance();
    }
  }
  std::string text;
  const bool differs = replay.has_difference();
  if (to_the_bit > 0 && !differs) {
    absl::StrAppend(&text, "losses that equal the recorded ones to the bit: ", to_the_bit, "\n");
  }
  for (const auto& [reason, losses] : within) {
    if (differs) break;
    absl::StrAppend(&text,
                    absl::StrFormat("losses that equal the recorded ones within a relative "
                                    "%.2g (accepted: %.2g), as %s: %d\n",
                                    losses.second, tolerance, Printable(reason), losses.first));
  }
  return text;
}

ReplayView::ReplayView(Context* context)
    : context_(*context),
      printer_(&context->out(), context->terminal(), context->env().seconds),
      json_(std::make_unique<OutputFile>(&context->out())) {}

bool ReplayView::OnEvent(const v1::ReplayEvent& event) {
  if (event.has_replay()) OnReplay(event.replay());
  if (event.has_row() && context_.json()) {
    // The writer gathers lines in blocks: what is shown must not wait for others.
    JsonExporter line(std::make_unique<OutputFile>(&context_.out()));
    if (!line.Add(event.row()).ok() || !line.Finish().ok()) return false;
    context_.out().flush();
  } else if (event.has_row()) {
    series_.Add(event.row());
  }
  return context_.out().good();
}

void ReplayView::OnReplay(const v1::ReplayInfo& replay) {
  replay_ = replay;
  if (context_.json()) return;
  for (; notes_shown_ < replay.notes_size(); ++notes_shown_) {
    printer_.Message(Printable(replay.notes(notes_shown_)));
  }
  if (replay.state() == v1::REPLAY_WAITING) return;
  Progress progress;
  progress.unit = replay.spec().at_checkpoints() ? "checkpoint" : "step";
  size_t workers = 0;
  int64_t done = 0, total = 0;
  for (const v1::ReplaySegment& segment : replay.segments()) {
    done += segment.state() == v1::REPLAY_SUCCEEDED ? StepsOf(segment) : segment.steps_done();
    total += StepsOf(segment);
    workers += static_cast<size_t>(segment.workers_size());
  }
  progress.done = static_cast<double>(done);
  progress.total = static_cast<double>(total);
  progress.detail = absl::StrCat(Counted(replay.rows(), "answer"), ", ",
                                 Counted(static_cast<int64_t>(workers), "worker"));
  const double now = context_.env().seconds();
  if (done > 0 && began_ < 0) {
    began_ = now;
    began_steps_ = done;
  }
  if (began_ >= 0 && done > began_steps_ && now > began_) {
    progress.rate = static_cast<double>(done - began_steps_) / (now - began_);
    progress.rate_unit = absl::StrCat(progress.unit, "s/s");
    progress.seconds_left = static_cast<double>(total - done) / progress.rate;
  }
  printer_.Update(progress);
}

absl::Status ReplayView::Finish() {
  if (context_.json()) {
    nlohmann::ordered_json line;
    line["replay"] = ToJson(replay_);
    context_.Line(line);
  } else {
    printer_.Finish();
    const std::vector<HistorySeries> series = series_.Take();
    if (!series.empty()) {
      context_.out() << RenderHistoryTable(series, context_.terminal());
      if (context_.terminal().is_tty) {
        context_.out() << RenderHistoryPlots(series, context_.terminal());
      }
    }
    context_.out() << RenderComparison(replay_) << std::flush;
  }
  switch (replay_.state()) {
    case v1::REPLAY_SUCCEEDED:
      return absl::OkStatus();
    case v1::REPLAY_DIFFERS:
      return absl::FailedPreconditionError(DescribeDifference(replay_));
    case v1::REPLAY_CANCELLED:
      return absl::CancelledError(absl::StrCat(replay_.id(), " was cancelled"));
    default:
      return absl::InternalError(absl::StrCat(replay_.id(), " has failed: ", replay_.error()));
  }
}

}  // namespace espalier
