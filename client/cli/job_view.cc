#include "client/cli/job_view.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/plan_view.h"
#include "client/cli/proto_json.h"
#include "client/terminal/plot.h"
#include "client/terminal/table.h"
#include "client/terminal/text.h"
#include "proto/states.h"

namespace espalier {
namespace {

bool IsBytes(const v1::Job& job) { return job.spec().dataset().format() == v1::Dataset::TEXT; }
bool HasTokens(const v1::Job& job) {
  return IsBytes(job) || job.spec().dataset().sequence_length() > 0;
}

double Wall(const v1::Job& job) {
  return static_cast<double>(job.finished_unix_ms() - job.started_unix_ms()) / 1e3;
}

std::string Difference(double predicted, double measured) {
  if (predicted <= 0 || measured <= 0) return "";
  return absl::StrFormat("%+.0f %%", (measured / predicted - 1) * 100);
}

std::string FormatValue(const std::string& name, double value) {
  return absl::StrCat(Printable(name), " ",
                      absl::EndsWith(name, "accuracy") ? absl::StrFormat("%.2f %%", value * 100)
                                                       : FormatLoss(value));
}

// "val_accuracy 97.50 %, val_loss 0.1234".
std::string FormatValues(const google::protobuf::Map<std::string, double>& given) {
  std::string text;
  const std::map<std::string, double> values(given.begin(), given.end());
  for (const auto& [name, value] : values) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", FormatValue(name, value));
  }
  return text;
}

}  // namespace

std::string RenderMessage(const v1::JobMessage& message, const Style& style) {
  const std::string text = Printable(message.text());
  if (message.level() != v1::JobMessage::WARNING) return text;
  return style.Yellow(absl::StrCat("warning: ", text));
}

std::string DescribeBest(const v1::Job& job) {
  if (job.best_step() == 0) return "";
  return absl::StrCat(
      "best validation after ", job.best_step(),
      job.best_step() == 1 ? " step: " : " steps: ", FormatValues(job.best_validation()));
}

std::vector<std::pair<double, double>> Smooth(const std::vector<std::pair<double, double>>& points,
                                              size_t count) {
  if (points.size() <= count || count == 0) return points;
  std::vector<std::pair<double, double>> out;
  for (size_t i = 0; i < count; ++i) {
    const size_t begin = points.size() * i / count, end = points.size() * (i + 1) / count;
    double x = 0, y = 0;
    for (size_t p = begin; p < end; ++p) {
      x += points[p].first;
      y += points[p].second;
    }
    const auto n = static_cast<double>(end - begin);
    // The ends keep their x, so that the axis shows the true first and last step.
    out.emplace_back(i == 0           ? points.front().first
                     : i + 1 == count ? points.back().first
                                      : x / n,
                     y / n);
  }
  return out;
}

JobView::JobView(Context* context, int64_t print_every_steps)
    : context_(*context),
      print_every_steps_(context->terminal().is_tty ? 0 : print_every_steps),
      printer_(context->env().out, context->terminal(), context->env().seconds,
               print_every_steps_ > 0 ? 0 : 10) {}

bool JobView::OnEvent(const v1::JobEvent& event) {
  if (context_.json()) {
    nlohmann::ordered_json line;
    if (event.has_job()) {
      line["job"] = ToJson(event.job());
    } else if (event.has_step()) {
      line["step"] = ToJson(event.step());
    } else if (event.has_validation()) {
      line["validation"] = ToJson(event.validation());
    } else {
      line["message"] = ToJson(event.message());
    }
    context_.Line(line);
  } else if (event.has_job()) {
    OnJob(event.job());
  } else if (event.has_step()) {
    OnStep(event.step());
  } else if (event.has_validation()) {
    OnValidation(event.validation());
  } else if (event.has_message()) {
    printer_.Message(RenderMessage(event.message(), context_.style()));
  }
  return true;
}

void JobView::OnJob(const v1::Job& job) {
  if (!notes_shown_) {
    notes_shown_ = true;
    for (const std::string& note : job.notes()) printer_.Message("note: " + Printable(note));
  }
  if (job.state() != job_.state() && !IsOver(job.state())) {
    printer_.Message(absl::StrCat("job ", Printable(job.id()), " is ", StateName(job.state()),
                                  job.state() == v1::RECOVERING
                                      ? absl::StrCat(", back to step ", job.checkpoint_step())
                                      : std::string()));
  }
  // A watch may omit the plan after sending it once.
  const v1::Plan known = job_.plan();
  job_ = job;
  if (!job_.has_plan()) *job_.mutable_plan() = known;
  if (!plan_shown_ && job.plan().operators_size() > 0) {
    plan_shown_ = true;
    std::string text = RenderPlanSummary(job.plan(), context_.terminal());
    text.pop_back();
    printer_.Message(text);
  }
}

void JobView::OnStep(const v1::StepReport& step) {
  const auto loss = step.values().find("loss");
  if (loss != step.values().end()) {
    // Steps repeated after a recovery replace the earlier ones.
    while (!losses_.empty() && losses_.back().first >= static_cast<double>(step.step()))
      losses_.pop_back();
    losses_.emplace_back(static_cast<double>(step.step()), loss->second);
  }
  step_seconds_ = step_seconds_ == 0 ? step.seconds() : 0.9 * step_seconds_ + 0.1 * step.seconds();
  Progress p;
  p.unit = "step";
  p.done = static_cast<double>(step.step() + 1);
  p.total = static_cast<double>(job_.total_steps());
  if (loss != step.values().end()) p.detail = "loss " + FormatLoss(loss->second);
  if (!validation_.empty()) absl::StrAppend(&p.detail, p.detail.empty() ? "" : "  ", validation_);
  if (step_seconds_ > 0) {
    p.rate = job_.tokens_per_step() / step_seconds_;
    p.rate_unit = HasTokens(job_) ? "tok/s" : "examples/s";
    if (p.total > 0) p.seconds_left = std::max(0.0, p.total - p.done) * step_seconds_;
  }
  const bool last = step.step() + 1 == job_.total_steps();
  if (print_every_steps_ == 0 || (step.step() + 1) % print_every_steps_ == 0 || last)
    printer_.Update(p);
}

