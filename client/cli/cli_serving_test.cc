// The commands for served models.
#include <filesystem>
#include <fstream>

#include "client/cli/cli_fixture.h"
#include "client/cli/generation.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(CliTest, AdaptersAreServedUnderNamesAndChosenByThem) {
  ASSERT_EQ(Run({"serve", "llm", "--adapter=poet=poems", "--adapter=clerk=a=b"}), kExitOk)
      << err_.str();
  const v1::ServeModelRequest& served = fake_.state()->serves.back();
  ASSERT_EQ(served.adapters_size(), 2);
  EXPECT_EQ(served.adapters(0).name(), "poet");
  EXPECT_EQ(served.adapters(0).artifact(), "poems");
  EXPECT_EQ(served.adapters(1).artifact(), "a=b");
  ASSERT_EQ(Run({"generate", "llm", "--adapter=poet", "Now"}), kExitOk) << err_.str();
  EXPECT_EQ(fake_.state()->generates.back().model(), "llm");
  EXPECT_EQ(fake_.state()->generates.back().adapter(), "poet");
}

TEST_F(CliTest, WhereAShortSsmsDraftsEndIsSaid) {
  fake_.state()->served.add_ssm_artifacts("small");
  fake_.state()->served.add_ssm_placements()->set_draft_tokens(512);
  fake_.state()->served.add_ssm_artifacts("long");
  fake_.state()->served.add_ssm_placements();
  ASSERT_EQ(Run({"serve", "llm", "--ssm=small", "--ssm=long", "--short-ssms"}), kExitOk)
      << err_.str();
  EXPECT_TRUE(fake_.state()->serves.back().short_ssms());
  EXPECT_THAT(out_.str(), HasSubstr("drafted by small (up to 512 tokens), long"));
  ASSERT_EQ(Run({"serve"}), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("up to 512 tokens"));
  ASSERT_EQ(Run({"serve", "llm", "--ssm=small"}), kExitOk) << err_.str();
  EXPECT_FALSE(fake_.state()->serves.back().short_ssms());
}

TEST_F(CliTest, ServeWarnsOfIneffectiveGenerationConfig) {
  ASSERT_EQ(Run({"serve", "llm"}), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), Not(HasSubstr("warning")));
  fake_.state()->served.add_ignored_generation_fields("num_beams");
  fake_.state()->served.add_ignored_generation_fields("top_h");
  ASSERT_EQ(Run({"serve", "llm"}), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("warning: the model's generation_config.json has num_beams, "
                                    "top_h, which has no effect here"));
  ASSERT_EQ(Run({"serve", "llm", "--json"}), kExitOk) << err_.str();
  EXPECT_EQ(Json::parse(out_.str())["ignored_generation_fields"][1], "top_h");
}

TEST_F(CliTest, AChatRemembersWhatWasSaid) {
  v1::GenerateReply thought, text, last;
  thought.set_reasoning("hm");
  text.set_text("Noah.");
  last.set_finish_reason("stop");
  last.mutable_usage()->set_completion_tokens(3);
  fake_.state()->replies = {thought, text, last};
  in_.str("Who?\n\n  Who else? \n/clear\nAnd now?\n");
  ASSERT_EQ(Run({"chat", "llm", "--system=Be brief.", "--reasoning-effort=low"}), kExitOk)
      << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("hm\n\nNoah.\n"));
  const auto asked = fake_.state()->generates;
  ASSERT_EQ(asked.size(), 3u);
  const auto& turns = asked[1].chat().turns();
  ASSERT_EQ(turns.size(), 4);
  EXPECT_EQ(turns[0].role(), "system");
  EXPECT_EQ(turns[2].role(), "assistant");
  EXPECT_EQ(turns[2].content(), "Noah.");
  EXPECT_EQ(turns[2].reasoning(), "hm");
  EXPECT_EQ(turns[3].content(), "Who else?");
  EXPECT_EQ(asked[1].chat().reasoning_effort(), "low");
  ASSERT_EQ(asked[2].chat().turns_size(), 2);
  EXPECT_EQ(asked[2].chat().turns(1).content(), "And now?");

  ASSERT_EQ(Run({"chat", "llm", "Who", "was", "it?", "--json"}), kExitOk) << err_.str();
  EXPECT_EQ(fake_.state()->generates.back().chat().turns(0).content(), "Who was it?");
  const auto lines = Lines();
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0]["reasoning"], "hm");
  EXPECT_EQ(lines[2]["done"]["text"], "Noah.");
  EXPECT_EQ(Run({"chat"}), kExitUsage);
}

