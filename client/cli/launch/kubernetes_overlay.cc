#include "client/cli/launch/kubernetes_overlay.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/launch/kubernetes_manifests.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

constexpr char kWorker[] = "/spec/template/spec/containers/0";

struct ImageName {
  std::string name, tag, digest;
};

// Of what the base calls `espalier`.
absl::StatusOr<ImageName> ParseImage(const std::string& image) {
  static const std::regex form(
      R"(((?:[A-Za-z0-9.-]+(?::[0-9]+)?/)?[a-z0-9._/-]+)(?::([A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?)"
      R"((?:@(sha256:[0-9a-f]{64}))?)");
  std::smatch parts;
  if (!std::regex_match(image, parts, form)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--image: '", image, "' is no name of an image; one is REGISTRY/espalier:TAG"));
  }
  return ImageName{parts[1], parts[2], parts[3]};
}

absl::Status CheckQuantity(const std::string& flag, const std::string& value,
                           const std::string& form, const std::string& example) {
  if (value.empty() || std::regex_match(value, std::regex(form))) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, ": '", value, "' is no quantity of Kubernetes; one is ", example));
}

std::string Replace(const std::string& resource, const std::string& value) {
  return absl::StrCat("      - {op: replace, path: ", kWorker, "/resources/", resource,
                      ", value: \"", value, "\"}\n");
}

}  // namespace

absl::StatusOr<std::string> RenderKustomization(const KubernetesOverlay& overlay) {
  const absl::StatusOr<ImageName> image = ParseImage(overlay.image);
  if (!image.ok()) return image.status();
  absl::Status status = CheckQuantity("cpu", overlay.cpu, R"([1-9][0-9]*m?|[0-9]+\.[0-9]+)", "4");
  if (status.ok()) {
    status = CheckQuantity("memory", overlay.memory, "[1-9][0-9]*([KMGT]i?|k)?", "8Gi");
  }
  if (!status.ok()) return status;
  std::string text =
      "apiVersion: kustomize.config.k8s.io/v1beta1\n"
      "kind: Kustomization\n"
      "resources: [base]\n";
  if (overlay.gpu) absl::StrAppend(&text, "components: [components/gpu]\n");
  absl::StrAppend(&text, "images:\n  - name: espalier\n    newName: \"", image->name, "\"\n");
  if (!image->tag.empty()) absl::StrAppend(&text, "    newTag: \"", image->tag, "\"\n");
  if (!image->digest.empty()) absl::StrAppend(&text, "    digest: \"", image->digest, "\"\n");
  if (image->tag.empty() && image->digest.empty()) {
    absl::StrAppend(&text, "    newTag: latest\n");
  }
  absl::StrAppend(&text, "replicas:\n  - {name: espalier-worker, count: ", overlay.workers, "}\n");
  if (overlay.cpu.empty() && overlay.memory.empty() && !overlay.trusted_network) return text;
  absl::StrAppend(&text,
                  "patches:\n"
                  "  - target: {kind: StatefulSet, name: espalier-worker}\n"
                  "    patch: |-\n");
  if (!overlay.cpu.empty()) absl::StrAppend(&text, Replace("requests/cpu", overlay.cpu));
  for (const char* const bound : {"requests/memory", "limits/memory"}) {
    if (!overlay.memory.empty()) absl::StrAppend(&text, Replace(bound, overlay.memory));
  }
  if (overlay.trusted_network) {
    absl::StrAppend(&text, "      - {op: add, path: ", kWorker,
                    "/args/-, value: --trusted-network}\n");
  }
  return text;
}

absl::StatusOr<KustomizationFolder> KustomizationFolder::Make(const KubernetesOverlay& overlay) {
  absl::StatusOr<std::string> text = RenderKustomization(overlay);
  if (!text.ok()) return text.status();
  std::error_code error;
  std::string pattern = (fs::temp_directory_path(error) / "espalier-k8s-XXXXXX").string();
  if (error || mkdtemp(pattern.data()) == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot make a folder ", pattern));
  }
  KustomizationFolder folder(std::move(pattern));
  std::vector<std::pair<std::string, std::string>> files = KubernetesManifests();
  files.emplace_back("kustomization.yaml", *std::move(text));
  for (const auto& [name, content] : files) {
    const fs::path path = fs::path(folder.path()) / name;
    fs::create_directories(path.parent_path(), error);
    std::ofstream out(path, std::ios::binary);
    out << content << std::flush;
    if (!out) return absl::UnavailableError(absl::StrCat("cannot write ", path.string()));
  }
  return folder;
}

KustomizationFolder::KustomizationFolder(KustomizationFolder&& other) noexcept
    : path_(std::exchange(other.path_, "")) {}

KustomizationFolder::~KustomizationFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

}  // namespace espalier
