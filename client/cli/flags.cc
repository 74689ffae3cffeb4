#include "client/cli/flags.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/nearest.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

constexpr char kUsagePayload[] = "espalier.usage";

absl::Status CheckValue(const FlagSpec& spec, const std::string& shown, const std::string& value) {
  if (spec.type == FlagType::kText || spec.type == FlagType::kSwitch) return absl::OkStatus();
  const bool whole = spec.type == FlagType::kInt;
  double number = 0;
  int64_t integer = 0;
  const bool parsed = whole ? absl::SimpleAtoi(value, &integer) : absl::SimpleAtod(value, &number);
  if (whole) number = static_cast<double>(integer);
  const bool in_range = parsed && std::isfinite(number) && number >= spec.min && number <= spec.max;
  if (in_range) return absl::OkStatus();
  std::string accepted = whole ? "a whole number" : "a number";
  if (std::isfinite(spec.min) && std::isfinite(spec.max)) {
    absl::StrAppend(&accepted, " from ", FormatNumber(spec.min), " to ", FormatNumber(spec.max));
  } else if (std::isfinite(spec.min)) {
    absl::StrAppend(&accepted, " of at least ", FormatNumber(spec.min));
  }
  return UsageError(absl::StrCat(shown, " is \"", Printable(value), "\"; accepted: ", accepted));
}

const FlagSpec* Find(const std::vector<FlagSpec>& specs, absl::string_view name) {
  for (const FlagSpec& spec : specs) {
    if (spec.name == name) return &spec;
    for (const std::string& alias : spec.aliases) {
      if (alias == name) return &spec;
    }
  }
  return nullptr;
}

absl::Status Unknown(const std::vector<FlagSpec>& specs, absl::string_view shown,
                     absl::string_view name) {
  std::vector<std::string> known;
  for (const FlagSpec& spec : specs) {
    known.push_back(spec.name);
    known.insert(known.end(), spec.aliases.begin(), spec.aliases.end());
  }
  const std::string near = Nearest(name, known);
  return UsageError(absl::StrCat("unknown flag ", Printable(shown),
                                 near.empty() ? "" : absl::StrCat("; did you mean --", near, "?")));
}

}  // namespace

absl::Status UsageError(const std::string& message) {
  absl::Status status = absl::InvalidArgumentError(message);
  status.SetPayload(kUsagePayload, absl::Cord("1"));
  return status;
}

bool IsUsageError(const absl::Status& status) {
  return status.GetPayload(kUsagePayload).has_value();
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text;
  char piece[1 << 14];
  while (in.read(piece, sizeof(piece)) || in.gcount() > 0) text.append(piece, in.gcount());
  // A folder can be opened, and a read error is not the end of the file.
  if (!in.eof()) return UsageError(absl::StrCat("cannot read ", Printable(path)));
  return text;
}

absl::StatusOr<std::string> ReadNonemptyFile(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path);
  if (text.ok() && text->empty()) return UsageError(absl::StrCat(Printable(path), " is empty"));
  return text;
}

const std::vector<std::string>& ParsedFlags::Values(const std::string& name) const {
  auto it = values_.find(name);
  if (it == values_.end()) abort();
  return it->second;
}

std::string ParsedFlags::Text(const std::string& name, const std::string& fallback) const {
  return Has(name) ? Values(name).back() : fallback;
}

int64_t ParsedFlags::Int(const std::string& name, int64_t fallback) const {
  int64_t value = fallback;
  if (Has(name) && !absl::SimpleAtoi(Values(name).back(), &value))
    abort();  // CheckValue has parsed it
  return value;
}

double ParsedFlags::Number(const std::string& name, double fallback) const {
  double value = fallback;
  if (Has(name) && !absl::SimpleAtod(Values(name).back(), &value)) abort();
  return value;
}

absl::StatusOr<ParsedFlags> ParseFlags(const std::vector<FlagSpec>& specs,
                                       const std::vector<std::string>& args) {
  ParsedFlags parsed;
  for (const FlagSpec& spec : specs) parsed.values_[spec.name];

  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (arg == "--") {
      parsed.positional_.insert(parsed.positional_.end(), args.begin() + i + 1, args.end());
      break;
    }
    if (arg.size() < 2 || arg[0] != '-') {  // "-" alone means standard input
      parsed.positional_.push_back(arg);
      continue;
    }
    const FlagSpec* spec = nullptr;
    std::string shown, value;
    bool has_value = false;
    const size_t equals = arg.find('=');
    const std::string one_dash = arg.substr(1, equals == std::string::npos ? equals : equals - 1);
    if (arg[1] == '-' || (one_dash.size() > 2 && Find(specs, one_dash) != nullptr)) {
      has_value = equals != std::string::npos;
      const std::string name = arg[1] == '-' ? one_dash.substr(1) : one_dash;
      if (has_value) value = arg.substr(equals + 1);
      shown = "--" + name;
      spec = Find(specs, name);
      if (spec == nullptr && absl::StartsWith(name, "no-") && !has_value) {
        const FlagSpec* negated = Find(specs, absl::string_view(name).substr(3));
        if (negated != nullptr && negated->type == FlagType::kSwitch) {
          parsed.values_[negated->name].clear();
          continue;
        }
      }
      if (spec == nullptr) return Unknown(specs, shown, name);
    } else {
      for (const FlagSpec& s : specs) {
        if (s.letter == arg[1]) spec = &s;
      }
      shown = arg.substr(0, 2);
      if (spec == nullptr) return Unknown(specs, arg, absl::string_view(arg).substr(1));
      has_value = arg.size() > 2;
      if (has_value) value = std::string(absl::StripPrefix(absl::string_view(arg).substr(2), "="));
    }

    if (spec->type == FlagType::kSwitch) {
      if (has_value) return UsageError(absl::StrCat(shown, " takes no value"));
      parsed.values_[spec->name] = {"true"};
      continue;
    }
    if (!has_value) {
      if (i + 1 == args.size()) {
        return UsageError(absl::StrCat(shown, " needs a value: ", shown, " ", spec->value));
      }
      value = args[++i];
    }
    if (absl::Status s = CheckValue(*spec, shown, value); !s.ok()) return s;
    if (!spec->repeated) parsed.values_[spec->name].clear();
    parsed.values_[spec->name].push_back(value);
  }
  return parsed;
}

std::string DescribeFlags(const std::vector<FlagSpec>& specs) {
  std::vector<std::string> heads;
  int width = 0;
  for (const FlagSpec& spec : specs) {
    heads.push_back(absl::StrCat(spec.letter != 0
                                     ? absl::StrCat("-", std::string(1, spec.letter), ", ")
                                     : std::string("    "),
                                 "--", spec.name, spec.value.empty() ? "" : "=", spec.value));
    width = std::max(width, DisplayWidth(heads.back()));
  }
  width = std::min(width, 34);
  std::string out;
  for (size_t i = 0; i < specs.size(); ++i) {
    const bool fits = DisplayWidth(heads[i]) <= width;
    absl::StrAppend(&out, "  ", Pad(heads[i], width, Align::kLeft), fits ? "" : "\n",
                    fits ? "" : std::string(width + 2, ' '), "  ", specs[i].doc,
                    specs[i].repeated ? " (may be given several times)" : "", "\n");
  }
  return out;
}

}  // namespace espalier
