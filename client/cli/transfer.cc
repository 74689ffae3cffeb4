#include "client/cli/transfer.h"

#include <algorithm>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/terminal/progress.h"
#include "client/terminal/text.h"

namespace espalier {

TransferProgress ShowTransfer(Context& context, const std::string& what) {
  if (context.json() || !context.terminal().is_tty) return nullptr;
  auto printer = std::make_shared<ProgressPrinter>(context.env().out, context.terminal(),
                                                   context.env().seconds);
  const double start = context.env().seconds();
  return [printer, what, start, seconds = context.env().seconds](int64_t done, int64_t total) {
    Progress p;
    p.unit = what;
    p.done = static_cast<double>(done >> 20);
    p.total = static_cast<double>(std::max<int64_t>(total >> 20, 1));
    p.detail = "MiB";
    const double passed = seconds() - start;
    if (passed > 0.5) {
      p.rate = static_cast<double>(done) / passed;
      p.rate_unit = "B/s";
    }
    printer->Update(p);
    if (done >= total) printer->Finish();
  };
}

absl::StatusOr<std::string> UploadOnce(Context& context, Client* client, const std::string& path,
                                       proto::Artifact::Kind kind) {
  bool uploaded = false;
  auto name = client->EnsureUploaded(path, kind, ShowTransfer(context, "upload"), &uploaded);
  if (!name.ok()) {
    // A file that is not here is a matter of the command line.
    return name.status().code() == absl::StatusCode::kNotFound &&
                   !absl::StrContains(name.status().message(), "rtifact")
               ? UsageError(std::string(name.status().message()))
               : name.status();
  }
  if (!context.json()) {
    context.out() << Printable(path) << (uploaded ? " uploaded as " : " is there already: ")
                  << *name << std::endl;
  }
  return name;
}

}  // namespace espalier
