#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/nearest.h"
#include "client/cli/command.h"
#include "client/cli/onnx_files.h"
#include "client/cli/proto_json.h"
#include "client/cli/time_flags.h"
#include "client/cli/transfer.h"
#include "client/terminal/table.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kArtifactsShown = 100;

std::string KindName(v1::Artifact::Kind kind) {
  return absl::AsciiStrToLower(v1::Artifact::Kind_Name(kind));
}

absl::StatusOr<v1::Artifact::Kind> NamedKind(const std::string& kind) {
  if (kind == "dataset") return v1::Artifact::DATASET;
  if (kind == "onnx") return v1::Artifact::ONNX;
  if (kind == "model") return v1::Artifact::MODEL;
  return UsageError(
      absl::StrCat("--kind is \"", Printable(kind), "\"; accepted: dataset, onnx, model"));
}

absl::Status ShowModel(Context& context, const v1::Artifact& artifact, const std::string& what) {
  if (context.json()) {
    context.Document(ToJson(artifact));
  } else {
    context.out() << Printable(artifact.name()) << " " << what << ": " << KindName(artifact.kind())
                  << ", " << artifact.files_size()
                  << (artifact.files_size() == 1 ? " file, " : " files, ")
                  << FormatBytes(static_cast<double>(artifact.bytes())) << ", sha256 "
                  << Printable(artifact.sha256()) << std::endl;
  }
  return absl::OkStatus();
}

// Which artifacts the flags of list select.
absl::StatusOr<v1::ListArtifactsRequest> ArtifactListRequestOf(const ParsedFlags& flags) {
  v1::ListArtifactsRequest request;
  if (flags.Has("kind")) {
    auto kind = NamedKind(flags.Text("kind"));
    if (!kind.ok()) return kind.status();
    request.add_kinds(*kind);
  }
  request.set_name(flags.Text("name"));
  request.set_owner(flags.Text("owner"));
  const absl::Status times = ReadTimeRange(
      flags, [&](int64_t ms) { request.set_created_from_unix_ms(ms); },
      [&](int64_t ms) { request.set_created_before_unix_ms(ms); });
  if (!times.ok()) return times;
  request.set_newest_first(flags.Has("newest-first"));
  return request;
}

absl::Status ListModels(Context& context, Client* client) {
  auto request = ArtifactListRequestOf(context.flags());
  if (!request.ok()) return request.status();
  const auto reply = client->ListArtifacts(
      *request, context.flags().Int("limit", context.json() ? 0 : kArtifactsShown));
  if (!reply.ok()) return reply.status();
  if (context.json()) {
    nlohmann::ordered_json json;
    json["artifacts"] = nlohmann::ordered_json::array();
    for (const auto& a : reply->artifacts()) json["artifacts"].push_back(ToJson(a));
    json["matching"] = reply->matching();
    context.Document(json);
    return absl::OkStatus();
  }
  Table table({{"artifact", Align::kLeft, true},
               {"kind"},
               {"size", Align::kRight},
               {"files", Align::kRight},
               {"created"},
               {"sha256"},
               {.title = "owner", .optional = true}});
  for (const auto& a : reply->artifacts()) {
    table.Row({Printable(a.name()), KindName(a.kind()), FormatBytes(static_cast<double>(a.bytes())),
               absl::StrCat(a.files_size()),
               absl::FormatTime("%Y-%m-%d %H:%M", absl::FromUnixMillis(a.created_unix_ms()),
                                absl::LocalTimeZone()),
               Printable(a.sha256()).substr(0, 12), Printable(a.owner())});
  }
  const bool all = request->name().empty() && request->owner().empty() &&
                   request->kinds_size() == 0 && request->created_from_unix_ms() == 0 &&
                   request->created_before_unix_ms() == 0;
  context.out() << (!table.empty() ? table.Render(context.terminal())
                    : all          ? "no artifacts yet\n"
                                   : "no such artifacts\n");
  if (const int64_t more = reply->matching() - reply->artifacts_size(); more > 0) {
    context.out() << more << " more are not shown; --limit=N shows more, --limit=0 all\n";
  }
  context.out() << std::flush;
  return absl::OkStatus();
}