TEST_F(CliTest, AChatTemplateIsReadFromItsFile) {
  std::ofstream(home_ + "/chat.jinja") << "{{ messages[0].content }}";
  ASSERT_EQ(Run({"serve", "llm", "--chat-template=" + home_ + "/chat.jinja"}), kExitOk)
      << err_.str();
  EXPECT_EQ(fake_.state()->serves.back().chat_template(), "{{ messages[0].content }}");
  EXPECT_EQ(Run({"serve", "llm", "--chat-template=" + home_ + "/missing.jinja"}), kExitUsage);
}

// In Hugging Face's cache, a snapshot is a folder of links to files named by their hashes.
TEST_F(CliTest, FolderOfLinksIsUploadedUnderLinkNames) {
  const std::filesystem::path hub = home_ + "/hub";
  std::filesystem::create_directories(hub / "blobs");
  std::filesystem::create_directories(hub / "snapshots/1/original");
  std::ofstream(hub / "blobs/aa") << "{}";
  std::ofstream(hub / "blobs/bb") << "weights";
  std::filesystem::create_symlink("../../blobs/aa", hub / "snapshots/1/config.json");
  std::filesystem::create_symlink("../../../blobs/bb", hub / "snapshots/1/original/w.bin");
  ASSERT_EQ(Run({"models", "upload", "linked", (hub / "snapshots/1/").string()}), kExitOk)
      << err_.str();
  const auto& files = fake_.state()->files.at("linked");
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files.at("config.json"), "{}");
  EXPECT_EQ(files.at("original/w.bin"), "weights");
}

TEST_F(CliTest, EmbedSendsEveryTextAndShowsSimilarities) {
  ASSERT_EQ(Run({"embed", "llm", "a king", "a queen", "--dimensions=2"}), kExitOk) << err_.str();
  const v1::EmbedRequest& request = fake_.state()->embeds.back();
  ASSERT_EQ(request.inputs_size(), 2);
  EXPECT_EQ(request.inputs(1).text(), "a queen");
  EXPECT_EQ(request.dimensions(), 2);
  EXPECT_THAT(out_.str(), HasSubstr("-0.2800"));  // (0.6, 0.8) times (0.6, -0.8)
  EXPECT_EQ(request.priority(), 0);
  ASSERT_EQ(Run({"embed", "llm", "x", "--priority=-2", "--timeout=1.5", "--cache-salt=s"}), kExitOk)
      << err_.str();
  EXPECT_EQ(fake_.state()->embeds.back().priority(), -2);
  EXPECT_EQ(fake_.state()->embeds.back().timeout_seconds(), 1.5);
  EXPECT_EQ(fake_.state()->embeds.back().cache_salt(), "s");
  ASSERT_EQ(Run({"embed", "llm", "x", "--json"}), kExitOk);
  EXPECT_EQ(Json::parse(out_.str())["embeddings"][0]["values"].size(), 2u);
}

v1::LosslessCheck Check(const char* name, bool passed, const char* detail) {
  v1::LosslessCheck check;
  check.set_name(name);
  check.set_passed(passed);
  check.set_cases(3);
  check.set_detail(detail);
  return check;
}

