// Shows a replay while it runs, and its outcome.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "client/cli/command.h"
#include "client/cli/history/json_exporter.h"
#include "client/cli/history/series.h"
#include "client/terminal/progress.h"
#include "espalier/v1/replay.pb.h"

namespace espalier {

// "waiting", "running", "succeeded", "differs" ...
std::string ReplayStateName(v1::ReplayState state);

// What is known of the loss that differs, of REPLAY_DIFFERS.
std::string DescribeDifference(const v1::ReplayInfo& replay);

// Steps that a segment trains, or checkpoints that it reads.
int64_t StepsOf(const v1::ReplaySegment& segment);

// Names that runs lack, and other notes, a line each.
std::string RenderNotes(const v1::ReplayEstimate& estimate);

// What a replay would take: segments, time, and size of the answers.
std::string RenderEstimate(const v1::ReplayEstimate& estimate, const Terminal& terminal);

// How the losses were compared with the record, a sentence per way.
std::string RenderComparison(const v1::ReplayInfo& replay);

// With --json: a line per answer, and one for the replay at the end.
class ReplayView {
 public:
  explicit ReplayView(Context* context);

  bool OnEvent(const v1::ReplayEvent& event);  // for Client::WatchReplay
  // Shows the outcome. Returns an error unless the replay has succeeded.
  absl::Status Finish();

 private:
  void OnReplay(const v1::ReplayInfo& replay);

  Context& context_;
  ProgressPrinter printer_;
  JsonExporter json_;
  SeriesCollector series_;
  v1::ReplayInfo replay_;
  int notes_shown_ = 0;
  double began_ = -1;  // seconds, when the first step was replayed
  int64_t began_steps_ = 0;
};

}  // namespace espalier
