// Language models that are trained from scratch: --tokenizer, and data as arrays.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "client/cli/cli_fixture.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::UnorderedElementsAre;

class CliTokenizerTest : public CliTest {
 protected:
  void Write(const std::string& name, const std::string& content = "{}") {
    const std::filesystem::path path = std::filesystem::path(home_) / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << content;
  }
  int Train(const std::string& tokenizer, const std::string& model = "llama:tiny") {
    return Run({"train", "--detach", "--model=" + model, "-d", home_ + "/text.txt", "--steps=3",
                "--tokenizer=" + tokenizer});
  }
  const v1::TrainingSpec& Submitted() { return fake_.state()->submits.back().spec(); }
  // Files of the artifact that was submitted.
  const auto& Uploaded() { return fake_.state()->files[Submitted().tokenizer_artifact()]; }
  void ExpectUsageError(const std::string& tokenizer, const std::string& problem) {
    EXPECT_EQ(Train(tokenizer), kExitUsage) << tokenizer;
    EXPECT_THAT(err_.str(), HasSubstr(problem));
    EXPECT_TRUE(fake_.state()->files.empty()) << "nothing is uploaded for a job that cannot be";
  }
};

TEST_F(CliTokenizerTest, OnlyTheTokenizerOfAFolderIsUploaded) {
  Write("m/tokenizer.json", "{\"a\": 1}");
  Write("m/tokenizer_config.json");
  Write("m/additional_chat_templates/tools.jinja");
  Write("m/config.json");
  Write("m/model.safetensors");
  Write("m/README.md");
  Write("m/original/tokenizer.json");
  ASSERT_EQ(Train(home_ + "/m"), kExitOk) << err_.str();
  EXPECT_THAT(Uploaded(), UnorderedElementsAre(Key("tokenizer.json"), Key("tokenizer_config.json"),
                                               Key("additional_chat_templates/tools.jinja")));
  // The preset's own tokenizer, of bytes, is not meant.
  EXPECT_THAT(Submitted().graph().metadata().at("config"),
              ::testing::Not(HasSubstr("\"tokenizer\"")));

  ASSERT_EQ(Train(home_ + "/m/tokenizer.json"), kExitOk) << err_.str();
  EXPECT_THAT(Uploaded(), UnorderedElementsAre(Key("tokenizer.json")));
}

TEST_F(CliTokenizerTest, AGgufStandsForItsTokenizer) {
  Write("g/model.gguf");
  Write("g/README.md");
  for (const char* path : {"/g", "/g/model.gguf"}) {
    ASSERT_EQ(Train(home_ + path), kExitOk) << err_.str();
    EXPECT_THAT(Uploaded(), UnorderedElementsAre(Key("model.gguf")));
  }
}

TEST_F(CliTokenizerTest, OtherNamesAreThoseOfArtifacts) {
  for (const char* name : {"llm", "artifact:llm"}) {
    ASSERT_EQ(Train(name), kExitOk) << err_.str();
    EXPECT_EQ(Submitted().tokenizer_artifact(), "llm");
  }
  ASSERT_EQ(Run({"train", "--detach", "--init=llm", "-d", home_ + "/text.txt", "--steps=3",
                 "--tokenizer=org/tok@2"}),
            kExitOk)
      << err_.str();
  EXPECT_EQ(Submitted().tokenizer_artifact(), "org/tok@2");
  EXPECT_EQ(Submitted().init_artifact(), "llm");
}

TEST_F(CliTokenizerTest, AModelIsBuiltForTheLengthOfArrays) {
  Write("rows.npz");
  const std::vector<std::string> train = {"train",     "--detach", "--model=llama:tiny",
                                          "--steps=3", "-d",       home_ + "/rows.npz"};
  ASSERT_EQ(Run(train), kExitOk) << err_.str();
  EXPECT_EQ(Submitted().graph().nodes_size(), 0);
  EXPECT_THAT(Submitted().graph().metadata().at("config"), HasSubstr("\"hidden_size\": 64"));
  std::vector<std::string> given = train;
  given.push_back("--sequence-length=16");
  ASSERT_EQ(Run(given), kExitOk) << err_.str();
  EXPECT_GT(Submitted().graph().nodes_size(), 0);
}

TEST_F(CliTokenizerTest, WhatHoldsNoTokenizerIsAUsageError) {
  Write("s/tokenizer.model");
  Write("e/config.json");
  Write("words.txt");
  ExpectUsageError(home_ + "/s", "save_pretrained");
  ExpectUsageError(home_ + "/e", "has no tokenizer.json");
  ExpectUsageError(home_ + "/words.txt", "accepted: a folder");
  ExpectUsageError(home_ + "/nothing", "cannot read");
  ExpectUsageError("", "which tokenizer?");
}

}  // namespace
}  // namespace espalier
