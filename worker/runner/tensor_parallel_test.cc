// A model sharded over ranks: what each holds, what they communicate, and that logits equal those
// of one device. tests/conformance/family_logits_test.cc checks logits for all families.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "models/llama.h"
#include "models/quantize.h"
#include "ops/graph/graph_proto.h"
#include "ops/kernel/packed_weights.h"
#include "ops/operators/register_all.h"
#include "planner/planner.h"
#include "storage/safetensors.h"
#include "worker/executor/initialize.h"
#include "worker/runner/in_process_model_runner.h"
#include "worker/runner/save_weights.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

constexpr int kSlots = 48;

LlamaConfig Config() {
  LlamaConfig config;
  config.vocab_size = 64;
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.num_layers = 3;
  config.num_heads = 8;
  config.num_kv_heads = 4;
  config.head_dim = 8;
  config.max_position_embeddings = 64;
  return config;
}

class TensorParallelTest : public testing::Test {
 protected:
  TensorParallelTest() { RegisterAllOperators(registry_); }

  void SetUp() override {
    folder_ =
        JoinPath(testing::TempDir(), testing::UnitTest::GetInstance()->current_test_info()->name());
    ASSERT_TRUE(files_->CreateDirectories(folder_).ok());
  }

  ServingModel Build(const LlamaConfig& config, WeightFormat format = WeightFormat::kF32) {
    return Build(ToConfigJson(config), format);
  }
  // Parameters are loaded by their own names.
  ServingModel Build(const std::string& config, WeightFormat format) {
    absl::StatusOr<LanguageModel> model = ReadModel(config);
    EXPECT_TRUE(model.ok()) << model.status();
    const ServingShape shape{.max_rows = 16,
                             .max_output_rows = 8,
                             .kv_slots = kSlots,
                             .max_sequences = 4,
                             .max_context_slots = 64,
                             .max_ancestor_slots = 32};
    absl::StatusOr<ServingModel> serving = BuildServing(registry_, *model, shape);
    EXPECT_TRUE(serving.ok()) << serving.status();
    EXPECT_TRUE(BindAndInfer(registry_, 1, &serving->graph).ok());
    serving->weights.sources.clear();
    serving = QuantizeServing(registry_, *std::move(serving), format);
    EXPECT_TRUE(serving.ok()) << serving.status();
    AddImplicitSources(serving->graph, &serving->weights);
    return *std::move(serving);
  }

  // Random weights for the graph, changed by `change`, plus `extra`.
  using Change = std::function<void(const SafetensorsWriter::Tensor&, std::vector<float>*)>;
  void WriteWeights(const LlamaConfig& config, const std::string& extra = "",
                    const Change& change = nullptr) {
    WriteWeights(Build(config), extra, change);
  }
  void WriteWeights(const ServingModel& serving, const std::string& extra = "",
                    const Change& change = nullptr) {
    std::vector<SafetensorsWriter::Tensor> tensors;
    for (const Value& value : serving.graph.values()) {
      if (value.kind == ValueKind::kParameter) tensors.push_back({value.name, value.type});
    }
    if (!extra.empty()) tensors.push_back({extra, {DType::kF32, {2}}});
    SafetensorsWriter writer(*files_, JoinPath(folder_, "model.safetensors"));
    ASSERT_TRUE(writer.Begin(tensors, {}).ok());
    v1::Initializer normal;
    normal.set_kind(v1::Initializer::NORMAL);
    normal.set_scale(0.2);
    for (const SafetensorsWriter::Tensor& tensor : tensors) {
      std::vector<float> values(static_cast<size_t>(tensor.type.num_elements()));
      const TensorSpec spec = TensorSpec::Whole(tensor.type);
      ASSERT_TRUE(Initialize(normal, tensor.name, 4, spec, values.data()).ok());
      if (change) change(tensor, &values);
      ASSERT_TRUE(writer.Append(values.data(), tensor.type.bytes()).ok());
    }
    ASSERT_TRUE(writer.Finish().ok());
  }

