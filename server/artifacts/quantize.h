// Artifacts with packed matrices out of artifacts without.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ops/schema/registry.h"
#include "espalier/v1/models.pb.h"
#include "server/artifacts/artifact_store.h"
#include "base/file_system.h"

namespace espalier {

struct QuantizeTools {
  const OpRegistry* operators = nullptr;
  ArtifactStore* artifacts = nullptr;
  FileSystem* files = nullptr;
};

// Bytes written so far, and all; called once with (0, 0) before the weights are read. An error ends
// the call.
using QuantizeProgress = std::function<absl::Status(int64_t done, int64_t total)>;

// Loads the model `request.name` as serving does, packing its matrices, and registers what lies in
// memory then as `request.out`, durably, with the other files of the artifact beside it and a
// config.json that names the format (ops/models/quantize.h). Takes the memory of the packed model.
// InvalidArgument names the field; NotFound the artifact; AlreadyExists if `out` is there and
// `replace` is not set; FailedPrecondition if the weights are packed already. `make_idempotency_record` as
// in ArtifactUpload::Commit.
absl::StatusOr<v1::Artifact> QuantizeArtifact(
    const v1::QuantizeRequest& request, const QuantizeTools& tools,
    const QuantizeProgress& progress, const ArtifactUpload::IdempotencyRecordFactory& make_idempotency_record);

}  // namespace espalier