absl::StatusOr<v1::Artifact::Kind> KindOf(const ParsedFlags& flags, const std::string& path) {
  if (flags.Has("kind")) return NamedKind(flags.Text("kind"));
  std::error_code error;
  if (fs::is_directory(path, error) || absl::EndsWith(path, ".gguf")) return v1::Artifact::MODEL;
  return absl::EndsWith(path, ".onnx") ? v1::Artifact::ONNX : v1::Artifact::DATASET;
}

absl::Status Upload(Context& context, Client* client, const std::string& name,
                    const std::string& path) {
  auto kind = KindOf(context.flags(), path);
  if (!kind.ok()) return kind.status();
  auto files = *kind == v1::Artifact::ONNX ? OnnxFilesOf(path) : FilesOf(path);
  if (!files.ok()) return files.status();
  v1::UploadHeader header;
  header.set_name(name);
  header.set_kind(*kind);
  header.set_replace(context.flags().Has("replace"));
  header.set_force(context.flags().Has("force"));
  std::string not_servable;
  auto artifact =
      client->Upload(header, *files, ShowTransfer(context, "upload"), nullptr, &not_servable);
  if (!artifact.ok()) return artifact.status();
  if (!not_servable.empty()) {
    *context.env().err << "espalier: warning: it is kept, but cannot be served: "
                       << Printable(not_servable) << std::endl;
  }
  return ShowModel(context, *artifact, "uploaded");
}

absl::Status Quantize(Context& context, Client* client, const std::string& name) {
  const ParsedFlags& flags = context.flags();
  v1::QuantizeRequest request;
  request.set_name(name);
  request.set_weights(flags.Text("weights"));
  request.set_out(flags.Text("out"));
  request.set_replace(flags.Has("replace"));
  request.set_force(flags.Has("force"));
  auto artifact = client->Quantize(request, ShowTransfer(context, "write"));
  if (!artifact.ok()) return artifact.status();
  return ShowModel(context, *artifact, absl::StrCat("made in ", Printable(request.weights())));
}

// Checks a subcommand's arguments and flags.
absl::Status CheckVerb(const Context& context, const std::string& verb) {
  const ParsedFlags& flags = context.flags();
  const bool quantizes = verb == "quantize";
  if (quantizes && !(flags.Has("weights") && flags.Has("out"))) {
    return UsageError("models quantize needs --weights=int8 or int4, and --out=NAME");
  }
  if (!quantizes && (flags.Has("weights") || flags.Has("out"))) {
    return UsageError(absl::StrCat("--weights and --out go with quantize, not with ", verb));
  }
  if (flags.Has("kind") && verb != "upload" && verb != "list") {
    return UsageError(absl::StrCat("--kind goes with upload and list, not with ", verb));
  }
  for (const char* flag : {"name", "owner", "since", "until", "limit", "newest-first"}) {
    if (!flags.Has(flag) || verb == "list") continue;
    return UsageError(absl::StrCat("--", flag, " goes with list, not with ", verb));
  }
  if (flags.Has("force") && verb != "delete" && !flags.Has("replace")) {
    return UsageError(absl::StrCat("--force goes with delete and with --replace, not with ", verb));
  }
  if (flags.Has("replace") && verb != "upload" && !quantizes) {
    return UsageError(absl::StrCat("--replace goes with upload and quantize, not with ", verb));
  }
  if (verb == "list") return CheckArguments(context, 0, 1, "");
  if (verb == "upload") return CheckArguments(context, 3, 3, "NAME and FILE or FOLDER");
  if (verb == "download") return CheckArguments(context, 2, 3, "NAME and perhaps a folder");
  return CheckArguments(context, 2, 2, "NAME");
}

