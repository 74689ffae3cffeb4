// `espalier bench` against a coordinator in memory.
#include <fstream>
#include <set>

#include "client/cli/cli_fixture.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

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
  EXPECT_TRUE(fake_.state()->generates.back().ignore_eos());
  EXPECT_EQ(Run({"bench", "llm", "--requests=1", "--temperature=1", "--top-p=0.9",
                 "--frequency-penalty=0.5", "--logprobs=2", "--json-object"}),
            kExitOk);
  const proto::GenerateRequest& asked = fake_.state()->generates.back();
  EXPECT_EQ(asked.sampling().temperature(), 1);
  EXPECT_EQ(asked.sampling().top_p(), 0.9);
  EXPECT_EQ(asked.sampling().frequency_penalty(), 0.5);
  EXPECT_EQ(asked.logprobs(), 2);
  EXPECT_TRUE(asked.structured_output().json_object());
  EXPECT_FALSE(asked.ignore_eos()) << "its form says where it ends";
  EXPECT_EQ(Run({"bench", "llm", "--logit-bias=3"}), kExitUsage);
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

TEST_F(CliTest, BenchCutsPromptsBetweenCharacters) {
  const std::string text =
      "Привет, мир! 你好，世界。 naïve café — 🙂👍🏽 नमस्ते "
      "Ελλάδα ";
  std::ofstream(home_ + "/many.txt") << text;
  fake_.state()->replies = {Piece("a"), Last(8, 0, 0, 7)};
  ASSERT_EQ(Run({"bench", "llm", "--requests=60", "--concurrency=1", "--prompt-length=33",
                 "--prompts-from=" + home_ + "/many.txt"}),
            kExitOk)
      << err_.str();
  const std::string twice = text + text;
  const auto sent = fake_.state()->generates;
  ASSERT_EQ(sent.size(), 60u);
  std::set<std::string> different;
  for (const proto::GenerateRequest& request : sent) {
    EXPECT_EQ(ValidUtf8(request.text()), request.text().size()) << request.text();
    EXPECT_THAT(twice, HasSubstr(request.text()));
    EXPECT_LE(request.text().size(), 33u);
    EXPECT_GE(request.text().size(), 30u) << "no character has more than four bytes";
    different.insert(request.text());
  }
  EXPECT_GT(different.size(), 20u);
  // Shorter than its first character: that one all the same.
  ASSERT_EQ(Run({"bench", "llm", "--requests=1", "--prompt-length=1",
                 "--prompts-from=" + home_ + "/many.txt"}),
            kExitOk);
  EXPECT_EQ(fake_.state()->generates.back().text(), "П");
  std::ofstream(home_ + "/latin1.txt") << "caf\xe9 au lait";
  EXPECT_EQ(Run({"bench", "llm", "--prompts-from=" + home_ + "/latin1.txt"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("no UTF-8 text from byte 3"));
}

}  // namespace
}  // namespace espalier
