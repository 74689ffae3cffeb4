#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "models/weights/additional_templates.h"
#include "models/weights/gguf.h"
#include "models/weights/native_format.h"
#include "models/weights/weight_files.h"
#include "storage/safetensors.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

// Written by the gguf package: see tests/conformance/make_gguf_golden.py.
constexpr char kBlocks[] = "models/weights/testdata/blocks.gguf";

// See tests/conformance/make_flexflow_golden.py.
constexpr char kFlexFlow[] = "models/weights/testdata/flexflow";

std::string Bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class WeightsTest : public ::testing::Test {
 protected:
  WeightsTest() {
    folder_ = JoinPath(
        ::testing::TempDir(),
        absl::StrCat("weights-", ::testing::UnitTest::GetInstance()->current_test_info()->name()));
    EXPECT_TRUE(files_->CreateDirectories(folder_).ok());
    absl::StatusOr<std::vector<std::string>> old = files_->List(folder_);
    EXPECT_TRUE(old.ok());
    for (const std::string& name : *old) EXPECT_TRUE(files_->Remove(Path(name)).ok());
  }

  std::string Path(const std::string& name) const { return JoinPath(folder_, name); }

  void WriteText(const std::string& name, const std::string& text) {
    std::ofstream(Path(name), std::ios::binary) << text;
  }

  // A safetensors file of vectors that count up from `first`.
  void WriteShard(const std::string& name, const std::vector<std::string>& tensors, float first) {
    std::vector<SafetensorsWriter::Tensor> specs;
    for (const std::string& tensor : tensors) specs.push_back({tensor, {DType::kF32, {3}}});
    SafetensorsWriter writer(*files_, Path(name));
    ASSERT_TRUE(writer.Begin(specs, {}).ok());
    for (size_t i = 0; i < specs.size(); ++i) {
      const float values[] = {first, first + 1, first + 2};
      ASSERT_TRUE(writer.Append(values, sizeof(values)).ok());
    }
    ASSERT_TRUE(writer.Finish().ok());
  }

  std::string OpenError() { return std::string(OpenWeights(*files_, folder_).status().message()); }

  std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  std::string folder_;
};

TEST_F(WeightsTest, ShardsAreOneSetOfTensors) {
  WriteShard("a.safetensors", {"one", "two"}, 1);
  WriteShard("b.safetensors", {"three"}, 10);
  WriteText("model.safetensors.index.json",
            R"({"weight_map": {"one": "a.safetensors", "two": "a.safetensors",
                "three": "b.safetensors"}})");
  auto weights = OpenWeights(*files_, folder_);
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ((*weights)->tensors().size(), 3u);
  float values[2];
  ASSERT_TRUE((*weights)->Read("three", 1, 2, values).ok());
  EXPECT_EQ(values[0], 11);
  EXPECT_EQ(values[1], 12);
  EXPECT_FALSE((*weights)->Read("three", 2, 2, values).ok());
  EXPECT_FALSE((*weights)->Read("four", 0, 1, values).ok());
}

TEST_F(WeightsTest, InconsistentShardIndexIsRefusedByName) {
  WriteShard("a.safetensors", {"one"}, 1);
  const auto index = [&](const std::string& map) {
    WriteText("model.safetensors.index.json", "{\"weight_map\": {" + map + "}}");
    return OpenError();
  };
  EXPECT_THAT(index(R"("one": "a.safetensors", "two": "a.safetensors")"), HasSubstr("'two'"));
  EXPECT_THAT(index(R"("one": "c.safetensors")"), HasSubstr("'c.safetensors'"));
  EXPECT_THAT(index(R"("one": "../a.safetensors")"), HasSubstr("weight_map"));
  EXPECT_THAT(index(R"("one": 3)"), HasSubstr("weight_map"));
  EXPECT_THAT(index(""), HasSubstr("weight_map"));
  WriteText("model.safetensors.index.json", std::string(100000, '['));
  EXPECT_THAT(OpenError(), HasSubstr("weight_map"));
  WriteShard("b.safetensors", {"one"}, 5);
  EXPECT_THAT(index(R"("one": "a.safetensors", "x": "b.safetensors")"), HasSubstr("both in"));
}