  std::vector<v1::Program> Programs(const ServingModel& serving, const ServingDegrees& degrees,
                                    int64_t resident_weight_bytes = 0) {
    auto programs = LowerServing(registry_, serving.graph, degrees,
                                 {.resident_weight_bytes = resident_weight_bytes});
    EXPECT_TRUE(programs.ok()) << programs.status();
    return programs.ok() ? *std::move(programs) : std::vector<v1::Program>();
  }

  absl::StatusOr<std::unique_ptr<InProcessModelRunner>> Ranks(const ServingModel& serving,
                                                              const ServingDegrees& degrees,
                                                              int64_t resident_weight_bytes = 0) {
    return InProcessModelRunner::Create(Programs(serving, degrees, resident_weight_bytes), folder_,
                                        Limits(), 8, serving.weights);
  }

  static RunnerLimits Limits() {
    return {.vocabulary = 64,
            .kv_slots = kSlots,
            .max_rows = 16,
            .max_sequences = 4,
            .max_context_slots = 64,
            .max_ancestor_slots = 32,
            .max_positions = 64};
  }

  // Rows [begin, end) of one sequence with logits of the last `wanted`.
  static RunnerBatch Rows(int begin, int end, int wanted) {
    RunnerBatch batch;
    for (int i = begin; i < end; ++i) {
      batch.tokens.push_back((i * 37 + 5) % 64);
      batch.positions.push_back(i);
      batch.slots.push_back(10 + i);
      batch.row_sequence.push_back(0);
      batch.row_prefix.push_back(i + 1);
      if (i >= end - wanted) batch.logit_rows.push_back(i - begin);
    }
    batch.ancestor_start.assign(batch.tokens.size() + 1, 0);
    batch.sequence_start = {0, end};
    for (int i = 0; i < end; ++i) batch.sequence_slots.push_back(10 + i);
    return batch;
  }

  // Long, short, without logits, and with them again.
  static std::vector<RunnerOutput> DecodeAll(ModelRunner& runner) {
    std::vector<RunnerOutput> all;
    for (const auto& [begin, end, wanted] :
         {std::tuple{0, 9, 3}, {9, 10, 1}, {10, 14, 0}, {14, 15, 0}, {15, 17, 2}}) {
      all.emplace_back();
      const absl::Status status = runner.Step(Rows(begin, end, wanted), &all.back());
      EXPECT_TRUE(status.ok()) << status;
    }
    return all;
  }

  static void ExpectNear(const std::vector<RunnerOutput>& a, const std::vector<RunnerOutput>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t s = 0; s < a.size(); ++s) {
      ASSERT_EQ(a[s].values.size(), b[s].values.size()) << "step " << s;
      for (size_t i = 0; i < a[s].values.size(); ++i) {
        ASSERT_NEAR(a[s].values[i], b[s].values[i], 1e-5 * std::max(1.f, std::fabs(b[s].values[i])))
            << "step " << s << ", number " << i;
      }
    }
  }

  OpRegistry registry_;
  std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  std::string folder_;
};

constexpr ServingDegrees kDegrees[] = {{2, 1}, {1, 2}, {1, 3}, {2, 2}, {4, 1}, {4, 3}};

TEST_F(TensorParallelTest, LogitsEqualOneDevicesInEveryWeightFormat) {
  WriteWeights(Config());
  for (WeightFormat format : {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kF16,
                              WeightFormat::kInt8, WeightFormat::kInt4}) {
    SCOPED_TRACE(Name(format));
    const ServingModel serving = Build(Config(), format);
    auto alone = Ranks(serving, {1, 1});
    ASSERT_TRUE(alone.ok()) << alone.status();
    const std::vector<RunnerOutput> expected = DecodeAll(**alone);
    ASSERT_NE(expected[0].values[0], expected[0].values[1]);
    for (const ServingDegrees& degrees : kDegrees) {
      SCOPED_TRACE(absl::StrCat(degrees.tensor_parallel, " x ", degrees.pipeline_parallel));
      auto ranks = Ranks(serving, degrees);
      ASSERT_TRUE(ranks.ok()) << ranks.status();
      ExpectNear(DecodeAll(**ranks), expected);
    }
  }
}

