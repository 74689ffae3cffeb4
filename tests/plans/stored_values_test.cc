// The way of initial values and large constants from the coordinator to ranks of any plan.
#include "server/jobs/stored_values.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/cpu/layout/copy_box.h"
#include "ops/graph/take_initial_values.h"
#include "planner/testing/graphs.h"
#include "storage/checkpoint.h"
#include "storage/folder_checkpoint_store.h"
#include "worker/device/device.h"
#include "worker/executor/executor.h"
#include "worker/stored_values.h"

namespace espalier {
namespace {

constexpr int64_t kBatch = 8, kInputs = 1200, kHidden = 4500, kClasses = 10;
constexpr int64_t kLargestProgram = 1 << 16;  // bytes; the weights take 21.8 MB

std::string Bytes(int64_t floats, uint32_t seed) {
  std::string bytes(static_cast<size_t>(4 * floats), '\0');
  for (int64_t i = 0; i < floats; ++i) {
    seed = 1664525u * seed + 1013904223u;  // Numerical Recipes
    const float value = static_cast<float>(seed >> 8) / static_cast<float>(1 << 24) - 0.5f;
    std::memcpy(bytes.data() + 4 * i, &value, 4);
  }
  return bytes;
}

class NoData : public BatchSource {
 public:
  absl::Status Prepare(const std::string&, const TensorSpec&) override { return absl::OkStatus(); }
  absl::Status Load(const std::string&, const TensorSpec&, int64_t, void*) override {
    return absl::UnimplementedError("no data");
  }
};

class StoredValuesTest : public testing::Test {
 protected:
  StoredValuesTest() {
    std::filesystem::remove_all(folder_);
    GraphBuilder b(TestRegistry(), "mlp");
    const ValueId labels = b.Input("labels", DType::kI32, {-1});
    ValueId x = b.Input("x", DType::kF32, {-1, kInputs});
    x = b.Op("add", {x, b.Constant("table", DType::kF32, {kInputs}, Bytes(kInputs, 1))});
    x = b.Op("multiply", {x, b.Constant("factor", DType::kF32, {1}, Bytes(1, 2))});
    const Initializer normal{Initializer::kNormal, 0.1};
    x = b.Op("linear", {x, b.Parameter("fc1.weight", DType::kF32, {kHidden, kInputs}, normal),
                        b.Parameter("fc1.bias", DType::kF32, {kHidden}, normal)});
    x = b.Op("linear", {b.Op("relu", {x}),
                        b.Parameter("fc2.weight", DType::kF32, {kClasses, kHidden}, normal)});
    b.Output("loss", b.Op("sparse_categorical_crossentropy", {x, labels}));
    graph_ = Bound(b.Build(), kBatch);
    // fc1.bias keeps its initializer.
    for (const char* name : {"fc1.weight", "fc2.weight"}) {
      Value& value = graph_.mutable_value(graph_.FindValue(name));
      value.constant = Bytes(value.type.num_elements(), static_cast<uint32_t>(values_.size()));
      values_[name] = value.constant;
    }
    values_["table"] = graph_.value(graph_.FindValue("table")).constant;
    initial_ = TakeInitialValues(&graph_);
  }
  ~StoredValuesTest() override { std::filesystem::remove_all(folder_); }

  LoweredPlan Lower(int devices, v1::SearchOptions::Strategy strategy, int zero_stage = 0) {
    const PlanProblem problem = TestProblem(graph_, kBatch, devices);
    v1::SearchOptions search;
    search.set_strategy(strategy);
    search.set_zero_stage(zero_stage);
    const absl::StatusOr<v1::Plan> plan = MakePlan(problem, search);
    EXPECT_TRUE(plan.ok()) << plan.status();
    LoweringOptions options;
    options.optimizer = problem.optimizer;
    options.max_literal_bytes = kMaxLiteralBytes;
    absl::StatusOr<LoweredPlan> lowered = LowerPlan(TestRegistry(), graph_, *plan, options);
    EXPECT_TRUE(lowered.ok()) << lowered.status();
    return *std::move(lowered);
  }

  absl::StatusOr<std::unique_ptr<Executor>> Load(const v1::Program& program, bool fills = true) {
    ExecutorOptions options;
    options.device = device_.get();
    options.source = &no_data_;
    options.fills_stored = fills;
    return Executor::Create(program, options);
  }

  // Checks all buffers whose value is stored; returns how many are a part of their tensor.
  int ExpectValues(Executor& executor, bool parameters) {
    int parts = 0;
    std::map<std::string, int> seen;
    for (int i = 0; i < executor.num_buffers(); ++i) {
      const auto found = values_.find(executor.tensor_name(i));
      const v1::BufferKind kind = executor.buffer(i).kind();
      if (found == values_.end() || (kind != v1::LITERAL && kind != v1::PARAMETER_SHARD)) continue;
      ++seen[found->first];
      const TensorSpec& spec = executor.spec(i);
      parts += spec.dims != spec.global;
      std::string want(static_cast<size_t>(spec.bytes()), '\0'), have = want;
      if (parameters || kind == v1::LITERAL) {
        CopyBoxOnHost({found->second.data(), want.data(), spec.dtype, spec.global, spec.dims,
                       spec.offset, Dims(spec.dims.size(), 0), spec.dims, false});
      }
      EXPECT_EQ(executor.ReadBuffer(i, have.data(), spec.bytes()), absl::OkStatus());
      EXPECT_TRUE(have == want) << executor.buffer(i).name();
    }
    EXPECT_EQ(seen.count("table"), 1u);
    return parts;
  }

