#include "server/jobs/job_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "models/llama.h"
#include "server/jobs/training_dataset.h"
#include "server/store/sqlite_store.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kText[] = "artifact:text";

// Words of a list; "<s>" and "</s>" are special.
std::string WordsJson(const std::vector<std::string>& more = {}) {
  std::string vocabulary = R"("<unk>": 0, "<s>": 1, "</s>": 2, "a": 3, "b": 4, "c": 5)";
  int id = 6;
  for (const std::string& word : more) absl::StrAppend(&vocabulary, ", \"", word, "\": ", id++);
  return absl::StrCat(R"({"model": {"type": "WordLevel", "unk_token": "<unk>", "vocab": {)",
                      vocabulary,
                      R"(}}, "pre_tokenizer": {"type": "WhitespaceSplit"}, "added_tokens": [
        {"id": 1, "content": "<s>", "special": true, "normalized": false},
        {"id": 2, "content": "</s>", "special": true, "normalized": false}]})");
}

constexpr char kRoles[] = R"({"bos_token": "<s>", "eos_token": "</s>"})";

class JobTokenizerTest : public ::testing::Test {
 protected:
  JobTokenizerTest() {
    root_ = absl::StrCat(::testing::TempDir(), "/job_tokenizer_",
                         ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_ + "/data");
    store_ = *SqliteStore::Open(root_ + "/jobs.db");
    artifacts_ = *ArtifactStore::Open(root_ + "/data", files_.get(), store_.get(), &clock_);
    roots_ = *DatasetRoots::Create({});
    config_ = {.vocab_size = 8,
               .hidden_size = 8,
               .intermediate_size = 16,
               .num_layers = 1,
               .num_heads = 2,
               .num_kv_heads = 2,
               .head_dim = 4,
               .max_position_embeddings = 32};
    config_.tokenizer = "";
    config_.eos = {2};
    Put("tok", {{"tokenizer.json", WordsJson()}, {"tokenizer_config.json", kRoles}});
  }

  void Put(const std::string& name, const std::map<std::string, std::string>& files,
           v1::Artifact::Kind kind = v1::Artifact::MODEL) {
    auto upload = artifacts_->Begin({name, kind, {}, ""}, /*replace=*/true);
    ASSERT_TRUE(upload.ok()) << upload.status();
    for (const auto& [file, content] : files) {
      ASSERT_EQ((*upload)->StartFile(file), absl::OkStatus());
      ASSERT_EQ((*upload)->Append(content), absl::OkStatus());
    }
    ASSERT_TRUE((*upload)->Commit().ok());
  }
  v1::TrainingSpec Spec(const std::string& tokenizer,
                        v1::Dataset::Format format = v1::Dataset::NPZ) {
    v1::TrainingSpec spec;
    (*spec.mutable_graph()->mutable_metadata())["config"] = ToConfigJson(config_);
    spec.set_tokenizer_artifact(tokenizer);
    spec.mutable_dataset()->set_format(format);
    spec.mutable_dataset()->set_uri(kText);
    spec.mutable_dataset()->set_sequence_length(2);
    return spec;
  }
  absl::StatusOr<JobTokenizer> Load(const v1::TrainingSpec& spec) {
    return LoadJobTokenizer(*artifacts_, spec);
  }
  std::string Error(const v1::TrainingSpec& spec) {
    return std::string(Load(spec).status().message());
  }
  absl::StatusOr<TokenizedText> Tokenize(const std::string& text) {
    Put("text", {{"text.txt", text}}, v1::Artifact::DATASET);
    const v1::TrainingSpec spec = Spec("tok", v1::Dataset::TEXT);
    return TokenizeText(spec.dataset(), *artifacts_, *roots_, *Load(spec));
  }
  static std::vector<int> Values(const Dataset& dataset, const std::string& column) {
    const std::vector<char>& data = (*dataset.Find(column))->data;
    std::vector<int> values(data.size() / sizeof(int));
    std::memcpy(values.data(), data.data(), data.size());
    return values;
  }

  std::string root_;
  SystemClock clock_;
  std::unique_ptr<FileSystem> files_ = NewPosixFileSystem();
  std::unique_ptr<SqliteStore> store_;
  std::unique_ptr<ArtifactStore> artifacts_;
  std::unique_ptr<DatasetRoots> roots_;
  LlamaConfig config_;
};