double Distance(const std::vector<RunnerOutput>& a, const std::vector<RunnerOutput>& b) {
  double worst = 0;
  for (size_t s = 0; s < a.size(); ++s) {
    for (size_t i = 0; i < a[s].values.size(); ++i) {
      worst = std::max(worst, std::fabs(double{a[s].values[i]} - double{b[s].values[i]}));
    }
  }
  return worst;
}

std::map<v1::CollectiveInstruction::Kind, int> Collectives(const v1::Program& program) {
  std::map<v1::CollectiveInstruction::Kind, int> count;
  for (const v1::Instruction& instruction : program.instructions()) {
    if (instruction.has_collective()) ++count[instruction.collective().kind()];
  }
  return count;
}

// In matrices split along inputs, each output has weights of one input group and zeros elsewhere,
// so a reduction adds one number and zeros: exact in any order. Every group is used by some output.
void KeepOneGroupOfEachOutput(const SafetensorsWriter::Tensor& tensor, std::vector<float>* values) {
  if (!absl::EndsWith(tensor.name, "o_proj.weight") &&
      !absl::EndsWith(tensor.name, "down_proj.weight")) {
    return;
  }
  const int64_t in = tensor.type.dims[1], groups = in / kPackGroup;
  ASSERT_GE(tensor.type.dims[0], groups);
  for (int64_t i = 0; i < tensor.type.num_elements(); ++i) {
    const int64_t output = i / in, group = i % in / kPackGroup;
    if (group != output % groups) (*values)[static_cast<size_t>(i)] = 0;
  }
}

// Packed matrices are split between input groups, whether packed at load or on disk: a layer needs
// no more collectives than in f32, and each rank has the whole matrix's numbers. A sum rounded
// differently can move an input of the next product by one of 255 steps, which no small tolerance
// on logits covers; the weights above avoid it.
TEST_F(TensorParallelTest, PackedMatricesAreSplitBetweenGroups) {
  LlamaConfig config = Config();
  config.hidden_size = 256;
  config.intermediate_size = 512;
  config.head_dim = 32;
  WriteWeights(config, "", KeepOneGroupOfEachOutput);
  const std::string wide = folder_;
  auto exact = Ranks(Build(config), {1, 1});
  ASSERT_TRUE(exact.ok()) << exact.status();
  const std::vector<RunnerOutput> in_f32 = DecodeAll(**exact);
  for (const auto& [format, bits] : {std::pair{WeightFormat::kInt8, 8}, {WeightFormat::kInt4, 4}}) {
    SCOPED_TRACE(Name(format));
    folder_ = wide;
    const ServingModel at_load = Build(config, format);
    auto alone = Ranks(at_load, {1, 1});
    ASSERT_TRUE(alone.ok()) << alone.status();
    const std::vector<RunnerOutput> expected = DecodeAll(**alone);
    EXPECT_GT(Distance(expected, in_f32), 0) << "the format does nothing";
    const std::string packed_folder = JoinPath(wide, Name(format));
    ASSERT_TRUE(files_->CreateDirectories(packed_folder).ok());
    ASSERT_TRUE(SaveWeights((*alone)->rank(0).executor(), *files_,
                            JoinPath(packed_folder, "model.safetensors"), {})
                    .ok());
    ModelFacts facts;
    facts.packed_bits = bits;
    absl::StatusOr<ServingModel> packed =
        ToServingFormat(registry_, Build(config), facts, std::nullopt);
    ASSERT_TRUE(packed.ok()) << packed.status();
    AddImplicitSources(packed->graph, &packed->weights);
    for (const ServingDegrees& degrees : {ServingDegrees{2, 1}, {4, 1}, {2, 2}}) {
      SCOPED_TRACE(absl::StrCat(degrees.tensor_parallel, " x ", degrees.pipeline_parallel));
      folder_ = wide;
      const v1::Program program = Programs(at_load, degrees)[0];
      EXPECT_EQ(Collectives(program), Collectives(Programs(Build(config), degrees)[0]));
      auto ranks = Ranks(at_load, degrees);
      ASSERT_TRUE(ranks.ok()) << ranks.status();
      const std::vector<RunnerOutput> cut = DecodeAll(**ranks);
      EXPECT_EQ(Distance(cut, expected), 0);
      folder_ = packed_folder;
      auto again = Ranks(*packed, degrees);
      ASSERT_TRUE(again.ok()) << again.status();
      EXPECT_EQ(Distance(DecodeAll(**again), cut), 0);
    }
  }
  folder_ = wide;
}

