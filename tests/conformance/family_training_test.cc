// Every dense family that can be served can be trained: the training graph of a folder computes the
// serving graph's logits over whole sequences; a few steps lower the loss and change every
// parameter; and the folder written from the job's checkpoint serves the trained logits. The cases
// are those of family_logits_test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/distillation.h"
#include "models/model.h"
#include "models/quantize.h"
#include "models/weights/weight_files.h"
#include "ops/onnx/cpu_evaluator.h"
#include "ops/operators/register_all.h"
#include "planner/cost/analytic_cost.h"
#include "planner/planner.h"
#include "storage/checkpoint.h"
#include "storage/folder_checkpoint_store.h"
#include "tests/conformance/family_model.h"
#include "tests/plans/in_process_training.h"
#include "worker/executor/executor.h"
#include "worker/runner/program_model_runner.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

using Tensors = std::map<std::string, std::string>;  // bytes by name

constexpr int kBatch = 2;
constexpr int kSteps = 12;

bool IsMixture(const FamilyCase& c) {
  return c["config"].dump().find("experts") != std::string::npos;
}

std::vector<FamilyCase> Cases(bool mixtures) {
  std::vector<FamilyCase> cases;
  for (const FamilyCase& c : ReadFamilyCases("tests/conformance/families.json")) {
    if (IsMixture(c) == mixtures) cases.push_back(c);
  }
  return cases;
}

