#include "client/cli/replay/graph_questions.h"

#include <filesystem>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/model_flags.h"
#include "client/cli/transfer.h"
#include "client/terminal/text.h"
#include "ops/onnx/external_files.h"

namespace espalier {
namespace {

struct NamedGraphFile {
  std::string name, path;
};

// A path that has '=' itself is written with a folder: "./a=b.onnx".
NamedGraphFile GraphFileOf(const std::string& value) {
  const std::vector<std::string> parts = absl::StrSplit(value, absl::MaxSplits('=', 1));
  if (parts.size() == 2 && !absl::StrContains(parts[0], '/')) return {parts[0], parts[1]};
  return {std::filesystem::path(value).stem().string(), value};
}

absl::Status ReadGraphFile(const std::string& path, v1::ReplayGraph* graph) {
  if (!absl::EndsWith(path, ".onnx")) {
    absl::StatusOr<v1::Graph> read = ReadGraph(path);
    if (absl::StrContains(read.status().message(), "holds no graph")) {
      return UsageError(
          absl::StrCat(read.status().message(), ", or an ONNX file, whose name ends in .onnx"));
    }
    if (!read.ok()) return read.status();
    *graph->mutable_graph() = *std::move(read);
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> bytes = ReadNonemptyFile(path);
  if (!bytes.ok()) return bytes.status();
  const absl::StatusOr<std::set<std::string>> beside = ExternalFilesOf(*bytes);
  if (!beside.ok()) {
    return UsageError(absl::StrCat(Printable(path), ": ", beside.status().message()));
  }
  if (!beside->empty()) {
    return UsageError(absl::StrCat(Printable(path), " keeps values in the file \"",
                                   Printable(*beside->begin()),
                                   "\"; accepted: an ONNX file with its values inside"));
  }
  graph->set_onnx(*std::move(bytes));
  return absl::OkStatus();
}

}  // namespace

absl::Status AddGraphQuestions(const std::vector<std::string>& values, v1::ReplaySpec* spec) {
  for (const std::string& value : values) {
    const NamedGraphFile file = GraphFileOf(value);
    v1::ReplayGraph* graph = spec->add_graphs();
    graph->set_name(file.name);
    if (absl::Status s = ReadGraphFile(file.path, graph); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status NameGraphFile(const absl::Status& status, const std::vector<std::string>& values) {
  for (const std::string& value : values) {
    const NamedGraphFile file = GraphFileOf(value);
    if (!absl::StartsWith(status.message(), absl::StrCat("graph '", file.name, "'"))) continue;
    return absl::Status(status.code(), absl::StrCat(file.path, ": ", status.message()));
  }
  return status;
}

}  // namespace espalier