// A rank has some output blocks of each expert's matrix: one contiguous range per expert in a
// packed file.
TEST_F(TensorParallelTest, PackedExpertsAreSplitAtLoadOrFromDisk) {
  const std::string config =
      R"({"architectures": ["MixtralForCausalLM"], "vocab_size": 64, "hidden_size": 64,
          "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 8,
          "num_key_value_heads": 4, "head_dim": 8, "num_local_experts": 3,
          "num_experts_per_tok": 2, "max_position_embeddings": 64})";
  WriteWeights(Build(config, WeightFormat::kF32));
  const std::string wide = folder_;
  for (const auto& [format, bits] : {std::pair{WeightFormat::kInt8, 8}, {WeightFormat::kInt4, 4}}) {
    SCOPED_TRACE(Name(format));
    folder_ = wide;
    const ServingModel at_load = Build(config, format);
    auto alone = Ranks(at_load, {1, 1});
    ASSERT_TRUE(alone.ok()) << alone.status();
    const std::string packed_folder = JoinPath(wide, Name(format));
    ASSERT_TRUE(files_->CreateDirectories(packed_folder).ok());
    ASSERT_TRUE(SaveWeights((*alone)->rank(0).executor(), *files_,
                            JoinPath(packed_folder, "model.safetensors"), {})
                    .ok());
    ModelFacts facts;
    facts.packed_bits = bits;
    absl::StatusOr<ServingModel> packed =
        ToServingFormat(registry_, Build(config, WeightFormat::kF32), facts, std::nullopt);
    ASSERT_TRUE(packed.ok()) << packed.status();
    AddImplicitSources(packed->graph, &packed->weights);
    for (const ServingDegrees& degrees : {ServingDegrees{1, 1}, {2, 1}, {4, 1}, {2, 2}}) {
      SCOPED_TRACE(absl::StrCat(degrees.tensor_parallel, " x ", degrees.pipeline_parallel));
      folder_ = wide;
      auto ranks = Ranks(at_load, degrees);
      ASSERT_TRUE(ranks.ok()) << ranks.status();
      const std::vector<RunnerOutput> cut = DecodeAll(**ranks);
      EXPECT_NE(cut[0].values[0], cut[0].values[1]);
      folder_ = packed_folder;
      for (const int64_t resident : {0, 90000}) {
        auto again = Ranks(*packed, degrees, resident);
        ASSERT_TRUE(again.ok()) << again.status();
        EXPECT_EQ(Distance(DecodeAll(**again), cut), 0);
      }
    }
  }
  folder_ = wide;
}

TEST_F(TensorParallelTest, TiedTablesAreReadByBothEndsOfAPipeline) {
  LlamaConfig config = Config();
  config.tie_word_embeddings = true;
  WriteWeights(config);
  const ServingModel serving = Build(config);
  auto alone = Ranks(serving, {1, 1});
  ASSERT_TRUE(alone.ok()) << alone.status();
  const std::vector<RunnerOutput> expected = DecodeAll(**alone);
  for (const ServingDegrees& degrees : kDegrees) {
    auto ranks = Ranks(serving, degrees);
    ASSERT_TRUE(ranks.ok()) << ranks.status();
    ExpectNear(DecodeAll(**ranks), expected);
  }
}

