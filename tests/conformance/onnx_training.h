// Trains an ONNX file on one CPU device through planner, lowering and executor, like a job of one
// worker but in one process. Can keep intermediate values of a step.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/program.pb.h"
#include "ops/graph/graph.h"
#include "ops/tensor/shape.h"
#include "worker/device/device.h"
#include "worker/executor/executor.h"

namespace espalier::conformance {

struct OnnxTrainingOptions {
  std::string model;  // path of the .onnx
  // Path of an .npz with a column for each graph input and one named "labels", in float or i64.
  // Step s reads examples [s * batch, s * batch + batch), modulo the number of examples.
  std::string data;
  int64_t batch = 0;
  std::string loss;
  v1::Optimizer optimizer;
  int threads = 1;
  bool observe = false;  // keep prediction and gradients of each step
};

struct NamedTensor {
  TensorType type;
  std::string bytes;
};

class OnnxTraining {
 public:
  // Returns errors of the importer, AddLossAndMetrics, the planner or the executor, with the stage.
  static absl::StatusOr<std::unique_ptr<OnnxTraining>> Create(const OnnxTrainingOptions& options);

  // Runs the next step.
  absl::StatusOr<StepResult> Step(bool profile = false);

  // The trained graph, and its number of operators before fusion.
  const Graph& graph() const { return graph_; }
  size_t imported_operators() const { return imported_; }
  // Bytes of device memory: what the executor has allocated, without copies of observed values, and
  // what the plan predicted.
  int64_t measured_peak_bytes() const { return executor_->measured_peak_bytes() - observed_bytes_; }
  int64_t predicted_peak_bytes() const { return predicted_peak_bytes_; }
  int64_t arena_bytes() const { return executor_->program().arena_bytes() - observed_bytes_; }

  // Values kept from the last step: "prediction", and "gradient.<parameter>" per trained parameter.
  absl::StatusOr<std::map<std::string, NamedTensor>> Observed();
  // "parameter.<name>" of all parameters, including those that are not trained.
  absl::StatusOr<std::map<std::string, NamedTensor>> Parameters();

 private:
  OnnxTraining() = default;
  absl::StatusOr<NamedTensor> Read(int buffer);

  Graph graph_;
  size_t imported_ = 0;
  std::map<std::string, int> observed_;  // buffers
  int64_t observed_bytes_ = 0;
  int64_t predicted_peak_bytes_ = 0;
  std::unique_ptr<BatchSource> source_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Executor> executor_;
  int64_t step_ = 0;
};

}  // namespace espalier::conformance