TEST_F(WeightsTest, FolderWithoutWeightsIsRefusedWithTheFormats) {
  EXPECT_THAT(OpenError(), HasSubstr("model.safetensors"));
  EXPECT_THAT(OpenError(), HasSubstr("*.gguf"));
  EXPECT_THAT(std::string(ReadModelConfig(*files_, folder_).status().message()),
              HasSubstr("no config.json"));
  WriteText("a.gguf", "");
  WriteText("b.gguf", "");
  EXPECT_THAT(OpenError(), HasSubstr("'a.gguf' and 'b.gguf'"));
}

// Multimodal models come with a second file.
TEST_F(WeightsTest, MmprojGgufIsIgnored) {
  WriteText("llama.gguf", Bytes("tests/conformance/llama.gguf"));
  WriteText("mmproj-llama-f16.gguf", "");
  const auto weights = OpenWeights(*files_, folder_);
  EXPECT_TRUE(weights.ok()) << weights.status();
}

TEST_F(WeightsTest, InconsistentGgufSplitsAreRefusedByName) {
  WriteText("a-00002-of-00003.gguf", "");
  EXPECT_THAT(
      OpenError(),
      HasSubstr("'a-00002-of-00003.gguf' without 'a-00001-of-00003.gguf'; accepted: all 3"));
  WriteText("a-00001-of-00003.gguf", Bytes("tests/conformance/llama.gguf"));
  EXPECT_THAT(OpenError(), HasSubstr("'split.count' is 1, by its name it is number 1 of 3"));
  WriteText("b-00001-of-00003.gguf", "");
  EXPECT_THAT(OpenError(), HasSubstr("'a-00001-of-00003.gguf' and 'b-00001-of-00003.gguf'"));
}

// Files of an independent script: three files and one, 8 and 4 bits, f32 and f16, partial groups,
// groups of equal weights, names of both converters.
TEST_F(WeightsTest, MatricesKeepTheFilesFormat) {
  class Files : public WeightFiles {
   public:
    // Tensors "0", "1" and so on.
    explicit Files(const std::vector<std::pair<std::string, Dims>>& kinds) {
      for (const auto& [dtype, dims] : kinds) {
        tensors_[absl::StrCat(tensors_.size())] = {dims, dtype, "", dtype != "Q9_9"};
      }
    }
    const std::map<std::string, Tensor>& tensors() const override { return tensors_; }
    absl::Status Read(const std::string&, int64_t, int64_t, float*) const override {
      return absl::InternalError("formats are known without them");
    }

   private:
    std::map<std::string, Tensor> tensors_;
  };
  const NativeFormats own(Files({{"F32", {4, 4}},
                                 {"BF16", {4, 4}},
                                 {"F16", {4, 4}},
                                 {"Q4_0", {4, 4}},
                                 {"Q4_K", {4, 4}},
                                 {"Q6_K", {4, 4}},
                                 {"Q9_9", {4, 4}}}));
  EXPECT_EQ(own.Of({"0"}), WeightFormat::kF32);
  EXPECT_EQ(own.Of({"1"}), WeightFormat::kBF16);
  EXPECT_EQ(own.Of({"2"}), WeightFormat::kF16);
  EXPECT_EQ(own.Of({"3"}), WeightFormat::kInt4);
  EXPECT_EQ(own.Of({"5"}), WeightFormat::kInt8);
  EXPECT_EQ(own.Of({"6"}), WeightFormat::kF32) << "loading will say that it is not read";
  EXPECT_EQ(own.Of({"7"}), WeightFormat::kF32) << "there is none";
  EXPECT_EQ(own.Of({}), WeightFormat::kF32);
  // Base models lack the "model." prefix.
  EXPECT_EQ(own.Of({"transformer.1"}), WeightFormat::kBF16);
  EXPECT_EQ(own.Of({"transformer.3", "transformer.4"}), WeightFormat::kInt4);
  EXPECT_EQ(own.Of({"model.transformer.1"}), WeightFormat::kF32);
  // The widest of several; neither 16-bit type holds the other.
  EXPECT_EQ(own.Of({"3", "4", "3"}), WeightFormat::kInt4);
  EXPECT_EQ(own.Of({"3", "5", "4"}), WeightFormat::kInt8);
  EXPECT_EQ(own.Of({"2", "3"}), WeightFormat::kF32);
  EXPECT_EQ(own.Of({"1", "2"}), WeightFormat::kF32);
  EXPECT_EQ(own.Of({"1", "7"}), WeightFormat::kF32);

  const auto most = [](const std::vector<std::pair<std::string, Dims>>& kinds) {
    return NativeFormats(Files(kinds)).dominant();
  };
  EXPECT_EQ(most({}), WeightFormat::kF32);
  EXPECT_EQ(most({{"F32", {4, 4}}, {"BF16", {4, 5}}}), WeightFormat::kBF16);
  EXPECT_EQ(most({{"F32", {4, 4}}, {"F16", {2, 4, 3}}}), WeightFormat::kF16);
  EXPECT_EQ(most({{"F32", {1000}}, {"BF16", {2, 2}}}), WeightFormat::kBF16) << "no matrix is f32";
  EXPECT_EQ(most({{"F16", {4, 4}}, {"Q5_K", {3, 4}}, {"Q6_K", {3, 4}}}), WeightFormat::kInt8);
}

