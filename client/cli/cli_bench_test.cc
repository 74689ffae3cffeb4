// `espalier bench` against an in-memory coordinator.
#include <cmath>
#include <fstream>
#include <map>
#include <set>

#include "client/cli/bench/schedule.h"
#include "client/cli/bench/stats.h"
#include "client/cli/cli_fixture.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

TEST_F(CliTest, BenchCountsAllRequests) {
  fake_.state()->replies = {Piece("a"), Piece("b"), Last(8, 0, 0, 7)};
  EXPECT_EQ(Run({"bench", "llm", "--requests=6", "--concurrency=1", "--json"}), kExitOk)
      << err_.str();
  Json json = Json::parse(out_.str());
  EXPECT_EQ(json["completed"], 6);
  EXPECT_EQ(json["failed"], 0);
  EXPECT_EQ(json["total_output_tokens"], 48);
  EXPECT_EQ(json["max_concurrency"], 1);
  EXPECT_EQ(json["max_concurrent_requests"], 1);
  EXPECT_EQ(json["request_rate"], "inf");
  EXPECT_GT(json["p99_ttft_ms"], 0);
}

TEST_F(CliTest, BenchDistinguishesRefusedRequestFromUnreachable) {
  fake_.state()->replies = {Piece("a"), Last(8, 0, 0, 7)};
  fake_.state()->unavailable_details = "\x08\x0e";
  for (const int refused : {1, 2}) {
    fake_.state()->unavailable = refused;
    EXPECT_EQ(Run({"bench", "llm", "--requests=2", "--concurrency=1"}), kExitFailed) << refused;
    EXPECT_THAT(err_.str(), HasSubstr("not now"));
  }
}

TEST_F(CliTest, BenchPrintsWhatUsersOfVllmKnow) {
  v1::GenerateReply last = Last(8, 0, 0, 7);
  last.mutable_usage()->set_prompt_tokens(20);
  fake_.state()->replies = {Piece("a"), Piece("b"), last};
  // Each reading of the clock takes a millisecond, so a request lasts only a few.
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
  EXPECT_EQ(Run({"bench", "llm", "--requests=1", "--json", "--goodput=e2el:1000",
                 "--percentile-metrics=itl,e2el", "--metric-percentiles=50,99.9"}),
            kExitOk);
  const Json json = Json::parse(out_.str());
  EXPECT_EQ(json["request_goodput"], json["request_throughput"]);
  for (const char* name : {"mean_itl_ms", "median_itl_ms", "std_itl_ms", "p50_itl_ms",
                           "p99.9_itl_ms", "mean_e2el_ms", "p99.9_e2el_ms"}) {
    EXPECT_TRUE(json.contains(name)) << name;
  }
  EXPECT_EQ(json["median_e2el_ms"], json["p50_e2el_ms"]);
  EXPECT_FALSE(json.contains("mean_ttft_ms"));
  EXPECT_FALSE(json.contains("p99_itl_ms"));
  EXPECT_FALSE(json.contains("ttfts"));
  // Overrides the model's own sampling, which would make runs differ.
  EXPECT_TRUE(fake_.state()->generates.back().sampling().has_temperature());
  EXPECT_TRUE(fake_.state()->generates.back().ignore_eos());
  EXPECT_EQ(Run({"bench", "llm", "--requests=1", "--temperature=1", "--top-p=0.9",
                 "--frequency-penalty=0.5", "--logprobs=2", "--json-object"}),
            kExitOk);
  const v1::GenerateRequest asked = fake_.state()->generates.back();
  EXPECT_EQ(asked.sampling().temperature(), 1);
  EXPECT_EQ(asked.sampling().top_p(), 0.9);
  EXPECT_EQ(asked.sampling().frequency_penalty(), 0.5);
  EXPECT_EQ(asked.logprobs(), 2);
  EXPECT_TRUE(asked.structured_output().json_object());
  EXPECT_FALSE(asked.ignore_eos()) << "its form says where it ends";
  for (const char* flag :
       {"--logit-bias=3", "--goodput=tftt:3", "--goodput=itl:3", "--percentile-metrics=ttft,x",
        "--metric-percentiles=101", "--burstiness=2", "--depth=3", "--output=csv"}) {
    EXPECT_EQ(Run({"bench", "llm", flag}), kExitUsage) << flag;
  }
}

TEST_F(CliTest, BenchSendsAtRequestRateRegardlessOfRunningRequests) {
  // More than any default concurrency limit: none is answered before all have arrived.
  fake_.state()->replies = {Piece("a"), Last(8, 0, 0, 7)};
  fake_.state()->concurrent_generates = 12;
  real_time_ = true;
  ASSERT_EQ(Run({"bench", "llm", "--requests=12", "--request-rate=1000", "--json"}), kExitOk)
      << err_.str();
  EXPECT_EQ(Json::parse(out_.str())["max_concurrent_requests"], 12);
}

