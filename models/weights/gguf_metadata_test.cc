// Implicit meanings of GGUF metadata, as llama.cpp interprets them, and false claims in headers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/weights/gguf.h"
#include "models/weights/weight_files.h"

namespace espalier {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename T>
std::string Raw(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}
std::string Raw(const std::string& text) { return Raw<uint64_t>(text.size()) + text; }

std::string Number(uint32_t value) { return Raw<uint32_t>(4) + Raw(value); }
std::string Float(float value) { return Raw<uint32_t>(6) + Raw(value); }
std::string Text(const std::string& text) { return Raw<uint32_t>(8) + Raw(text); }
std::string List(const std::vector<std::string>& texts) {
  std::string out = Raw<uint32_t>(9) + Raw<uint32_t>(8) + Raw<uint64_t>(texts.size());
  for (const std::string& text : texts) out += Raw(text);
  return out;
}
std::string List(const std::vector<int32_t>& numbers) {
  std::string out = Raw<uint32_t>(9) + Raw<uint32_t>(5) + Raw<uint64_t>(numbers.size());
  for (const int32_t number : numbers) out += Raw(number);
  return out;
}

using Metadata = std::map<std::string, std::string>;

class GgufMetadataTest : public ::testing::Test {
 protected:
  GgufMetadataTest() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = JoinPath(::testing::TempDir(), absl::StrCat("gguf-metadata-", test->name()));
    EXPECT_TRUE(files_->CreateDirectories(folder_).ok());
  }

  // A LLaMA with eight tokens and this tokenizer metadata; the embedding table is its only tensor.
  void Write(const std::vector<std::string>& tokens, const std::vector<int32_t>& types,
             const Metadata& more) {
    Metadata metadata = {
        {"general.architecture", Text("llama")},   {"llama.embedding_length", Number(4)},
        {"llama.feed_forward_length", Number(4)},  {"llama.block_count", Number(1)},
        {"llama.attention.head_count", Number(1)}, {"llama.context_length", Number(64)},
        {"tokenizer.ggml.model", Text("gpt2")},    {"tokenizer.ggml.pre", Text("gpt-2")},
        {"tokenizer.ggml.tokens", List(tokens)},   {"tokenizer.ggml.eos_token_id", Number(0)}};
    if (!types.empty()) metadata["tokenizer.ggml.token_type"] = List(types);
    for (const auto& [key, value] : more) metadata[key] = value;
    std::string file =
        "GGUF" + Raw<uint32_t>(3) + Raw<uint64_t>(1) + Raw<uint64_t>(metadata.size());
    for (const auto& [key, value] : metadata) file += Raw(key) + value;
    file += Raw(std::string("token_embd.weight")) + Raw<uint32_t>(2) + Raw<uint64_t>(4) +
            Raw<uint64_t>(tokens.size()) + Raw<uint32_t>(0) + Raw<uint64_t>(0);
    file.resize((file.size() + 31) / 32 * 32 + tokens.size() * 16);
    std::ofstream(JoinPath(folder_, "x.gguf"), std::ios::binary) << file;
  }

  json Config() {
    const absl::StatusOr<std::string> text = ReadModelConfig(*files_, folder_);
    EXPECT_TRUE(text.ok()) << text.status();
    return text.ok() ? json::parse(*text) : json();
  }
  // Returns the error or config.json of such a file.
  std::string Error(const Metadata& more) {
    Write({"</s>", "a"}, {}, more);
    return std::string(ReadModelConfig(*files_, folder_).status().message());
  }
  json AddedTokens() { return json::parse(Tokenizer().tokenizer)["added_tokens"]; }
  TokenizerTexts Tokenizer() {
    const absl::StatusOr<TokenizerTexts> texts = ReadModelTokenizer(*files_, folder_);
    EXPECT_TRUE(texts.ok()) << texts.status();
    return texts.value_or(TokenizerTexts{"{}", "{}"});
  }

  std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  std::string folder_;
};

