#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/nearest.h"
#include "client/cli/command.h"
#include "client/cli/onnx_files.h"
#include "client/cli/proto_json.h"
#include "client/cli/transfer.h"
#include "client/terminal/table.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

std::string KindName(v1::Artifact::Kind kind) {
  return absl::AsciiStrToLower(v1::Artifact::Kind_Name(kind));
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

absl::Status ListModels(Context& context, Client* client) {
  auto artifacts = client->ListArtifacts();
  if (!artifacts.ok()) return artifacts.status();
  if (context.json()) {
    nlohmann::ordered_json json;
    json["artifacts"] = nlohmann::ordered_json::array();
    for (const auto& a : *artifacts) json["artifacts"].push_back(ToJson(a));
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
  for (const auto& a : *artifacts) {
    table.Row({Printable(a.name()), KindName(a.kind()), FormatBytes(static_cast<double>(a.bytes())),
               absl::StrCat(a.files_size()),
               absl::FormatTime("%Y-%m-%d %H:%M", absl::FromUnixMillis(a.created_unix_ms()),
                                absl::LocalTimeZone()),
               Printable(a.sha256()).substr(0, 12), Printable(a.owner())});
  }
  context.out() << (table.empty() ? "no artifacts yet\n" : table.Render(context.terminal()))
                << std::flush;
  return absl::OkStatus();
}

absl::StatusOr<v1::Artifact::Kind> KindOf(const ParsedFlags& flags, const std::string& path) {
  const std::string kind = flags.Text("kind");
  if (kind == "dataset") return v1::Artifact::DATASET;
  if (kind == "onnx") return v1::Artifact::ONNX;
  if (kind == "model") return v1::Artifact::MODEL;
  if (!kind.empty()) {
    return UsageError(
        absl::StrCat("--kind is \"", Printable(kind), "\"; accepted: dataset, onnx, model"));
  }
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
  if (flags.Has("kind") && verb != "upload") {
    return UsageError(absl::StrCat("--kind goes with upload, not with ", verb));
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
  if (absl::Status s = (*client)->DeleteArtifact(args[1]); !s.ok()) return s;
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
  c.flags = {{"kind", FlagType::kText, "KIND", "dataset, onnx or model (detected from PATH)"},
             {"replace", FlagType::kSwitch, "",
              "upload, quantize: replace an artifact of that "
              "name"},
             {"weights", FlagType::kText, "FORMAT", "quantize: int8 or int4"},
             {"out", FlagType::kText, "NAME", "quantize: name of the new artifact"}};
  c.examples = {{"list all", "espalier models"},
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
