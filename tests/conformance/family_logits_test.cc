// Every model family has the logits and hidden states of Hugging Face transformers, through the
// whole path: folder, config.json, weights by name, graph, lowering, executor, runner.
// families.json and hidden_states.json hold the cases; make_family_golden.py makes them and defines
// the weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "models/model.h"
#include "models/quantize.h"
#include "models/weights/weight_files.h"
#include "ops/operators/register_all.h"
#include "planner/planner.h"
#include "storage/safetensors.h"
#include "tests/conformance/family_model.h"
#include "worker/runner/in_process_model_runner.h"
#include "worker/runner/program_model_runner.h"

namespace espalier {
namespace {

using nlohmann::json;

std::vector<FamilyCase> Cases() { return ReadFamilyCases("tests/conformance/families.json"); }

class FamilyLogitsTest : public ::testing::TestWithParam<FamilyCase> {
 protected:
  void SetUp() override {
    const FamilyCase& c = GetParam();
    RegisterAllOperators(registry_);
    folder_ = JoinPath(::testing::TempDir(), c.name());
    const absl::Status written = WriteFamilyFolder(*files_, folder_, c);
    ASSERT_TRUE(written.ok()) << written;
    tokens_ = c["tokens"].get<std::vector<int32_t>>();
    expected_ = DecodeFloats(c["logits"].get<std::string>());
  }