absl::Status RunModels(Context& context) {
  const auto& args = context.flags().positional();
  const std::string verb = args.empty() ? "list" : args[0];
  const std::vector<std::string> verbs = {"list", "upload", "download", "quantize", "delete"};
  if (std::find(verbs.begin(), verbs.end(), verb) == verbs.end()) {
    const std::string near = Nearest(verb, verbs);
    return UsageError(absl::StrCat("models ", Printable(verb), ": accepted are ",
                                   absl::StrJoin(verbs, ", "),
                                   near.empty() ? "" : absl::StrCat("; did you mean ", near, "?")));
  }
  if (absl::Status status = CheckVerb(context, verb); !status.ok()) return status;
  auto client = context.client();
  if (!client.ok()) return client.status();
  if (verb == "list") return ListModels(context, *client);
  if (verb == "upload") return Upload(context, *client, args[1], args[2]);
  if (verb == "quantize") return Quantize(context, *client, args[1]);
  if (verb == "download") {
    const std::string folder = args.size() > 2 ? args[2] : args[1];
    auto artifact = (*client)->Download(args[1], folder, ShowTransfer(context, "download"));
    if (!artifact.ok()) return artifact.status();
    return ShowModel(context, *artifact, "downloaded to " + folder);
  }
  if (absl::Status s = (*client)->DeleteArtifact(args[1], context.flags().Has("force")); !s.ok()) {
    return s;
  }
  if (context.json()) {
    nlohmann::ordered_json json;
    json["deleted"] = args[1];
    context.Document(json);
  } else {
    context.out() << Printable(args[1]) << " deleted" << std::endl;
  }
  return absl::OkStatus();
}

}  // namespace

Command ModelsCommand() {
  Command c;
  c.name = "models";
  c.summary = "list, upload, download, quantize and delete artifacts: models, datasets, ONNX files";
  c.usage =
      "models [list | upload NAME PATH | download NAME [FOLDER] | quantize NAME --weights=FORMAT "
      "--out=NAME | delete NAME]";
  c.flags = {
      {"kind", FlagType::kText, "KIND",
       "upload: dataset, onnx or model (detected from PATH); list: only these"},
      {"name", FlagType::kText, "NAME",
       "list: only artifacts of this name; * stands for any characters"},
      {"owner", FlagType::kText, "NAME", "list: only artifacts of this owner"},
      {"since", FlagType::kText, "TIME", "list: made at this time or later: 2h, 7d, 2026-11-29"},
      {"until", FlagType::kText, "TIME", "list: made before this time"},
      {"limit", FlagType::kInt, "N", "list: at most N (100; with --json all); 0: all", 0, 0, 1e9},
      {"newest-first", FlagType::kSwitch, "", "list: by age instead of by name"},
      {"replace", FlagType::kSwitch, "",
       "upload, quantize: replace an artifact of that "
       "name"},
      {"force", FlagType::kSwitch, "",
       "delete, --replace: even if recorded runs need it, which cannot be replayed then"},
      {"weights", FlagType::kText, "FORMAT", "quantize: int8 or int4"},
      {"out", FlagType::kText, "NAME", "quantize: name of the new artifact"}};
  c.examples = {{"list all", "espalier models --limit=0"},
                {"list the newest models", "espalier models --kind=model --newest-first --limit=5"},
                {"a Hugging Face folder", "espalier models upload tinyllama ./tinyllama"},
                {"a GGUF file", "espalier models upload tinyllama ./tinyllama-q8_0.gguf"},
                {"quantize once instead of at every load",
                 "espalier models quantize tinyllama --weights=int8 --out=tinyllama-int8"},
                {"download a trained model: safetensors, and ONNX if ONNX has its operators",
                 "espalier models download cnn ./cnn"}};
  c.run = RunModels;
  return c;
}

}  // namespace espalier
