#include "client/cli/launch/launch_context.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace espalier {

void Say(Context& context, const std::string& event, const std::string& text) {
  if (context.json()) {
    nlohmann::ordered_json line;
    line["event"] = event;
    line["text"] = text;
    context.Line(line);
  } else {
    context.out() << text << std::endl;
  }
}

std::map<std::string, std::string> VariablesOfHome(const std::string& home) {
  std::map<std::string, std::string> variables = {{"ESPALIER_HOME", home}};
  // All that lead to another coordinator, or prove to another one who this is.
  for (const char* const other :
       {"ESPALIER_COORDINATOR", "ESPALIER_HTTP", "ESPALIER_TOKEN", "ESPALIER_TOKEN_FILE",
        "ESPALIER_CA_FILE", "ESPALIER_CERT_FILE", "ESPALIER_KEY_FILE"}) {
    variables[other] = "";
  }
  return variables;
}

Environment WithVariables(const Environment& before, std::map<std::string, std::string> variables) {
  Environment environment = before;
  environment.getenv = [variables = std::move(variables),
                        getenv = before.getenv](const char* name) -> const char* {
    const auto own = variables.find(name);
    return own != variables.end() ? own->second.c_str() : getenv(name);
  };
  return environment;
}

absl::Status RunTrain(const Context& context, const Environment& environment,
                      const std::vector<std::string>& words) {
  const Command train = TrainCommand();
  std::vector<FlagSpec> specs = train.flags;
  for (FlagSpec& spec : CommonFlags()) specs.push_back(std::move(spec));
  std::vector<std::string> args(words.begin() + 1, words.end());
  if (context.json()) args.emplace_back("--json");
  auto flags = ParseFlags(specs, args);
  if (!flags.ok()) return flags.status();
  Context own(environment, *std::move(flags));
  return train.run(own);
}

}  // namespace espalier