template <typename T>
std::string BytesOf(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

std::vector<float> FloatsOf(const std::string& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// Reads every tensor of a folder as f32.
Tensors ReadFolder(FileSystem& files, const std::string& folder) {
  Tensors tensors;
  const absl::StatusOr<std::unique_ptr<WeightFiles>> weights = OpenWeights(files, folder);
  EXPECT_TRUE(weights.ok()) << weights.status();
  if (!weights.ok()) return tensors;
  for (const auto& [name, tensor] : (*weights)->tensors()) {
    std::vector<float> values(static_cast<size_t>(NumElements(tensor.dims)));
    EXPECT_TRUE((*weights)->Read(name, 0, static_cast<int64_t>(values.size()), values.data()).ok());
    tensors[name] = BytesOf(values);
  }
  return tensors;
}

// A dataset with the same batch at each step.
class OneBatch : public BatchSource {
 public:
  explicit OneBatch(Tensors columns) : columns_(std::move(columns)) {}
  absl::Status Prepare(const std::string& column, const TensorSpec& spec) override {
    return columns_.count(column) > 0 ? absl::OkStatus() : absl::NotFoundError(column);
  }
  absl::Status Load(const std::string& column, const TensorSpec& spec, int64_t,
                    void* host) override {
    std::memcpy(host, columns_.at(column).data(), static_cast<size_t>(spec.bytes()));
    return absl::OkStatus();
  }

 private:
  const Tensors columns_;
};

class ParametersOf : public CheckpointSource {
 public:
  explicit ParametersOf(Executor& executor) : executor_(executor) {
    for (int b = 0; b < executor.num_buffers(); ++b) {
      if (executor.buffer(b).kind() != v1::PARAMETER_SHARD || executor.is_alias(b)) continue;
      buffers_.push_back(b);
      entries_.push_back({executor.tensor_name(b), executor.spec(b), false});
    }
  }
  const std::vector<CheckpointEntry>& entries() const { return entries_; }
  absl::Status Read(int entry, std::vector<char>* bytes) override {
    const int buffer = buffers_[static_cast<size_t>(entry)];
    bytes->resize(static_cast<size_t>(executor_.spec(buffer).bytes()));
    return executor_.ReadBuffer(buffer, bytes->data(), static_cast<int64_t>(bytes->size()));
  }

 private:
  Executor& executor_;
  std::vector<int> buffers_;
  std::vector<CheckpointEntry> entries_;
};

class FamilyTraining : public ::testing::TestWithParam<FamilyCase> {
 protected:
  void SetUp() override {
    const FamilyCase& c = GetParam();
    RegisterAllOperators(registry_);
    folder_ = JoinPath(::testing::TempDir(), c.name() + "-training");
    const absl::Status written = WriteFamilyFolder(*files_, folder_, c);
    ASSERT_TRUE(written.ok()) << written;
    absl::StatusOr<LanguageModel> model = ReadModel(c["config"].dump());
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    // Two sequences of different tokens.
    std::vector<int32_t> tokens = c["tokens"].get<std::vector<int32_t>>();
    sequences_.push_back(tokens);
    std::reverse(tokens.begin(), tokens.end());
    sequences_.push_back(tokens);
    length_ = static_cast<int>(tokens.size());
    std::vector<int32_t> all, targets;
    for (const std::vector<int32_t>& sequence : sequences_) {
      all.insert(all.end(), sequence.begin(), sequence.end());
      targets.insert(targets.end(), sequence.begin() + 1, sequence.end());
      targets.push_back(-100);
    }
    batch_ = {{"tokens", BytesOf(all)}, {"targets", BytesOf(targets)}};
  }

  absl::StatusOr<Graph> Training(int soft_labels = 0) {
    absl::StatusOr<TrainingModel> training =
        soft_labels > 0 ? BuildDistillation(registry_, model_, length_, soft_labels)
                        : BuildTraining(registry_, model_, length_);
    if (!training.ok()) return training.status();
    absl::Status bound = BindAndInfer(registry_, kBatch, &training->graph);
    if (!bound.ok()) return bound;
    return std::move(training->graph);
  }

  // Returns the input of the loss, [kBatch, tokens, vocabulary].
  absl::StatusOr<std::vector<float>> TrainingLogits(const Graph& graph, const Tensors& parameters) {
    const ValueId accuracy = graph.FindOutput("accuracy");
    if (accuracy == kNoValue) return absl::NotFoundError("accuracy");
    return Compute(graph, parameters, graph.node(graph.value(accuracy).producer).inputs[0]);
  }

  // Computes a value of the graph, operator by operator.
  absl::StatusOr<std::vector<float>> Compute(const Graph& graph, const Tensors& parameters,
                                             ValueId wanted) {
    std::vector<std::string> bytes(graph.values().size());
    for (size_t v = 0; v < bytes.size(); ++v) {
      const Value& value = graph.values()[v];
      if (value.kind == ValueKind::kConstant) bytes[v] = value.constant;
      if (value.kind == ValueKind::kInput) bytes[v] = batch_.at(value.name);
      if (value.kind != ValueKind::kParameter) continue;
      const auto found = parameters.find(value.name);
      if (found == parameters.end()) return absl::NotFoundError(value.name);
      bytes[v] = found->second;
    }
    const Evaluator evaluate = CpuEvaluator();
    for (NodeId n = 0; n < static_cast<NodeId>(graph.nodes().size()); ++n) {
      const Node& node = graph.node(n);
      std::vector<const std::string*> inputs;
      for (const ValueId input : node.inputs) {
        inputs.push_back(input == kNoValue ? nullptr : &bytes[static_cast<size_t>(input)]);
      }
      absl::StatusOr<std::vector<std::string>> outputs =
          evaluate(node.op, graph.TypesOf(n), inputs);
      if (!outputs.ok()) return outputs.status();
      for (size_t o = 0; o < node.outputs.size(); ++o) {
        bytes[static_cast<size_t>(node.outputs[o])] = (*outputs)[o];
        if (node.outputs[o] == wanted) return FloatsOf((*outputs)[o]);
      }
    }
    return absl::NotFoundError("no node computes it");
  }

  // Computes the logits with the serving graph.
  absl::StatusOr<std::vector<float>> ServedLogits(const std::string& folder) {
    absl::StatusOr<std::string> config = ReadModelConfig(*files_, folder);
    if (!config.ok()) return config.status();
    const absl::StatusOr<LanguageModel> model = ReadModel(*config);
    if (!model.ok()) return model.status();
    // Frequencies of longrope are those for sequences of this length on both sides.
    const ServingShape shape{.max_rows = kBatch * length_,
                             .max_output_rows = kBatch * length_,
                             .kv_slots = kBatch * kSequenceSlots,
                             .max_sequences = kBatch,
                             .max_context_slots = kBatch * length_,
                             .max_ancestor_slots = 1,
                             .max_positions = length_};
    absl::StatusOr<ServingModel> serving = BuildServing(registry_, *model, shape);
    if (!serving.ok()) return serving.status();
    absl::Status status = BindAndInfer(registry_, 1, &serving->graph);
    if (!status.ok()) return status;
    const absl::StatusOr<v1::Program> program = LowerServing(registry_, serving->graph);
    if (!program.ok()) return program.status();
    const std::unique_ptr<Device> device = NewCpuDevice({1, 1 << 26});
    auto runner =
        ProgramModelRunner::Create(*program, folder, length_, device.get(), serving->weights);
    if (!runner.ok()) return runner.status();
    RunnerBatch batch;
    for (int s = 0; s < kBatch; ++s) {
      AddSequence(&batch, sequences_[static_cast<size_t>(s)], 0, length_, s);
    }
    RunnerOutput logits;
    status = (*runner)->Step(batch, &logits);
    if (!status.ok()) return status;
    return logits.values;
  }

  absl::StatusOr<v1::Program> TrainingProgram(const Graph& graph) {
    AnalyticCost cost;
    PlanProblem problem;
    problem.registry = &registry_;
    problem.graph = &graph;
    problem.batch_size = kBatch;
    problem.machine = TestMachine(1);
    problem.optimizer = AdamW(1e-2);
    problem.cost = &cost;
    v1::SearchOptions search;
    search.set_strategy(v1::SearchOptions::SINGLE_DEVICE);
    absl::StatusOr<v1::Plan> plan = MakePlan(problem, search);
    if (!plan.ok()) return plan.status();
    LoweringOptions lowering;
    lowering.optimizer = problem.optimizer;
    absl::StatusOr<LoweredPlan> lowered = LowerPlan(registry_, graph, *plan, lowering);
    if (!lowered.ok()) return lowered.status();
    return std::move(lowered->training[0]);
  }

  // Trains the folder's model and writes it to `out`. Fills in the loss of each step.
  absl::Status Train(const Graph& graph, const std::string& out, std::vector<double>* losses) {
    const absl::StatusOr<v1::Program> program = TrainingProgram(graph);
    if (!program.ok()) return program.status();
    const std::unique_ptr<Device> device = NewCpuDevice({1, 1 << 27});
    if (absl::Status status = device->EnterThread(KernelThreads::kOpenMp); !status.ok())
      return status;
    OneBatch source(batch_);
    absl::StatusOr<std::unique_ptr<Executor>> executor =
        Executor::Create(*program, {.device = device.get(), .source = &source});
    if (!executor.ok()) return executor.status();
    WeightMap by_name;
    by_name.ignored = {""};
    absl::Status status = LoadWeights(folder_, by_name, **executor);
    for (int step = 0; step < kSteps && status.ok(); ++step) {
      absl::StatusOr<StepResult> done = (*executor)->Step(step);
      status = done.status();
      if (done.ok()) losses->push_back(done->values.at("loss"));
    }
    if (!status.ok()) return status;
    FolderCheckpointStore store(*files_, out + ".checkpoint");
    const std::string checkpoint = "checkpoint";
    ParametersOf parameters(**executor);
    absl::StatusOr<ManifestFile> shard =
        WriteCheckpointShard(store, checkpoint, 0, parameters.entries(), parameters);
    if (!shard.ok()) return shard.status();
    Manifest manifest;
    manifest.files = {*shard};
    status = WriteManifest(store, checkpoint, manifest);
    if (!status.ok()) return status;
    return ExportHuggingFace(store, checkpoint, graph.metadata.at("config"), *files_, out);
  }

  static void ExpectEqual(const absl::StatusOr<std::vector<float>>& trained,
                          const absl::StatusOr<std::vector<float>>& served) {
    ASSERT_TRUE(trained.ok()) << trained.status();
    ASSERT_TRUE(served.ok()) << served.status();
    ASSERT_EQ(trained->size(), served->size());
    double worst = 0;
    for (size_t i = 0; i < trained->size(); ++i) {
      const double apart = std::fabs((*trained)[i] - (*served)[i]);
      ASSERT_TRUE(std::isfinite(apart)) << i;
      worst = std::max(worst, apart / std::max(1.f, std::fabs((*served)[i])));
    }
    EXPECT_LE(worst, 1e-5);
  }

  OpRegistry registry_;
  std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  std::string folder_;
  LanguageModel model_;
  std::vector<std::vector<int32_t>> sequences_;
  int length_ = 0;
  Tensors batch_;
};

TEST_P(FamilyTraining, LogitsMatchServingBeforeAndAfterTraining) {
  const absl::StatusOr<Graph> graph = Training();
  ASSERT_TRUE(graph.ok()) << graph.status();
  const Tensors before = ReadFolder(*files_, folder_);
  ExpectEqual(TrainingLogits(*graph, before), ServedLogits(folder_));
  if (HasFailure()) return;

  const std::string out = folder_ + "-done";
  std::vector<double> losses;
  const absl::Status trained = Train(*graph, out, &losses);
  ASSERT_TRUE(trained.ok()) << trained;
  EXPECT_LT(losses.back(), 0.8 * losses.front());

  const Tensors after = ReadFolder(*files_, out);
  for (const auto& [name, values] : after) {
    ASSERT_EQ(before.count(name), 1u) << name << " is no tensor of the family's files";
    EXPECT_EQ(before.at(name).size(), values.size()) << name;
    EXPECT_NE(before.at(name), values) << name << " was not trained";
  }
  EXPECT_EQ(static_cast<int64_t>(after.size()),
            std::count_if(graph->values().begin(), graph->values().end(),
                          [](const Value& value) { return value.kind == ValueKind::kParameter; }));
  ExpectEqual(TrainingLogits(*graph, after), ServedLogits(out));
}

// The loss of soft labels is the cross entropy with their weights.
TEST_P(FamilyTraining, SoftLabelLossIsWeightedCrossEntropy) {
  constexpr int kSoft = 3;
  const absl::StatusOr<Graph> graph = Training(kSoft);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const int places = kBatch * length_, vocabulary = static_cast<int>(model_.facts.vocab_size);
  std::vector<int32_t> tokens;
  std::vector<float> weights;
  for (int i = 0; i < places * kSoft; ++i) {
    tokens.push_back(i * 7 % vocabulary);
    weights.push_back(static_cast<float>(i % 5) / 8);
  }
  batch_["soft_tokens"] = BytesOf(tokens);
  batch_["soft_weights"] = BytesOf(weights);
  const Tensors parameters = ReadFolder(*files_, folder_);
  const absl::StatusOr<std::vector<float>> logits = TrainingLogits(*graph, parameters);
  ASSERT_TRUE(logits.ok()) << logits.status();
  const absl::StatusOr<std::vector<float>> loss =
      Compute(*graph, parameters, graph->FindOutput("loss"));
  ASSERT_TRUE(loss.ok()) << loss.status();
  double expected = 0;
  for (int place = 0; place < places; ++place) {
    const float* row = logits->data() + static_cast<size_t>(place) * model_.facts.vocab_size;
    double sum = 0;
    for (int c = 0; c < vocabulary; ++c) sum += std::exp(static_cast<double>(row[c]));
    for (int s = place * kSoft; s < (place + 1) * kSoft; ++s) {
      expected += weights[static_cast<size_t>(s)] *
                  (std::log(sum) - row[tokens[static_cast<size_t>(s)]]) / places;
    }
  }
  EXPECT_NEAR(loss->front(), expected, 1e-5 * expected);

  std::vector<double> losses;
  const absl::Status trained = Train(*graph, folder_ + "-soft", &losses);
  ASSERT_TRUE(trained.ok()) << trained;
  EXPECT_NEAR(losses.front(), expected, 1e-5 * expected);
  EXPECT_LT(losses.back(), losses.front());
}

std::string NameOf(const ::testing::TestParamInfo<FamilyCase>& info) { return info.param.name(); }

INSTANTIATE_TEST_SUITE_P(All, FamilyTraining, ::testing::ValuesIn(Cases(/*mixtures=*/false)),
                         NameOf);

class MixtureTraining : public ::testing::TestWithParam<FamilyCase> {};

TEST_P(MixtureTraining, RejectsMoeFamilies) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  const absl::StatusOr<LanguageModel> model = ReadModel(GetParam()["config"].dump());
  ASSERT_TRUE(model.ok()) << model.status();
  const absl::Status status = BuildTraining(registry, *model, 8).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("'" + model->facts.family + "' is a mixture"));
}

INSTANTIATE_TEST_SUITE_P(All, MixtureTraining, ::testing::ValuesIn(Cases(/*mixtures=*/true)),
                         NameOf);

}  // namespace
}  // namespace espalier
