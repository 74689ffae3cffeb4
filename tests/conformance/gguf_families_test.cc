// A model from a GGUF file equals the one from its Hugging Face folder, through llama.cpp's changes
// of names, metadata, row order, merged expert tensors and quantization. gguf_cases.json (made by
// make_gguf_cases.py) describes the changes; families.json holds the models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "models/model.h"
#include "models/quantize.h"
#include "models/weights/gguf.h"
#include "models/weights/native_format.h"
#include "models/weights/weight_files.h"
#include "ops/operators/register_all.h"
#include "planner/planner.h"
#include "storage/safetensors.h"
#include "tests/conformance/family_model.h"
#include "tests/conformance/gguf_files.h"
#include "worker/runner/program_model_runner.h"

namespace espalier {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::vector<FamilyCase> GgufCases() { return ReadFamilyCases("tests/conformance/gguf_cases.json"); }

json CaseOf(const std::string& name) {
  for (const FamilyCase& c : GgufCases()) {
    if (c.name() == name) return c.data;
  }
  ADD_FAILURE() << "no case " << name;
  return json();
}

class GgufModels {
 public:
  GgufModels() { RegisterAllOperators(registry_); }

  // A new folder of the test.
  std::string Folder(const std::string& name) {
    std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::replace(test.begin(), test.end(), '/', '-');  // of a parameter
    const std::string folder =
        JoinPath(JoinPath(::testing::TempDir(), absl::StrCat("gguf-", test)), name);
    EXPECT_TRUE(files_->CreateDirectories(folder).ok());
    return folder;
  }

  void Write(const std::string& folder, const std::string& name, const std::string& bytes) {
    const absl::Status written = WriteFileAtomically(*files_, JoinPath(folder, name), bytes);
    EXPECT_TRUE(written.ok()) << written;
  }

  // The model in Hugging Face layout.
  std::string WriteSafetensors(const FamilyCase& family, const DrawnTensors& drawn) {
    const std::string folder = Folder("safetensors");
    Write(folder, "config.json", family["config"].dump());
    SafetensorsWriter writer(*files_, JoinPath(folder, "model.safetensors"));
    std::vector<SafetensorsWriter::Tensor> written;
    for (const auto& [name, tensor] : drawn) written.push_back({name, {DType::kF32, tensor.dims}});
    absl::Status status = writer.Begin(written, {});
    for (const auto& [name, tensor] : drawn) {
      status.Update(writer.Append(tensor.values.data(),
                                  static_cast<int64_t>(tensor.values.size() * sizeof(float))));
    }
    status.Update(writer.Finish().status());
    EXPECT_TRUE(status.ok()) << status;
    return folder;
  }

  std::string WriteGguf(const json& metadata, const std::vector<GgufEntry>& tensors) {
    const std::string folder = Folder("gguf");
    Write(folder, "model.gguf", GgufFileOf(metadata, tensors));
    return folder;
  }

  // Returns the logits of a whole sequence in one step. Fails and returns none if the model does
  // not run.
  std::vector<float> Logits(const std::string& folder, const FamilyCase& family,
                            WeightFormat format) {
    absl::StatusOr<std::vector<float>> logits = TryLogits(folder, family, format);
    EXPECT_TRUE(logits.ok()) << folder << ": " << logits.status();
    return logits.ok() ? *std::move(logits) : std::vector<float>();
  }