TEST_F(CliTest, VerifyLosslessFailsIfACheckFails) {
  v1::LosslessReport& proof = fake_.state()->proof;
  proof.set_passed(true);
  proof.set_smallest_margin(0.25);
  *proof.add_checks() = Check("greedy", true, "all answers equal");
  *proof.add_checks() = Check("KV", true, "all logits equal");
  v1::LosslessProgress progress;
  progress.set_stage("distribution");
  progress.set_done(5);
  progress.set_total(10);
  fake_.state()->proof_progress.push_back(progress);
  const std::vector<std::string> command = {"verify-lossless", "--llm=big",       "--ssm=a",
                                            "--ssm=b",         "--expansion=2,1", "--weights=int8",
                                            "--prompt=one",    "--draws=1000"};
  EXPECT_EQ(Run(command), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("distribution  5/10"));
  EXPECT_THAT(out_.str(), HasSubstr("closer than 0.25"));
  EXPECT_THAT(out_.str(), HasSubstr("speculation changes no answer"));
  const v1::VerifyLosslessRequest sent = fake_.state()->verifies.at(0);
  EXPECT_EQ(sent.models().artifact(), "big");
  EXPECT_EQ(sent.models().ssm_artifacts_size(), 2);
  EXPECT_EQ(sent.models().expansion_size(), 2);
  EXPECT_EQ(sent.models().weights(), "int8");
  EXPECT_EQ(sent.prompts(0), "one");
  EXPECT_EQ(sent.draws(), 1000);

  proof.set_passed(false);
  *proof.mutable_checks(1) = Check("KV", false, "the logits after prompt 1 are others");
  EXPECT_EQ(Run(command), kExitFailed);
  EXPECT_THAT(out_.str(), HasSubstr("KV failed: the logits after prompt 1 are others"));
  EXPECT_THAT(out_.str(), Not(HasSubstr("changes no answer")));
  EXPECT_THAT(err_.str(), HasSubstr("not lossless for these models; failed: KV"));
  EXPECT_EQ(Run({"verify-lossless", "--llm=big", "--ngram=4", "--json"}), kExitFailed);
  const Json report = Json::parse(out_.str());
  EXPECT_EQ(report["passed"], false);
  EXPECT_EQ(report["checks"][1]["name"], "KV");
}

TEST_F(CliTest, ProofUploadsFoldersTemporarily) {
  fake_.state()->proof.set_passed(true);
  std::filesystem::create_directories(home_ + "/tiny");
  std::ofstream(home_ + "/tiny/config.json") << "{}";
  std::ofstream(home_ + "/prompts.json") << R"(["one", "two"])";
  EXPECT_EQ(Run({"verify-lossless", "--llm=" + home_ + "/tiny", "--ssm=" + home_ + "/tiny",
                 "--prompts-from=" + home_ + "/prompts.json"}),
            kExitOk)
      << err_.str();
  const v1::VerifyLosslessRequest sent = fake_.state()->verifies.at(0);
  EXPECT_EQ(sent.models().artifact(), sent.models().ssm_artifacts(0));
  EXPECT_EQ(sent.prompts_size(), 2);
  EXPECT_EQ(fake_.state()->uploads, 1);
  EXPECT_EQ(fake_.state()->files[sent.models().artifact()].count("config.json"), 1u);
  EXPECT_THAT(fake_.state()->deleted, ::testing::ElementsAre(sent.models().artifact()));
}

TEST_F(CliTest, UncreatableFolderIsNotReportedAsUnreachable) {
  fake_.state()->artifacts["llm"].set_name("llm");
  fake_.state()->files["llm"]["config.json"] = "{}";
  const std::string folder = home_ + "/text.txt/llm";  // under a file
  EXPECT_EQ(Run({"models", "download", "llm", folder}), kExitFailed);
  EXPECT_THAT(err_.str(), HasSubstr(folder + ": Not a directory"));
  // A folder in a file's place is left alone.
  std::filesystem::create_directories(home_ + "/llm/config.json/kept");
  EXPECT_EQ(Run({"models", "download", "llm", home_ + "/llm"}), kExitFailed);
  EXPECT_THAT(err_.str(), HasSubstr(home_ + "/llm/config.json: Is a directory"));
}

TEST_F(CliTest, QuantizeNamesFormatAndArtifact) {
  v1::QuantizeProgress progress;
  progress.set_bytes_total(10);
  fake_.state()->packing.push_back(progress);
  EXPECT_EQ(Run({"models", "quantize", "llm", "--weights=int4", "--out=llm-int4", "--json"}),
            kExitOk)
      << err_.str();
  EXPECT_EQ(Json::parse(out_.str())["name"], "llm-int4");
  const v1::QuantizeRequest sent = fake_.state()->quantizes.at(0);
  EXPECT_EQ(sent.name(), "llm");
  EXPECT_EQ(sent.weights(), "int4");
  EXPECT_FALSE(sent.replace());
  EXPECT_FALSE(sent.idempotency_key().empty());
}