  static constexpr char kFolder[] = "stored_values";
  const std::string folder_ = JoinPath(::testing::TempDir(), kFolder);
  const std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  FolderCheckpointStore store_{*files_, ::testing::TempDir()};
  const std::unique_ptr<Device> device_ = NewCpuDevice({.threads = 1});
  NoData no_data_;
  Graph graph_;
  std::vector<InitialValue> initial_;
  std::map<std::string, std::string> values_;  // what is stored, by name
};

// The message limit is 64 MiB, whatever the size of the model.
TEST_F(StoredValuesTest, EveryRankReadsItsPartAndProgramsStaySmall) {
  absl::StatusOr<StoredValues> stored =
      StoredValues::Write(store_, kFolder, "job-1", graph_, initial_);
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_EQ(stored->folder(), kFolder);
  const struct {
    int devices;
    v1::SearchOptions::Strategy strategy;
    int zero_stage;
    bool splits_parameters;
  } plans[] = {{1, v1::SearchOptions::SINGLE_DEVICE, 0, false},
               {2, v1::SearchOptions::DATA_PARALLEL, 0, false},
               {2, v1::SearchOptions::DATA_PARALLEL, 3, true},
               {4, v1::SearchOptions::DATA_PARALLEL, 3, true}};
  for (const auto& plan : plans) {
    SCOPED_TRACE(absl::StrCat(plan.devices, " devices, ZeRO ", plan.zero_stage));
    const LoweredPlan lowered = Lower(plan.devices, plan.strategy, plan.zero_stage);
    int parts = 0;
    for (const std::vector<v1::Program>* programs : {&lowered.training, &lowered.evaluation}) {
      for (const v1::Program& program : *programs) {
        EXPECT_LT(program.ByteSizeLong(), kLargestProgram);
        absl::StatusOr<std::unique_ptr<Executor>> executor = Load(program);
        ASSERT_TRUE(executor.ok()) << executor.status();
        const absl::Status status =
            LoadStoredValues(store_, kFolder, /*parameters=*/true, nullptr, **executor);
        ASSERT_TRUE(status.ok()) << status;
        parts += ExpectValues(**executor, /*parameters=*/true);
      }
    }
    EXPECT_EQ(parts > 0, plan.splits_parameters);
  }
  stored->Remove();
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

// As an attempt that continues from a checkpoint does.
TEST_F(StoredValuesTest, ConstantsAreReadWithoutParameters) {
  ASSERT_TRUE(StoredValues::Write(store_, kFolder, "job-1", graph_, {}).ok());
  EXPECT_LT(std::filesystem::file_size(folder_ + "/rank-0.safetensors"), 1 << 14);
  const LoweredPlan lowered = Lower(1, v1::SearchOptions::SINGLE_DEVICE);
  absl::StatusOr<std::unique_ptr<Executor>> executor = Load(lowered.training[0]);
  ASSERT_TRUE(executor.ok()) << executor.status();
  absl::Status status =
      LoadStoredValues(store_, kFolder, /*parameters=*/false, nullptr, **executor);
  EXPECT_TRUE(status.ok()) << status;
  ExpectValues(**executor, /*parameters=*/false);
  status = LoadStoredValues(store_, kFolder, /*parameters=*/true, nullptr, **executor);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_NE(status.message().find("fc1.weight"), std::string::npos) << status;
}

// Never zeros in place of values.
TEST_F(StoredValuesTest, MissingOrDamagedValuesAreRefused) {
  const LoweredPlan lowered = Lower(1, v1::SearchOptions::SINGLE_DEVICE);
  const absl::Status unaware = Load(lowered.training[0], /*fills=*/false).status();
  EXPECT_EQ(unaware.code(), absl::StatusCode::kInvalidArgument) << unaware;
  absl::StatusOr<std::unique_ptr<Executor>> executor = Load(lowered.training[0]);
  ASSERT_TRUE(executor.ok()) << executor.status();
  absl::Status status = LoadStoredValues(store_, "", true, nullptr, **executor);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  status = LoadStoredValues(store_, kFolder, true, nullptr, **executor);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;

  ASSERT_TRUE(StoredValues::Write(store_, kFolder, "job-1", graph_, initial_).ok());
  std::fstream file(folder_ + "/rank-0.safetensors", std::ios::in | std::ios::out);
  file.seekp(-100, std::ios::end).put('!');
  file.close();
  status = LoadStoredValues(store_, kFolder, true, nullptr, **executor);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
}

// A plan trains f16 and bf16 parameters in f32.
TEST_F(StoredValuesTest, NarrowValuesAreWrittenInThePlansType) {
  const Value& bias = graph_.value(graph_.FindValue("fc1.bias"));
  std::string halves;  // 0.5, 1.5, -2 again and again
  for (int64_t i = 0; i < kHidden; ++i)
    halves.append(i % 3 == 0 ? "\x00\x38" : i % 3 == 1 ? "\x00\x3e" : "\x00\xc0", 2);
  const InitialValue narrow{"fc1.bias", {DType::kF16, bias.type.dims}, ReaderOfBytes(halves)};
  ASSERT_TRUE(StoredValues::Write(store_, kFolder, "job-1", graph_, {narrow}).ok());
  const auto reader = CheckpointReader::Open(store_, kFolder);
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::vector<float> values(kHidden);
  const absl::Status status =
      (*reader)->Read("fc1.bias", TensorSpec::Whole(bias.type), values.data());
  ASSERT_TRUE(status.ok()) << status;
  const float expected[] = {0.5f, 1.5f, -2.0f};
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], expected[i % 3]) << i;
}

TEST_F(StoredValuesTest, NothingIsWrittenForAModelWithoutValues) {
  absl::StatusOr<StoredValues> stored = StoredValues::Write(store_, kFolder, "job-1", Mlp(), {});
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_EQ(stored->folder(), "");
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

}  // namespace
}  // namespace espalier
