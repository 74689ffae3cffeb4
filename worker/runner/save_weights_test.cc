// Weights packed once and saved equal weights packed at every load, for families with all ways of
// making parameters of tensors.
#include "worker/runner/save_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "models/model.h"
#include "models/quantize.h"
#include "ops/operators/register_all.h"
#include "planner/planner.h"
#include "worker/runner/program_model_runner.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

// Plain matrices; norms plus 1 and tied output; transposed and fused tensors.
constexpr char kLlama[] =
    R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 40, "hidden_size": 36,
        "intermediate_size": 50, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16, "rms_norm_eps": 1e-6 %s})";
constexpr char kGemma[] =
    R"({"architectures": ["Gemma2ForCausalLM"], "vocab_size": 40, "hidden_size": 32,
        "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16 %s})";
constexpr char kGpt2[] =
    R"({"architectures": ["GPT2LMHeadModel"], "vocab_size": 40, "n_embd": 32, "n_layer": 2,
        "n_head": 2, "n_positions": 64 %s})";

// Many tensors in one parameter, with rows that fill no whole block.
constexpr char kMixtral[] =
    R"({"architectures": ["MixtralForCausalLM"], "vocab_size": 40, "hidden_size": 36,
        "intermediate_size": 50, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16, "num_local_experts": 3,
        "num_experts_per_tok": 2 %s})";

std::string Config(const char* form, const std::string& more = "") {
  std::string text = form;
  return text.replace(text.find(" %s"), 3, more);
}

class SaveWeightsTest : public testing::Test {
 protected:
  SaveWeightsTest() { RegisterAllOperators(registry_); }

  std::string Folder(const std::string& name) {
    const std::string folder = JoinPath(
        testing::TempDir(),
        absl::StrCat("save-", testing::UnitTest::GetInstance()->current_test_info()->name(), name));
    std::filesystem::remove_all(folder);
    EXPECT_TRUE(files_->CreateDirectories(folder).ok());
    return folder;
  }

  absl::StatusOr<ServingModel> Serving(const std::string& config,
                                       std::optional<WeightFormat> format) {
    const ServingShape shape = {16, 8, 48, 4, 64, 32, 0};
    absl::StatusOr<LanguageModel> model = ReadModel(config);
    if (!model.ok()) return model.status();
    absl::StatusOr<ServingModel> serving = BuildServing(registry_, *model, shape);
    if (!serving.ok()) return serving.status();
    absl::Status status = BindAndInfer(registry_, 1, &serving->graph);
    if (!status.ok()) return status;
    return ToServingFormat(registry_, *std::move(serving), model->facts, format);
  }

  absl::StatusOr<std::unique_ptr<ProgramModelRunner>> Runner(const std::string& config,
                                                             std::optional<WeightFormat> format,
                                                             const std::string& folder) {
    const absl::StatusOr<ServingModel> serving = Serving(config, format);
    if (!serving.ok()) return serving.status();
    const absl::StatusOr<v1::Program> program = LowerServing(registry_, serving->graph);
    if (!program.ok()) return program.status();
    return ProgramModelRunner::Create(*program, folder, 48, device_.get(), serving->weights);
  }

  // A checkpoint in Hugging Face's names with random numbers.
  std::string Checkpoint(const std::string& config, float spread = 0.3f) {
    const std::string folder = Folder("checkpoint");
    const absl::StatusOr<ServingModel> serving = Serving(config, std::nullopt);
    EXPECT_TRUE(serving.ok()) << serving.status();
    std::map<std::string, Dims> tensors;
    for (const Value& value : serving->graph.values()) {
      if (value.kind != ValueKind::kParameter) continue;
      const auto source = serving->weights.sources.find(value.name);
      if (source == serving->weights.sources.end()) {
        tensors[value.name] = value.type.dims;
        continue;
      }
      for (const WeightSlice& piece : source->second.pieces) tensors[piece.tensor] = piece.dims;
    }
    SafetensorsWriter writer(*files_, JoinPath(folder, "model.safetensors"));
    std::vector<SafetensorsWriter::Tensor> announced;
    for (const auto& [name, dims] : tensors) announced.push_back({name, {DType::kF32, dims}});
    EXPECT_TRUE(writer.Begin(announced, {}).ok());
    std::mt19937 random(3);
    std::normal_distribution<float> normal(0, spread);
    for (const auto& tensor : announced) {
      std::vector<float> values(static_cast<size_t>(tensor.type.num_elements()));
      for (float& value : values) value = normal(random);
      EXPECT_TRUE(writer.Append(values.data(), tensor.type.bytes()).ok());
    }
    EXPECT_TRUE(writer.Finish().ok());
    return folder;
  }

  static std::map<std::string, std::vector<char>> Parameters(Executor& executor) {
    std::map<std::string, std::vector<char>> all;
    for (int i = 0; i < executor.num_buffers(); ++i) {
      if (executor.buffer(i).kind() != v1::PARAMETER_SHARD) continue;
      std::vector<char>& bytes = all[executor.buffer(i).name()];
      bytes.resize(static_cast<size_t>(executor.spec(i).bytes()));
      EXPECT_TRUE(executor.ReadBuffer(i, bytes.data(), static_cast<int64_t>(bytes.size())).ok());
    }
    return all;
  }