  absl::StatusOr<std::vector<float>> TryLogits(const std::string& folder, const FamilyCase& family,
                                               WeightFormat format) {
    const absl::StatusOr<std::string> config = ReadModelConfig(*files_, folder);
    if (!config.ok()) return config.status();
    const absl::StatusOr<LanguageModel> model = ReadModel(*config);
    if (!model.ok()) return model.status();
    const ServingShape shape{.max_rows = 32,
                             .max_output_rows = 32,
                             .kv_slots = kSequenceSlots,
                             .max_sequences = 2,
                             .max_context_slots = 64,
                             .max_ancestor_slots = 256,
                             .max_positions = family["max_positions"].get<int>()};
    absl::StatusOr<ServingModel> serving = BuildServing(registry_, *model, shape);
    if (!serving.ok()) return serving.status();
    const absl::Status bound = BindAndInfer(registry_, 1, &serving->graph);
    if (!bound.ok()) return bound;
    AddImplicitSources(serving->graph, &serving->weights);
    serving = ToServingFormat(registry_, *std::move(serving), model->facts, format);
    if (!serving.ok()) return serving.status();
    const absl::StatusOr<v1::Program> program = LowerServing(registry_, serving->graph);
    if (!program.ok()) return program.status();
    const std::unique_ptr<Device> device = NewCpuDevice({2, 1 << 26});
    const auto runner =
        ProgramModelRunner::Create(*program, folder, static_cast<int>(model->facts.max_positions),
                                   device.get(), serving->weights);
    if (!runner.ok()) return runner.status();
    const std::vector<int32_t> tokens = family["tokens"].get<std::vector<int32_t>>();
    RunnerBatch batch;
    AddSequence(&batch, tokens, 0, static_cast<int>(tokens.size()));
    RunnerOutput logits;
    const absl::Status status = (*runner)->Step(batch, &logits);
    if (!status.ok()) return status;
    return std::move(logits.values);
  }

  std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  OpRegistry registry_;
};

// Returns the largest difference, relative for values above 1.
double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.empty() || a.size() != b.size()) return INFINITY;
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double apart = std::fabs(a[i] - b[i]) / std::max(1.f, std::fabs(b[i]));
    worst = std::isfinite(apart) ? std::max(worst, apart) : INFINITY;
  }
  return worst;
}

class GgufFamiliesTest : public ::testing::TestWithParam<FamilyCase>, public GgufModels {};

TEST_P(GgufFamiliesTest, LogitsMatchSafetensors) {
  const json& gguf_case = GetParam().data;
  const FamilyCase family = FamilyOf(gguf_case, ReadFamilyCases("tests/conformance/families.json"));
  const DrawnTensors drawn = DrawTensors(family);
  const std::string safetensors = WriteSafetensors(family, drawn);
  const std::vector<float> expected = Logits(safetensors, family, WeightFormat::kF32);
  // Without changes, logits are those of transformers.
  if (gguf_case["config"].empty()) {
    EXPECT_LE(Distance(expected, DecodeFloats(family["logits"].get<std::string>())), 1e-4);
  }
  const std::string gguf =
      WriteGguf(gguf_case["metadata"], GgufEntries(gguf_case, drawn, kGgmlF32));
  const std::vector<float> found = Logits(gguf, family, WeightFormat::kF32);
  // Numbers that the file keeps in f32, where config.json has more digits, are rounded.
  const bool rounded = absl::StrContains(gguf_case["tensors"].dump(), "\"values\"");
  EXPECT_LE(Distance(found, expected), rounded ? 1e-5 : 0);
}