TEST_F(WeightsTest, NativeFormatIsKnownFromHeaders) {
  const auto own = [&]() -> std::string {
    const absl::StatusOr<NativeFormats> formats = NativeFormats::Read(*files_, folder_);
    return formats.ok() ? Name(formats->dominant()) : std::string(formats.status().message());
  };
  EXPECT_THAT(own(), HasSubstr("model.safetensors"));
  const std::map<std::string, DType> types = {
      {"f32", DType::kF32}, {"bf16", DType::kBF16}, {"f16", DType::kF16}};
  for (const auto& [name, dtype] : types) {
    SafetensorsWriter writer(*files_, Path("model.safetensors"));
    ASSERT_TRUE(writer.Begin({{"norm", {DType::kF32, {8}}}, {"matrix", {dtype, {2, 3}}}}, {}).ok());
    const std::vector<char> zeros(32);
    ASSERT_TRUE(writer.Append(zeros.data(), 32).ok());
    ASSERT_TRUE(writer.Append(zeros.data(), 6 * SizeOf(dtype)).ok());
    ASSERT_TRUE(writer.Finish().ok());
    EXPECT_EQ(own(), name);
  }
  ASSERT_TRUE(files_->Remove(Path("model.safetensors")).ok());
  WriteText("model.gguf", Bytes("tests/conformance/llama.gguf"));
  EXPECT_EQ(own(), "f32");
}

TEST_F(WeightsTest, TemplatesMayLieInFilesByName) {
  const auto read = [&]() {
    return ReadAdditionalTemplates(*files_, folder_, *files_->List(folder_));
  };
  EXPECT_TRUE(read()->empty());
  const std::string more = Path("additional_chat_templates");
  ASSERT_TRUE(files_->CreateDirectories(more).ok());
  const auto write = [&](const std::string& name, const std::string& text) {
    ASSERT_TRUE(WriteFileAtomically(*files_, JoinPath(more, name), text).ok());
  };
  write("tool_use.jinja", "t");
  write("rag.jinja", "r");
  write("README.md", "none");
  EXPECT_EQ(*read(), (std::map<std::string, std::string>{{"rag", "r"}, {"tool_use", "t"}}));
  write("rag.jinja", std::string((1 << 20) + 1, 'x'));
  EXPECT_THAT(std::string(read().status().message()), HasSubstr("rag.jinja"));
  write("rag.jinja", "r");
  for (int i = 0; i < 63; ++i) write(absl::StrCat(i, ".jinja"), "");
  EXPECT_THAT(std::string(read().status().message()), HasSubstr("more than 64 templates"));
  std::filesystem::remove_all(more);
}