  OpRegistry registry_;
  std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  std::unique_ptr<Device> device_ = NewCpuDevice({1, 1 << 26});
};

std::string Packed(int bits) {
  return absl::StrCat(R"(, "quantization_config": {"quant_method": "espalier", "version": 2,
                          "group_size": 32, "bits": )",
                      bits, "}");
}

TEST_F(SaveWeightsTest, SavedPackedWeightsEqualPackingAtLoad) {
  for (const char* family : {kLlama, kGemma, kGpt2, kMixtral}) {
    const std::string checkpoint = Checkpoint(Config(family));
    for (const auto& [format, bits] :
         {std::pair{WeightFormat::kInt8, 8}, std::pair{WeightFormat::kInt4, 4}}) {
      auto packing = Runner(Config(family), format, checkpoint);
      ASSERT_TRUE(packing.ok()) << packing.status();
      const std::string folder = Folder("packed");
      int64_t last = 0, whole = -1;
      const auto written =
          SaveWeights((*packing)->executor(), *files_, JoinPath(folder, "model.safetensors"), {},
                      [&](int64_t done, int64_t total) {
                        EXPECT_GT(done, last);
                        last = done;
                        whole = total;
                        return absl::OkStatus();
                      });
      ASSERT_TRUE(written.ok()) << written.status();
      EXPECT_EQ(last, whole);
      auto loaded = Runner(Config(family, Packed(bits)), std::nullopt, folder);
      ASSERT_TRUE(loaded.ok()) << loaded.status();
      const auto expected = Parameters((*packing)->executor());
      EXPECT_GT(expected.size(), 8u);
      EXPECT_EQ(Parameters((*loaded)->executor()), expected);
    }
  }
}

TEST_F(SaveWeightsTest, F32SavedAsHalfWhereLossless) {
  const std::string config = Config(kLlama);
  auto runner = Runner(config, std::nullopt, Checkpoint(config));
  ASSERT_TRUE(runner.ok()) << runner.status();
  Executor& executor = (*runner)->executor();
  const auto bytes = [&](auto change) {
    for (int i = 0; i < executor.num_buffers(); ++i) {
      if (executor.buffer(i).kind() != v1::PARAMETER_SHARD) continue;
      std::vector<float> values(static_cast<size_t>(executor.spec(i).num_elements()));
      EXPECT_TRUE(executor.ReadBuffer(i, values.data(), executor.spec(i).bytes()).ok());
      for (float& value : values) value = change(value);
      EXPECT_TRUE(executor.WriteBuffer(i, values.data(), executor.spec(i).bytes()).ok());
    }
    const std::string folder = Folder("narrow");
    const auto before = Parameters(executor);
    const auto written = SaveWeights(executor, *files_, JoinPath(folder, "model.safetensors"), {});
    EXPECT_TRUE(written.ok()) << written.status();
    auto again = Runner(config, std::nullopt, folder);
    EXPECT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(Parameters((*again)->executor()), before);
    return written->bytes;
  };
  const int64_t wide = bytes([](float v) { return v; });
  // Three decimal digits: too many for bf16, too large for f16.
  const int64_t f16 = bytes([](float v) { return std::round(v * 256) / 256; });
  const int64_t bf16 = bytes([](float v) { return std::ldexp(std::round(v * 8), 40); });
  EXPECT_LT(f16, 0.6 * wide);
  EXPECT_LT(bf16, 0.6 * wide);
}

TEST_F(SaveWeightsTest, WeightTooLargeForF16IsRefused) {
  const std::string config = Config(kLlama);
  EXPECT_TRUE(Runner(config, WeightFormat::kF16, Checkpoint(config)).ok());
  const std::string large = Checkpoint(config, 1e6f);
  const absl::Status refused = Runner(config, WeightFormat::kF16, large).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(".weight.f16' has the number"));
  EXPECT_TRUE(Runner(config, WeightFormat::kBF16, large).ok());
}

TEST_F(SaveWeightsTest, UnsupportedParametersAreRefusedByName) {
  const std::string checkpoint = Checkpoint(Config(kLlama));
  const auto error = [](const auto& result) { return std::string(result.status().message()); };
  EXPECT_THAT(error(Runner(Config(kLlama, Packed(8)), std::nullopt, checkpoint)),
              HasSubstr("have no packed matrix 'model.layers.0."));
  EXPECT_THAT(error(Runner(Config(kLlama, Packed(8)), WeightFormat::kInt4, checkpoint)),
              HasSubstr("packed as int8, but int4 is asked for"));
  EXPECT_THAT(error(Runner(Config(kLlama, Packed(5)), std::nullopt, checkpoint)),
              HasSubstr("quantization_config.bits"));
  auto packing = Runner(Config(kLlama), WeightFormat::kInt8, checkpoint);
  ASSERT_TRUE(packing.ok());
  const std::string folder = Folder("packed");
  ASSERT_TRUE(
      SaveWeights((*packing)->executor(), *files_, JoinPath(folder, "model.safetensors"), {}).ok());
  EXPECT_THAT(error(Runner(Config(kLlama, Packed(4)), std::nullopt, folder)),
              HasSubstr("have no packed matrix"));
}

}  // namespace
}  // namespace espalier