int64_t BytesOf(const v1::Program& program, v1::BufferKind kind) {
  int64_t bytes = 0;
  for (const v1::Buffer& buffer : program.buffers()) {
    if (buffer.kind() != kind) continue;
    int64_t size = 4;
    for (int64_t d : buffer.spec().dims()) size *= d;
    bytes += size;
  }
  return bytes;
}

TEST_F(TensorParallelTest, EachRankHoldsItsShareOfWeightsAndCache) {
  const ServingModel serving = Build(Config());
  const v1::Program whole = Programs(serving, {1, 1})[0];
  for (const ServingDegrees& degrees : {ServingDegrees{2, 1}, {4, 1}, {1, 3}, {2, 3}}) {
    SCOPED_TRACE(absl::StrCat(degrees.tensor_parallel, " x ", degrees.pipeline_parallel));
    int64_t cache = 0;
    for (const v1::Program& program : Programs(serving, degrees)) {
      EXPECT_EQ(BytesOf(program, v1::PERSISTENT) * degrees.ranks(), BytesOf(whole, v1::PERSISTENT));
      cache += BytesOf(program, v1::PERSISTENT);
      // Norms are on all devices of a stage; embedding table and logits are at the ends of the
      // pipeline.
      const double share = degrees.pipeline_parallel > 1 ? 1.4 : 1.02;
      EXPECT_LE(static_cast<double>(BytesOf(program, v1::PARAMETER_SHARD)),
                share * static_cast<double>(BytesOf(whole, v1::PARAMETER_SHARD)) / degrees.ranks());
    }
    EXPECT_EQ(cache, BytesOf(whole, v1::PERSISTENT));
  }
}

TEST_F(TensorParallelTest, LayerTakesTwoAllReducesAndStageOneSend) {
  const ServingModel serving = Build(Config());
  const std::vector<v1::Program> programs = Programs(serving, {2, 3});
  for (const v1::Program& program : programs) {
    std::map<v1::Instruction::KindCase, int> count;
    for (const v1::Instruction& instruction : program.instructions()) {
      ++count[instruction.kind_case()];
      if (instruction.has_collective()) {
        EXPECT_EQ(instruction.collective().kind(), v1::CollectiveInstruction::ALL_REDUCE);
      }
    }
    const int stage = program.rank() / 2;
    // The embedding table is sharded, too; a stage's last all-reduce precedes its send.
    EXPECT_EQ(count[v1::Instruction::kCollective], stage == 0 ? 3 : 2) << program.rank();
    const bool gathers = stage == 2;  // logits
    EXPECT_EQ(count[v1::Instruction::kSend],
              (stage < 2 ? 1 : 0) + (gathers && program.rank() == 5 ? 1 : 0));
    EXPECT_EQ(count[v1::Instruction::kReceive],
              (stage > 0 ? 1 : 0) + (gathers && program.rank() == 4 ? 1 : 0));
    EXPECT_EQ(program.outputs().contains("logits"), program.rank() == 4);
  }
}

// Bytes of a rank's parameters in its arena.
int64_t ResidentBytes(const v1::Program& program) {
  std::set<int64_t> taken;
  for (const v1::Buffer& buffer : program.buffers()) {
    if (buffer.kind() != v1::PARAMETER_SHARD) continue;
    int64_t bytes = static_cast<int64_t>(SizeOf(FromProto(buffer.spec().dtype())));
    for (int64_t d : buffer.spec().dims()) bytes *= d;
    for (int64_t at = 0; at < bytes; at += 64) taken.insert(buffer.offset_bytes() + at);
  }
  return static_cast<int64_t>(taken.size()) * 64;
}

