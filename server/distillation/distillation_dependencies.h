// The services of the coordinator that distillation uses. All outlive it.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "ops/schema/registry.h"
#include "server/artifacts/artifact_store.h"
#include "server/inference/models/model_server.h"
#include "server/jobs/job_runner.h"
#include "server/store/job_store.h"
#include "serving/models/model_description.h"

namespace espalier {

struct DistillationDependencies {
  const OpRegistry* operators = nullptr;
  ArtifactStore* artifacts = nullptr;
  JobStore* store = nullptr;
  JobRunner* jobs = nullptr;
  ModelServer* models = nullptr;
  FileSystem* files = nullptr;
  const Clock* clock = nullptr;
  // Returns family, sizes and tokenizer of a model artifact.
  std::function<absl::StatusOr<ModelDescription>(const std::string& artifact)> describe;
};

}  // namespace espalier
