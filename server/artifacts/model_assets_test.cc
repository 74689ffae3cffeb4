#include "server/artifacts/model_assets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/weights/weight_files.h"
#include "tests/conformance/gguf_files.h"

namespace espalier {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

class ModelAssetsTest : public ::testing::Test {
 protected:
  ModelAssetsTest() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    const std::string root = JoinPath(::testing::TempDir(), test->name());
    std::filesystem::remove_all(root);
    from_ = JoinPath(root, "from");
    to_ = JoinPath(root, "to");
    for (const std::string& folder : {from_, to_}) {
      EXPECT_TRUE(files_->CreateDirectories(folder).ok());
    }
    artifact_.set_name("source");
  }

  void Write(const std::string& name, const std::string& bytes) {
    EXPECT_TRUE(WriteFileAtomically(*files_, JoinPath(from_, name), bytes).ok());
    artifact_.add_files(name);
  }
  void WriteGguf(const std::string& pre) {
    Write("model.gguf", GgufFileOf({{"general.architecture", {"STRING", "llama"}},
                                    {"tokenizer.ggml.model", {"STRING", "gpt2"}},
                                    {"tokenizer.ggml.pre", {"STRING", pre}},
                                    {"tokenizer.ggml.tokens", {"STRINGS", {"a", "b", "<|end|>"}}},
                                    {"tokenizer.chat_template", {"STRING", "of the gguf"}}},
                                   {}));
  }

  absl::Status Copy(ModelAssets which = ModelAssets::kAll) {
    return CopyModelAssets(*files_, artifact_, from_, to_, which);
  }
  std::vector<std::string> Copied() { return *files_->List(to_); }
  std::string Text(const std::string& name) {
    return ReadWholeFile(*files_, JoinPath(to_, name), 1 << 20).value_or("none");
  }

  std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  std::string from_, to_;
  v1::Artifact artifact_;
};

// Without them, models derived from a GGUF by `models quantize` or training could not be served.
TEST_F(ModelAssetsTest, TheTokenizerAndTheTemplateOfAGgufAreWritten) {
  WriteGguf("gpt-2");
  Write("LICENSE", "mit");
  ASSERT_TRUE(Copy().ok());
  EXPECT_THAT(Copied(), UnorderedElementsAre("LICENSE", "tokenizer.json", "tokenizer_config.json"));
  const absl::StatusOr<TokenizerTexts> texts = ReadModelTokenizer(*files_, from_);
  ASSERT_TRUE(texts.ok()) << texts.status();
  EXPECT_EQ(Text("tokenizer.json"), texts->tokenizer);
  EXPECT_EQ(json::parse(Text("tokenizer.json"))["model"]["vocab"].size(), 3u);
  EXPECT_EQ(json::parse(Text("tokenizer_config.json"))["chat_template"], "of the gguf");
}

TEST_F(ModelAssetsTest, FilesOfItsOwnAreNotReplaced) {
  WriteGguf("gpt-2");
  Write("tokenizer_config.json", "{}");
  ASSERT_TRUE(Copy().ok());
  EXPECT_THAT(Copied(), UnorderedElementsAre("tokenizer.json", "tokenizer_config.json"));
  EXPECT_EQ(Text("tokenizer_config.json"), "{}");
  Write("tokenizer.json", "its own");
  ASSERT_TRUE(Copy().ok());
  EXPECT_EQ(Text("tokenizer.json"), "its own");
}

// A model may get the tokenizer of one artifact, and what else it has from another.
TEST_F(ModelAssetsTest, TheTokenizerAndTheRestAreParts) {
  const std::vector<std::string> tokenizer = {"tokenizer.json", "chat_template.jinja",
                                              "additional_chat_templates/tools.jinja"};
  for (const std::string& name : tokenizer) {
    EXPECT_TRUE(files_->CreateDirectories(JoinPath(from_, "additional_chat_templates")).ok());
    Write(name, "x");
  }
  Write("LICENSE", "mit");
  ASSERT_TRUE(Copy(ModelAssets::kOthers).ok());
  EXPECT_THAT(Copied(), ElementsAre("LICENSE"));
  std::filesystem::remove(JoinPath(to_, "LICENSE"));
  ASSERT_TRUE(Copy(ModelAssets::kTokenizer).ok());
  EXPECT_THAT(Copied(), UnorderedElementsAre("tokenizer.json", "chat_template.jinja",
                                             "additional_chat_templates"));
  EXPECT_EQ(Text("additional_chat_templates/tools.jinja"), "x");
}

TEST_F(ModelAssetsTest, OnlyTheTokenizerOfAGguf) {
  WriteGguf("gpt-2");
  Write("LICENSE", "mit");
  ASSERT_TRUE(Copy(ModelAssets::kTokenizer).ok());
  EXPECT_THAT(Copied(), UnorderedElementsAre("tokenizer.json", "tokenizer_config.json"));
}

TEST_F(ModelAssetsTest, SkipsWeightsReportsAndUnreadableTokenizers) {
  WriteGguf("chameleon");
  Write("config.json", "{}");
  Write(kDistillationReport, "{}");
  Write("LICENSE", "mit");
  ASSERT_TRUE(Copy().ok());
  EXPECT_THAT(Copied(), ElementsAre("LICENSE"));
}

}  // namespace
}  // namespace espalier