// Quantized tensors of the file have their dequantized values, and are converted to the serving
// format like those of any file.
TEST_P(GgufFamiliesTest, QuantizedTensorsMatchDequantized) {
  const json& gguf_case = GetParam().data;
  if (absl::StrContains(gguf_case["tensors"].dump(), "\"values\"")) return;  // see above
  const FamilyCase family = FamilyOf(gguf_case, ReadFamilyCases("tests/conformance/families.json"));
  const DrawnTensors drawn = DrawTensors(family);
  // Rows of the others are shorter than a block.
  std::vector<uint32_t> types = {kGgmlF16};
  std::vector<WeightFormat> formats = {WeightFormat::kF32, WeightFormat::kF16};
  if (!gguf_case["widths"].empty()) {
    types = {kGgmlF16, kGgmlBF16, kGgmlQ8_0, kGgmlQ4_0};
    formats = {WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBF16, WeightFormat::kInt8,
               WeightFormat::kInt4};
  }
  const std::vector<float> exact =
      Logits(WriteSafetensors(family, drawn), family, WeightFormat::kF32);
  for (const uint32_t type : types) {
    SCOPED_TRACE(absl::StrCat("ggml type ", type));
    const std::string safetensors = WriteSafetensors(family, AsKept(gguf_case, drawn, type));
    const std::string gguf = WriteGguf(gguf_case["metadata"], GgufEntries(gguf_case, drawn, type));
    for (const WeightFormat format : formats) {
      SCOPED_TRACE(Name(format));
      const std::vector<float> expected = Logits(safetensors, family, format);
      EXPECT_EQ(Logits(gguf, family, format), expected);
      EXPECT_GT(Distance(expected, exact), 0) << "the type does nothing";
    }
    // The default weight format.
    const absl::StatusOr<NativeFormats> own = NativeFormats::Read(*NewPosixFileSystem(), gguf);
    ASSERT_TRUE(own.ok()) << own.status();
    const std::map<uint32_t, WeightFormat> expected = {{kGgmlF16, WeightFormat::kF16},
                                                       {kGgmlBF16, WeightFormat::kBF16},
                                                       {kGgmlQ8_0, WeightFormat::kInt8},
                                                       {kGgmlQ4_0, WeightFormat::kInt4}};
    EXPECT_EQ(own->dominant(), expected.at(type));
    // Numbers that are f16 are multiplied as what they are, in the order of f32.
    if (type == kGgmlF16) {
      EXPECT_EQ(Logits(gguf, family, WeightFormat::kF16), Logits(gguf, family, WeightFormat::kF32));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, GgufFamiliesTest, ::testing::ValuesIn(GgufCases()),
                         [](const ::testing::TestParamInfo<FamilyCase>& info) {
                           return info.param.name();
                         });

// Splits a model like llama.cpp's gguf-split: metadata in the first file, a third of the tensors in
// each.
class GgufPartsTest : public ::testing::Test, public GgufModels {
 protected:
  static constexpr uint32_t kParts = 3;
  struct Part {
    json metadata;
    std::vector<GgufEntry> tensors;
  };
  using Parts = std::vector<Part>;

  Parts Cut() const {
    Parts parts(kParts);
    parts[0].metadata = case_["metadata"];
    const std::vector<GgufEntry> all = GgufEntries(case_, DrawTensors(family_));
    for (uint32_t i = 0; i < kParts; ++i) {
      parts[i].metadata["split.no"] = {"UINT32", i};
      parts[i].metadata["split.count"] = {"UINT32", kParts};
      parts[i].metadata["split.tensors.count"] = {"UINT32", all.size()};
      for (size_t t = i; t < all.size(); t += kParts) parts[i].tensors.push_back(all[t]);
    }
    return parts;
  }

  // A part without metadata is left out.
  std::string WriteParts(const std::string& name, const Parts& parts) {
    const std::string folder = Folder(name);
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].metadata.is_null()) continue;
      Write(folder, absl::StrCat("model-0000", i + 1, "-of-00003.gguf"),
            GgufFileOf(parts[i].metadata, parts[i].tensors));
    }
    return folder;
  }

  // Returns the errors for the changed parts, from their tensors and their configuration.
  std::string Error(const std::string& name, const std::function<void(Parts&)>& change) {
    Parts parts = Cut();
    change(parts);
    const std::string folder = WriteParts(name, parts);
    const std::string error(OpenWeights(*files_, folder).status().message());
    EXPECT_EQ(error, ReadModelConfig(*files_, folder).status().message());
    return error;
  }

  const json case_ = CaseOf("llama_biases");
  const FamilyCase family_ = FamilyOf(case_, ReadFamilyCases("tests/conformance/families.json"));
};

TEST_F(GgufPartsTest, SplitFilesMatchWholeModel) {
  const std::vector<GgufEntry> all = GgufEntries(case_, DrawTensors(family_));
  const std::string whole = WriteGguf(case_["metadata"], all);
  const std::string parts = WriteParts("parts", Cut());
  EXPECT_EQ(*ReadModelConfig(*files_, parts), *ReadModelConfig(*files_, whole));
  EXPECT_EQ(Logits(parts, family_, WeightFormat::kF32), Logits(whole, family_, WeightFormat::kF32));
  // Also if the first has metadata alone.
  Parts bare = Cut();
  bare[1].tensors.insert(bare[1].tensors.end(), bare[0].tensors.begin(), bare[0].tensors.end());
  bare[0].tensors.clear();
  EXPECT_EQ(Logits(WriteParts("bare", bare), family_, WeightFormat::kF32),
            Logits(whole, family_, WeightFormat::kF32));
}

