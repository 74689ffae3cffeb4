#include "worker/initial_values.h"

#include "worker/runner/program_model_runner.h"
#include "worker/stored_values.h"

namespace espalier {

absl::Status LoadInitialValues(JobStorage& storage, const v1::LoadProgramRequest& request,
                               const std::function<bool()>& cancelled, Executor& training,
                               Executor* evaluation) {
  const bool from_elsewhere = !request.checkpoint_dir().empty() || !request.init_folder().empty();
  absl::Status status = LoadStoredValues(storage.inputs(), request.values_folder(), !from_elsewhere,
                                         cancelled, training);
  // Evaluation reads the parameters of training.
  if (status.ok() && evaluation != nullptr) {
    status = LoadStoredValues(storage.inputs(), request.values_folder(), /*parameters=*/false,
                              cancelled, *evaluation);
  }
  if (!status.ok() || !request.checkpoint_dir().empty() || request.init_folder().empty()) {
    return status;
  }
  // The coordinator has validated the folder against the whole model; this rank may hold a shard.
  WeightMap by_name;
  by_name.ignored = {""};
  WeightLoadOptions loading;
  loading.files = &storage.files();
  loading.cancelled = cancelled;
  return LoadWeights(request.init_folder(), by_name, training, loading);
}

}  // namespace espalier
