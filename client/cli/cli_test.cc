// The commands, run in this process against a coordinator in memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "client/cli/bench_stats.h"
#include "client/cli/command.h"
#include "client/cli/daemon.h"
#include "client/cli/job_view.h"
#include "client/cli/proto_json.h"
#include "client/lib/fake_coordinator.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::ordered_json;

class CliTest : public ::testing::Test {
 protected:
  CliTest() {
    home_ = ::testing::TempDir() + "/cli_test_" +
            ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(home_);
    std::filesystem::create_directories(home_);
    std::ofstream(home_ + "/text.txt") << std::string(5000, 'a');
    proto::Job& job = fake_.state()->job;
    job.set_id("job-1");
    job.set_state(proto::SUCCEEDED);
    job.mutable_spec()->mutable_dataset()->set_format(proto::Dataset::TEXT);
    job.set_total_steps(3);
    job.set_steps_done(3);
    job.set_tokens_per_step(2048);
    job.set_started_unix_ms(1000);
    job.set_finished_unix_ms(3500);
    job.set_median_step_seconds(0.011);
    job.set_output_model("llm");
    job.set_parameters(4'560'000);
    (*job.mutable_evaluation())["loss"] = 0.6931471805599453;
    auto* prediction = job.mutable_plan()->mutable_prediction();
    prediction->set_step_seconds(0.010);
    prediction->add_peak_bytes(64 << 20);
    auto* other = job.mutable_plan()->add_alternatives();
    other->set_name("data parallel");
    other->mutable_prediction()->set_step_seconds(0.015);
    auto* op = job.mutable_plan()->add_operators();
    op->set_node("lm_head");
    (*op->mutable_degrees())["sample"] = 2;
    op->add_devices(0);
    op->add_devices(1);
    job.mutable_plan()->add_devices();
    job.mutable_plan()->add_devices();

    proto::JobEvent event;
    *event.mutable_job() = job;
    event.mutable_job()->set_state(proto::RUNNING);
    fake_.state()->events.push_back(event);
    for (int i = 0; i < 3; ++i) {
      event.mutable_step()->set_step(i);
      event.mutable_step()->set_seconds(0.01);
      (*event.mutable_step()->mutable_values())["loss"] = 3.0 - i;
      fake_.state()->events.push_back(event);
    }
    event.set_message("worker w2 \x1b[2J lost");
    fake_.state()->events.push_back(event);
  }

  int Run(std::vector<std::string> args, bool connect = true) {
    out_.str("");
    err_.str("");
    Environment env;
    env.out = &out_;
    env.err = &err_;
    env.in = &in_;
    env.getenv = [](const char*) -> const char* { return nullptr; };
    env.seconds = [this] { return now_ += 0.001; };
    env.program = home_ + "/espalier";
    args.push_back("--home=" + home_);
    if (connect) args.push_back("--coordinator=" + fake_.address());
    return RunEspalier(args, env);
  }
  std::vector<Json> Lines() {
    std::vector<Json> lines;
    std::istringstream text(out_.str());
    for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
    return lines;
  }

  FakeCoordinator fake_;
  std::string home_;
  std::istringstream in_;
  std::ostringstream out_, err_;
  double now_ = 0;
};

TEST_F(CliTest, TrainSubmitsWhatTheFlagsSayAndEndsWithTheJob) {
  EXPECT_EQ(Run({"train", "--json", "--model=llama:tiny", "--sequence-length=16", "-d",
                 home_ + "/text.txt", "-b", "8", "--steps=3", "--name=llm"}),
            kExitOk)
      << err_.str();
  std::vector<Json> lines = Lines();
  ASSERT_EQ(lines.size(), 7u) << out_.str();
  EXPECT_EQ(lines.front()["job_id"], "job-1");
  EXPECT_EQ(lines[1]["job"]["state"], "RUNNING");
  EXPECT_EQ(lines[2]["step"]["values"]["loss"], 3.0);
  EXPECT_EQ(lines.back()["done"]["state"], "SUCCEEDED");
  EXPECT_EQ(lines.back()["done"]["total_steps"], 3);

  ASSERT_EQ(fake_.state()->submits.size(), 1u);
  const proto::TrainingSpec& spec = fake_.state()->submits[0].spec();
  EXPECT_EQ(spec.batch_size(), 8);
  EXPECT_EQ(spec.dataset().format(), proto::Dataset::TEXT);
  EXPECT_EQ(spec.dataset().sequence_length(), 16);
  EXPECT_EQ(spec.graph().metadata().at("family"), "llama");
  const std::string name = spec.dataset().uri().substr(9);
  EXPECT_EQ(spec.dataset().uri(), "artifact:" + name);
  EXPECT_EQ(fake_.state()->files[name]["text.txt"], std::string(5000, 'a'));
}