TEST_F(GgufMetadataTest, EndOfTurnTokensAreEos) {
  const std::vector<std::string> tokens = {"</s>",    "a",        "<|im_end|>", "<|eot_id|>",
                                           "<|end|>", "<|turn|>", "<|word|>",   "<end_of_turn>"};
  // By spelling, for any token type except "unused", and by further keys where these name tokens.
  Write(tokens, {3, 1, 3, 1, 4, 3, 3, 5}, {});
  EXPECT_EQ(Config()["eos_token_id"], json({0, 2, 3, 4}));
  Write(tokens, {3, 1, 3, 1, 4, 3, 3, 5},
        {{"tokenizer.ggml.eot_token_id", Number(5)},
         {"tokenizer.ggml.eom_token_id", Number(6)},
         {"tokenizer.ggml.fim_pad_token_id", Number(7)},
         {"tokenizer.ggml.fim_sep_token_id", Number(99)}});
  EXPECT_EQ(Config()["eos_token_id"], json({0, 2, 3, 4, 5, 6}));
  // They become special tokens.
  std::vector<int> special;
  for (const json& token : AddedTokens()) {
    EXPECT_EQ(token["special"], true) << token;
    special.push_back(token["id"]);
  }
  EXPECT_THAT(special, ElementsAre(0, 2, 3, 4, 5, 6));
  // A single id is not a list.
  Write({"</s>", "a"}, {}, {});
  EXPECT_EQ(Config()["eos_token_id"], json(0));
  EXPECT_EQ(AddedTokens(), json::array());
}

// Answers with channels have several messages, each with an end.
TEST_F(GgufMetadataTest, EndOfMessageDiffersFromEndOfAnswer) {
  Write({"</s>", "<|end|>", "<|return|>", "<|call|>"}, {}, {});
  EXPECT_EQ(Config()["eos_token_id"], json({0, 2, 3}));
}

TEST_F(GgufMetadataTest, RopeFactorWithoutTypeScalesLinearly) {
  const auto scaling = [&](const Metadata& more) {
    Write({"</s>", "a"}, {}, more);
    return Config()["rope_scaling"];
  };
  const json by4 = {{"rope_type", "linear"}, {"factor", 4.0}};
  EXPECT_EQ(scaling({}), json());
  EXPECT_EQ(scaling({{"llama.rope.scaling.factor", Float(4)}}), by4);
  EXPECT_EQ(scaling({{"llama.rope.scale_linear", Float(4)}}), by4);
  EXPECT_EQ(
      scaling({{"llama.rope.scale_linear", Float(4)}, {"llama.rope.scaling.type", Text("linear")}}),
      by4);
  EXPECT_EQ(
      scaling({{"llama.rope.scaling.factor", Float(4)}, {"llama.rope.scaling.type", Text("none")}}),
      json());
  EXPECT_EQ(scaling({{"llama.rope.scaling.factor", Float(0)}}), json());
  EXPECT_EQ(scaling({{"llama.rope.scaling.type", Text("linear")}}), json());
}

// llama.cpp multiplies by them with any scaling type and with none.
TEST_F(GgufMetadataTest, UnsupportedAttentionFactorsAreRefusedByKey) {
  const Metadata linear = {{"llama.rope.scaling.factor", Float(4)}};
  const Metadata none;
  for (const Metadata& scaling : {none, linear}) {
    for (const char* key : {"attn_factor", "yarn_attn_factor", "yarn_ext_factor"}) {
      Metadata more = scaling;
      const std::string whole = absl::StrCat("llama.rope.scaling.", key);
      more[whole] = Float(1);
      EXPECT_EQ(Error(more), "");
      more[whole] = Float(1.5);
      EXPECT_THAT(Error(more), HasSubstr(absl::StrCat("'", whole, "' is set; accepted: 1")));
    }
  }
}

