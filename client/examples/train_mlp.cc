// Builds a multi-layer perceptron in code and trains it on a coordinator:
//
//   espalier up --local-workers=2
//   bazel run //client/examples:train_mlp -- 127.0.0.1:7070 $PWD/tests/data/digits.npz
//
// The dataset has columns "x", f32 [examples, 1, 8, 8], and "y", the classes 0 to 9.
#include <cstdio>
#include <string>

#include "client/lib/client.h"
#include "ops/graph/builder.h"
#include "ops/graph/graph_proto.h"
#include "ops/operators/register_all.h"

namespace {

using espalier::DType;
using espalier::GraphBuilder;
using espalier::Initializer;
using espalier::ValueId;

absl::StatusOr<espalier::Graph> BuildMlp() {
  espalier::OpRegistry registry;
  espalier::RegisterAllOperators(registry);
  GraphBuilder b(registry, "mlp");
  // -1 is the batch dimension, set by the job.
  ValueId x = b.Input("x", DType::kF32, {-1, 1, 8, 8});
  ValueId labels = b.Input("labels", DType::kI64, {-1});
  ValueId h = b.Op("flatten", {x}, {{"axis", int64_t{1}}}, "flatten");
  const auto layer = [&](const std::string& name, ValueId in, int64_t from, int64_t to) {
    ValueId weight =
        b.Parameter(name + ".weight", DType::kF32, {to, from}, {Initializer::kGlorotUniform});
    ValueId bias = b.Parameter(name + ".bias", DType::kF32, {to}, {Initializer::kZeros});
    return b.Op("linear", {in, weight, bias}, {}, name);
  };
  h = b.Op("relu", {layer("hidden", h, 64, 128)}, {}, "hidden.relu");
  ValueId logits = layer("classes", h, 128, 10);
  b.Output("loss", b.Op("sparse_categorical_crossentropy", {logits, labels}, {}, "loss"));
  b.Output("accuracy", b.Op("accuracy", {logits, labels}, {}, "accuracy"));
  return b.Build();
}

absl::Status Train(const std::string& address, const std::string& dataset) {
  auto graph = BuildMlp();
  if (!graph.ok()) return graph.status();
  auto client = espalier::Client::Connect(address);
  if (!client.ok()) return client.status();
  auto artifact = (*client)->EnsureUploaded(dataset, espalier::v1::Artifact::DATASET);
  if (!artifact.ok()) return artifact.status();

  espalier::v1::TrainingSpec spec;
  spec.set_name("mlp");
  *spec.mutable_graph() = espalier::ToProto(*graph);
  spec.mutable_dataset()->set_uri("artifact:" + *artifact);
  spec.mutable_dataset()->set_format(espalier::v1::Dataset::NPZ);
  (*spec.mutable_dataset()->mutable_columns())["labels"] = "y";
  spec.mutable_dataset()->set_holdout_fraction(0.2);
  spec.set_batch_size(64);
  spec.set_epochs(10);
  spec.mutable_optimizer()->set_name("adam");
  spec.mutable_optimizer()->mutable_learning_rate()->set_peak(1e-3);

  auto job = (*client)->Submit(spec);
  if (!job.ok()) return job.status();
  absl::Status watched =
      (*client)->Watch(job->job_id(), 0, [](const espalier::v1::JobEvent& event) {
        if (event.has_step() && event.step().step() % 20 == 0) {
          std::printf("step %lld  loss %.4f\n", static_cast<long long>(event.step().step()),
                      event.step().values().at("loss"));
        }
        return true;
      });
  if (!watched.ok()) return watched;
  auto reply = (*client)->GetJob(job->job_id());
  if (!reply.ok()) return reply.status();
  if (reply->job().state() != espalier::v1::SUCCEEDED)
    return absl::AbortedError(reply->job().error());
  for (const auto& [name, value] : reply->job().evaluation()) {
    std::printf("held-out %s %.4f\n", name.c_str(), value);
  }
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s HOST:PORT DATA.npz\n", argv[0]);
    return 2;
  }
  if (absl::Status status = Train(argv[1], argv[2]); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}
