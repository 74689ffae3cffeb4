#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "client/cli/command.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

absl::Status RunBackup(Context& context) {
  if (absl::Status s = CheckArguments(context, 1, 1, "FILE"); !s.ok()) return s;
  const std::string path = context.flags().positional()[0];
  auto client = context.client();
  if (!client.ok()) return client.status();
  const absl::StatusOr<int64_t> bytes = (*client)->Backup(path);
  if (!bytes.ok()) return bytes.status();
  if (context.json()) {
    nlohmann::ordered_json json;
    json["file"] = path;
    json["bytes"] = *bytes;
    context.Document(json);
    return absl::OkStatus();
  }
  context.out() << Printable(path) << ": " << FormatBytes(static_cast<double>(*bytes))
                << ", the jobs, their reports, and the records of artifacts and served models. "
                   "The artifacts' files are not in it: copy artifacts/ of the data folder"
                << std::endl;
  return absl::OkStatus();
}

}  // namespace

Command BackupCommand() {
  Command c;
  c.name = "backup";
  c.summary = "copy the coordinator's store of jobs and records to a file, while it runs";
  c.usage = "backup FILE";
  c.examples = {{"every night", "espalier backup \"/backup/espalier-$(date +%F).db\""},
                {"restore, with the daemon stopped",
                 "rm -f /var/lib/espalier/espalier.db-*; cp FILE /var/lib/espalier/espalier.db"}};
  c.run = RunBackup;
  return c;
}

}  // namespace espalier
