// Shows a job while it runs and its outcome.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/command.h"
#include "client/terminal/progress.h"
#include "client/terminal/terminal.h"
#include "espalier/v1/training.pb.h"

namespace espalier {

// Shows one job's events: its plan, progress and messages. With --json, one line per event.
class JobView {
 public:
  // `print_every_steps` of 0: print by time.
  JobView(Context* context, int64_t print_every_steps);

  bool OnEvent(const v1::JobEvent& event);  // for Client::Watch
  // Ends the progress line and prints the outcome. `job` is the final one, with its plan.
  void Finish(const v1::Job& job);

 private:
  void OnJob(const v1::Job& job);
  void OnStep(const v1::StepReport& step);
  void OnValidation(const v1::StepReport& validation);
  void Outcome(const v1::Job& job);

  Context& context_;
  int64_t print_every_steps_;
  ProgressPrinter printer_;
  v1::Job job_;
  bool notes_shown_ = false;
  bool plan_shown_ = false;
  double step_seconds_ = 0;  // smoothed
  std::vector<std::pair<double, double>> losses_;
  std::string validation_;  // the last one, for the progress line
};

// Watches a job to its end and shows it. Returns an error if it did not succeed.
absl::Status WatchJob(Context* context, const std::string& job_id, int64_t print_every_steps);

// Returns a job's last lines: predicted against measured time, evaluation, model name.
std::string RenderOutcome(const v1::Job& job, const Terminal& terminal);

// A message of a job's log: "warning: worker w2 lost, going back to step 40", or of another level
// only its text.
std::string RenderMessage(const v1::JobMessage& message, const Style& style);

// "best validation after 40 steps: val_loss 1.2345"; empty if there is none.
std::string DescribeBest(const v1::Job& job);

// Reduces a curve to at most `count` points, each the mean of its neighbors.
std::vector<std::pair<double, double>> Smooth(const std::vector<std::pair<double, double>>& points,
                                              size_t count);

}  // namespace espalier