  // Makes a folder with only a GGUF file of the case "llama".
  void UseGguf() {
    folder_ += "-gguf";
    ASSERT_TRUE(files_->CreateDirectories(folder_).ok());
    std::ifstream file("tests/conformance/llama.gguf", std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    ASSERT_TRUE(WriteFileAtomically(*files_, JoinPath(folder_, "llama.gguf"), bytes).ok());
  }

  // A folder that holds the case in FlexFlow's raw files, f32, under the names of its older
  // converter.
  void UseFlexFlow() {
    const absl::StatusOr<std::unique_ptr<WeightFiles>> weights = OpenWeights(*files_, folder_);
    ASSERT_TRUE(weights.ok()) << weights.status();
    const std::string config = JoinPath(folder_, "config.json");
    folder_ += "-flexflow";
    ASSERT_TRUE(files_->CreateDirectories(folder_).ok());
    std::filesystem::copy_file(config, JoinPath(folder_, "config.json"),
                               std::filesystem::copy_options::overwrite_existing);
    const std::pair<const char*, const char*> names[] = {{"self_attn.q_proj", "attention_wq"},
                                                         {"self_attn.k_proj", "attention_wk"},
                                                         {"self_attn.v_proj", "attention_wv"},
                                                         {"self_attn.o_proj", "attention_wo"},
                                                         {"mlp.gate_proj", "feed_forward_w1"},
                                                         {"mlp.down_proj", "feed_forward_w2"},
                                                         {"mlp.up_proj", "feed_forward_w3"},
                                                         {"input_layernorm", "attention_norm"},
                                                         {"post_attention_layernorm", "ffn_norm"},
                                                         {"model.embed_tokens", "tok_embeddings"},
                                                         {"lm_head", "output"},
                                                         {"model.", ""},
                                                         {".", "_"}};
    for (const auto& [tensor, found] : (*weights)->tensors()) {
      std::vector<float> values(static_cast<size_t>(NumElements(found.dims)));
      ASSERT_TRUE(
          (*weights)->Read(tensor, 0, static_cast<int64_t>(values.size()), values.data()).ok());
      std::string name = tensor;
      for (const auto& [from, to] : names) name = absl::StrReplaceAll(name, {{from, to}});
      const std::string bytes(reinterpret_cast<const char*>(values.data()),
                              values.size() * sizeof(float));
      ASSERT_TRUE(WriteFileAtomically(*files_, JoinPath(folder_, name), bytes).ok());
    }
  }

  // Converts every matrix to `format`.
  absl::StatusOr<ServingModel> Build(WeightFormat format, DType kv_cache_dtype = DType::kF32) {
    absl::StatusOr<std::string> config = ReadModelConfig(*files_, folder_);
    if (!config.ok()) return config.status();
    absl::StatusOr<LanguageModel> model = ReadModel(*config);
    if (!model.ok()) return model.status();
    vocabulary_ = model->facts.vocab_size;
    max_positions_ = static_cast<int>(model->facts.max_positions);
    ServingShape shape{.max_rows = 32,
                       .max_output_rows = 32,
                       .kv_slots = kSequenceSlots,
                       .max_sequences = 2,
                       .max_context_slots = 64,
                       .max_ancestor_slots = 256,
                       .max_positions = GetParam()["max_positions"].get<int>(),
                       .kv_cache_dtype = kv_cache_dtype};
    absl::StatusOr<ServingModel> serving = BuildServing(registry_, *model, shape);
    if (!serving.ok()) return serving.status();
    const absl::Status bound = BindAndInfer(registry_, 1, &serving->graph);
    if (!bound.ok()) return bound;
    AddImplicitSources(serving->graph, &serving->weights);
    return ToServingFormat(registry_, *std::move(serving), model->facts, format);
  }

  std::unique_ptr<ProgramModelRunner> Runner(WeightFormat format = WeightFormat::kF32,
                                             DType kv_cache_dtype = DType::kF32) {
    const absl::StatusOr<ServingModel> serving = Build(format, kv_cache_dtype);
    if (!serving.ok()) {
      ADD_FAILURE() << serving.status();
      return nullptr;
    }
    absl::StatusOr<v1::Program> program = LowerServing(registry_, serving->graph);
    EXPECT_TRUE(program.ok()) << program.status();
    devices_.push_back(NewCpuDevice({2, 1 << 26}));
    auto runner = ProgramModelRunner::Create(*program, folder_, max_positions_,
                                             devices_.back().get(), serving->weights);
    if (!runner.ok()) {
      ADD_FAILURE() << runner.status();
      return nullptr;
    }
    return *std::move(runner);
  }

  // A folder that holds the case as the text part of a model that reads images, too, under the
  // names that transformers 5 writes, or under those before.
  void UseTextPart(const std::string& architecture, bool newer) {
    const absl::StatusOr<std::unique_ptr<WeightFiles>> weights = OpenWeights(*files_, folder_);
    ASSERT_TRUE(weights.ok()) << weights.status();
    const std::string folder = folder_ + (newer ? "-newer-images" : "-images");
    ASSERT_TRUE(files_->CreateDirectories(folder).ok());
    json text = GetParam()["config"];
    text.erase("architectures");
    const json config = {{"architectures", {architecture}},
                         {"text_config", text},
                         {"vision_config", {{"hidden_size", 4}}}};
    ASSERT_TRUE(WriteFileAtomically(*files_, JoinPath(folder, "config.json"), config.dump()).ok());
    const auto name_of = [&](const std::string& tensor) {
      if (!newer) return "language_model." + tensor;
      return absl::StrReplaceAll(tensor, {{"model.", "model.language_model."}});
    };
    const std::string other = newer ? "model." : "";
    std::vector<std::pair<std::string, TensorType>> tensors;
    std::vector<std::vector<float>> values;
    for (const auto& [tensor, found] : (*weights)->tensors()) {
      values.emplace_back(static_cast<size_t>(NumElements(found.dims)));
      ASSERT_TRUE(
          (*weights)
              ->Read(tensor, 0, static_cast<int64_t>(values.back().size()), values.back().data())
              .ok());
      tensors.emplace_back(name_of(tensor), TensorType{DType::kF32, found.dims});
    }
    for (const char* tensor : {"vision_tower.patch.weight", "multi_modal_projector.linear_1"}) {
      tensors.emplace_back(other + tensor, TensorType{DType::kF32, {3}});
      values.push_back({1, 2, 3});
    }
    std::vector<SafetensorsWriter::Tensor> announced;
    for (const auto& [name, type] : tensors) announced.push_back({name, type});
    SafetensorsWriter writer(*files_, JoinPath(folder, "model.safetensors"));
    ASSERT_TRUE(writer.Begin(announced, {}).ok());
    for (const std::vector<float>& tensor : values) {
      ASSERT_TRUE(
          writer.Append(tensor.data(), static_cast<int64_t>(tensor.size() * sizeof(float))).ok());
    }
    ASSERT_TRUE(writer.Finish().ok());
    folder_ = folder;
  }

  // Returns null without a failure exactly if the heads cannot be partitioned over `devices`.
  std::unique_ptr<InProcessModelRunner> Cut(const ServingDegrees& degrees,
                                            const RunnerLimits& limits,
                                            DType kv_cache_dtype = DType::kF32) {
    auto ranks = Ranks(degrees, limits, kv_cache_dtype);
    if (HeadsOf(GetParam()).Divide(degrees.tensor_parallel)) {
      EXPECT_TRUE(ranks.ok()) << ranks.status();
      return ranks.ok() ? *std::move(ranks) : nullptr;
    }
    EXPECT_TRUE(absl::IsInvalidArgument(ranks.status())) << ranks.status();
    EXPECT_NE(ranks.status().message().find("key and value heads"), std::string::npos)
        << ranks.status();
    return nullptr;
  }

  // Runs over several devices. Returns an error if the model cannot be partitioned so.
  absl::StatusOr<std::unique_ptr<InProcessModelRunner>> Ranks(const ServingDegrees& degrees,
                                                              const RunnerLimits& limits,
                                                              DType kv_cache_dtype = DType::kF32) {
    const absl::StatusOr<ServingModel> serving = Build(WeightFormat::kF32, kv_cache_dtype);
    if (!serving.ok()) return serving.status();
    absl::StatusOr<std::vector<v1::Program>> programs =
        LowerServing(registry_, serving->graph, degrees);
    if (!programs.ok()) return programs.status();
    return InProcessModelRunner::Create(*programs, folder_, limits, 32, serving->weights);
  }

  // Rows [begin, end) of the sequence itself.
  RunnerBatch Rows(int begin, int end) const {
    RunnerBatch batch;
    AddSequence(&batch, tokens_, begin, end);
    return batch;
  }

  // Runs the rows after `prefix` as a path through a token tree with another branch at each node.
  // Sets the row of each.
  RunnerBatch Branches(int prefix, std::vector<int>* row_of) const {
    RunnerBatch batch;
    std::vector<int32_t> path;
    for (int i = prefix; i < static_cast<int>(tokens_.size()); ++i) {
      std::vector<int32_t> other = path;
      other.push_back((SlotOf(i) + 48) % kSequenceSlots);
      AddRow(&batch, (tokens_[i] + 1) % static_cast<int32_t>(vocabulary_), i, other.back(), 0,
             prefix, other);
      path.push_back(SlotOf(i));
      row_of->push_back(batch.rows());
      AddRow(&batch, tokens_[i], i, SlotOf(i), 0, prefix, path);
    }
    batch.sequence_start = {0, prefix};
    for (int i = 0; i < prefix; ++i) batch.sequence_slots.push_back(SlotOf(i));
    return batch;
  }

  RunnerOutput Step(ModelRunner& runner, const RunnerBatch& batch) {
    RunnerOutput logits;
    const absl::Status status = runner.Step(batch, &logits);
    EXPECT_TRUE(status.ok()) << status;
    return logits;
  }

  // Returns the largest difference of two steps' logits, relative for logits above 1.
  static double Distance(const RunnerOutput& a, const RunnerOutput& b) {
    double worst = a.values.size() == b.values.size() ? 0 : INFINITY;
    for (size_t i = 0; i < std::min(a.values.size(), b.values.size()); ++i) {
      const double apart = std::fabs(a.values[i] - b.values[i]);
      worst = std::max(worst, apart / std::max(1.f, std::fabs(b.values[i])));
      if (!std::isfinite(apart)) return INFINITY;
    }
    return worst;
  }

  void ExpectSameBits(const RunnerOutput& a, int row_a, const RunnerOutput& b, int row_b) {
    EXPECT_EQ(std::memcmp(a.row(row_a), b.row(row_b), vocabulary_ * sizeof(float)), 0)
        << "position " << row_a;
  }

  OpRegistry registry_;
  std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  std::vector<std::unique_ptr<Device>> devices_;
  std::string folder_;
  std::vector<int32_t> tokens_;
  std::vector<float> expected_;
  int64_t vocabulary_ = 0;
  int max_positions_ = 0;
};

TEST_P(FamilyLogitsTest, MatchTransformers) {
  const int n = static_cast<int>(tokens_.size());
  auto runner = Runner();
  ASSERT_NE(runner, nullptr);
  const RunnerOutput all = Step(*runner, Rows(0, n));
  ASSERT_EQ(all.values.size(), expected_.size());
  float worst = 0;
  for (size_t i = 0; i < expected_.size(); ++i) {
    ASSERT_TRUE(std::isfinite(all.values[i]));
    worst = std::max(worst, std::fabs(all.values[i] - expected_[i]));
  }
  EXPECT_LE(worst, 2e-5f);
  RecordProperty("largest_error", std::to_string(worst));

  if (GetParam().name() == "llama") {
    UseFlexFlow();
    auto flexflow = Runner();
    ASSERT_NE(flexflow, nullptr);
    EXPECT_EQ(Step(*flexflow, Rows(0, n)).values, all.values);
    UseGguf();
    auto gguf = Runner();
    ASSERT_NE(gguf, nullptr);
    EXPECT_EQ(Step(*gguf, Rows(0, n)).values, all.values);
  }

  // Multimodal models serve their text part.
  const std::map<std::string, std::string> with_images = {
      {"gemma3", "Gemma3ForConditionalGeneration"},
      {"mistral", "Mistral3ForConditionalGeneration"}};
  if (const auto found = with_images.find(GetParam().name()); found != with_images.end()) {
    const std::string text_alone = folder_;
    for (const bool newer : {false, true}) {
      SCOPED_TRACE(newer);
      UseTextPart(found->second, newer);
      auto part = Runner();
      ASSERT_NE(part, nullptr);
      EXPECT_EQ(Step(*part, Rows(0, n)).values, all.values);
      folder_ = text_alone;
    }
  }

  // Decoding token by token is bit-identical.
  auto stepwise = Runner();
  ASSERT_NE(stepwise, nullptr);
  for (int i = 0; i < n; ++i) {
    const RunnerOutput one = Step(*stepwise, Rows(i, i + 1));
    ExpectSameBits(all, i, one, 0);
  }

  // Runs the second half as a path through a token tree with another branch at each node.
  auto tree = Runner();
  ASSERT_NE(tree, nullptr);
  std::vector<int> row_of;
  const int prefix = n / 2;
  Step(*tree, Rows(0, prefix));
  const RunnerOutput branches = Step(*tree, Branches(prefix, &row_of));
  for (int i = prefix; i < n; ++i) ExpectSameBits(all, i, branches, row_of[i - prefix]);
}

// Quantized logits are close to those of transformers, and bit-identical token by token and in a
// tree, on which lossless speculation relies. Tolerances are relative to the spread of the logits;
// 8 and 4 bits also round activations, and an MoE model may choose another expert.
TEST_P(FamilyLogitsTest, QuantizedAreCloseAndBatchInvariant) {
  const int n = static_cast<int>(tokens_.size()), prefix = n / 2;
  double mean = 0, spread = 0;
  for (const float value : expected_) mean += value / static_cast<double>(expected_.size());
  for (const float value : expected_) spread += std::pow(value - mean, 2);
  for (const auto& [format, most] : {std::pair{WeightFormat::kBF16, 0.03},
                                     {WeightFormat::kF16, 0.004},
                                     {WeightFormat::kInt8, 0.08},
                                     {WeightFormat::kInt4, 0.6}}) {
    SCOPED_TRACE(Name(format));
    auto runner = Runner(format);
    ASSERT_NE(runner, nullptr);
    const RunnerOutput all = Step(*runner, Rows(0, n));
    double error = 0;
    for (size_t i = 0; i < expected_.size(); ++i) {
      error += std::pow(all.values[i] - expected_[i], 2);
    }
    error = std::sqrt(error / spread);
    EXPECT_GT(error, 0);
    EXPECT_LT(error, most);
    RecordProperty(Name(format), std::to_string(error));
    auto stepwise = Runner(format);
    ASSERT_NE(stepwise, nullptr);
    for (int i = 0; i < n; ++i) ExpectSameBits(all, i, Step(*stepwise, Rows(i, i + 1)), 0);
    auto tree = Runner(format);
    ASSERT_NE(tree, nullptr);
    std::vector<int> row_of;
    Step(*tree, Rows(0, prefix));
    const RunnerOutput branches = Step(*tree, Branches(prefix, &row_of));
    for (int i = prefix; i < n; ++i) ExpectSameBits(all, i, branches, row_of[i - prefix]);
  }
}

// Embeddings are made of hidden states.
TEST_P(FamilyLogitsTest, HiddenStatesMatchTransformers) {
  std::ifstream file("tests/conformance/hidden_states.json");
  const json states = json::parse(file);
  const std::vector<float> expected = DecodeFloats(states.at(GetParam().name()).get<std::string>());
  auto runner = Runner();
  ASSERT_NE(runner, nullptr);
  ASSERT_EQ(runner->limits().hidden, static_cast<int>(expected.size()));
  const int n = static_cast<int>(tokens_.size());
  RunnerBatch batch = Rows(0, n);
  batch.logit_rows = {3, n - 1};
  batch.wants_hidden = true;
  const RunnerOutput both = Step(*runner, batch);
  ASSERT_EQ(both.hidden.size(), 2 * expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(both.hidden[expected.size() + i], expected[i], 1e-4f) << i;
  }
  // Hidden states are computed on request only.
  EXPECT_TRUE(Step(*runner, Rows(0, n)).hidden.empty());
}

// On two and four devices, logits differ by the rounding of sums only: as a whole, token by token
// and in a tree.
TEST_P(FamilyLogitsTest, MatchUnderModelParallelism) {
  const int n = static_cast<int>(tokens_.size()), prefix = n / 2;
  auto alone = Runner();
  ASSERT_NE(alone, nullptr);
  RunnerBatch batch = Rows(0, n);
  batch.wants_hidden = true;
  const RunnerOutput all = Step(*alone, batch);
  std::vector<ServingDegrees> cuts = {{2, 1}, {1, 2}, {2, 2}};
  // K/V heads are replicated on several devices.
  const FamilyHeads heads = HeadsOf(GetParam());
  if (heads.keys < heads.queries) cuts.push_back({heads.queries, 1});
  for (const ServingDegrees& degrees : cuts) {
    SCOPED_TRACE(absl::StrCat(degrees.tensor_parallel, " x ", degrees.pipeline_parallel));
    auto ranks = Cut(degrees, alone->limits());
    if (ranks == nullptr) continue;
    const RunnerOutput whole = Step(*ranks, batch);
    ASSERT_LE(Distance(whole, all), 1e-5);
    ASSERT_EQ(whole.hidden.size(), all.hidden.size());
    for (size_t i = 0; i < all.hidden.size(); ++i) {
      ASSERT_NEAR(whole.hidden[i], all.hidden[i], 1e-5 * std::max(1.f, std::fabs(all.hidden[i])));
    }
    EXPECT_TRUE(Step(*ranks, Rows(0, n)).hidden.empty());
    auto stepwise = Ranks(degrees, alone->limits());
    ASSERT_TRUE(stepwise.ok()) << stepwise.status();
    for (int i = 0; i < n; ++i) ExpectSameBits(whole, i, Step(**stepwise, Rows(i, i + 1)), 0);
    auto tree = Ranks(degrees, alone->limits());
    ASSERT_TRUE(tree.ok()) << tree.status();
    std::vector<int> row_of;
    Step(**tree, Rows(0, prefix));
    const RunnerOutput branches = Step(**tree, Branches(prefix, &row_of));
    for (int i = prefix; i < n; ++i) ExpectSameBits(whole, i, branches, row_of[i - prefix]);
  }
}

// In a quantized KV cache, a sum that is rounded differently may become the next representable
// value; the effect is smaller than that of the format itself. Pipeline stages alone change no sum.
TEST_P(FamilyLogitsTest, ModelParallelismWorksWithQuantizedKvCache) {
  const int n = static_cast<int>(tokens_.size());
  auto wide = Runner();
  ASSERT_NE(wide, nullptr);
  const RunnerOutput exact = Step(*wide, Rows(0, n));
  for (const DType format : {DType::kF16, DType::kBF16, DType::kI8}) {
    auto alone = Runner(WeightFormat::kF32, format);
    ASSERT_NE(alone, nullptr);
    const RunnerOutput all = Step(*alone, Rows(0, n));
    EXPECT_GT(Distance(all, exact), 0) << "the format does nothing";
    for (const ServingDegrees degrees : {ServingDegrees{1, 2}, {2, 1}}) {
      SCOPED_TRACE(absl::StrCat(Name(format), " ", degrees.tensor_parallel, " x ",
                                degrees.pipeline_parallel));
      auto ranks = Cut(degrees, alone->limits(), format);
      if (ranks == nullptr) continue;
      int64_t bytes = 0;
      for (size_t r = 0; r < ranks->ranks(); ++r) bytes += ranks->rank(r).kv_cache_bytes();
      const int copies = std::max(1, degrees.tensor_parallel / HeadsOf(GetParam()).keys);
      EXPECT_EQ(bytes, copies * alone->kv_cache_bytes());
      const RunnerOutput whole = Step(*ranks, Rows(0, n));
      EXPECT_LE(Distance(whole, all), degrees.tensor_parallel > 1 ? Distance(all, exact) : 0);
      auto stepwise = Ranks(degrees, alone->limits(), format);
      ASSERT_TRUE(stepwise.ok()) << stepwise.status();
      for (int i = 0; i < n; ++i) ExpectSameBits(whole, i, Step(**stepwise, Rows(i, i + 1)), 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, FamilyLogitsTest, ::testing::ValuesIn(Cases()),
                         [](const ::testing::TestParamInfo<FamilyCase>& info) {
                           return info.param.name();
                         });

}  // namespace
}  // namespace espalier