TEST_F(GgufPartsTest, RejectsMismatchedSplitFilesByName) {
  EXPECT_EQ(Error("good", [](Parts&) {}), "");
  EXPECT_THAT(Error("missing", [](Parts& p) { p[1].metadata = json(); }),
              HasSubstr("model-00002-of-00003.gguf' is missing; accepted: all of them"));
  EXPECT_THAT(Error("swapped", [](Parts& p) { std::swap(p[1].metadata, p[2].metadata); }),
              HasSubstr("model-00002-of-00003.gguf': metadata 'split.no' is 2"));
  EXPECT_THAT(Error("counted",
                    [](Parts& p) {
                      p[2].metadata["split.count"] = {"UINT32", 4};
                    }),
              HasSubstr("model-00003-of-00003.gguf': metadata 'split.count' is 4"));
  EXPECT_THAT(Error("doubled", [](Parts& p) { p[2].tensors.push_back(p[0].tensors[0]); }),
              HasSubstr("' is both in '"));
  EXPECT_THAT(Error("lost", [](Parts& p) { p[2].tensors.pop_back(); }),
              HasSubstr("'split.tensors.count' must be"));
  // With a file name that does not number the parts.
  const std::string folder = Folder("renamed");
  Write(folder, "model.gguf", GgufFileOf(Cut()[0].metadata, Cut()[0].tensors));
  EXPECT_THAT(std::string(OpenWeights(*files_, folder).status().message()),
              HasSubstr("'split.count' is 3, by its name it is number 1 of 1"));
}

class GgufExpertsTest : public ::testing::Test, public GgufModels {
 protected:
  using Change = std::function<void(json* metadata, std::vector<GgufEntry>* tensors)>;

  // Returns the error for the changed file, from its tensors or its configuration.
  std::string Error(const std::string& name, const Change& change, bool configuration = false) {
    const json gguf_case = CaseOf(name);
    const FamilyCase family =
        FamilyOf(gguf_case, ReadFamilyCases("tests/conformance/families.json"));
    json metadata = gguf_case["metadata"];
    std::vector<GgufEntry> tensors = GgufEntries(gguf_case, DrawTensors(family));
    change(&metadata, &tensors);
    const std::string folder = WriteGguf(metadata, tensors);
    const absl::Status status = configuration ? ReadModelConfig(*files_, folder).status()
                                              : OpenWeights(*files_, folder).status();
    return std::string(status.message());
  }

  static Change Without(const std::string& tensor) {
    return [tensor](json*, std::vector<GgufEntry>* tensors) {
      EXPECT_EQ(std::erase_if(*tensors, [&](const GgufEntry& e) { return e.name == tensor; }), 1u);
    };
  }
  // The tensor with another shape, and as many elements as that has.
  static Change Shaped(const std::string& tensor, const Dims& dims) {
    return [tensor, dims](json*, std::vector<GgufEntry>* tensors) {
      for (GgufEntry& entry : *tensors) {
        if (entry.name != tensor) continue;
        entry.dims = dims;
        entry.bytes.resize(static_cast<size_t>(NumElements(dims)) * sizeof(float));
      }
    };
  }
  static Change With(const std::string& key, const json& value) {
    return [key, value](json* metadata, std::vector<GgufEntry>*) { (*metadata)[key] = value; };
  }
};

TEST_F(GgufExpertsTest, RejectsMismatchedExpertTensorsByName) {
  EXPECT_EQ(Error("mixtral", [](json*, std::vector<GgufEntry>*) {}), "");
  EXPECT_THAT(Error("mixtral", Shaped("blk.1.ffn_up_exps.weight", {3, 40, 24})),
              HasSubstr("'blk.1.ffn_up_exps.weight' has shape [3, 40, 24]; accepted: [4,"));
  EXPECT_THAT(Error("mixtral", Shaped("blk.1.ffn_up_exps.weight", {40, 24})),
              HasSubstr("'blk.1.ffn_up_exps.weight' has shape [40, 24]"));
  EXPECT_THAT(Error("mixtral", Without("blk.0.ffn_down_exps.weight")),
              HasSubstr("'blk.0.ffn_down_exps.weight' is missing"));
  EXPECT_THAT(Error("mixtral", Without("blk.1.ffn_gate_inp.weight")),
              HasSubstr("'blk.1.ffn_gate_inp.weight' is missing"));
  EXPECT_THAT(Error("mixtral", Shaped("blk.1.ffn_gate_inp.weight", {5, 24})),
              HasSubstr("'blk.1.ffn_gate_inp.weight' has shape [5, 24]"));
  const std::string split = "mixtral_one_tensor_for_each_expert";
  EXPECT_THAT(Error(split, Without("blk.1.ffn_up.2.weight")),
              HasSubstr("'blk.1.ffn_up.2.weight' is missing"));
  EXPECT_THAT(Error("qwen3moe", Without("blk.0.ffn_gate_inp.weight")),
              HasSubstr("'blk.0.ffn_gate_inp.weight' is missing"));
  EXPECT_THAT(Error("qwen3moe", With("qwen3moe.expert_count", {"UINT32", 6})),
              HasSubstr("'blk.0.ffn_gate_inp.weight' has shape [5, 24]; accepted: [6,"));
  EXPECT_THAT(Error("mixtral", With("llama.block_count", {"UINT32", 3})),
              HasSubstr("'blk.2.ffn_gate_inp.weight' is missing"));
}