TEST_F(WeightsTest, FlexFlowsFilesAreRead) {
  auto expected = SafetensorsFile::Open(*files_, absl::StrCat(kFlexFlow, "/expected.safetensors"));
  ASSERT_TRUE(expected.ok()) << expected.status();
  TensorShapes shapes;
  for (const auto& [name, entry] : (*expected)->tensors()) shapes[name] = entry.type.dims;
  ASSERT_EQ(shapes.size(), 6u);
  const auto weights = OpenWeights(*files_, kFlexFlow, shapes);
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ((*weights)->tensors().size(), shapes.size());
  for (const auto& [name, entry] : (*expected)->tensors()) {
    SCOPED_TRACE(name);
    const int64_t n = entry.type.num_elements();
    std::vector<float> wanted(static_cast<size_t>(n)), found(wanted.size());
    ASSERT_TRUE((*expected)->Read(entry, 0, entry.bytes, wanted.data()).ok());
    ASSERT_EQ((*weights)->tensors().at(name).dims, entry.type.dims);
    ASSERT_TRUE((*weights)->Read(name, 0, n, found.data()).ok());
    EXPECT_EQ(found, wanted);
    // In pieces of arbitrary ends.
    std::fill(found.begin(), found.end(), 0.0f);
    for (int64_t at = 0, step = 1; at < n; at += step, step = step % 23 + 3) {
      ASSERT_TRUE((*weights)->Read(name, at, std::min(step, n - at), found.data() + at).ok());
    }
    EXPECT_EQ(found, wanted);
  }
}

TEST_F(WeightsTest, InconsistentFlexFlowFilesAreRefusedByName) {
  const std::string q = "model.layers.0.self_attn.q_proj.weight";
  const std::string file = "layers_0_attention_wq_weight";
  const auto write = [&](const std::string& name, int64_t bytes, char value) {
    WriteText(name, std::string(static_cast<size_t>(bytes), value));
  };
  const auto error = [&](Dims dims) {
    const auto weights = OpenWeights(*files_, folder_, {{q, std::move(dims)}});
    if (!weights.ok()) return std::string(weights.status().message());
    float value = 0;
    return std::string((*weights)->Read(q, 0, 1, &value).message());
  };
  write(file, 64 * 4, 1);
  EXPECT_THAT(error({64, 4}), HasSubstr(file));  // only q
  write(file + "_offset", 2 * 4 * 4, 0);
  EXPECT_THAT(error({64, 4}), HasSubstr(file));
  write(file + "_scale", 2 * 4 * 4, 0);
  EXPECT_THAT(error({64, 4}), HasSubstr("scale 0"));
  write(file + "_scale", 2 * 4 * 4, '\x7f');  // 3.4e38
  EXPECT_EQ(error({64, 4}), "");
  write(file + "_offset", 2 * 4 * 4, '\xff');  // NaN
  EXPECT_THAT(error({64, 4}), HasSubstr("nan"));
  EXPECT_THAT(error({65, 4}), HasSubstr("config.json"));
  EXPECT_THAT(error({64, 4, 1}), HasSubstr("config.json"));
  write(file + "_scale", 2 * 4 * 2, 1);
  EXPECT_THAT(error({64, 4}), HasSubstr("offsets and scales"));
  // Unexpected tensors stay listed: the loader rejects them.
  write("layers_7_attention_wq_weight", 4, 0);
  write(file + "_scale", 2 * 4 * 4, 1);
  const auto weights = OpenWeights(*files_, folder_, {{q, {64, 4}}});
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_FALSE((*weights)->tensors().at("layers_7_attention_wq_weight").readable);
}

TEST_F(WeightsTest, GgufMetadataIsRead) {
  auto file = GgufFile::Open(*files_, kBlocks);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto& metadata = (*file)->metadata();
  EXPECT_EQ(std::get<int64_t>(metadata.at("test.answer")), 42);
  EXPECT_EQ(std::get<double>(metadata.at("test.half")), 0.5);
  EXPECT_EQ(std::get<bool>(metadata.at("test.flag")), true);
  EXPECT_EQ(std::get<GgufFile::Array>(metadata.at("test.words")).size, 3u);
  EXPECT_EQ(std::get<std::string>(metadata.at("test.text")),
            "gr\xc3\xbc\xc3\x9f"
            "e");
}

