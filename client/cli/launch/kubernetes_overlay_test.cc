#include "client/cli/launch/kubernetes_overlay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

namespace espalier {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Render(const KubernetesOverlay& overlay) {
  const auto text = RenderKustomization(overlay);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.value_or("");
}

TEST(KubernetesOverlay, ImagesAreNamedAsPodsNameThem) {
  EXPECT_THAT(Render({.image = "localhost:5000/team/espalier:1.2"}),
              HasSubstr("newName: \"localhost:5000/team/espalier\"\n    newTag: \"1.2\"\n"));
  EXPECT_THAT(Render({.image = "espalier"}),
              HasSubstr("newName: \"espalier\"\n    newTag: latest\n"));
  const std::string digest = "sha256:" + std::string(64, 'a');
  const std::string pinned = Render({.image = "registry.example/espalier@" + digest});
  EXPECT_THAT(pinned, HasSubstr("digest: \"" + digest + "\""));
  EXPECT_THAT(pinned, Not(HasSubstr("newTag")));
}

TEST(KubernetesOverlay, WorkersGetWhatTheyNeed) {
  const std::string text =
      Render({.image = "espalier:1", .workers = 8, .cpu = "1500m", .memory = "8Gi", .gpu = true});
  EXPECT_THAT(text, HasSubstr("components: [components/gpu]"));
  EXPECT_THAT(text, HasSubstr("{name: espalier-worker, count: 8}"));
  EXPECT_THAT(text, HasSubstr("requests/cpu, value: \"1500m\""));
  EXPECT_THAT(text, HasSubstr("requests/memory, value: \"8Gi\""));
  EXPECT_THAT(text, HasSubstr("limits/memory, value: \"8Gi\""));
  EXPECT_THAT(Render({.image = "espalier:1"}), Not(HasSubstr("patches")));
  EXPECT_THAT(Render({.image = "espalier:1", .trusted_network = true}),
              HasSubstr("args/-, value: --trusted-network}"));
}

// Each would become part of a YAML file.
TEST(KubernetesOverlay, WhatKubernetesWouldNotTakeIsRefused) {
  for (const char* image :
       {"", "a b", "x:\"1\"", "UPPER", "espalier:1\nkind: Secret", "x@sha256:0"}) {
    EXPECT_FALSE(RenderKustomization({.image = image}).ok()) << image;
  }
  for (const char* cpu : {"four", "-1", "1\"}", "0"}) {
    EXPECT_FALSE(RenderKustomization({.image = "espalier", .cpu = cpu}).ok()) << cpu;
  }
  for (const char* memory : {"8GB", "8 Gi", "lots"}) {
    EXPECT_FALSE(RenderKustomization({.image = "espalier", .memory = memory}).ok()) << memory;
  }
}

TEST(KubernetesOverlay, TheFolderHasAllFilesAndGoesWithItsOwner) {
  std::string path;
  {
    const auto folder = KustomizationFolder::Make({.image = "espalier"});
    ASSERT_TRUE(folder.ok()) << folder.status();
    path = folder->path();
    for (const char* file :
         {"kustomization.yaml", "base/kustomization.yaml", "base/coordinator.yaml",
          "base/services.yaml", "base/workers.yaml", "components/gpu/kustomization.yaml"}) {
      EXPECT_TRUE(std::filesystem::exists(path + "/" + file)) << file;
    }
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace espalier