TEST_F(GgufExpertsTest, RejectsUnsupportedMetadataByKey) {
  for (const bool configuration : {false, true}) {
    const auto error = [&](const std::string& name, const std::string& key, const json& value) {
      return Error(name, With(key, value), configuration);
    };
    EXPECT_THAT(error("mixtral", "llama.expert_used_count", {"UINT32", 5}),
                HasSubstr("'llama.expert_used_count' must be at most 4"));
    EXPECT_THAT(error("mixtral", "llama.expert_used_count", {"UINT32", 0}),
                HasSubstr("'llama.expert_used_count' must be an integer from 1"));
    EXPECT_THAT(error("mixtral", "llama.expert_count", {"UINT32", 1 << 20}),
                HasSubstr("'llama.expert_count' must be at most 4096"));
    EXPECT_THAT(error("mixtral", "llama.block_count", {"UINT32", 1 << 30}),
                HasSubstr("'llama.block_count' must be at most"));
    EXPECT_THAT(error("mixtral", "llama.expert_gating_func", {"UINT32", 2}),
                HasSubstr("'llama.expert_gating_func' is set; accepted: 1 (softmax)"));
    EXPECT_THAT(error("qwen3moe", "qwen3moe.expert_weights_scale", {"FLOAT32", 2.5}),
                HasSubstr("'qwen3moe.expert_weights_scale' is set"));
    EXPECT_THAT(error("qwen3moe", "qwen3moe.expert_count", {"UINT32", 0}),
                HasSubstr("'qwen3moe.expert_count' must be 1 or more"));
    EXPECT_THAT(error("qwen2", "qwen2.expert_count", {"UINT32", 8}),
                HasSubstr("qwen2.expert_count is 8; mixtures of experts are read of llama, qwen3"));
    EXPECT_THAT(error("mpt", "general.architecture", {"STRING", "bloom"}),
                HasSubstr("general.architecture is 'bloom'; accepted: llama, qwen2, qwen3, "
                          "qwen3moe, gemma, gemma2, gemma3, phi3, gpt2, starcoder, falcon, mpt"));
  }
  EXPECT_THAT(
      Error("llama_yarn", With("llama.rope.scaling.yarn_attn_factor", {"FLOAT32", 1.5}), true),
      HasSubstr("'llama.rope.scaling.yarn_attn_factor' is set"));
  EXPECT_THAT(Error("llama_llama3", With("llama.rope.scaling.attn_factor", {"FLOAT32", 1.5}), true),
              HasSubstr("'llama.rope.scaling.attn_factor' is set"));
  EXPECT_THAT(Error("falcon_7b", With("falcon.tensor_data_layout", {"STRING", "other"}), true),
              HasSubstr("'falcon.tensor_data_layout'"));
  EXPECT_THAT(Error("starcoder", With("starcoder.attention.head_count_kv", {"UINT32", 4}), true),
              HasSubstr("'starcoder.attention.head_count_kv' must be 1"));
}