TEST_F(JobTokenizerTest, ATokenizerThatFitsIsLoadedWithoutAWord) {
  const absl::StatusOr<JobTokenizer> loaded = Load(Spec("tok"));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->artifact, "tok");
  EXPECT_THAT(loaded->tokenizer->eos(), ElementsAre(2));
  EXPECT_THAT(loaded->notes, IsEmpty());
}

TEST_F(JobTokenizerTest, WhatCannotBeServedAfterTrainingIsRefused) {
  Put("large", {{"tokenizer.json", WordsJson({"d", "e", "f"})}});
  EXPECT_THAT(Error(Spec("large")),
              AllOf(HasSubstr("spec.tokenizer_artifact 'large'"), HasSubstr("up to 8"),
                    HasSubstr("vocab_size of 8"), HasSubstr("at least 9")));
  Put("no-files", {{"tokenizer.model", "sentencepiece"}});
  EXPECT_THAT(Error(Spec("no-files")),
              AllOf(HasSubstr("no tokenizer.json"), HasSubstr("save_pretrained")));
  Put("broken", {{"tokenizer.json", "{"}});
  EXPECT_THAT(Error(Spec("broken")), HasSubstr("spec.tokenizer_artifact 'broken': tokenizer.json"));
  EXPECT_THAT(Error(Spec("nobody")), HasSubstr("'nobody'"));
  Put("template", {{"tokenizer.json", WordsJson()}, {"chat_template.jinja", "{% for %}"}});
  EXPECT_THAT(Error(Spec("template")), HasSubstr("template"));

  v1::TrainingSpec no_model = Spec("tok");
  no_model.mutable_graph()->clear_metadata();
  EXPECT_THAT(Error(no_model), HasSubstr("config.json"));
  config_.tokenizer = "bytes";
  EXPECT_THAT(Error(Spec("tok")), HasSubstr("\"tokenizer\": \"bytes\""));
}

// As text-only Gemma 3, whose tokenizer has a token for images.
TEST_F(JobTokenizerTest, TokensThatItsOwnModelLacksToo) {
  std::string json = WordsJson({"d", "e"});
  json.insert(json.rfind(']'), R"(, {"id": 8, "content": "<image>", "special": true})");
  Put("alone", {{"tokenizer.json", json}});
  EXPECT_THAT(Error(Spec("alone")), HasSubstr("up to 8"));
  Put("model", {{"tokenizer.json", json}, {"config.json", ToConfigJson(config_)}});
  const absl::StatusOr<JobTokenizer> loaded = Load(Spec("model"));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT(loaded->notes, testing::Contains(HasSubstr("\"<image>\" (8), 1 in all")));
  config_.vocab_size = 7;
  EXPECT_THAT(Error(Spec("model")), HasSubstr("vocab_size of 7")) << "smaller than its own model";
}

TEST_F(JobTokenizerTest, DifferencesFromTheConfigAreNamed) {
  config_.eos = {3};
  std::string config = ToConfigJson(config_);
  const size_t bos = config.find("\"bos_token_id\": null");
  ASSERT_NE(bos, config.npos);
  config.replace(bos, 20, "\"bos_token_id\": 4");
  v1::TrainingSpec spec = Spec("tok");
  (*spec.mutable_graph()->mutable_metadata())["config"] = config;
  absl::StatusOr<JobTokenizer> loaded = Load(spec);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT(loaded->notes,
              ElementsAre(AllOf(HasSubstr("eos_token_id 3"), HasSubstr("token 3 (\" a\")"),
                                HasSubstr("2 (\"</s>\")"), HasSubstr("both")),
                          AllOf(HasSubstr("bos_token_id 4"), HasSubstr("1 (\"<s>\")"))));
  config_.eos.clear();
  Put("plain", {{"tokenizer.json", WordsJson()}, {"generation_config.json", "{\"top_k\": 3}"}});
  loaded = Load(Spec("plain"));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT(loaded->notes,
              ElementsAre(HasSubstr("neither config.json"), HasSubstr("generation_config.json")));
  Put("far",
      {{"tokenizer.json", WordsJson()}, {"generation_config.json", "{\"eos_token_id\": 7}"}});
  EXPECT_THAT(Error(Spec("far")), HasSubstr("eos_token_id 7"));
}

