#include "base/version.h"

#include <nlohmann/json.hpp>

#include "client/cli/command.h"

namespace espalier {
namespace {

absl::Status RunVersion(Context& context) {
  if (absl::Status s = CheckArguments(context, 0, 0, ""); !s.ok()) return s;
  if (context.json()) {
    nlohmann::ordered_json json;
    json["version"] = kEspalierVersion;
    context.Document(json);
  } else {
    context.out() << "espalier " << kEspalierVersion << std::endl;
  }
  return absl::OkStatus();
}

}  // namespace

Command VersionCommand() {
  Command c;
  c.name = "version";
  c.summary = "print the version of this program (the coordinator's: espalier status)";
  c.usage = "version";
  c.run = RunVersion;
  return c;
}

}  // namespace espalier