// Unset values would be replaced by the model's generation_config at the gateway.
TEST_F(CliTest, DisabledSamplingIsDisabledOverHttp) {
  v1::GenerateRequest request;
  EXPECT_FALSE(Json::parse(CompletionBody(request)).contains("repetition_penalty"));
  v1::SamplingOptions* sampling = request.mutable_sampling();
  sampling->set_repetition_penalty(0);
  sampling->set_top_p(0);
  sampling->set_top_k(0);
  const Json body = Json::parse(CompletionBody(request));
  EXPECT_EQ(body.value("repetition_penalty", 0.0), 1);
  EXPECT_EQ(body.value("top_p", 0.0), 1);
  EXPECT_EQ(body.value("top_k", 0.0), -1);
  sampling->set_repetition_penalty(1.25);
  EXPECT_EQ(Json::parse(CompletionBody(request)).value("repetition_penalty", 0.0), 1.25);
}

TEST_F(CliTest, ServeUploadsLocalModels) {
  std::filesystem::create_directories(home_ + "/tiny-1.1");
  std::ofstream(home_ + "/tiny-1.1/config.json") << "{}";
  std::ofstream(home_ + "/tiny-1.1/model.safetensors") << "weights";
  std::ofstream(home_ + "/draft.gguf") << "GGUF";
  const auto serve = [&](const std::string& model, std::vector<std::string> flags = {}) {
    flags.insert(flags.begin(), {"serve", model});
    EXPECT_EQ(Run(flags), kExitOk) << err_.str();
    return fake_.state()->serves.back();
  };
  v1::ServeModelRequest served = serve(home_ + "/tiny-1.1", {"--ssm=" + home_ + "/draft.gguf"});
  EXPECT_THAT(out_.str(), HasSubstr("uploaded as tiny-1.1-"));
  EXPECT_EQ(served.name(), "tiny-1.1");
  EXPECT_THAT(served.artifact(), testing::StartsWith("tiny-1.1-"));
  EXPECT_THAT(served.ssm_artifacts(0), testing::StartsWith("draft-"));
  EXPECT_EQ(fake_.state()->artifacts.at(served.artifact()).files_size(), 2);
  EXPECT_EQ(fake_.state()->artifacts.at(served.ssm_artifacts(0)).kind(), v1::Artifact::MODEL);
  // Once.
  const std::string artifact = served.artifact();
  served = serve(home_ + "/tiny-1.1", {"--name=other"});
  EXPECT_THAT(out_.str(), HasSubstr("is there already"));
  EXPECT_EQ(served.name(), "other");
  EXPECT_EQ(served.artifact(), artifact);
  EXPECT_EQ(fake_.state()->uploads, 2);
  // Names of artifacts stay names, with slashes, too.
  EXPECT_EQ(serve("llm").artifact(), "llm");
  EXPECT_EQ(serve("org/llm").artifact(), "org/llm");
  fake_.state()->artifacts["tiny.gguf"].set_name("tiny.gguf");
  EXPECT_EQ(serve("tiny.gguf").artifact(), "tiny.gguf");
  EXPECT_EQ(serve("tiny.gguf").name(), "");
  // Neither.
  EXPECT_EQ(Run({"serve", home_ + "/nothing"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("cannot read"));
  EXPECT_EQ(Run({"serve", home_ + "/text.txt"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("is no model"));
  EXPECT_EQ(fake_.state()->uploads, 2);
}

TEST_F(CliTest, WhatIsUploadedForARefusedModelIsDeletedAgain) {
  std::filesystem::create_directories(home_ + "/folder");
  std::ofstream(home_ + "/folder/config.json") << "{}";
  std::ofstream(home_ + "/model.onnx") << "\x3a\x03\x12\x01g";  // a graph of the name "g"
  std::ofstream(home_ + "/draft.gguf") << "GGUF";
  fake_.state()->serve_status = absl::InvalidArgumentError("its batch is part of a sum");
  for (const char* model : {"/folder", "/model.onnx"}) {
    EXPECT_EQ(Run({"serve", home_ + model, "--ssm=" + home_ + "/draft.gguf"}), kExitFailed);
    EXPECT_THAT(out_.str(), HasSubstr("uploaded as")) << err_.str();
    EXPECT_THAT(err_.str(), HasSubstr("its batch is part of a sum"));
    EXPECT_THAT(err_.str(), Not(HasSubstr("stays")));
    EXPECT_THAT(fake_.state()->artifacts, testing::IsEmpty()) << model;
  }
  EXPECT_EQ(fake_.state()->uploads, 4);
  EXPECT_EQ(fake_.state()->serves.size(), 2u);
  // A small model that is missing is noticed after the upload of the first.
  EXPECT_EQ(Run({"serve", home_ + "/folder", "--ssm=./missing"}), kExitUsage);
  EXPECT_EQ(fake_.state()->uploads, 5);
  EXPECT_THAT(fake_.state()->artifacts, testing::IsEmpty());
}

TEST_F(CliTest, AModelThatMayBeServedOrWasThereBeforeIsKept) {
  std::ofstream(home_ + "/model.gguf") << "GGUF";
  fake_.state()->serve_status = absl::InternalError("the connection broke");
  EXPECT_EQ(Run({"serve", home_ + "/model.gguf"}), kExitFailed);
  EXPECT_EQ(fake_.state()->artifacts.size(), 1u);
  fake_.state()->serve_status = absl::InvalidArgumentError("it has no tensors");
  EXPECT_EQ(Run({"serve", home_ + "/model.gguf"}), kExitFailed);
  EXPECT_THAT(out_.str(), HasSubstr("is there already"));
  EXPECT_EQ(fake_.state()->artifacts.size(), 1u);
  EXPECT_THAT(fake_.state()->deleted, testing::IsEmpty());
}

TEST_F(CliTest, ARefusedModelThatCannotBeDeletedIsNamed) {
  std::ofstream(home_ + "/model.gguf") << "GGUF";
  fake_.state()->serve_status = absl::InvalidArgumentError("it has no tensors");
  fake_.state()->delete_status = absl::PermissionDeniedError("not with this token");
  EXPECT_EQ(Run({"serve", home_ + "/model.gguf"}), kExitFailed);
  EXPECT_THAT(err_.str(), testing::ContainsRegex(
                              "model.gguf stays as artifact model-[0-9a-f]+: not with this token"));
  EXPECT_THAT(err_.str(), HasSubstr("it has no tensors"));
}

// Beside the answer, which may be piped.
TEST_F(CliTest, WarningsOfTheCoordinatorGoToStandardError) {
  fake_.state()->replies = {Piece("{}"), Last(2, 0, 0, 2)};
  EXPECT_EQ(Run({"generate", "llm", "It", "--json-object"}), kExitOk);
  EXPECT_THAT(err_.str(), Not(HasSubstr("warning")));
  fake_.state()->warning = "json_schema: #/format: \"phone\" is not enforced";
  EXPECT_EQ(Run({"generate", "llm", "It", "--json-object"}), kExitOk);
  EXPECT_THAT(err_.str(), HasSubstr("warning: json_schema: #/format: \"phone\" is not enforced"));
  EXPECT_THAT(out_.str(), HasSubstr("{}"));
}

TEST_F(CliTest, CompareFailsIfTextsDiffer) {
  fake_.state()->replies = {Piece("and "), Piece("so"), Last(6, 0, 0, 5)};
  fake_.state()->speculated = {Piece("and so"), Last(6, 20, 3, 2)};
  EXPECT_EQ(Run({"generate", "llm", "It", "was", "--compare"}), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("the texts are identical"));
  EXPECT_THAT(out_.str(), HasSubstr("1.50 + 1"));
  EXPECT_EQ(fake_.state()->generates[0].text(), "It was");
  // Two short warm-up requests, then the two that count.
  ASSERT_EQ(fake_.state()->generates.size(), 4u);
  EXPECT_EQ(fake_.state()->generates[0].max_tokens(), 8);
  EXPECT_EQ(fake_.state()->generates[2].max_tokens(), 128);
  EXPECT_EQ(fake_.state()->generates[2].speculation(), v1::SPECULATION_OFF);
  EXPECT_EQ(fake_.state()->generates[3].speculation(), v1::SPECULATION_ON);

  fake_.state()->speculated[0] = Piece("and no");
  EXPECT_EQ(Run({"generate", "llm", "It was", "--compare", "--json"}), kExitFailed);
  EXPECT_THAT(err_.str(), HasSubstr("from byte 4 on"));
}

}  // namespace
}  // namespace espalier
