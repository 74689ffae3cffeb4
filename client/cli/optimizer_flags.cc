#include "client/cli/optimizer_flags.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cli/choice_flag.h"
#include "client/cli/operators.h"
#include "client/terminal/text.h"
#include "ops/optimizer/optimizer.h"

namespace espalier {
namespace {

// Returns the names of the optimizers for which `keep` is true.
template <typename Keep>
std::string OptimizerNames(Keep keep) {
  std::vector<std::string> names;
  for (const NamedUpdate& update : AllUpdates(Operators())) {
    if (keep(update)) names.push_back(update.variant->name);
  }
  return absl::StrJoin(names, ", ");
}

const AttributeSpec* FindAttribute(const OpDef& def, absl::string_view name) {
  for (const AttributeSpec& spec : def.attributes) {
    if (spec.name == name) return &spec;
  }
  return nullptr;
}

// Sets one attribute, such as "momentum=0.9" in --optimizer=sgd:momentum=0.9.
absl::Status SetAttribute(const OpDef& def, const std::string& pair, v1::Optimizer* optimizer) {
  const std::vector<std::string> parts = absl::StrSplit(pair, absl::MaxSplits('=', 1));
  const AttributeSpec* spec = FindAttribute(def, parts[0]);
  if (parts.size() != 2 || spec == nullptr) {
    return UsageError(absl::StrCat(
        "--optimizer holds \"", Printable(pair), "\"; accepted is KEY=VALUE with ",
        absl::StrJoin(def.attributes, ", ",
                      [](std::string* out, const AttributeSpec& a) { out->append(a.name); })));
  }
  v1::Attribute& attribute = (*optimizer->mutable_attributes())[spec->name];
  bool flag = false;
  double number = 0;
  if (spec->kind == AttributeKind::kBool && absl::SimpleAtob(parts[1], &flag)) {
    attribute.set_b(flag);
  } else if (spec->kind == AttributeKind::kFloat && absl::SimpleAtod(parts[1], &number)) {
    attribute.set_f(number);
  } else {
    return UsageError(absl::StrCat(
        "--optimizer: ", spec->name, " is \"", Printable(parts[1]),
        "\"; accepted: ", spec->kind == AttributeKind::kBool ? "true, false" : "a number"));
  }
  return absl::OkStatus();
}

// Stores the optimizer's default learning rate in *default_rate.
absl::Status FillUpdate(const ParsedFlags& flags, v1::Optimizer* optimizer, double* default_rate) {
  const std::string given = flags.Text("optimizer", "adamw");
  const std::vector<std::string> parts = absl::StrSplit(given, absl::MaxSplits(':', 1));
  const std::vector<NamedUpdate> all = AllUpdates(Operators());
  const auto found = std::find_if(all.begin(), all.end(), [&](const NamedUpdate& update) {
    return update.variant->name == parts[0];
  });
  if (found == all.end()) {
    return UsageError(absl::StrCat("--optimizer is \"", Printable(parts[0]), "\"; accepted: ",
                                   OptimizerNames([](const NamedUpdate&) { return true; })));
  }
  optimizer->set_name(parts[0]);
  *default_rate = found->variant->learning_rate;
  if (parts.size() > 1) {
    for (absl::string_view pair : absl::StrSplit(parts[1], ',', absl::SkipEmpty())) {
      absl::Status set = SetAttribute(*found->def, std::string(pair), optimizer);
      if (!set.ok()) return set;
    }
  }
  const std::pair<const char*, const char*> shortcuts[] = {
      {"momentum", "momentum"}, {"wd", "weight_decay"}, {"nesterov", "nesterov"}};
  for (const auto& [flag, attribute] : shortcuts) {
    if (!flags.Has(flag)) continue;
    const AttributeSpec* spec = FindAttribute(*found->def, attribute);
    if (spec == nullptr) {
      return UsageError(absl::StrCat("--", flag, " needs an --optimizer that has it: ",
                                     OptimizerNames([&](const NamedUpdate& update) {
                                       return FindAttribute(*update.def, attribute) != nullptr;
                                     })));
    }
    v1::Attribute& value = (*optimizer->mutable_attributes())[attribute];
    if (spec->kind == AttributeKind::kBool) {
      value.set_b(true);
    } else {
      value.set_f(flags.Number(flag, 0));
    }
  }
  return absl::OkStatus();
}

// Parses --l1=0.001 (all parameters) and --l2=fc*:1e-4 (some).
absl::Status FillRegularizers(const ParsedFlags& flags, v1::Optimizer* optimizer) {
  for (const char* norm : {"l1", "l2"}) {
    for (const std::string& given : flags.Values(norm)) {
      const size_t colon = given.rfind(':');
      v1::Regularizer* regularizer = optimizer->add_regularizers();
      if (colon != std::string::npos) regularizer->set_parameter(given.substr(0, colon));
      double factor = 0;
      if (!absl::SimpleAtod(given.substr(colon == std::string::npos ? 0 : colon + 1), &factor) ||
          !(factor >= 0)) {
        return UsageError(
            absl::StrCat("--", norm, " is \"", Printable(given),
                         "\"; accepted: X or PARAMETER:X with X 0 or more, as fc*:1e-4"));
      }
      norm[1] == '1' ? regularizer->set_l1(factor) : regularizer->set_l2(factor);
    }
  }
  if (flags.Has("report-penalties") && optimizer->regularizers().empty()) {
    return UsageError("--report-penalties needs --l1 or --l2");
  }
  optimizer->set_report_penalties(flags.Has("report-penalties"));
  return absl::OkStatus();
}

// Parses --parameter-group='*.bias,norm*:lr=2,wd=0'.
absl::Status FillGroups(const ParsedFlags& flags, v1::Optimizer* optimizer) {
  for (const std::string& given : flags.Values("parameter-group")) {
    const size_t colon = given.rfind(':');
    const auto refused = [&given] {
      return UsageError(absl::StrCat("--parameter-group is \"", Printable(given),
                                     "\"; accepted: NAMES:KEY=X, names with * for any characters, "
                                     "keys lr (times --lr) and wd, "
                                     "as '*.bias,norm*:lr=2,wd=0'"));
    };
    if (colon == std::string::npos) return refused();
    v1::ParameterGroup* group = optimizer->add_groups();
    for (absl::string_view name : absl::StrSplit(given.substr(0, colon), ',', absl::SkipEmpty())) {
      group->add_parameters(std::string(name));
    }
    for (absl::string_view pair : absl::StrSplit(given.substr(colon + 1), ',')) {
      const std::vector<std::string> parts = absl::StrSplit(pair, absl::MaxSplits('=', 1));
      double value = 0;
      if (parts.size() != 2 || !absl::SimpleAtod(parts[1], &value) || !(value >= 0)) {
        return refused();
      }
      if (parts[0] == "lr") {
        group->set_learning_rate_scale(value);
      } else if (parts[0] == "wd") {
        group->set_weight_decay(value);
      } else {
        return refused();
      }
    }
    if (group->parameters().empty()) return refused();
  }
  return absl::OkStatus();
}

absl::Status FillSchedule(const ParsedFlags& flags, int64_t steps, double default_rate,
                          v1::LearningRateSchedule* schedule) {
  using Schedule = v1::LearningRateSchedule;
  auto shape = OneOf<Schedule::Kind>("schedule", flags.Text("schedule", "constant"),
                                     {{"constant", Schedule::CONSTANT},
                                      {"step", Schedule::STEP},
                                      {"cosine", Schedule::COSINE},
                                      {"linear", Schedule::LINEAR},
                                      {"polynomial", Schedule::POLYNOMIAL},
                                      {"one-cycle", Schedule::ONE_CYCLE}});
  if (!shape.ok()) return shape.status();
  const std::pair<const char*, Schedule::Kind> only[] = {{"lr-step", Schedule::STEP},
                                                         {"lr-gamma", Schedule::STEP},
                                                         {"lr-power", Schedule::POLYNOMIAL},
                                                         {"lr-rise", Schedule::ONE_CYCLE}};
  for (const auto& [flag, kind] : only) {
    if (!flags.Has(flag) || *shape == kind) continue;
    return UsageError(absl::StrCat("--", flag, " needs --schedule=",
                                   kind == Schedule::STEP         ? "step"
                                   : kind == Schedule::POLYNOMIAL ? "polynomial"
                                                                  : "one-cycle"));
  }
  if (flags.Has("min-lr") && *shape == Schedule::CONSTANT) {
    return UsageError("--min-lr needs a --schedule that decays, such as cosine");
  }
  if (flags.Has("warmup") && *shape == Schedule::ONE_CYCLE) {
    return UsageError(
        "--warmup and --schedule=one-cycle, which has its own warm-up, exclude each other");
  }
  schedule->set_kind(*shape);
  const double peak = flags.Number("lr", default_rate);
  schedule->set_peak(peak);
  schedule->set_warmup_steps(flags.Int("warmup", 0));
  if (flags.Has("warmup-from")) {
    if (schedule->warmup_steps() == 0) return UsageError("--warmup-from needs --warmup=N");
    schedule->set_warmup_from(flags.Number("warmup-from", 0));
  }
  // With epochs, only the coordinator, which has the dataset, knows the number of steps.
  if (*shape != Schedule::CONSTANT && *shape != Schedule::STEP) schedule->set_total_steps(steps);
  const double floor = *shape == Schedule::COSINE      ? peak / 10
                       : *shape == Schedule::ONE_CYCLE ? peak / 25 / 1e4
                                                       : 0;
  schedule->set_floor(flags.Number("min-lr", floor));
  if (*shape == Schedule::STEP) {
    if (!flags.Has("lr-step")) return UsageError("--schedule=step needs --lr-step=N");
    schedule->set_step_size(flags.Int("lr-step", 0));
    schedule->set_gamma(flags.Number("lr-gamma", 0.1));
  }
  if (*shape == Schedule::POLYNOMIAL) schedule->set_power(flags.Number("lr-power", 1));
  if (*shape == Schedule::ONE_CYCLE) schedule->set_rise(flags.Number("lr-rise", 0.3));
  if (steps > 0 && schedule->warmup_steps() > steps) {
    return UsageError(absl::StrCat("--warmup is ", schedule->warmup_steps(), ", more than all ",
                                   steps, " steps"));
  }
  return absl::OkStatus();
}

absl::Status FillLossScale(const ParsedFlags& flags, v1::Optimizer* optimizer) {
  if (!flags.Has("loss-scale")) return absl::OkStatus();
  const std::string given = flags.Text("loss-scale");
  v1::LossScale* scale = optimizer->mutable_loss_scale();
  double fixed = 0;
  if (given == "dynamic") return absl::OkStatus();
  if (absl::SimpleAtod(given, &fixed) && fixed > 0) {
    scale->set_initial(fixed);
  } else {
    return UsageError(absl::StrCat("--loss-scale is \"", Printable(given),
                                   "\"; accepted: a power of two, or dynamic"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FillOptimizer(const ParsedFlags& flags, int64_t steps, v1::Optimizer* optimizer) {
  double default_rate = 0;
  if (absl::Status s = FillUpdate(flags, optimizer, &default_rate); !s.ok()) return s;
  if (absl::Status s = FillRegularizers(flags, optimizer); !s.ok()) return s;
  if (absl::Status s = FillGroups(flags, optimizer); !s.ok()) return s;
  optimizer->set_clip_norm(flags.Number("clip-norm", 0));
  if (absl::Status s = FillLossScale(flags, optimizer); !s.ok()) return s;
  absl::Status s = FillSchedule(flags, steps, default_rate, optimizer->mutable_learning_rate());
  if (!s.ok()) return s;
  // Only values that the operator refuses remain.
  s = CheckOptimizer(Operators(), *optimizer);
  return s.ok() ? s : UsageError(std::string(s.message()));
}

std::vector<FlagSpec> OptimizerFlags() {
  std::vector<std::string> each;
  for (const NamedUpdate& update : AllUpdates(Operators())) {
    each.push_back(
        absl::StrCat(update.variant->name, " ", FormatNumber(update.variant->learning_rate)));
  }
  const std::string rates = absl::StrJoin(each, ", ");
  return {
      {"lr", FlagType::kNumber, "LR", "learning rate, the peak of the schedule (" + rates + ")", 0,
       0},
      {"wd", FlagType::kNumber, "WD", "weight decay (AdamW 0.01, others 0)", 0, 0},
      {"optimizer", FlagType::kText, "NAME[:KEY=VALUE,...]",
       OptimizerNames([](const NamedUpdate&) { return true; }) + " (adamw)"},
      {"momentum", FlagType::kNumber, "M", "momentum of SGD and RMSprop (0)", 0, 0, 1},
      {"nesterov", FlagType::kSwitch, "", "use Nesterov momentum, for SGD"},
      {"clip-norm", FlagType::kNumber, "X", "clip the gradient's global norm to X (off)", 0, 0},
      {"loss-scale", FlagType::kText, "N",
       "loss scale, a power of two, or dynamic (with --precision=f16 dynamic, else off)"},
      {"l1", FlagType::kText, "[PARAMETER:]X",
       "L1 penalty: add X * sum |p| to the minimized loss; PARAMETER is a name, or a prefix and *",
       0, 0, 0, true},
      {"l2", FlagType::kText, "[PARAMETER:]X", "L2 penalty: add X * sum p^2 to the minimized loss",
       0, 0, 0, true},
      {"report-penalties", FlagType::kSwitch, "", "include the penalties in the reported loss"},
      {"parameter-group", FlagType::kText, "NAMES:KEY=X,...",
       "parameters with a learning rate of their own, lr times --lr, or weight decay wd; the first "
       "group that names one counts: '*.bias,norm*:wd=0'",
       0, 0, 0, true},
      {"schedule", FlagType::kText, "NAME",
       "constant, step, cosine, linear, polynomial or one-cycle (constant)"},
      {"warmup", FlagType::kInt, "N", "warm-up steps from 0 to the learning rate (0)", 0, 0, 1e12},
      {"warmup-from", FlagType::kNumber, "LR",
       "learning rate of the first warm-up step, from which it rises to --lr at step N (--lr / N, "
       "rising to --lr at step N - 1)",
       0, 0},
      {"min-lr", FlagType::kNumber, "LR",
       "final learning rate of the schedule (cosine: a tenth of --lr; one-cycle: a 250000th; "
       "others: 0)",
       0, 0},
      {"lr-step", FlagType::kInt, "N", "steps between decays, for --schedule=step", 0, 1, 1e12},
      {"lr-gamma", FlagType::kNumber, "G", "decay factor, for --schedule=step (0.1)", 0, 0, 1},
      {"lr-power", FlagType::kNumber, "P", "exponent, for --schedule=polynomial (1)", 0, 0, 100},
      {"lr-rise", FlagType::kNumber, "F", "fraction of the steps in which one-cycle rises (0.3)", 0,
       0, 1},
  };
}

}  // namespace espalier