TEST_F(GgufMetadataTest, PartialRotaryComesFromTheFile) {
  const auto metadata = [](const std::string& architecture, uint32_t turned) {
    Metadata more = {{"general.architecture", Text(architecture)}};
    for (const auto& [key, value] : {std::pair("embedding_length", 32u),
                                     {"feed_forward_length", 4u},
                                     {"block_count", 1u},
                                     {"attention.head_count", 4u},
                                     {"context_length", 64u},
                                     {"attention.key_length", 8u}}) {
      more[absl::StrCat(architecture, ".", key)] = Number(value);
    }
    if (turned > 0) more[architecture + ".rope.dimension_count"] = Number(turned);
    return more;
  };
  for (const char* architecture : {"qwen2", "qwen3", "gemma", "gemma2"}) {
    for (const uint32_t turned : {0u, 8u, 4u}) {
      Write({"</s>", "a"}, {}, metadata(architecture, turned));
      const json config = Config();
      EXPECT_EQ(config["head_dim"], 8) << architecture;
      EXPECT_EQ(config.value("partial_rotary_factor", 1.0), turned == 4 ? 0.5 : 1.0)
          << architecture;
    }
  }
  // Rows in another order, and two kinds of layers.
  for (const char* architecture : {"llama", "gemma3", "falcon"}) {
    EXPECT_EQ(Error(metadata(architecture, 8)), "");
    EXPECT_THAT(Error(metadata(architecture, 4)),
                HasSubstr(absl::StrCat("'", architecture, ".rope.dimension_count' must be 8")));
  }
}

TEST_F(GgufMetadataTest, Phi3SpecialTokensStripFollowingBlanks) {
  const auto taking = [&](const char* name) {
    Write({"<unk>", "<s>", "<|endoftext|>", "<|user|>", "<|end|>", "a"}, {2, 3, 3, 4, 3, 1},
          {{"general.name", Text(name)}});
    std::vector<std::string> found;
    for (const json& token : AddedTokens()) {
      if (token["rstrip"] == true) found.push_back(token["content"]);
    }
    return found;
  };
  EXPECT_THAT(taking("Phi-3 Mini 4k Instruct"), ElementsAre("<|user|>", "<|end|>"));
  EXPECT_THAT(taking("microsoft_phi3"), ElementsAre("<|user|>", "<|end|>"));
  EXPECT_THAT(taking("Phi 4"), ElementsAre());
}

TEST_F(GgufMetadataTest, ChatTemplatesHaveNames) {
  const auto templates = [&](const Metadata& more) {
    Write({"</s>", "a"}, {}, more);
    return json::parse(Tokenizer().config)["chat_template"];
  };
  EXPECT_EQ(templates({}), json());
  EXPECT_EQ(templates({{"tokenizer.chat_template", Text("x")}}), json("x"));
  EXPECT_EQ(templates({{"tokenizer.chat_template", Text("x")},
                       {"tokenizer.chat_template.tool_use", Text("y")},
                       {"tokenizer.chat_templates", List(std::vector<std::string>{"tool_use"})}}),
            json::parse(R"([{"name": "default", "template": "x"},
                            {"name": "tool_use", "template": "y"}])"));
}

