#include "client/cli/run_view.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "client/cli/plan_view.h"
#include "client/cli/time_text.h"
#include "client/terminal/table.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

using Fact = std::pair<std::string, std::string>;  // what it is, and the text

std::string ShortNumber(double value) { return absl::StrFormat("%.6g", value); }

constexpr size_t kDigitsShown = 16;  // of a hash; JSON has all

// "sha256 1f0c...", or the ETag of what is not read for its hash.
std::string DescribeDigest(const std::string& digest) {
  if (digest.empty()) return "";
  absl::string_view etag = digest;
  if (absl::ConsumePrefix(&etag, "etag:")) return absl::StrCat("ETag ", Printable(etag));
  return absl::StrCat("sha256 ", Printable(digest.substr(0, kDigitsShown)),
                      digest.size() > kDigitsShown ? "..." : "");
}

std::string JoinNonEmpty(const std::vector<std::string>& parts) {
  std::vector<std::string> some;
  for (const std::string& part : parts) {
    if (!part.empty()) some.push_back(part);
  }
  return absl::StrJoin(some, ", ");
}

std::string DescribeData(const v1::Dataset& dataset, const std::string& digest) {
  std::string format;
  if (dataset.format() == v1::Dataset::STREAM) format = "pushed examples";
  if (dataset.sequence_length() > 0) {
    format = absl::StrCat(dataset.sequence_length(), " tokens per example");
  }
  const std::string name = Printable(absl::StripPrefix(dataset.uri(), "artifact:"));
  return JoinNonEmpty({name, format,
                       dataset.holdout_fraction() > 0
                           ? absl::StrFormat("%.4g %% held out", 100 * dataset.holdout_fraction())
                           : "",
                       DescribeDigest(digest)});
}

std::string DescribeModel(const v1::TrainingSpec& spec, const std::string& digest) {
  const std::string& file = spec.onnx_artifact();
  return JoinNonEmpty(
      {Printable(file),
       spec.init_artifact().empty() ? "" : absl::StrCat("from ", Printable(spec.init_artifact())),
       spec.precision() == v1::DATA_TYPE_UNSPECIFIED
           ? ""
           : absl::AsciiStrToLower(v1::DataType_Name(spec.precision())),
       DescribeDigest(digest)});
}

std::string DescribeValue(const v1::Attribute& value) {
  switch (value.value_case()) {
    case v1::Attribute::kI:
      return absl::StrCat(value.i());
    case v1::Attribute::kF:
      return ShortNumber(value.f());
    case v1::Attribute::kB:
      return value.b() ? "true" : "false";
    case v1::Attribute::kS:
      return Printable(value.s());
    default:
      return "...";
  }
}

std::string DescribeOptimizer(const v1::Optimizer& optimizer) {
  std::vector<std::string> parts = {Printable(optimizer.name())};
  const std::map<std::string, v1::Attribute> sorted(optimizer.attributes().begin(),
                                                    optimizer.attributes().end());
  for (const auto& [name, value] : sorted) {
    parts.push_back(absl::StrCat(Printable(name), " ", DescribeValue(value)));
  }
  if (optimizer.clip_norm() > 0) {
    parts.push_back(
        absl::StrCat("gradients clipped to the norm ", ShortNumber(optimizer.clip_norm())));
  }
  if (!optimizer.regularizers().empty()) {
    const int count = optimizer.regularizers_size();
    parts.push_back(absl::StrCat(count, count == 1 ? " penalty" : " penalties"));
  }
  if (!optimizer.groups().empty()) {
    const int count = optimizer.groups_size();
    parts.push_back(absl::StrCat(count, count == 1 ? " parameter group" : " parameter groups"));
  }
  return absl::StrJoin(parts, ", ");
}

std::string DescribeRate(const v1::LearningRateSchedule& rate) {
  std::vector<std::string> parts = {ShortNumber(rate.peak())};
  const std::string to = absl::StrCat(" to ", ShortNumber(rate.floor()));
  switch (rate.kind()) {
    case v1::LearningRateSchedule::COSINE:
      parts.push_back(absl::StrCat("cosine", to));
      break;
    case v1::LearningRateSchedule::LINEAR:
      parts.push_back(absl::StrCat("linear", to));
      break;
    case v1::LearningRateSchedule::POLYNOMIAL:
      parts.push_back(absl::StrCat("polynomial of power ", ShortNumber(rate.power()), to));
      break;
    case v1::LearningRateSchedule::STEP:
      parts.push_back(
          absl::StrCat("times ", ShortNumber(rate.gamma()), " every ", rate.step_size(), " steps"));
      break;
    case v1::LearningRateSchedule::ONE_CYCLE:
      parts.push_back(absl::StrCat("one-cycle", to));
      break;
    case v1::LearningRateSchedule::TABLE:
      parts = {absl::StrCat("a table of ", rate.values_size(), " values")};
      break;
    default:
      parts.emplace_back("constant");
  }
  if (rate.warmup_steps() > 0) {
    parts.push_back(absl::StrCat("after ", rate.warmup_steps(), " warm-up steps"));
  }
  if (rate.total_steps() > 0) {
    parts.push_back(absl::StrCat("over ", rate.total_steps(), " steps"));
  }
  return absl::StrJoin(parts, ", ");
}

std::string DescribeAmount(const v1::Job& job) {
  const v1::TrainingSpec& spec = job.spec();
  std::string text = absl::StrCat(job.total_steps(), job.total_steps() == 1 ? " step" : " steps");
  if (spec.epochs() > 0) {
    text = absl::StrCat(spec.epochs(), spec.epochs() == 1 ? " epoch" : " epochs",
                        job.total_steps() > 0 ? absl::StrCat(", ", text) : "");
  }
  return absl::StrCat(text, job.stopped_early() ? ", stopped early" : "", ", seed ", spec.seed());
}