TEST_F(CliTest, BenchCountsLatencyFromScheduledStart) {
  fake_.state()->replies = {Piece("a"), Last(8, 0, 0, 7)};
  fake_.state()->answer_seconds = 0.05;
  real_time_ = true;
  ASSERT_EQ(Run({"bench", "llm", "--requests=5", "--request-rate=100000", "--max-concurrency=1",
                 "--json", "--save-detailed"}),
            kExitOk)
      << err_.str();
  const Json json = Json::parse(out_.str());
  EXPECT_EQ(json["max_concurrent_requests"], 1);
  EXPECT_GE(json["late_requests"], 4);  // on a busy machine, the first one too
  // All were due almost at once: each waited 50 ms or more for each one ahead of it.
  for (int i = 0; i < 5; ++i) {
    EXPECT_GE(json["ttfts"][i], 0.05 * (i + 1) - 0.005) << i;
    EXPECT_GE(json["e2els"][i], json["ttfts"][i]);
  }
  EXPECT_GE(json["longest_wait_ms"], 195);
  // Without a rate, requests run back to back, and waiting for a slot is not lateness.
  ASSERT_EQ(Run({"bench", "llm", "--requests=5", "--max-concurrency=1", "--json"}), kExitOk);
  EXPECT_EQ(Json::parse(out_.str())["late_requests"], 0);
}

TEST_F(CliTest, BenchCountsWhatFailsAndWritesItDown) {
  fake_.state()->replies = {Piece("a"), Last(8, 0, 0, 7)};
  ASSERT_EQ(Run({"bench", "llm", "--requests=3", "--save-result", "--save-detailed",
                 "--result-dir=" + home_, "--result-filename=r.json"}),
            kExitOk)
      << err_.str();
  const Json json = Json::parse(std::ifstream(home_ + "/r.json"));
  EXPECT_EQ(json["model_id"], "llm");
  EXPECT_EQ(json["output_lens"], Json({8, 8, 8}));
  EXPECT_EQ(json["generated_texts"], Json({"a", "a", "a"}));
  EXPECT_EQ(json["errors"], Json({"", "", ""}));
  EXPECT_THAT(out_.str(), HasSubstr("r.json"));
  EXPECT_EQ(
      Run({"bench", "llm", "--requests=1", "--save-result", "--result-dir=" + home_ + "/missing"}),
      kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("cannot write"));
  ASSERT_EQ(Run({"bench", "my/llm", "--requests=1", "--save-result", "--result-dir=" + home_,
                 "--request-rate=50", "--max-concurrency=2"}),
            kExitOk);
  int named = 0;
  for (const auto& entry : std::filesystem::directory_iterator(home_)) {
    named += entry.path().filename().string().find("espalier-50qps-concurrency2-my_llm-") == 0;
  }
  EXPECT_EQ(named, 1);
}

