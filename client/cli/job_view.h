// A job as it runs and as it ended.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/command.h"
#include "client/terminal/progress.h"
#include "espalier/v1/training.pb.h"

namespace espalier {

// Follows one job's events: plan once it is there, progress, messages. With --json, a line per
// event.
class JobView {
 public:
  // `print_every_steps` 0: by time.
  JobView(Context* context, int64_t print_every_steps);

  bool OnEvent(const v1::JobEvent& event);  // for Client::Watch
  // Ends the progress line; says how the job ended. `job` is the final one, with its plan.
  void Finish(const v1::Job& job);

 private:
  void OnJob(const v1::Job& job);
  void OnStep(const v1::StepReport& step);
  void Outcome(const v1::Job& job);

  Context& context_;
  int64_t print_every_steps_;
  ProgressPrinter printer_;
  v1::Job job_;
  bool plan_shown_ = false;
  double step_seconds_ = 0;  // smoothed
  std::vector<std::pair<double, double>> losses_;
};

// Watches a job to its end and shows it. An error if it did not succeed.
absl::Status WatchJob(Context* context, const std::string& job_id, int64_t print_every_steps);

// Predicted against measured, the evaluation, the model's name: the last lines of a job.
std::string RenderOutcome(const v1::Job& job, const Terminal& terminal);

// At most `count` points, each the mean of its neighbours: a curve without the noise of single
// steps.
std::vector<std::pair<double, double>> Smooth(const std::vector<std::pair<double, double>>& points,
                                              size_t count);

}  // namespace espalier
