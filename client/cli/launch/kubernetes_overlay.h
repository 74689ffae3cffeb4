// The kustomization of `espalier launch k8s`: deploy/kubernetes/base with an image, a number of
// workers and their resources.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace espalier {

struct KubernetesOverlay {
  std::string image;   // as in a pod: registry/name:tag, registry/name@sha256:digest
  int workers = 2;     // pods
  std::string cpu;     // of each worker, as Kubernetes writes it: "4", "1500m"; empty: the base's
  std::string memory;  // the same: "8Gi"
  bool gpu = false;    // one per worker
  bool trusted_network = false;  // tensors pass in clear between workers
};

// InvalidArgument names what Kubernetes would not take.
absl::StatusOr<std::string> RenderKustomization(const KubernetesOverlay& overlay);

// A new folder below the system's folder of temporary files, with a kustomization.yaml and the
// manifests that it names. It goes with its owner.
class KustomizationFolder {
 public:
  static absl::StatusOr<KustomizationFolder> Make(const KubernetesOverlay& overlay);
  KustomizationFolder(KustomizationFolder&& other) noexcept;
  KustomizationFolder& operator=(KustomizationFolder&&) = delete;
  ~KustomizationFolder();

  const std::string& path() const { return path_; }

 private:
  explicit KustomizationFolder(std::string path) : path_(std::move(path)) {}

  std::string path_;
};

}  // namespace espalier