TEST_F(CliTest, TrainShowsPlanLossAndWhatWasMeasured) {
  EXPECT_EQ(Run({"train", "--model=llama:tiny", "-d", home_ + "/text.txt", "--steps=3", "-p", "1"}),
            kExitOk)
      << err_.str();
  const std::string text = out_.str();
  EXPECT_THAT(text, HasSubstr("data parallel"));
  EXPECT_THAT(text, HasSubstr("1.50"));  // times this plan's step
  EXPECT_THAT(text, HasSubstr("1 sample=2"));
  EXPECT_THAT(text, HasSubstr("step 2/3  66%  loss 2.0000  205 k tok/s"));
  EXPECT_THAT(text, HasSubstr("worker w2 \uFFFD[2J lost"));
  EXPECT_THAT(
      text,
      HasSubstr("job job-1 succeeded in 2.50 s: 3 steps of 2.05 k tokens, 4.56 M parameters"));
  EXPECT_THAT(text, HasSubstr("10.0 ms   11.0 ms  +10 %"));
  EXPECT_THAT(text, HasSubstr("held-out: loss 0.6931 (1.000 bits per byte)"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
}

TEST_F(CliTest, AFailedJobIsAFailure) {
  fake_.state()->job.set_state(proto::FAILED);
  fake_.state()->job.set_error("step 2: NaN in the loss");
  EXPECT_EQ(Run({"jobs", "watch", "job-1"}), kExitFailed);
  EXPECT_THAT(err_.str(), HasSubstr("step 2: NaN in the loss"));
  EXPECT_EQ(Run({"jobs", "get", "job-9"}), kExitNotFound);
}

TEST_F(CliTest, DeadCoordinatorHasItsOwnExitCodeAndSaysWhatToStart) {
  EXPECT_EQ(Run({"status", "--coordinator=127.0.0.1:1"}, false), kExitUnreachable);
  EXPECT_THAT(err_.str(), HasSubstr("127.0.0.1:1"));
  EXPECT_THAT(err_.str(), HasSubstr("espalier up"));
  EXPECT_EQ(Run({"jobs", "--coordinator=127.0.0.1:1", "--json"}, false), kExitUnreachable);
  EXPECT_EQ(Json::parse(out_.str())["error"]["code"], "UNAVAILABLE");
}

TEST_F(CliTest, AdaptersAreServedUnderNamesAndChosenByThem) {
  ASSERT_EQ(Run({"serve", "llm", "--adapter=poet=poems", "--adapter=clerk=a=b"}), kExitOk)
      << err_.str();
  const proto::ServeModelRequest& served = fake_.state()->serves.back();
  ASSERT_EQ(served.adapters_size(), 2);
  EXPECT_EQ(served.adapters(0).name(), "poet");
  EXPECT_EQ(served.adapters(0).artifact(), "poems");
  EXPECT_EQ(served.adapters(1).artifact(), "a=b");
  ASSERT_EQ(Run({"generate", "llm", "--adapter=poet", "Now"}), kExitOk) << err_.str();
  EXPECT_EQ(fake_.state()->generates.back().model(), "llm");
  EXPECT_EQ(fake_.state()->generates.back().adapter(), "poet");
}

TEST_F(CliTest, EmbedSendsEveryTextAndShowsHowNearTheyAre) {
  ASSERT_EQ(Run({"embed", "llm", "a king", "a queen", "--dimensions=2"}), kExitOk) << err_.str();
  const proto::EmbedRequest& request = fake_.state()->embeds.back();
  ASSERT_EQ(request.inputs_size(), 2);
  EXPECT_EQ(request.inputs(1).text(), "a queen");
  EXPECT_EQ(request.dimensions(), 2);
  EXPECT_THAT(out_.str(), HasSubstr("-0.2800"));  // (0.6, 0.8) times (0.6, -0.8)
  ASSERT_EQ(Run({"embed", "llm", "x", "--json"}), kExitOk);
  EXPECT_EQ(Json::parse(out_.str())["embeddings"][0]["values"].size(), 2u);
}

TEST_F(CliTest, WrongUsageIsSaidBeforeAnythingIsSent) {
  const std::vector<std::vector<std::string>> wrong = {
      {"trian"},
      {"train"},
      {"train", "--model=llama:tiny"},
      {"train", "--model=llama:tiny", "-d", "/nonexistent.txt"},
      {"train", "--model=llama:tiny", "-d", "x", "stray"},
      {"jobs", "cancle", "job-1"},
      {"jobs", "get"},
      {"generate", "llm"},
      {"generate", "llm", "hi", "--compare", "--temperature=1"},
      {"serve", "llm", "--expansion=1,x", "--ssm=s"},
      {"serve", "llm", "--adapter=poet"},
      {"embed", "llm"},
      {"models", "upload", "x"},
      {"models", "quantize", "x", "--weights=int8"},
      {"models", "delete", "x", "--out=y"},
      {"verify-lossless", "--llm=x"},
      {"verify-lossless", "--ssm=x"},
      {"verify-lossless", "--llm=x", "--ssm=/nonexistent/folder"},
      {"verify-lossless", "--llm=x", "--ssm=y", "--prompts-from=/nonexistent"},
      {"plan", "--model=llama:tiny", "--devices=2", "--device-preset=abacus"},
      {"status", "--coordinator=nowhere"}};
  for (const auto& args : wrong) {
    EXPECT_EQ(Run(args, args.back().rfind("--coordinator", 0) != 0), kExitUsage)
        << args[0] << ": " << err_.str();
    EXPECT_THAT(err_.str(), HasSubstr("espalier help"));
  }
  EXPECT_TRUE(fake_.state()->submits.empty());
  Run({"trian"});
  EXPECT_THAT(err_.str(), HasSubstr("did you mean train?"));
}

proto::LosslessCheck Check(const char* name, bool passed, const char* detail) {
  proto::LosslessCheck check;
  check.set_name(name);
  check.set_passed(passed);
  check.set_cases(3);
  check.set_detail(detail);
  return check;
}

TEST_F(CliTest, AProofThatHoldsSaysSoAndOneThatFailsIsAFailure) {
  proto::LosslessReport& proof = fake_.state()->proof;
  proof.set_passed(true);
  proof.set_smallest_margin(0.25);
  *proof.add_checks() = Check("greedy", true, "all answers equal");
  *proof.add_checks() = Check("KV", true, "all logits equal");
  proto::LosslessProgress progress;
  progress.set_stage("law");
  progress.set_done(5);
  progress.set_total(10);
  fake_.state()->proof_progress.push_back(progress);
  const std::vector<std::string> command = {"verify-lossless", "--llm=big",       "--ssm=a",
                                            "--ssm=b",         "--expansion=2,1", "--weights=int8",
                                            "--prompt=one",    "--draws=1000"};
  EXPECT_EQ(Run(command), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("law  5/10"));
  EXPECT_THAT(out_.str(), HasSubstr("closer than 0.25"));
  EXPECT_THAT(out_.str(), HasSubstr("speculation changes no answer"));
  const proto::VerifyLosslessRequest sent = fake_.state()->verifies.at(0);
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
  EXPECT_EQ(Run({"verify-lossless", "--llm=big", "--lookup=4", "--json"}), kExitFailed);
  const Json report = Json::parse(out_.str());
  EXPECT_EQ(report["passed"], false);
  EXPECT_EQ(report["checks"][1]["name"], "KV");
}

TEST_F(CliTest, FoldersAreUploadedForTheTimeOfAProofAlone) {
  fake_.state()->proof.set_passed(true);
  std::filesystem::create_directories(home_ + "/tiny");
  std::ofstream(home_ + "/tiny/config.json") << "{}";
  std::ofstream(home_ + "/prompts.json") << R"(["one", "two"])";
  EXPECT_EQ(Run({"verify-lossless", "--llm=" + home_ + "/tiny", "--ssm=" + home_ + "/tiny",
                 "--prompts-from=" + home_ + "/prompts.json"}),
            kExitOk)
      << err_.str();
  const proto::VerifyLosslessRequest sent = fake_.state()->verifies.at(0);
  EXPECT_EQ(sent.models().artifact(), sent.models().ssm_artifacts(0));
  EXPECT_EQ(sent.prompts_size(), 2);
  EXPECT_EQ(fake_.state()->uploads, 1);
  EXPECT_EQ(fake_.state()->files[sent.models().artifact()].count("config.json"), 1u);
  EXPECT_THAT(fake_.state()->deleted, ::testing::ElementsAre(sent.models().artifact()));
}

TEST_F(CliTest, QuantizeNamesFormatAndArtifact) {
  proto::QuantizeProgress progress;
  progress.set_bytes_total(10);
  fake_.state()->packing.push_back(progress);
  EXPECT_EQ(Run({"models", "quantize", "llm", "--weights=int4", "--out=llm-int4", "--json"}),
            kExitOk)
      << err_.str();
  EXPECT_EQ(Json::parse(out_.str())["name"], "llm-int4");
  const proto::QuantizeRequest sent = fake_.state()->quantizes.at(0);
  EXPECT_EQ(sent.name(), "llm");
  EXPECT_EQ(sent.weights(), "int4");
  EXPECT_FALSE(sent.replace());
  EXPECT_FALSE(sent.idempotency_key().empty());
}

TEST_F(CliTest, EveryCommandHasHelpWithExamples) {
  for (const Command& command : AllCommands()) {
    EXPECT_EQ(Run({command.name, "--help"}, false), kExitOk);
    EXPECT_THAT(out_.str(), HasSubstr("Usage: espalier " + command.name));
    EXPECT_EQ(command.examples.empty(), command.name == "version");
  }
}

TEST_F(CliTest, StatusShowsWorkersAndIsJsonForScripts) {
  proto::ClusterStatusReply& status = fake_.state()->status;
  status.set_version("0.1.0");
  (*status.mutable_jobs_by_state())["RUNNING"] = 1;
  auto* worker = status.add_workers();
  worker->set_name("w1");
  worker->set_state(proto::WorkerInfo::BUSY);
  worker->mutable_device()->set_memory_bytes(int64_t{4} << 30);
  EXPECT_EQ(Run({"status"}), kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr("jobs: 1 running"));
  EXPECT_THAT(out_.str(), HasSubstr("w1      busy"));
  EXPECT_THAT(out_.str(), HasSubstr("4.00 GiB"));
  EXPECT_EQ(Run({"status", "--json"}), kExitOk);
  Json json = Json::parse(out_.str());
  EXPECT_EQ(json["workers"][0]["state"], "BUSY");
  EXPECT_EQ(json["workers"][0]["device"]["memory_bytes"], int64_t{4} << 30);
}

proto::GenerateReply Piece(const std::string& text) {
  proto::GenerateReply reply;
  reply.set_text(text);
  return reply;
}

proto::GenerateReply Last(int tokens, int drafted, int accepted, int steps) {
  proto::GenerateReply reply;
  reply.set_finish_reason("length");
  reply.mutable_usage()->set_completion_tokens(tokens);
  reply.mutable_usage()->set_drafted_tokens(drafted);
  reply.mutable_usage()->set_accepted_tokens(accepted);
  reply.mutable_usage()->set_verification_steps(steps);
  return reply;
}

TEST_F(CliTest, CompareProvesThatTheTextsAreTheSameAndFailsIfTheyAreNot) {
  fake_.state()->replies = {Piece("and "), Piece("so"), Last(6, 0, 0, 5)};
  fake_.state()->speculated = {Piece("and so"), Last(6, 20, 3, 2)};
  EXPECT_EQ(Run({"generate", "llm", "It", "was", "--compare"}), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("the texts are identical"));
  EXPECT_THAT(out_.str(), HasSubstr("1.50 + 1"));
  EXPECT_EQ(fake_.state()->generates[0].text(), "It was");
  // Two short ones to warm up, then the two that count.
  ASSERT_EQ(fake_.state()->generates.size(), 4u);
  EXPECT_EQ(fake_.state()->generates[0].max_tokens(), 8);
  EXPECT_EQ(fake_.state()->generates[2].max_tokens(), 128);
  EXPECT_EQ(fake_.state()->generates[2].speculation(), proto::SPECULATION_OFF);
  EXPECT_EQ(fake_.state()->generates[3].speculation(), proto::SPECULATION_ON);

  fake_.state()->speculated[0] = Piece("and no");
  EXPECT_EQ(Run({"generate", "llm", "It was", "--compare", "--json"}), kExitFailed);
  EXPECT_THAT(err_.str(), HasSubstr("from byte 4 on"));
}

TEST_F(CliTest, BenchCountsAllRequests) {
  fake_.state()->replies = {Piece("a"), Piece("b"), Last(8, 0, 0, 7)};
  // One at a time: the clock of this test is not thread-safe.
  EXPECT_EQ(Run({"bench", "llm", "--requests=6", "--concurrency=1", "--json"}), kExitOk)
      << err_.str();
  Json json = Json::parse(out_.str());
  EXPECT_EQ(json["requests"], 6);
  EXPECT_EQ(json["failed"], 0);
  EXPECT_EQ(json["output_tokens"], 48);
  EXPECT_GT(json["seconds_to_first_token"]["p99"], 0);
}

TEST_F(CliTest, BenchPrintsWhatUsersOfVllmKnow) {
  proto::GenerateReply last = Last(8, 0, 0, 7);
  last.mutable_usage()->set_prompt_tokens(20);
  fake_.state()->replies = {Piece("a"), Piece("b"), last};
  // Each call of the clock takes a millisecond: requests are over in some of them.
  EXPECT_EQ(Run({"bench", "llm", "--num-prompts=5", "--max-concurrency=1", "--goodput=e2el:1000",
                 "--goodput=ttft:0.001"}),
            kExitOk)
      << err_.str();
  for (const char* line :
       {"successful requests +5\n", "failed requests +0\n", "input tokens +100\n",
        "generated tokens +40\n", "request throughput \\(req/s\\) +[0-9.]+\n",
        "request goodput \\(req/s\\) +0.00\n", "total token throughput \\(tok/s\\) +[0-9.]+\n",
        "in ms +mean +std +median +p90 +p99\n", "TTFT +time to first token( +[0-9.]+){5}\n",
        "TPOT ", "ITL ", "E2EL "}) {
    EXPECT_THAT(out_.str(), ::testing::ContainsRegex(line));
  }
  EXPECT_EQ(Run({"bench", "llm", "--requests=1", "--json", "--goodput=e2el:1000"}), kExitOk);
  const Json json = Json::parse(out_.str());
  EXPECT_EQ(json["goodput_requests_per_second"], json["requests_per_second"]);
  // Not the model's own sampling, which would make runs differ.
  EXPECT_TRUE(fake_.state()->generates.back().sampling().has_temperature());
}

TEST_F(CliTest, BenchPrintsTheRowsOfLlamaBench) {
  proto::ServedModel& model = fake_.state()->served;
  model.set_name("llm");
  model.set_parameters(1'000'000);
  model.set_weights("int8");
  model.set_vocabulary(50);
  proto::GenerateReply last = Last(9, 0, 0, 8);
  last.mutable_usage()->set_prompt_tokens(32);
  last.mutable_usage()->set_seconds_queued(0.5);
  last.mutable_usage()->set_seconds_to_first_token(0.75);
  last.mutable_usage()->set_seconds(2.75);
  fake_.state()->replies = {Piece("a"), last};
  EXPECT_EQ(Run({"bench", "llm", "--pp=32", "--tg=8", "--repetitions=3"}), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), ::testing::ContainsRegex("llm +1.00 M +int8 +none +pp32 +128.00 .* 0.00\n"
                                                   "llm +1.00 M +int8 +none +tg8 +4.00 .* 0.00\n"));
  const auto requests = fake_.state()->generates;
  ASSERT_EQ(requests.size(), 8u);  // each row is warmed up
  EXPECT_EQ(requests[0].tokens().ids_size(), 32);
  EXPECT_EQ(requests[0].max_tokens(), 1);
  EXPECT_EQ(requests[7].tokens().ids_size(), 1);
  EXPECT_EQ(requests[7].max_tokens(), 9);
  EXPECT_NE(requests[0].tokens().SerializeAsString(), requests[1].tokens().SerializeAsString());
  EXPECT_EQ(Run({"bench", "llm", "--tg=8", "--json"}), kExitOk) << err_.str();
  const Json json = Json::parse(out_.str());
  EXPECT_EQ(json[0]["n_gen"], 8);
  EXPECT_EQ(json[0]["avg_ts"], 4.0);
  EXPECT_EQ(json[0]["samples_ts"].size(), 5u);
  EXPECT_EQ(Run({"bench", "other", "--tg=8"}), kExitNotFound);
  EXPECT_EQ(Run({"bench", "llm", "--tg=8", "--requests=3"}), kExitUsage);
  EXPECT_EQ(Run({"bench", "llm", "--goodput=tftt:3"}), kExitUsage);
}

TEST_F(CliTest, PlansForDevicesThatAreNotThereAndExportsThem) {
  *fake_.state()->explanation.mutable_plan() = fake_.state()->job.plan();
  fake_.state()->explanation.set_text("operator  split\n");
  const std::string file = home_ + "/plan.json";
  EXPECT_EQ(Run({"plan", "--model=llama:tiny", "-b", "32", "--devices=4", "--device-preset=h200",
                 "--export-strategy=" + file}),
            kExitOk)
      << err_.str();
  const proto::PlanRequest& request = fake_.state()->explains[0].plan();
  EXPECT_EQ(request.devices_size(), 4);
  EXPECT_EQ(request.devices(3).kind(), proto::Device::CUDA);
  EXPECT_EQ(request.batch_size(), 32);
  EXPECT_THAT(out_.str(), HasSubstr("operator  split"));
  // What was exported can be imported.
  EXPECT_EQ(Run({"plan", "--model=llama:tiny", "--import-strategy=" + file}), kExitOk)
      << err_.str();
  EXPECT_EQ(fake_.state()->explains[1].plan().search().imported().operators(0).node(), "lm_head");
  std::ofstream(file) << "{\"operators\": 7}";
  EXPECT_EQ(Run({"plan", "--model=llama:tiny", "--import-strategy=" + file}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("holds no plan"));
}

// FlexFlow's flags, as its manual and its README write them: each changes what it should.
TEST_F(CliTest, FlexFlowsFlagsSayWhatTheyMean) {
  *fake_.state()->explanation.mutable_plan() = fake_.state()->job.plan();
  fake_.state()->explanation.set_task_graph("digraph tasks {}");
  fake_.state()->explanation.set_computation_graph("digraph operators {}");
  const std::string exported = home_ + "/exported.json", machine = home_ + "/machine.json";
  ASSERT_EQ(Run({"plan", "--model=llama:tiny", "--export-strategy=" + exported}), kExitOk)
      << err_.str();
  std::ofstream(machine) << "{}";
  using Request = proto::ExplainRequest;
  const auto search = [](const Request& r) -> const proto::SearchOptions& {
    return r.plan().search();
  };
  const auto first = [](const Request& r) { return r.plan().search().imported().operators(0); };
  struct Case {
    std::vector<std::string> flags;
    std::function<bool(const Request&)> says;
  };
  const auto budget = [&](const Request& r) { return search(r).budget() == 30; };
  const auto alpha = [&](const Request& r) { return search(r).alpha() == 0.05; };
  const auto imported = [&](const Request& r) {
    return search(r).strategy() == proto::SearchOptions::IMPORTED && first(r).node() == "lm_head";
  };
  const std::vector<Case> cases = {
      {{}, [&](const Request& r) { return !search(r).has_budget() && search(r).alpha() == 0; }},
      {{"--budget", "30"}, budget},
      {{"--search-budget", "30"}, budget},
      {{"-budget", "30"}, budget},
      {{"--alpha=0.05"}, alpha},
      {{"--search-alpha", "0.05"}, alpha},
      {{"-alpha", "0.05"}, alpha},
      {{"--import-strategy", exported}, imported},
      {{"--import", exported}, imported},
      {{"-import", exported}, imported},
      {{"--search-from", exported},
       [&](const Request& r) {
         return search(r).strategy() == proto::SearchOptions::SEARCH && search(r).has_imported();
       }},
      {{"--only-data-parallel"},
       [&](const Request& r) {
         return search(r).strategy() == proto::SearchOptions::DATA_PARALLEL;
       }},
      // On by default; FlexFlow's are off.
      {{"--enable-parameter-parallel", "--enable-attribute-parallel"},
       [&](const Request& r) {
         return !search(r).disable_parameter_parallel() && !search(r).disable_attribute_parallel();
       }},
      {{"--disable-parameter-parallel"},
       [&](const Request& r) { return search(r).disable_parameter_parallel(); }},
      {{"--disable-attribute-parallel"},
       [&](const Request& r) { return search(r).disable_attribute_parallel(); }},
      {{"--machine-model-file", machine},
       [&](const Request& r) { return r.plan().machine_file() == "{}"; }},
      {{"--machine=a100-cluster", "--search-num-nodes=2", "--search-num-workers=4"},
       [&](const Request& r) {
         return r.plan().machine_preset() == "a100-cluster" && r.plan().machine_devices() == 8;
       }},
      {{"--taskgraph", home_ + "/tasks.dot"},
       [&](const Request& r) { return r.task_graph() && !r.computation_graph(); }},
      {{"--compgraph", home_ + "/graph.dot"},
       [&](const Request& r) { return r.computation_graph() && !r.costs_in_graph(); }},
      {{"--compgraph", home_ + "/graph.dot", "--include-costs-dot-graph"},
       [&](const Request& r) { return r.computation_graph() && r.costs_in_graph(); }},
      {{"--batch-slices=4"},
       [&](const Request& r) { return search(r).memory().max_batch_slices() == 4; }},
      {{"-b", "64"}, [&](const Request& r) { return r.plan().batch_size() == 64; }},
  };
  for (const Case& c : cases) {
    std::vector<std::string> args = {"plan", "--model=llama:tiny"};
    args.insert(args.end(), c.flags.begin(), c.flags.end());
    const std::string shown = c.flags.empty() ? "" : c.flags[0];
    ASSERT_EQ(Run(args), kExitOk) << shown << ": " << err_.str();
    EXPECT_TRUE(c.says(fake_.state()->explains.back()))
        << shown << ": " << fake_.state()->explains.back().ShortDebugString();
  }
  for (const auto& [file, text] : {std::pair("/tasks.dot", "digraph tasks {}"),
                                   std::pair("/graph.dot", "digraph operators {}")}) {
    std::ifstream in(home_ + file);
    std::string line;
    EXPECT_TRUE(std::getline(in, line));
    EXPECT_EQ(line, text);
  }
  for (const char* alias : {"--export", "-export", "--export-strategy"}) {
    std::filesystem::remove(exported);
    ASSERT_EQ(Run({"plan", "--model=llama:tiny", alias, exported}), kExitOk) << err_.str();
    EXPECT_TRUE(std::filesystem::exists(exported)) << alias;
  }
  for (const std::vector<std::string>& wrong : std::vector<std::vector<std::string>>{
           {"--budget=0"},
           {"--budget=-1"},
           {"--batch-slices=6"},
           {"--only-data-parallel", "--import=" + exported},
           {"--enable-parameter-parallel", "--disable-parameter-parallel"},
           {"--search-num-nodes=2"},
           {"--include-costs-dot-graph"}}) {
    std::vector<std::string> args = {"plan", "--model=llama:tiny"};
    args.insert(args.end(), wrong.begin(), wrong.end());
    EXPECT_EQ(Run(args), kExitUsage) << wrong[0];
    EXPECT_THAT(err_.str(), HasSubstr(wrong[0].substr(0, wrong[0].find('='))));
  }
}

TEST_F(CliTest, ADryRunSaysAllThatIsInTheWayAndQueuesNothing) {
  proto::DryRunReply& reply = fake_.state()->dry_run;
  *reply.mutable_plan() = fake_.state()->job.plan();
  auto* memory = reply.add_memory();
  memory->set_needed_bytes(64 << 20);
  memory->set_memory_bytes(128 << 20);
  reply.set_total_steps(1000);
  reply.set_step_seconds(0.01);
  reply.set_total_seconds(10);
  const std::vector<std::string> train = {
      "train", "--model=llama:tiny", "-d", home_ + "/text.txt", "--steps=3", "--dry-run"};
  EXPECT_EQ(Run(train), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("64.0 MiB"));
  EXPECT_THAT(out_.str(), HasSubstr("1000 steps of 10.0 ms: 10.0 s"));
  EXPECT_THAT(out_.str(), HasSubstr("nothing was queued"));
  reply.add_problems("operator 'Foo' is not supported");
  reply.add_problems("operator 'Bar' is not supported");
  EXPECT_EQ(Run(train), kExitFailed);
  EXPECT_THAT(out_.str(), HasSubstr("'Foo'"));
  EXPECT_THAT(out_.str(), HasSubstr("'Bar'"));
  EXPECT_THAT(err_.str(), HasSubstr("would not run"));
  std::vector<std::string> json = train;
  json.push_back("--json");
  EXPECT_EQ(Run(json), kExitFailed);
  EXPECT_EQ(Json::parse(out_.str())["would_run"], false);  // one document
  EXPECT_TRUE(fake_.state()->submits.empty());
}

TEST_F(CliTest, AddressesOfTheRunningDaemonAreFound) {
  std::ofstream(ReadyFile(home_)) << R"({"grpc": ")" << fake_.address()
                                  << R"(", "http": "127.0.0.1:9"})";
  EXPECT_EQ(Run({"status"}, false), kExitOk) << err_.str();
  EXPECT_EQ(ReadAddresses(home_).http, "127.0.0.1:9");
  EXPECT_EQ(ReadAddresses("/nonexistent").grpc, "127.0.0.1:7070");
}