// Every type, and any part of a tensor, as the gguf package dequantizes them.
TEST_F(WeightsTest, GgufBlocksDequantizeAsGgmlDoes) {
  auto file = GgufFile::Open(*files_, kBlocks);
  ASSERT_TRUE(file.ok()) << file.status();
  for (const std::string type : {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K", "Q4_1",
                                 "Q5_0", "Q5_1", "Q5_K", "Q3_K", "Q2_K"}) {
    const GgufFile::Tensor& x = (*file)->tensors().at("x." + type);
    EXPECT_EQ(x.type->name, type);
    EXPECT_EQ(x.dims, (Dims{3, 512}));
    std::vector<float> found(3 * 512), expected(3 * 512);
    ASSERT_TRUE((*file)->Read(x, 0, 3 * 512, found.data()).ok());
    ASSERT_TRUE(
        (*file)->Read((*file)->tensors().at("y." + type), 0, 3 * 512, expected.data()).ok());
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_NEAR(found[i], expected[i], 1e-6 * (1 + std::fabs(expected[i]))) << type << " " << i;
    }
    for (const auto& [begin, count] : {std::pair(0, 1), std::pair(31, 2), std::pair(255, 600),
                                       std::pair(1500, 36), std::pair(256, 256)}) {
      std::vector<float> part(static_cast<size_t>(count));
      ASSERT_TRUE((*file)->Read(x, begin, count, part.data()).ok());
      for (int i = 0; i < count; ++i) ASSERT_EQ(part[i], found[begin + i]) << type;
    }
    EXPECT_FALSE((*file)->Read(x, 1500, 37, found.data()).ok());
  }
}

TEST_F(WeightsTest, DamagedGgufIsRefusedAndNamesTheFile) {
  const std::string good = Bytes(kBlocks);
  ASSERT_GT(good.size(), 1000u);
  const auto error = [&](const std::string& bytes) {
    WriteText("x.gguf", bytes);
    return std::string(GgufFile::Open(*files_, Path("x.gguf")).status().message());
  };
  EXPECT_EQ(error(good), "");
  // Truncated anywhere in the header, and within the last tensor.
  for (size_t end = 0; end < 1200; ++end) {
    EXPECT_THAT(error(good.substr(0, end)), HasSubstr("x.gguf")) << end;
  }
  EXPECT_THAT(error(good.substr(0, good.size() - 1)), HasSubstr("tensor '"));
  const auto with = [&](size_t at, const std::string& bytes) {
    std::string changed = good;
    return error(changed.replace(at, bytes.size(), bytes));
  };
  EXPECT_THAT(with(0, "GGML"), HasSubstr("GGUF"));
  EXPECT_THAT(with(4, std::string("\4\0\0\0", 4)), HasSubstr("version 4"));
  EXPECT_THAT(with(4, std::string("\0\0\0\3", 4)), HasSubstr("little-endian"));
  EXPECT_THAT(with(8, std::string(8, '\xff')), HasSubstr("18446744073709551615 tensors"));
  EXPECT_THAT(with(24, std::string(8, '\xff')), HasSubstr("string of 18446744073709551615 bytes"));
}

TEST_F(WeightsTest, GgufOfAnUnknownArchitectureIsRefusedByName) {
  WriteText("x.gguf", Bytes(kBlocks));
  EXPECT_THAT(OpenError(), HasSubstr("general.architecture is 'test'; accepted: llama"));
  EXPECT_EQ(ReadModelConfig(*files_, folder_).status().code(), absl::StatusCode::kUnimplemented);
}

TEST_F(WeightsTest, GgufMetadataBecomesAConfiguration) {
  WriteText("x.gguf", Bytes("tests/conformance/llama.gguf"));
  absl::StatusOr<std::string> text = ReadModelConfig(*files_, folder_);
  ASSERT_TRUE(text.ok()) << text.status();
  const nlohmann::json config = nlohmann::json::parse(*text);
  EXPECT_EQ(config["architectures"], nlohmann::json::array({"LlamaForCausalLM"}));
  EXPECT_EQ(config["vocab_size"], 17);
  EXPECT_EQ(config["num_attention_heads"], 4);
  EXPECT_EQ(config["num_key_value_heads"], 2);
  EXPECT_EQ(config["eos_token_id"], 2);
  EXPECT_EQ(config["tie_word_embeddings"], false);
  auto weights = OpenWeights(*files_, folder_);
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ((*weights)->tensors().at("model.layers.1.self_attn.k_proj.weight").dims,
            (Dims{12, 24}));
  EXPECT_EQ((*weights)->tensors().count("lm_head.weight"), 1u);
}

}  // namespace
}  // namespace espalier
