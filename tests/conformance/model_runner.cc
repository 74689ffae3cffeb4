// Trains an ONNX file for some steps of SGD and writes what models_test.py compares, as
// safetensors: "prediction" and "gradient.<parameter>" of the first step, "losses" by step and
// "parameter.<name>" after the last. Metadata: "nodes" (operator -> count, JSON), "imported"
// (operators before fusion), "seconds" (of the steps together), "predicted_bytes" of device memory
// by the plan, "measured_bytes" that the executor took, "arena_bytes" of them without workspace.
#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "nlohmann/json.hpp"
#include "storage/safetensors.h"
#include "tests/conformance/onnx_training.h"

ABSL_FLAG(std::string, model, "", "the ONNX file");
ABSL_FLAG(std::string, data, "", "the .npz: a column by graph input, and \"labels\"");
ABSL_FLAG(std::string, out, "", "where to write");
ABSL_FLAG(int, batch, 1, "examples in a step");
ABSL_FLAG(std::string, loss, "sparse_categorical_crossentropy", "operator");
ABSL_FLAG(int, steps, 10, "");
ABSL_FLAG(double, learning_rate, 0.01, "");
ABSL_FLAG(double, momentum, 0.9, "");
ABSL_FLAG(int, threads, 2, "");

namespace espalier::conformance {
namespace {

absl::Status Write(const std::map<std::string, NamedTensor>& tensors,
                   const std::map<std::string, std::string>& metadata, const std::string& path) {
  const std::unique_ptr<FileSystem> files = NewPosixFileSystem();
  SafetensorsWriter writer(*files, path);
  std::vector<SafetensorsWriter::Tensor> heads;
  for (const auto& [name, tensor] : tensors) heads.push_back({name, tensor.type});
  absl::Status status = writer.Begin(heads, metadata);
  for (auto it = tensors.begin(); status.ok() && it != tensors.end(); ++it) {
    status = writer.Append(it->second.bytes.data(), static_cast<int64_t>(it->second.bytes.size()));
  }
  if (!status.ok()) return status;
  return writer.Finish().status();
}

absl::Status Run() {
  OnnxTrainingOptions options;
  options.model = absl::GetFlag(FLAGS_model);
  options.data = absl::GetFlag(FLAGS_data);
  options.batch = absl::GetFlag(FLAGS_batch);
  options.loss = absl::GetFlag(FLAGS_loss);
  options.threads = absl::GetFlag(FLAGS_threads);
  options.optimizer.set_name("sgd");
  (*options.optimizer.mutable_attributes())["momentum"].set_f(absl::GetFlag(FLAGS_momentum));
  options.optimizer.mutable_learning_rate()->set_peak(absl::GetFlag(FLAGS_learning_rate));
  options.observe = true;
  absl::StatusOr<std::unique_ptr<OnnxTraining>> training = OnnxTraining::Create(options);
  if (!training.ok()) return training.status();

  std::map<std::string, NamedTensor> result;
  std::string losses;
  const auto start = std::chrono::steady_clock::now();
  for (int step = 0; step < absl::GetFlag(FLAGS_steps); ++step) {
    absl::StatusOr<StepResult> done = (*training)->Step();
    if (!done.ok()) return done.status();
    const float loss = static_cast<float>(done->values["loss"]);
    losses.append(reinterpret_cast<const char*>(&loss), sizeof(loss));
    if (step > 0) continue;
    absl::StatusOr<std::map<std::string, NamedTensor>> observed = (*training)->Observed();
    if (!observed.ok()) return observed.status();
    result = *std::move(observed);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  absl::StatusOr<std::map<std::string, NamedTensor>> parameters = (*training)->Parameters();
  if (!parameters.ok()) return parameters.status();
  result.merge(*parameters);
  result["losses"] = {{DType::kF32, {absl::GetFlag(FLAGS_steps)}}, losses};

  std::map<std::string, int> nodes;
  for (const Node& node : (*training)->graph().nodes()) ++nodes[node.op];
  return Write(result,
               {{"nodes", nlohmann::json(nodes).dump()},
                {"imported", absl::StrCat((*training)->imported_operators())},
                {"seconds", absl::StrCat(seconds.count())},
                {"predicted_bytes", absl::StrCat((*training)->predicted_peak_bytes())},
                {"measured_bytes", absl::StrCat((*training)->measured_peak_bytes())},
                {"arena_bytes", absl::StrCat((*training)->arena_bytes())}},
               absl::GetFlag(FLAGS_out));
}

}  // namespace
}  // namespace espalier::conformance

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  if (absl::Status status = espalier::conformance::Run(); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}
