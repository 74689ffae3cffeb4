#include "base/flags/daemon_flags.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "base/version.h"

namespace espalier {
namespace {

// The daemon's own flags by command-line name.
std::map<std::string, absl::CommandLineFlag*> OwnFlags(const DaemonUsage& usage) {
  std::map<std::string, absl::CommandLineFlag*> flags;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (absl::EndsWith(flag->Filename(), usage.flags_file)) {
      flags[absl::StrReplaceAll(name, {{"_", "-"}})] = flag;
    }
  }
  return flags;
}

[[noreturn]] void Refuse(const DaemonUsage& usage, const std::string& message) {
  std::fprintf(stderr, "%s: %s; %s --help shows the flags\n", usage.program.c_str(),
               message.c_str(), usage.program.c_str());
  std::exit(2);
}

void PrintHelp(const DaemonUsage& usage,
               const std::map<std::string, absl::CommandLineFlag*>& flags) {
  std::printf("%s: %s\n\nExample: %s\n\nFlags:\n", usage.program.c_str(), usage.summary.c_str(),
              usage.example.c_str());
  for (const auto& [name, flag] : flags) {
    const std::string value = flag->DefaultValue();
    std::printf("  --%s\n", name.c_str());
    // Lines of at most 80 characters.
    std::string text = absl::StrCat(flag->Help(), " (", value.empty() ? "empty" : value, ")");
    for (absl::string_view rest = text; !rest.empty();) {
      size_t end = rest.size();
      if (end > 74) {
        end = rest.rfind(' ', 74);
        if (end == absl::string_view::npos) end = std::min(rest.find(' '), rest.size());
      }
      std::printf("      %s\n", std::string(rest.substr(0, end)).c_str());
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
}

void PrintJson(const DaemonUsage& usage,
               const std::map<std::string, absl::CommandLineFlag*>& flags) {
  nlohmann::ordered_json json;
  json["name"] = usage.program;
  json["summary"] = usage.summary;
  json["example"] = usage.example;
  json["flags"] = nlohmann::ordered_json::array();
  for (const auto& [name, flag] : flags) {
    json["flags"].push_back(
        {{"name", name}, {"default", flag->DefaultValue()}, {"doc", flag->Help()}});
  }
  std::printf("%s\n", json.dump(2).c_str());
}

}  // namespace

void ParseDaemonFlags(int argc, char** argv, const DaemonUsage& usage) {
  const std::map<std::string, absl::CommandLineFlag*> flags = OwnFlags(usage);
  const std::vector<std::string> words(argv + 1, argv + argc);
  const auto given = [&](absl::string_view word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  if (given("--help") || given("-h")) {
    given("--json") ? PrintJson(usage, flags) : PrintHelp(usage, flags);
    std::exit(0);
  }
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (!absl::StartsWith(word, "--") || word == "--") {
      Refuse(usage, absl::StrCat("'", word, "' is not understood"));
    }
    const size_t equals = word.find('=');
    if (word == "--version") continue;
    const std::string name = word.substr(2, equals == std::string::npos ? equals : equals - 2);
    const auto flag = flags.find(name);
    if (flag == flags.end()) {
      const std::string dashes = absl::StrReplaceAll(name, {{"_", "-"}});
      Refuse(usage, flags.count(dashes) != 0 ? absl::StrCat("--", name, " is written --", dashes)
                                             : absl::StrCat("unknown flag --", name));
    }
    std::string value;
    if (equals != std::string::npos) {
      value = word.substr(equals + 1);
    } else if (flag->second->IsOfType<bool>()) {
      value = "true";
    } else if (i + 1 < words.size()) {
      value = words[++i];
    } else {
      Refuse(usage, absl::StrCat("--", name, " needs a value"));
    }
    std::string error;
    if (!flag->second->ParseFrom(value, &error)) {
      Refuse(usage, absl::StrCat("--", name, "=", value, ": ", error));
    }
  }
  if (given("--version")) {
    std::printf("%s %s\n", usage.program.c_str(), kEspalierVersion);
    std::exit(0);
  }
}

}  // namespace espalier