void JobView::OnValidation(const v1::StepReport& validation) {
  const std::string all = FormatValues(validation.values());
  const auto loss = validation.values().find("val_loss");
  validation_ = loss == validation.values().end() ? all : "val_loss " + FormatLoss(loss->second);
  // With a line every few steps it would be lost between them.
  if (print_every_steps_ > 0) {
    printer_.Message(absl::StrCat("validation after ", validation.step() + 1, " steps: ", all));
  }
}

void JobView::Finish(const v1::Job& job) {
  if (context_.json()) return;
  printer_.Finish();
  const Style style = context_.style();
  const std::string head = absl::StrCat("job ", Printable(job.id()), " ", StateName(job.state()));
  if (job.state() != v1::SUCCEEDED) {
    context_.out() << style.Red(head) << " after " << job.steps_done() << " of "
                   << job.total_steps() << " steps" << std::endl;
    return;
  }
  PlotOptions options;
  options.width = std::min(context_.terminal().width, 76);
  options.unicode = context_.terminal().unicode;
  options.title = "loss";
  options.x_label = "step";
  const std::string steps = job.stopped_early()
                                ? absl::StrCat(job.steps_done(), " of ", job.total_steps())
                                : absl::StrCat(job.total_steps());
  context_.out() << RenderPlot(Smooth(losses_, 130), options) << style.Green(head) << " in "
                 << FormatSeconds(Wall(job), options.unicode) << ": " << steps << " steps of "
                 << FormatCount(job.tokens_per_step())
                 << (HasTokens(job) ? " tokens, " : " examples, ")
                 << FormatCount(static_cast<double>(job.parameters())) << " parameters\n"
                 << RenderOutcome(job, context_.terminal()) << std::flush;
}

std::string RenderOutcome(const v1::Job& job, const Terminal& terminal) {
  std::string out;
  Table table(
      {{""}, {"predicted", Align::kRight}, {"measured", Align::kRight}, {"", Align::kRight}});
  const double predicted = job.plan().prediction().step_seconds();
  if (predicted > 0 && job.median_step_seconds() > 0) {
    table.Row({"step time", FormatSeconds(predicted, terminal.unicode),
               FormatSeconds(job.median_step_seconds(), terminal.unicode),
               Difference(predicted, job.median_step_seconds())});
  }
  const auto& peaks = job.plan().prediction().peak_bytes();
  for (int rank = 0; rank < std::min(peaks.size(), job.measured_peak_bytes_size()); ++rank) {
    const auto measured = static_cast<double>(job.measured_peak_bytes(rank));
    table.Row({absl::StrCat("memory of rank ", rank), FormatBytes(static_cast<double>(peaks[rank])),
               FormatBytes(measured), Difference(static_cast<double>(peaks[rank]), measured)});
  }
  if (!table.empty()) out += table.Render(terminal);

  const std::string best = DescribeBest(job);
  if (!best.empty()) {
    absl::StrAppend(&out, best, job.spec().early_stopping().keep_best() ? ", kept" : "", "\n");
  }
  std::string evaluation;
  const std::map<std::string, double> values(job.evaluation().begin(), job.evaluation().end());
  for (const auto& [name, value] : values) {
    absl::StrAppend(&evaluation, evaluation.empty() ? "" : ", ", FormatValue(name, value));
    if (name == "loss" && IsBytes(job))
      absl::StrAppend(&evaluation, absl::StrFormat(" (%.3f bits per byte)", value / std::log(2.0)));
  }
  if (!evaluation.empty()) {
    absl::StrAppend(
        &out, job.spec().validation().has_dataset() ? "validation: " : "held-out: ", evaluation);
    if (job.evaluation_examples() > 0)
      absl::StrAppend(&out, ", ", job.evaluation_examples(), " examples");
    absl::StrAppend(&out, "\n");
  }
  if (!job.output_model().empty())
    absl::StrAppend(&out, "model: ", Printable(job.output_model()), "\n");
  return out;
}

absl::Status WatchJob(Context* context, const std::string& job_id, int64_t print_every_steps) {
  auto client = context->client();
  if (!client.ok()) return client.status();
  JobView view(context, print_every_steps);
  absl::Status watched = (*client)->Watch(job_id, 0, [&](const v1::JobEvent& event) {
    return view.OnEvent(event) && context->out().good();
  });
  if (!watched.ok() || !context->out().good()) return watched;
  auto reply = (*client)->GetJob(job_id);
  if (!reply.ok()) return reply.status();
  const v1::Job& job = reply->job();
  view.Finish(job);
  if (context->json()) {
    nlohmann::ordered_json line;
    line["done"] = ToJson(job);
    context->Line(line);
  }
  if (job.state() == v1::SUCCEEDED) return absl::OkStatus();
  if (job.state() == v1::CANCELLED) {
    return absl::CancelledError(
        absl::StrCat("job ", job_id, " was cancelled; resume it: espalier jobs resume ", job_id));
  }
  return absl::AbortedError(
      absl::StrCat("job ", job_id, " ", StateName(job.state()), ": ", job.error()));
}

}  // namespace espalier
