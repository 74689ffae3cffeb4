#include "server/artifacts/quantize.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "models/model.h"
#include "models/quantize.h"
#include "models/weights/weight_files.h"
#include "ops/kernel/packed_weights.h"
#include "planner/planner.h"
#include "server/artifacts/model_assets.h"
#include "worker/device/device.h"
#include "worker/runner/program_model_runner.h"
#include "worker/runner/save_weights.h"

namespace espalier {
namespace {

absl::Status In(const std::string& artifact, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("artifact '", artifact, "': ", status.message()));
}

// The smallest graph possible: it is never run.
constexpr ServingShape kSmallest = {.max_rows = 1,
                                    .max_output_rows = 1,
                                    .kv_slots = 1,
                                    .max_sequences = 1,
                                    .max_context_slots = 1,
                                    .max_ancestor_slots = 1};

absl::Status WriteWeights(const QuantizeTools& tools, const std::string& folder,
                          const LanguageModel& model, WeightFormat format, const std::string& to,
                          const QuantizeProgress& progress) {
  absl::StatusOr<ServingModel> serving = BuildServing(*tools.operators, model, kSmallest);
  if (serving.ok()) serving = QuantizeServing(*tools.operators, *std::move(serving), format);
  if (!serving.ok()) return serving.status();
  const absl::StatusOr<v1::Program> program = LowerServing(*tools.operators, serving->graph);
  if (!program.ok()) return program.status();
  const std::unique_ptr<Device> device = NewCpuDevice({.threads = 1});
  absl::StatusOr<std::unique_ptr<ProgramModelRunner>> runner =
      ProgramModelRunner::Create(*program, folder, 1, device.get(), serving->weights);
  if (!runner.ok()) return runner.status();
  return SaveWeights((*runner)->executor(), *tools.files, JoinPath(to, "model.safetensors"),
                     {{"format", "pt"}, {"weights", Name(format)}}, progress)
      .status();
}

absl::Status WriteConfig(FileSystem& files, const std::string& config, WeightFormat format,
                         const std::string& to) {
  // Cannot fail: ReadModel has parsed it.
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(config, nullptr, false);
  if (!json.is_object()) return absl::InternalError("config.json parsed only once");
  json["quantization_config"] = {{"quant_method", kPackedMethod},
                                 {"version", kPackedVersion},
                                 {"bits", format == WeightFormat::kInt8 ? 8 : 4},
                                 {"group_size", kPackGroup}};
  return WriteFileAtomically(
      files, JoinPath(to, "config.json"),
      json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

absl::StatusOr<WeightFormat> FormatOf(const v1::QuantizeRequest& request) {
  const absl::StatusOr<WeightFormat> format = WeightFormatOf(request.weights());
  if (format.ok() && (*format == WeightFormat::kInt8 || *format == WeightFormat::kInt4)) {
    return format;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("field 'weights' is '", request.weights(), "', expected int8 or int4"));
}

}  // namespace

absl::StatusOr<v1::Artifact> QuantizeArtifact(
    const v1::QuantizeRequest& request, const std::string& owner, const QuantizeTools& tools,
    const QuantizeProgress& progress,
    const ArtifactUpload::IdempotencyRecordFactory& make_idempotency_record,
    const std::function<bool(const std::string& owner)>& may_see) {
  const absl::StatusOr<WeightFormat> format = FormatOf(request);
  if (!format.ok()) return format.status();
  if (absl::Status status = CheckClientArtifactName(request.out()); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("field 'out': ", status.message()));
  }
  if (!request.replace() && tools.artifacts->Find(request.out()).ok()) {
    return absl::AlreadyExistsError(absl::StrCat("artifact '", request.out(),
                                                 "' exists; choose another name, or replace it "
                                                 "(--replace, or the request's field 'replace')"));
  }
  const absl::StatusOr<v1::Artifact> source = tools.artifacts->Find(request.name());
  if (!source.ok()) return source.status();
  const absl::StatusOr<ArtifactFolder> held = tools.artifacts->Pin(request.name());
  if (!held.ok()) return held.status();
  const std::string& folder = held->path();
  const absl::StatusOr<std::string> config = ReadModelConfig(*tools.files, folder);
  if (!config.ok()) return In(request.name(), config.status());
  const absl::StatusOr<LanguageModel> model = ReadModel(*config);
  if (!model.ok()) return In(request.name(), model.status());
  if (model->facts.packed_bits != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("artifact '", request.name(), "' is packed in ", model->facts.packed_bits,
                     " bits already; quantize the one that it was made of"));
  }

  absl::StatusOr<std::string> staging = tools.artifacts->MakeStagingFolder();
  if (!staging.ok()) return staging.status();
  absl::Cleanup discard = [&] {
    std::error_code ignored;
    std::filesystem::remove_all(*staging, ignored);
  };
  absl::Status status = progress(0, 0);
  if (status.ok()) status = WriteWeights(tools, folder, *model, *format, *staging, progress);
  if (!status.ok()) return In(request.name(), status);
  status = WriteConfig(*tools.files, *config, *format, *staging);
  if (status.ok()) status = CopyModelAssets(*tools.files, *source, folder, *staging);
  if (!status.ok()) return status;
  absl::StatusOr<v1::Artifact> artifact = tools.artifacts->RegisterStaged(
      *staging,
      {request.out(),
       v1::Artifact::MODEL,
       {{"family", model->facts.family},
        {"weights", Name(*format)},
        {"quantized_from", request.name()}},
       owner},
      request.replace() ? IfExists::kReplace : IfExists::kRefuse, make_idempotency_record,
      /*go_on=*/nullptr, {request.force(), may_see});
  if (artifact.ok()) std::move(discard).Cancel();
  return artifact;
}

}  // namespace espalier