TEST_F(CliTest, BenchAsksWhatADatasetHolds) {
  fake_.state()->replies = {Piece("a"), Last(8, 0, 0, 7)};
  std::ofstream(home_ + "/own.jsonl") << R"({"prompt": "one", "output_tokens": 3}

{"prompt": "zwei\u00df"}
{"prompt": "three", "output_tokens": null})";
  const auto asked = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"bench", "llm"};
    args.insert(args.end(), more.begin(), more.end());
    EXPECT_EQ(Run(args), kExitOk) << err_.str();
    std::multimap<std::string, int> out;
    for (const v1::GenerateRequest& request : fake_.state()->generates) {
      out.emplace(request.text(), request.max_tokens());
    }
    fake_.state()->generates.clear();
    return out;
  };
  using Asked = std::multimap<std::string, int>;
  EXPECT_EQ(asked({"--dataset-path=" + home_ + "/own.jsonl", "--requests=3"}),
            (Asked{{"one", 3}, {"zweiß", 64}, {"three", 64}}));
  EXPECT_EQ(
      asked({"--dataset-path=" + home_ + "/own.jsonl", "--requests=6", "--max-tokens=5"}),
      (Asked{{"one", 5}, {"one", 5}, {"zweiß", 5}, {"zweiß", 5}, {"three", 5}, {"three", 5}}));
  std::ofstream(home_ + "/share.json") << R"([
      {"id": "a", "conversations": [{"from": "human", "value": "Who?"}, {"from": "gpt", "value": "I"}]},
      {"id": "b", "conversations": [{"from": "human", "value": "left out"}]}])";
  EXPECT_EQ(asked({"--dataset-path=" + home_ + "/share.json", "--requests=1"}),
            (Asked{{"Who?", 64}}));
  std::ofstream(home_ + "/bad.jsonl") << "{\"prompt\": \"x\"}\n{\"promt\": \"y\"}\n";
  EXPECT_EQ(Run({"bench", "llm", "--dataset-path=" + home_ + "/bad.jsonl"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("bad.jsonl, line 2"));
  EXPECT_EQ(Run({"bench", "llm", "--dataset-path=" + home_ + "/bad.jsonl", "--prompt-tokens=3"}),
            kExitUsage);
}

TEST_F(CliTest, BenchIsDeterministicForASeed) {
  fake_.state()->replies = {Piece("a"), Last(8, 0, 0, 7)};
  fake_.state()->served.set_name("llm");
  fake_.state()->served.set_vocabulary(5000);
  const auto drawn = [&](const std::string& seed) {
    EXPECT_EQ(
        Run({"bench", "llm", "--requests=2", "--max-concurrency=1", "--prompt-tokens=20", seed}),
        kExitOk)
        << err_.str();
    const auto asked = fake_.state()->generates;
    EXPECT_NE(asked.back().tokens().SerializeAsString(),
              asked.front().tokens().SerializeAsString());
    return asked.back().tokens().SerializeAsString();
  };
  const std::string one = drawn("--seed=1");
  EXPECT_EQ(one, drawn("--seed=1"));
  EXPECT_NE(one, drawn("--seed=2"));
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
  for (const v1::GenerateRequest& request : sent) {
    EXPECT_EQ(ValidUtf8(request.text()), request.text().size()) << request.text();
    EXPECT_THAT(twice, HasSubstr(request.text()));
    EXPECT_LE(request.text().size(), 33u);
    EXPECT_GE(request.text().size(), 30u) << "no character has more than four bytes";
    different.insert(request.text());
  }
  EXPECT_GT(different.size(), 20u);
  // Shorter than the first character: that character is sent anyway.
  ASSERT_EQ(Run({"bench", "llm", "--requests=1", "--prompt-length=1",
                 "--prompts-from=" + home_ + "/many.txt"}),
            kExitOk);
  EXPECT_EQ(fake_.state()->generates.back().text(), "П");
  std::ofstream(home_ + "/latin1.txt") << "caf\xe9 au lait";
  EXPECT_EQ(Run({"bench", "llm", "--prompts-from=" + home_ + "/latin1.txt"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("not UTF-8 text from byte 3"));
}

TEST_F(CliTest, BenchPrintsTheRowsOfLlamaBench) {
  v1::ServedModel& model = fake_.state()->served;
  model.set_name("llm");
  model.set_artifact("files");
  model.set_parameters(1'000'000);
  model.set_weights("int8");
  model.set_kv_cache("f32");
  model.set_vocabulary(50);
  v1::Artifact& artifact = fake_.state()->artifacts["files"];
  artifact.set_name("files");
  artifact.set_bytes(3 << 20);
  v1::GenerateReply last = Last(9, 0, 0, 8);
  last.mutable_usage()->set_prompt_tokens(32);
  last.mutable_usage()->set_seconds_queued(0.5);
  last.mutable_usage()->set_seconds_to_first_token(0.75);
  last.mutable_usage()->set_seconds(2.75);
  fake_.state()->replies = {Piece("a"), last};
  EXPECT_EQ(Run({"bench", "llm", "--pp=32", "--tg=8", "--pg=32,8", "--repetitions=3"}), kExitOk)
      << err_.str();
  // 32 tokens in a quarter of a second, 8 in two seconds, 40 in both.
  EXPECT_THAT(out_.str(),
              ::testing::ContainsRegex(
                  "llm +3.00 MiB +1.00 M +int8 +CPU +none +pp32 +128.00 .* 0.00\n"
                  "llm +3.00 MiB +1.00 M +int8 +CPU +none +tg8 +4.00 .* 0.00\n"
                  "llm +3.00 MiB +1.00 M +int8 +CPU +none +pp32\\+tg8 +17.78 .* 0.00\n"));
  const auto requests = fake_.state()->generates;
  ASSERT_EQ(requests.size(), 12u);  // each row has a warm-up run
  EXPECT_EQ(requests[0].tokens().ids_size(), 32);
  EXPECT_EQ(requests[0].max_tokens(), 1);
  EXPECT_EQ(requests[7].tokens().ids_size(), 1);
  EXPECT_EQ(requests[7].max_tokens(), 9);
  EXPECT_EQ(requests[11].tokens().ids_size(), 32);
  EXPECT_EQ(requests[11].max_tokens(), 9);
  EXPECT_NE(requests[0].tokens().SerializeAsString(), requests[1].tokens().SerializeAsString());
  EXPECT_EQ(Run({"bench", "llm", "--tg=8", "--json"}), kExitOk) << err_.str();
  const Json json = Json::parse(out_.str());
  EXPECT_EQ(json[0]["n_gen"], 8);
  EXPECT_EQ(json[0]["avg_ts"], 4.0);
  EXPECT_EQ(json[0]["avg_ns"], 2'000'000'000);
  EXPECT_EQ(json[0]["samples_ts"].size(), 5u);
  EXPECT_EQ(json[0]["model_size"], 3 << 20);
  EXPECT_TRUE(json[0]["n_threads"].is_null());
  EXPECT_EQ(Run({"bench", "other", "--tg=8"}), kExitNotFound);
  for (const char* flag : {"--requests=3", "--pg=5", "--pg=0,5", "--pg=5,x", "--output=xml"}) {
    EXPECT_EQ(Run({"bench", "llm", "--tg=8", flag}), kExitUsage) << flag;
  }
}

TEST_F(CliTest, BenchHasTheFormsOfLlamaBench) {
  v1::ServedModel& model = fake_.state()->served;
  model.set_name("it's \"llm\"");
  model.set_vocabulary(50);
  model.add_workers("w1");
  v1::WorkerInfo& worker = *fake_.state()->status.add_workers();
  worker.set_worker_id("w1");
  worker.mutable_device()->set_kind(v1::Device::CPU);
  worker.mutable_device()->set_model("A CPU");
  worker.mutable_device()->set_threads(3);
  fake_.state()->status.add_workers()->set_worker_id("w2");
  v1::GenerateReply last = Last(9, 0, 0, 8);
  last.mutable_usage()->set_seconds(2);
  fake_.state()->replies = {Piece("a"), last};
  const auto print = [&](const std::string& form) {
    EXPECT_EQ(Run({"bench", model.name(), "--tg=8", "--depth=0", "--depth=16", "--repetitions=1",
                   "-o", form}),
              kExitOk)
        << err_.str();
    return out_.str();
  };
  EXPECT_EQ(print("csv").substr(0, 38), "cpu_info,gpu_info,backends,model,model");
  EXPECT_THAT(out_.str(), HasSubstr("\"A CPU\",\"\",\"CPU\",\"it's \"\"llm\"\"\",\"\",,"));
  EXPECT_THAT(out_.str(), ::testing::Not(HasSubstr("samples")));
  EXPECT_EQ(Json::parse(print("json"))[1]["test"], "tg8 @ d16");
  print("jsonl");
  const auto lines = Lines();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["n_threads"], 3);
  EXPECT_EQ(lines[1]["n_depth"], 16);
  EXPECT_THAT(
      print("md"),
      ::testing::StartsWith("| model | size | params | weights | backend | threads | drafts | "
                            "test | t/s |\n| --- | ---: | ---: | --- | --- | ---: | --- | ---: | "
                            "---: |\n| it's \"llm\" |  | 0 |  | CPU | 3 | none | tg8 | 4.00 ± "
                            "0.00 |\n"));
  EXPECT_THAT(print("sql"), ::testing::StartsWith("CREATE TABLE IF NOT EXISTS espalier_bench (\n"));
  EXPECT_THAT(out_.str(), HasSubstr("  n_threads INTEGER,\n"));
  EXPECT_THAT(out_.str(), HasSubstr("VALUES ('A CPU', '', 'CPU', 'it''s \"llm\"', '', NULL, 0, "));
}

TEST(ArrivalsTest, GapsHaveTheMeanAndTheShapeThatWereAskedFor) {
  for (const double burstiness : {0.25, 1.0, 16.0}) {
    const std::vector<double> at = Arrivals(20000, 50, burstiness, 3);
    std::vector<double> gaps;
    for (size_t i = 1; i < at.size(); ++i) gaps.push_back(at[i] - at[i - 1]);
    const Stats s = StatsOf(gaps);
    EXPECT_GE(s.sorted.front(), 0);
    EXPECT_NEAR(s.mean, 0.02, 0.001) << burstiness;
    // The deviation of a gamma distribution is mean / sqrt(shape).
    EXPECT_NEAR(s.deviation / s.mean, 1 / std::sqrt(burstiness), 0.05 / std::sqrt(burstiness));
  }
  EXPECT_EQ(Arrivals(3, 50, 1, 3), Arrivals(3, 50, 1, 3));
  EXPECT_NE(Arrivals(3, 50, 1, 3), Arrivals(3, 50, 1, 4));
  EXPECT_EQ(Arrivals(2, 0, 1, 3), (std::vector<double>{0, 0}));
}

}  // namespace
}  // namespace espalier