TEST_F(CliTest, UpSaysWhereItLookedAndDownThatNothingRuns) {
  EXPECT_EQ(Run({"up"}, false), kExitNotFound);
  EXPECT_THAT(err_.str(), HasSubstr("/espalierd, "));
  EXPECT_EQ(Run({"down"}, false), kExitNotFound);
}

// A shell script that stands in for espalierd.
TEST_F(CliTest, UpWaitsForTheDaemonAndDownEndsIt) {
  const std::string script = home_ + "/espalierd";
  std::ofstream(script)
      << "#!/bin/sh\n"
         "for a in \"$@\"; do case $a in --ready-file=*) f=${a#--ready-file=};; esac; done\n"
         "printf '{\"grpc\": \"127.0.0.1:5\", \"http\": \"127.0.0.1:6\"}' > \"$f.new\"\n"
         "mv \"$f.new\" \"$f\"\nwhile :; do sleep 0.05; done\n";
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  ASSERT_EQ(Run({"up", "--json"}, false), kExitOk) << err_.str();
  Json json = Json::parse(out_.str());
  EXPECT_EQ(json["grpc"], "127.0.0.1:5");
  EXPECT_EQ(RunningDaemon(home_), json["pid"]);
  EXPECT_EQ(Run({"up"}, false), kExitFailed);
  EXPECT_THAT(err_.str(), HasSubstr("runs already"));
  EXPECT_EQ(Run({"down"}, false), kExitOk) << err_.str();
  EXPECT_EQ(RunningDaemon(home_), 0);

  std::ofstream(script) << "#!/bin/sh\necho cannot listen on 7070\nexit 1\n";
  EXPECT_EQ(Run({"up"}, false), kExitFailed);
  EXPECT_THAT(err_.str(), HasSubstr("cannot listen on 7070"));
}