// Each rank streams its own shards through its own double buffer; results equal those of resident
// weights bit for bit.
TEST_F(TensorParallelTest, WeightsThatStreamOnEveryRankGiveTheSameBits) {
  WriteWeights(Config());
  for (WeightFormat format : {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kInt8}) {
    SCOPED_TRACE(Name(format));
    const ServingModel serving = Build(Config(), format);
    for (const ServingDegrees& degrees :
         {ServingDegrees{1, 1}, {2, 1}, {1, 2}, {2, 2}, {4, 1}, {1, 3}}) {
      SCOPED_TRACE(absl::StrCat(degrees.tensor_parallel, " x ", degrees.pipeline_parallel));
      const std::vector<v1::Program> whole = Programs(serving, degrees);
      int64_t most = 0;
      for (const v1::Program& program : whole) most = std::max(most, ResidentBytes(program));
      // Rejected with the smallest limit that suffices on every rank.
      const absl::Status refused =
          LowerServing(registry_, serving.graph, degrees, {.resident_weight_bytes = 64}).status();
      EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
      const std::string text(refused.message());
      EXPECT_THAT(text, HasSubstr("resident_weight_bytes: "));
      const int64_t least = std::stoll(text.substr(text.rfind(' ') + 1));
      ASSERT_LT(least, most) << text;
      EXPECT_FALSE(
          LowerServing(registry_, serving.graph, degrees, {.resident_weight_bytes = least - 64})
              .ok());
      auto resident = Ranks(serving, degrees);
      ASSERT_TRUE(resident.ok()) << resident.status();
      const std::vector<RunnerOutput> expected = DecodeAll(**resident);
      for (const int64_t budget : {least, (least + most) / 2}) {
        bool streams = false;
        const std::vector<v1::Program> programs = Programs(serving, degrees, budget);
        ASSERT_EQ(programs.size(), whole.size());
        for (size_t r = 0; r < programs.size(); ++r) {
          EXPECT_LE(ResidentBytes(programs[r]), budget);
          EXPECT_LE(programs[r].arena_bytes(), whole[r].arena_bytes());
          EXPECT_GE(ResidentBytes(programs[r]) + programs[r].host_bytes(), ResidentBytes(whole[r]));
          streams |= programs[r].host_bytes() > 0;
        }
        EXPECT_TRUE(streams);
        auto ranks = Ranks(serving, degrees, budget);
        ASSERT_TRUE(ranks.ok()) << ranks.status();
        for (int round = 0; round < 2; ++round) {
          const std::vector<RunnerOutput> found = DecodeAll(**ranks);
          for (size_t s = 0; s < expected.size(); ++s) {
            EXPECT_EQ(found[s].values, expected[s].values) << "step " << s;
          }
        }
      }
    }
  }
}

// Multi-query models, and others with fewer KV heads than devices: a device has the one head that
// its queries read, in weights and cache, and logits equal one device's.
TEST_F(TensorParallelTest, FewerHeadsThanDevicesAreReplicated) {
  for (const int64_t keys : {1, 2}) {
    LlamaConfig config = Config();
    config.hidden_size = 256;
    config.intermediate_size = 512;
    config.head_dim = 32;
    config.num_kv_heads = keys;
    WriteWeights(config, "", KeepOneGroupOfEachOutput);
    for (WeightFormat format :
         {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kInt8, WeightFormat::kInt4}) {
      const ServingModel serving = Build(config, format);
      auto alone = Ranks(serving, {1, 1});
      ASSERT_TRUE(alone.ok()) << alone.status();
      const std::vector<RunnerOutput> expected = DecodeAll(**alone);
      for (const ServingDegrees& degrees : {ServingDegrees{4, 1}, {8, 1}, {4, 3}}) {
        SCOPED_TRACE(absl::StrCat(keys, " heads, ", Name(format), ", ", degrees.tensor_parallel,
                                  " x ", degrees.pipeline_parallel));
        auto ranks = Ranks(serving, degrees);
        ASSERT_TRUE(ranks.ok()) << ranks.status();
        ExpectNear(DecodeAll(**ranks), expected);
        for (size_t r = 0; r < (*ranks)->ranks(); ++r) {
          ProgramModelRunner& rank = (*ranks)->rank(r);
          EXPECT_EQ(rank.kv_cache_bytes(),
                    (*alone)->rank(0).kv_cache_bytes() / keys / degrees.pipeline_parallel);
          for (int i = 0; i < rank.executor().num_buffers(); ++i) {
            if (!absl::StrContains(rank.executor().tensor_name(i), "k_proj.weight")) continue;
            const TensorSpec& spec = rank.executor().spec(i);
            EXPECT_EQ(spec.dims[0] * keys, spec.global[0]) << rank.executor().tensor_name(i);
          }
        }
      }
    }
  }
}

