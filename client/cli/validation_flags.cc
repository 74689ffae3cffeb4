#include "client/cli/validation_flags.h"

#include <cmath>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

absl::Status FillPeriod(const std::string& text, v1::Validation* validation) {
  absl::string_view number = text;
  const bool epochs =
      absl::ConsumeSuffix(&number, "epochs") || absl::ConsumeSuffix(&number, "epoch");
  int64_t every = 0;  // with blanks around it or without
  if (!absl::SimpleAtoi(number, &every) || every < 1) {
    return UsageError(absl::StrCat("--validate-every is \"", Printable(text),
                                   "\"; accepted: a number of steps, as 100, or of epochs, as "
                                   "1epoch or 5epochs"));
  }
  if (epochs) {
    validation->set_every_epochs(every);
  } else {
    validation->set_every_steps(every);
  }
  return absl::OkStatus();
}

absl::Status FillEarlyStop(const std::string& text, v1::EarlyStopping* rule) {
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  int64_t patience = 0;
  double min_delta = 0;
  const bool good = parts.size() <= 3 && absl::SimpleAtoi(parts[0], &patience) && patience >= 1 &&
                    (parts.size() < 2 || !parts[1].empty()) &&
                    (parts.size() < 3 || (absl::SimpleAtod(parts[2], &min_delta) &&
                                          min_delta >= 0 && std::isfinite(min_delta)));
  if (!good) {
    return UsageError(absl::StrCat("--early-stop is \"", Printable(text),
                                   "\"; accepted: PATIENCE[,MONITOR[,MIN_DELTA]], as 3 or "
                                   "5,val_accuracy,0.001"));
  }
  rule->set_patience(patience);
  if (parts.size() > 1) rule->set_monitor(parts[1]);
  rule->set_min_delta(min_delta);
  return absl::OkStatus();
}

}  // namespace

std::vector<FlagSpec> ValidationFlags() {
  return {
      {"validation", FlagType::kText, "FILE",
       "dataset for validation, like --dataset, in place of the held-out examples"},
      {"validate-every", FlagType::kText, "N|Nepochs",
       "evaluate the held-out or --validation examples every N steps or epochs (with the next two "
       "flags or --validation: 1epoch; otherwise only at the end)"},
      {"early-stop", FlagType::kText, "N[,MONITOR[,MIN_DELTA]]",
       "stop once N validations in a row have not improved val_loss, or MONITOR, by more than "
       "MIN_DELTA"},
      {"keep-best", FlagType::kSwitch, "",
       "the trained model is that of the best validation, not that of the last step"},
  };
}

absl::Status FillValidation(const ParsedFlags& flags, v1::TrainingSpec* spec) {
  const bool stops = flags.Has("early-stop"), keeps = flags.Has("keep-best");
  if (flags.Has("validation") && flags.Number("holdout", 0) > 0) {
    return UsageError("--holdout and --validation both say what is evaluated; give one of them");
  }
  if (!stops && !keeps && !flags.Has("validation") && !flags.Has("validate-every")) {
    return absl::OkStatus();
  }
  v1::Validation* validation = spec->mutable_validation();
  if (flags.Has("validate-every")) {
    absl::Status s = FillPeriod(flags.Text("validate-every"), validation);
    if (!s.ok()) return s;
  }
  if (stops) {
    absl::Status s = FillEarlyStop(flags.Text("early-stop"), spec->mutable_early_stopping());
    if (!s.ok()) return s;
  }
  if (keeps) spec->mutable_early_stopping()->set_keep_best(true);
  return absl::OkStatus();
}

}  // namespace espalier
