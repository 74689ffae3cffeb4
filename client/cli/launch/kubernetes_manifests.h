// What lies below deploy/kubernetes, of which `espalier launch k8s` makes a kustomization.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace espalier {

// Files of the base and of the component `gpu`: path below deploy/kubernetes, and text.
std::vector<std::pair<std::string, std::string>> KubernetesManifests();

}  // namespace espalier