// Packed rows are in blocks, which devices cannot share.
TEST_F(TensorParallelTest, PackedHeadsThatStraddleGroupsAreNotReplicated) {
  const ServingModel serving = Build(Config(), WeightFormat::kInt8);  // of 8 rows each
  const absl::Status status = LowerServing(registry_, serving.graph, ServingDegrees{8, 1}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("packed in 16 rows"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("accepted: divisors of 4"));
}

TEST_F(TensorParallelTest, NamesWhatCannotBeSplit) {
  const auto error = [&](const LlamaConfig& config, const ServingDegrees& degrees) {
    return std::string(LowerServing(registry_, Build(config).graph, degrees).status().message());
  };
  EXPECT_THAT(
      error(Config(), {3, 1}),
      HasSubstr("'layers.0.attention' has 4 key and value heads for 8 of queries; accepted: "
                "1, 2, 4, 8"));
  EXPECT_THAT(error(Config(), {16, 1}), HasSubstr("accepted: 1, 2, 4, 8"));
  EXPECT_THAT(error(Config(), {1, 4}), HasSubstr("the model has 3 layers; accepted: 1 to 3"));
  EXPECT_THAT(error(Config(), {0, 1}), HasSubstr("tensor_parallel is 0"));
  EXPECT_THAT(error(Config(), {1, -1}), HasSubstr("pipeline_parallel is -1"));
  EXPECT_THAT(error(Config(), {1024, 1024}), HasSubstr("up to 1024"));
}

TEST_F(TensorParallelTest, AllRanksRefuseABatchAlikeAndKeepTheirCaches) {
  WriteWeights(Config());
  const ServingModel serving = Build(Config());
  auto ranks = Ranks(serving, {2, 2});
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  RunnerOutput before, after;
  ASSERT_TRUE((*ranks)->Step(Rows(0, 8, 1), &before).ok());
  RunnerBatch bad = Rows(0, 8, 1);
  bad.tokens[3] = 64;  // only the first stage reads it
  for (size_t r = 0; r < (*ranks)->ranks(); ++r) {
    EXPECT_THAT(std::string((*ranks)->rank(r).Check(bad).message()), HasSubstr("tokens[3] is 64"));
  }
  EXPECT_EQ((*ranks)->Step(bad, &after).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE((*ranks)->Step(Rows(7, 8, 1), &after).ok());
  EXPECT_EQ(before.values, after.values);
}

TEST_F(TensorParallelTest, ATensorOfAnotherModelIsRefusedByEveryRank) {
  WriteWeights(Config(), "model.layers.9.mlp.extra");
  const ServingModel serving = Build(Config());
  const std::vector<v1::Program> programs = Programs(serving, {1, 3});
  auto device = NewCpuDevice({1, 1 << 28});
  for (const v1::Program& program : programs) {
    auto rank = ProgramModelRunner::CreateRank(program, folder_, Limits(), 8, device.get(),
                                               serving.weights);
    EXPECT_THAT(std::string(rank.status().message()), HasSubstr("'model.layers.9.mlp.extra'"));
    EXPECT_THAT(std::string(rank.status().message()), HasSubstr("hold 1 tensors"));
  }
}

}  // namespace
}  // namespace espalier