TEST_F(GgufMetadataTest, FalseHeaderClaimsAreRefusedByTensorOrKey) {
  constexpr uint32_t kF32 = 0, kQ8_0 = 8;                              // ggml's types
  constexpr uint32_t kUint8 = 0, kText = 8, kArray = 9, kUint64 = 10;  // types of metadata values
  using Parts = std::vector<std::string>;
  const auto key = [](const std::string& name, const std::string& value) {
    return Raw(name) + value;
  };
  const auto array = [&](uint32_t type, uint64_t size) {
    return key("k", Raw(kArray) + Raw(type) + Raw(size));
  };
  const auto tensor = [](const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset = 0) {
    std::string out = Raw(std::string("x")) + Raw(static_cast<uint32_t>(dims.size()));
    for (const uint64_t extent : dims) out += Raw(extent);
    return out + Raw(type) + Raw(offset);
  };
  // 256 bytes of data.
  const auto open = [&](const Parts& keys, const Parts& tensors) {
    std::string file =
        "GGUF" + Raw<uint32_t>(3) + Raw<uint64_t>(tensors.size()) + Raw<uint64_t>(keys.size());
    for (const Parts& parts : {keys, tensors}) {
      for (const std::string& part : parts) file += part;
    }
    file.resize((file.size() + 31) / 32 * 32 + 256);
    const std::string path = JoinPath(folder_, "x.gguf");
    std::ofstream(path, std::ios::binary) << file;
    return GgufFile::Open(*files_, path).status();
  };
  const std::string good = tensor({32, 2}, kF32), number = key("k", Number(1));
  EXPECT_TRUE(open({number}, {good}).ok());
  EXPECT_TRUE(open({key("general.alignment", Number(64))}, {tensor({8}, kF32, 64)}).ok());

  const uint64_t most = UINT64_MAX;
  const struct {
    const char* claim;
    Parts keys, tensors;
    const char* says;
  } cases[] = {
      {"elements", {}, {tensor({uint64_t{1} << 40, 1 << 9}, kF32)}, "'x' has a dimension of 512"},
      {"elements that overflow", {}, {tensor({1 << 30, most}, kF32)}, "'x' has a dimension of 184"},
      {"no elements", {}, {tensor({32, 0}, kF32)}, "'x' has a dimension of 0"},
      {"rank", {}, {tensor({1, 1, 1, 1, 1}, kF32)}, "'x' has 5 dimensions; accepted: at most 4"},
      {"parts of blocks", {}, {tensor({33}, kQ8_0)}, "'x' has rows of 33 elements; Q8_0 needs"},
      {"between steps", {}, {tensor({8}, kF32, 4)}, "'x' takes 32 bytes at 4"},
      {"steps of its own",
       {key("general.alignment", Number(64))},
       {tensor({8}, kF32, 32)},
       "'x' takes 32 bytes at 32"},
      {"data past the end", {}, {tensor({32, 2}, kF32, 32)}, "'x' takes 256 bytes at 32"},
      {"beginning past the end", {}, {tensor({8}, kF32, 288)}, "'x' takes 32 bytes at 288"},
      {"an offset that overflows", {}, {tensor({8}, kF32, most - 31)}, "'x' takes 32 bytes at 184"},
      {"steps of 0", {key("general.alignment", Number(0))}, {good}, "general.alignment must be"},
      {"steps of 3", {key("general.alignment", Number(3))}, {good}, "general.alignment must be"},
      {"steps in words", {key("general.alignment", Text("32"))}, {good}, "general.alignment must"},
      {"a key twice", {number, number}, {}, "metadata 'k' is there twice"},
      {"a tensor twice", {}, {good, good}, "tensor 'x' is there twice"},
      {"a value of no type", {key("k", Raw<uint32_t>(99))}, {}, "'k' has a value of unknown type"},
      {"a huge number", {key("k", Raw(kUint64) + Raw(most))}, {}, "'k' has an integer beyond"},
      {"arrays of arrays", {array(kArray, 1)}, {}, "'k' is an array of elements of type 9;"},
      {"arrays of nothing", {array(99, 1)}, {}, "'k' is an array of elements of type 99;"},
      {"bytes", {array(kUint8, most)}, {}, "within metadata 'k'"},
      {"numbers", {array(kUint64, most / 8)}, {}, "within metadata 'k'"},
      {"overflowing numbers", {array(kUint64, most / 8 + 1)}, {}, "'k' is an array of 230584300"},
      {"texts", {array(kText, most)}, {}, "within metadata 'k'"},
  };
  for (const auto& test : cases) {
    SCOPED_TRACE(test.claim);
    const absl::Status status = open(test.keys, test.tensors);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(test.says));
  }
  const absl::Status unknown = open({}, {tensor({32}, 99)});
  EXPECT_EQ(unknown.code(), absl::StatusCode::kUnimplemented) << unknown;
  EXPECT_THAT(std::string(unknown.message()),
              AllOf(HasSubstr("'x' has ggml type 99"), HasSubstr("accepted: F32")));
}

}  // namespace
}  // namespace espalier
