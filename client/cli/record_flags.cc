#include "client/cli/record_flags.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

absl::Status FillMode(const std::string& text, v1::RecordOptions* record) {
  absl::string_view number = text;
  int64_t every = 0;
  if (text == "off") {
    record->set_mode(v1::RecordOptions::OFF);
  } else if (text == "adaptive") {
    record->set_mode(v1::RecordOptions::ADAPTIVE);
  } else if (absl::ConsumePrefix(&number, "every:") && absl::SimpleAtoi(number, &every) &&
             every >= 1) {
    record->set_mode(v1::RecordOptions::EVERY);
    record->set_every_steps(every);
  } else {
    return UsageError(absl::StrCat("--record is \"", Printable(text),
                                   "\"; accepted: off, adaptive, every:N (a checkpoint after every "
                                   "N steps)"));
  }
  return absl::OkStatus();
}

// "20GiB", "500 MB", "1048576".
absl::Status FillBytes(const std::string& text, v1::RecordOptions* record) {
  constexpr std::pair<const char*, double> kUnits[] = {
      {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"kB", 1e3},
      {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},    {"B", 1}};
  absl::string_view number = text;
  double unit = 1;
  for (const auto& [name, bytes] : kUnits) {
    if (!absl::ConsumeSuffix(&number, name)) continue;
    unit = bytes;
    break;
  }
  double count = 0;
  const bool good = absl::SimpleAtod(number, &count) && count * unit >= 1 && count * unit < 0x1p62;
  if (!good) {
    return UsageError(absl::StrCat("--record-bytes is \"", Printable(text),
                                   "\"; accepted: a size, as 20GiB, 500MB or 1048576"));
  }
  record->set_max_bytes(static_cast<int64_t>(count * unit));
  return absl::OkStatus();
}

}  // namespace

std::vector<FlagSpec> RecordFlags() {
  return {
      {"record", FlagType::kText, "MODE",
       "checkpoints that stay, so that the job can be replayed: adaptive (as often as "
       "--record-overhead allows), every:N (after every N steps), off (adaptive)"},
      {"record-overhead", FlagType::kNumber, "F",
       "adaptive: the part of the training time that they may take (0.067)", 0, 0.0001, 0.99},
      {"record-bytes", FlagType::kText, "SIZE",
       "if they take more, as 20GiB, every second one goes (espalierd's --record-bytes)"},
      {"record-keep", FlagType::kInt, "N", "only the newest N of them stay (all)", 0, 1, 1e9},
  };
}

absl::Status FillRecord(const ParsedFlags& flags, v1::TrainingSpec* spec) {
  v1::RecordOptions record;
  if (flags.Has("record")) {
    if (absl::Status s = FillMode(flags.Text("record"), &record); !s.ok()) return s;
  }
  const bool every = record.mode() == v1::RecordOptions::EVERY;
  if (flags.Has("record-overhead") && record.mode() != v1::RecordOptions::ADAPTIVE) {
    return UsageError("--record-overhead goes with --record=adaptive; leave one of them out");
  }
  for (const char* limit : {"record-bytes", "record-keep"}) {
    if (flags.Has(limit) && record.mode() == v1::RecordOptions::OFF) {
      return UsageError(absl::StrCat("--", limit,
                                     " limits what --record=off does not keep; leave "
                                     "one of them out"));
    }
  }
  if (every && flags.Has("checkpoint-every") &&
      flags.Int("checkpoint-every", 0) != record.every_steps()) {
    return UsageError(
        "--checkpoint-every and --record=every:N both say how often a checkpoint is "
        "written; give one of them");
  }
  record.set_overhead(flags.Number("record-overhead", 0));
  if (flags.Has("record-bytes")) {
    if (absl::Status s = FillBytes(flags.Text("record-bytes"), &record); !s.ok()) return s;
  }
  record.set_keep(flags.Int("record-keep", 0));
  if (record.ByteSizeLong() > 0) *spec->mutable_record() = record;
  return absl::OkStatus();
}

}  // namespace espalier