TEST(SmoothTest, KeepsEndsAndMeans) {
  std::vector<std::pair<double, double>> points;
  for (int i = 0; i < 100; ++i) points.emplace_back(i, i);
  auto smooth = Smooth(points, 10);
  ASSERT_EQ(smooth.size(), 10u);
  EXPECT_EQ(smooth.front(), (std::pair<double, double>(0, 4.5)));
  EXPECT_EQ(smooth.back(), (std::pair<double, double>(99, 94.5)));
  EXPECT_EQ(Smooth(points, 100).size(), 100u);
}

TEST(StatsTest, PercentilesInterpolate) {
  const Stats s = StatsOf({4, 1, 3, 2});
  EXPECT_EQ(s.mean, 2.5);
  EXPECT_EQ(s.median, 2.5);
  EXPECT_NEAR(s.p90, 3.7, 1e-12);
  EXPECT_NEAR(s.deviation, 1.29099, 1e-5);
  EXPECT_EQ(StatsOf({}).p99, 0);
  EXPECT_EQ(StatsOf({5}).deviation, 0);
}

TEST(ProtoJsonTest, NumbersAreNumbersAndNanIsNamed) {
  proto::StepReport step;
  step.set_step(int64_t{1} << 40);
  (*step.mutable_values())["loss"] = NAN;
  (*step.mutable_values())["accuracy"] = 0.5;
  EXPECT_EQ(Dump(ToJson(step)),
            R"({"step":1099511627776,"values":{"accuracy":0.5,"loss":"NaN"},"seconds":0.0})");
}

}  // namespace
}  // namespace espalier