std::string DescribeTime(const v1::Job& job, bool unicode) {
  if (job.started_unix_ms() == 0) return "";
  std::string text = absl::StrCat("started ", LocalTime(job.started_unix_ms()), " ",
                                  LocalZone(job.started_unix_ms()));
  if (job.finished_unix_ms() != 0) {
    const double seconds =
        static_cast<double>(job.finished_unix_ms() - job.started_unix_ms()) / 1000;
    text = absl::StrCat(FormatSeconds(seconds, unicode), ", ", text);
  } else if (job.running_seconds() > 0) {
    text = absl::StrCat(FormatSeconds(job.running_seconds(), unicode), " so far, ", text);
  }
  if (job.median_step_seconds() > 0) {
    absl::StrAppend(&text, ", ", FormatSeconds(job.median_step_seconds(), unicode), " a step");
  }
  return text;
}

std::string ValueKindName(v1::RunValue::Kind kind) {
  return absl::StrReplaceAll(absl::AsciiStrToLower(v1::RunValue::Kind_Name(kind)), {{"_", " "}});
}

// What else can be asked of a value, and what is to know of it.
std::string DescribeUses(const v1::RunValue& value) {
  std::string gradient;
  if (value.gradient()) gradient = value.gradient_recomputed() ? "grad (recomputed)" : "grad";
  return JoinNonEmpty(
      {gradient, value.update() ? "update" : "", value.recomputed() ? "recomputed" : "",
       value.output_of().empty() ? "" : absl::StrCat("is ", Printable(value.output_of()))});
}

}  // namespace

std::string RenderRunFacts(const v1::Recording& run, const Terminal& terminal) {
  const v1::Job& job = run.job();
  const v1::TrainingSpec& spec = job.spec();
  std::vector<Fact> facts = {
      {"dataset", DescribeData(spec.dataset(), run.dataset_sha256())},
      {"validation", spec.validation().has_dataset()
                         ? DescribeData(spec.validation().dataset(), run.validation_sha256())
                         : ""},
      {"model", DescribeModel(spec, run.graph_sha256())},
      {"optimizer", DescribeOptimizer(spec.optimizer())},
      {"learning rate", DescribeRate(spec.optimizer().learning_rate())},
      {"batch size", absl::StrCat(spec.batch_size())},
      {"training", DescribeAmount(job)},
      {"plan", run.attempts().empty() ? "" : PlanInWords(run.attempts().rbegin()->plan())},
      {"time", DescribeTime(job, terminal.unicode)},
      {"owner", Printable(job.owner())}};
  std::erase_if(facts, [](const Fact& fact) { return fact.second.empty(); });
  int width = 0;
  for (const auto& [what, text] : facts) width = std::max(width, DisplayWidth(what));
  std::string lines;
  for (const auto& [what, text] : facts) {
    absl::StrAppend(&lines, Pad(what, width, Align::kLeft), "  ", text, "\n");
  }
  return lines;
}

std::string DescribeCopies(const v1::Recording& run) {
  if (run.copied_checkpoints() == 0) return "";
  return absl::StrCat(run.copied_checkpoints(), ", ",
                      FormatBytes(static_cast<double>(run.copied_bytes())), " uncompressed");
}

std::string RenderCheckpoints(const v1::Recording& run, const Terminal& terminal) {
  if (run.checkpoints().empty()) return "no checkpoints\n";
  Table table({{"checkpoint of step", Align::kRight}, {"size", Align::kRight}, {"where"}});
  for (const v1::RecordedCheckpoint& checkpoint : run.checkpoints()) {
    std::vector<std::string> where;
    if (checkpoint.stored()) where.emplace_back("stored");
    if (!checkpoint.spool().empty()) {
      where.push_back(absl::StrCat(checkpoint.spooled() ? "copy in " : "damaged or lost copy in ",
                                   Printable(checkpoint.spool())));
    }
    table.Row({absl::StrCat(checkpoint.steps_done()),
               FormatBytes(static_cast<double>(checkpoint.bytes())), absl::StrJoin(where, ", ")});
  }
  std::string text = table.Render(terminal);
  absl::StrAppend(&text, run.all_checkpoints(),
                  run.all_checkpoints() == 1 ? " checkpoint" : " checkpoints",
                  "; stored: ", run.job().recorded_checkpoints(), ", ",
                  FormatBytes(static_cast<double>(run.job().recorded_bytes())));
  const std::string copies = DescribeCopies(run);
  if (!copies.empty()) absl::StrAppend(&text, "; copies: ", copies);
  return absl::StrCat(text, "\n");
}

std::string RenderRunValues(const google::protobuf::RepeatedPtrField<v1::RunValue>& values,
                            const Terminal& terminal) {
  Table table({{.title = "name", .shrink = true, .middle = true},
               {"kind"},
               {"type"},
               {.title = "also", .optional = true}});
  for (const v1::RunValue& value : values) {
    const std::string dtype = absl::AsciiStrToLower(v1::DataType_Name(value.type().dtype()));
    table.Row({Printable(value.log()), ValueKindName(value.kind()),
               absl::StrCat(dtype, "[", absl::StrJoin(value.type().dims(), ", "), "]"),
               DescribeUses(value)});
  }
  return table.Render(terminal);
}

}  // namespace espalier
