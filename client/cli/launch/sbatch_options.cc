#include "client/cli/launch/sbatch_options.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

// Options of sbatch, and the flag to use in place of --sbatch; none: not with this batch file.
struct OwnOption {
  absl::string_view name;
  absl::string_view flag;
};
constexpr OwnOption kOwnOptions[] = {
    {"job-name", "job-name"},
    {"nodes", "nodes"},
    {"ntasks", "ntasks-per-node"},
    {"ntasks-per-node", "ntasks-per-node"},
    {"gpus", "gpus"},
    {"gpus-per-node", "gpus"},
    {"gpus-per-task", "gpus"},
    {"cpus-per-task", "cpus-per-task"},
    {"mem", "mem"},
    {"time", "time"},
    {"account", "account"},
    {"partition", "partition"},
    {"output", "output"},
    {"signal", "signal"},
    {"qos", "qos"},
    {"constraint", "constraint"},
    {"gres", "gres"},
    {"reservation", "reservation"},
    {"nodelist", "nodelist"},
    {"exclude", "exclude"},
    {"mail-user", "mail-user"},
    {"mail-type", "mail-type"},
    {"comment", "comment"},
    // A run that is requeued goes on, and writes on.
    {"open-mode", ""},
    {"requeue", ""},
    {"no-requeue", ""},
    // It trains one model, once, and is submitted as a file.
    {"array", ""},
    {"wrap", ""},
    {"wait", ""},
    {"parsable", ""},
    {"test-only", ""},
    {"help", ""},
    {"usage", ""},
    {"version", ""},
};
constexpr const char* kNamed[] = {"qos",     "constraint", "gres",      "reservation", "nodelist",
                                  "exclude", "mail-user",  "mail-type", "comment"};
constexpr char kUsualMails[] = "END,FAIL";

bool IsSbatchOptionName(absl::string_view name) {
  return name.size() > 1 && absl::ascii_islower(name[0]) &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-';
         });
}

absl::StatusOr<SbatchOption> ReadOption(const std::string& given) {
  absl::string_view text = given;
  absl::ConsumePrefix(&text, "--");  // as sbatch itself takes it
  const size_t equals = text.find('=');
  SbatchOption option(std::string(text.substr(0, equals)),
                      equals == text.npos ? "" : std::string(text.substr(equals + 1)));
  const std::string shown = absl::StrCat("--sbatch=", Printable(given));
  if (!IsSbatchOptionName(option.first) || (equals != text.npos && option.second.empty())) {
    return UsageError(
        absl::StrCat(shown,
                     ": accepted is a long option of sbatch, as in --sbatch=exclusive or "
                     "--sbatch=dependency=afterok:7"));
  }
  for (const auto& [name, flag] : kOwnOptions) {
    // sbatch takes abbreviations, too.
    if (!absl::StartsWith(name, option.first)) continue;
    return UsageError(
        absl::StrCat(shown, ": ",
                     flag.empty() ? absl::StrCat("--", name, " does not go with this batch file")
                                  : absl::StrCat("use --", flag)));
  }
  if (absl::Status s = CheckSbatchValue("sbatch=" + option.first, option.second); !s.ok()) return s;
  return option;
}

}  // namespace

std::vector<FlagSpec> SbatchFlags() {
  return {
      {"qos", FlagType::kText, "NAME", "quality of service"},
      {"constraint", FlagType::kText, "FEATURES", "features of the nodes, such as a100&ib", 'C'},
      {"gres", FlagType::kText, "LIST", "other resources of each node; for GPUs use --gpus"},
      {"reservation", FlagType::kText, "NAME", "reservation"},
      {"nodelist", FlagType::kText, "NODES", "nodes that it must have", 'w'},
      {"exclude", FlagType::kText, "NODES", "nodes that it must not have", 'x'},
      {"mail-user", FlagType::kText, "ADDRESS", "who gets a mail when it ends or fails"},
      {"mail-type", FlagType::kText, "EVENTS", "when, with --mail-user (END,FAIL)"},
      {"comment", FlagType::kText, "TEXT", "one word for the accounting"},
      {.name = "sbatch",
       .type = FlagType::kText,
       .value = "OPTION[=VALUE]",
       .doc = "any other long option of sbatch, such as exclusive or dependency=afterok:7",
       .repeated = true},
  };
}

// sbatch would read a line's end, or a blank, as the end of the value.
absl::Status CheckSbatchValue(const std::string& flag, const std::string& value) {
  const bool plain = std::all_of(value.begin(), value.end(), [](unsigned char c) {
    return absl::ascii_isgraph(c) && c != '#' && c != '"' && c != '\'';
  });
  if (plain) return absl::OkStatus();
  return UsageError(
      absl::StrCat("--", flag, "=", Printable(value),
                   ": a value of #SBATCH has no blanks, quotes or #; edit the batch file instead"));
}

absl::StatusOr<std::vector<SbatchOption>> ReadSbatchOptions(const ParsedFlags& flags) {
  if (flags.Has("mail-type") && !flags.Has("mail-user")) {
    return UsageError("--mail-type says when, --mail-user=ADDRESS to whom: it is missing");
  }
  std::vector<SbatchOption> options;
  for (const char* const name : kNamed) {
    const bool usual = absl::string_view(name) == "mail-type" && flags.Has("mail-user");
    const std::string value = flags.Text(name, usual ? kUsualMails : "");
    if (absl::Status s = CheckSbatchValue(name, value); !s.ok()) return s;
    if (!value.empty()) options.emplace_back(name, value);
  }
  for (const std::string& given : flags.Values("sbatch")) {
    absl::StatusOr<SbatchOption> option = ReadOption(given);
    if (!option.ok()) return option.status();
    options.push_back(*std::move(option));
  }
  return options;
}

}  // namespace espalier