TEST_F(JobTokenizerTest, ATextWithoutATokenizerIsBytesAndThatIsSaid) {
  absl::StatusOr<JobTokenizer> loaded = Load(Spec("", v1::Dataset::TEXT));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->tokenizer, nullptr);
  EXPECT_THAT(loaded->notes,
              ElementsAre(AllOf(HasSubstr("read as bytes"), HasSubstr("--tokenizer"))));
  EXPECT_THAT(Load(Spec(""))->notes, ElementsAre(HasSubstr("cannot be served")));
  config_.tokenizer = "bytes";
  EXPECT_THAT(Load(Spec("", v1::Dataset::TEXT))->notes, IsEmpty());
}

TEST_F(JobTokenizerTest, ATextIsReadByTheTokenizerOfTheInitialModel) {
  Put("model", {{"tokenizer.json", WordsJson()},
                {"tokenizer_config.json", kRoles},
                {"config.json", ToConfigJson(config_)}});
  v1::TrainingSpec spec = Spec("", v1::Dataset::TEXT);
  spec.clear_graph();
  spec.set_init_artifact("model");
  absl::StatusOr<JobTokenizer> loaded = Load(spec);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ASSERT_NE(loaded->tokenizer, nullptr);
  EXPECT_EQ(loaded->artifact, "model");
  spec.set_tokenizer_artifact("tok");
  loaded = Load(spec);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT(loaded->notes, ElementsAre(HasSubstr("of 'tok', not that of 'model'")));
  spec.clear_tokenizer_artifact();
  Put("model", {{"config.json", ToConfigJson(config_)}});
  EXPECT_THAT(Error(spec), AllOf(HasSubstr("spec.init_artifact"), HasSubstr("no tokenizer.json")));
}

TEST_F(JobTokenizerTest, ATextBecomesWindowsOfTokens) {
  // "</s>" between documents is a token; "x" is unknown; the last token has no target.
  const absl::StatusOr<TokenizedText> text = Tokenize("a b</s>c x b a c");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->dataset->examples(), 3);
  EXPECT_THAT(Values(*text->dataset, "tokens"), ElementsAre(3, 4, 2, 5, 0, 4));
  EXPECT_THAT(Values(*text->dataset, "targets"), ElementsAre(4, 2, 5, 0, 4, 3));
  EXPECT_THAT(text->note, AllOf(HasSubstr("8 tokens of the tokenizer of 'tok', 2.00 bytes each"),
                                HasSubstr("\"</s>\" is in it 1 times")));
  EXPECT_THAT(std::string(Tokenize("a b").status().message()),
              AllOf(HasSubstr("2 tokens"), HasSubstr("sequence length 2 takes 2 and one more")));
  EXPECT_THAT(std::string(Tokenize(" ").status().message()), HasSubstr("0 tokens"));
}

TEST_F(JobTokenizerTest, TokensAreKeptOncePerOwner) {
  const absl::StatusOr<TokenizedText> text = Tokenize("a b c a b c");
  ASSERT_TRUE(text.ok()) << text.status();
  const std::string mine = *KeepTokens(artifacts_.get(), *text->dataset, "ann");
  EXPECT_EQ(*KeepTokens(artifacts_.get(), *text->dataset, "ann"), mine);
  const std::string theirs = *KeepTokens(artifacts_.get(), *text->dataset, "bob");
  EXPECT_NE(theirs, mine);
  EXPECT_EQ(artifacts_->Find(theirs)->owner(), "bob");
  v1::Dataset dataset;
  dataset.set_uri("artifact:" + mine);
  dataset.set_format(v1::Dataset::NPZ);
  const auto outline = OutlineDataset(dataset, *artifacts_, *roots_);
  ASSERT_TRUE(outline.ok()) << outline.status();
  EXPECT_EQ((*outline)->examples(), text->dataset->examples());
  EXPECT_TRUE((*outline)->Find("targets").ok());
}

}  // namespace
}  // namespace espalier
