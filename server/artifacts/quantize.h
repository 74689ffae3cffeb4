// Weight quantization of model artifacts.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_system.h"
#include "espalier/v1/models.pb.h"
#include "ops/schema/registry.h"
#include "server/artifacts/artifact_store.h"

namespace espalier {

struct QuantizeTools {
  const OpRegistry* operators = nullptr;
  ArtifactStore* artifacts = nullptr;
  FileSystem* files = nullptr;
};

// Bytes written so far and in total; called once with (0, 0) before the weights are read. An error
// ends the call.
using QuantizeProgress = std::function<absl::Status(int64_t done, int64_t total)>;

// Loads the model `request.name` as serving does, quantizes its matrices, and registers the result
// durably as `request.out`, with the source's other files and a config.json that names the format
// (models/quantize.h). Needs memory for the quantized model. InvalidArgument names the field;
// NotFound names the artifact; AlreadyExists if `out` exists and `replace` is not set;
// FailedPrecondition if the weights are quantized already, or what is to be replaced is needed.
// `make_idempotency_record` as for ArtifactUpload::Commit, `may_see` as in ArtifactRemoval.
absl::StatusOr<v1::Artifact> QuantizeArtifact(
    const v1::QuantizeRequest& request, const std::string& owner, const QuantizeTools& tools,
    const QuantizeProgress& progress,
    const ArtifactUpload::IdempotencyRecordFactory& make_idempotency_record,
    const std::function<bool(const std::string& owner)>& may_see);

}  // namespace espalier