// The file may specify that weights of the chosen experts are not normalized to sum 1.
TEST_F(GgufExpertsTest, HonorsUnnormalizedRouterWeights) {
  const json gguf_case = CaseOf("qwen3moe");
  FamilyCase family = FamilyOf(gguf_case, ReadFamilyCases("tests/conformance/families.json"));
  const DrawnTensors drawn = DrawTensors(family);
  json metadata = gguf_case["metadata"];
  metadata["qwen3moe.expert_weights_norm"] = {"BOOL", false};
  const std::vector<float> found =
      Logits(WriteGguf(metadata, GgufEntries(gguf_case, drawn)), family, WeightFormat::kF32);
  const std::vector<float> normalised =
      Logits(WriteSafetensors(family, drawn), family, WeightFormat::kF32);
  family.data["config"]["norm_topk_prob"] = false;
  EXPECT_EQ(found, Logits(WriteSafetensors(family, drawn), family, WeightFormat::kF32));
  EXPECT_GT(Distance(found, normalised), 1e-3);
}

// Reads any part of any expert, also if blocks are longer than the part, and never another expert's
// elements. If file and memory layout are equal, returns the position in the file.
TEST_F(GgufExpertsTest, ExpertIsSliceOfMergedTensor) {
  constexpr int64_t kExperts = 3, kOut = 2, kIn = 256, kEach = kOut * kIn;
  json metadata = CaseOf("mixtral")["metadata"];
  metadata["llama.expert_count"] = {"UINT32", kExperts};
  metadata["llama.block_count"] = {"UINT32", 1};
  std::string bytes;
  uint32_t state = 1;
  const auto entry = [&](const std::string& part, uint32_t type, int64_t block_bytes) {
    bytes.clear();
    for (int64_t i = 0; i < kExperts * kOut * block_bytes; ++i) {
      state = state * 1664525 + 1013904223;
      // Halves of f16 and f32 that are finite, whatever lies beside them.
      bytes += static_cast<char>(state >> 24 & 0x3b);
    }
    return GgufEntry{"blk.0." + part + ".weight", {kExperts, kOut, kIn}, type, bytes};
  };
  const std::vector<float> router(kExperts * 4, 1.0f);
  const std::string folder = WriteGguf(
      metadata, {entry("ffn_gate_exps", 12, 144),
                 entry("ffn_up_exps", 14, 210),
                 entry("ffn_down_exps", kGgmlF32, 1024),
                 {"blk.0.ffn_gate_inp.weight", {kExperts, 4}, kGgmlF32, GgufBytes(0, router)}});
  const auto file = GgufFile::Open(*files_, JoinPath(folder, "model.gguf"));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto weights = OpenWeights(*files_, folder);
  ASSERT_TRUE(weights.ok()) << weights.status();
  for (const auto& [part, name] :
       {std::pair("gate", "w1"), std::pair("up", "w3"), std::pair("down", "w2")}) {
    const auto& whole = (*file)->tensors().at(absl::StrCat("blk.0.ffn_", part, "_exps.weight"));
    std::vector<float> all(kExperts * kEach);
    ASSERT_TRUE((*file)->Read(whole, 0, kExperts * kEach, all.data()).ok());
    for (int64_t e = 0; e < kExperts; ++e) {
      const std::string hf =
          absl::StrCat("model.layers.0.block_sparse_moe.experts.", e, ".", name, ".weight");
      SCOPED_TRACE(hf);
      EXPECT_EQ((*weights)->tensors().at(hf).dims, (Dims{kOut, kIn}));
      const auto expected = all.begin() + e * kEach;
      for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, kEach},
                                         {1, 7},
                                         {200, 111},
                                         {kEach - 1, 1},
                                         {kEach, 0}}) {
        std::vector<float> found(static_cast<size_t>(count));
        ASSERT_TRUE((*weights)->Read(hf, begin, count, found.data()).ok());
        EXPECT_EQ(found, std::vector<float>(expected + begin, expected + begin + count));
      }
      float value = 0;
      EXPECT_FALSE((*weights)->Read(hf, kEach, 1, &value).ok());
      const auto place = (*weights)->PlaceOf(hf);
      ASSERT_EQ(place.has_value(), std::string(part) == "down");
      if (!place.has_value()) continue;
      EXPECT_EQ(place->dtype, DType::kF32);
      ASSERT_TRUE(place->file->Read(place->offset, sizeof(float), &value).ok());
      EXPECT_EQ(value, *expected);
    }
  }
}

}  // namespace
}  // namespace espalier
