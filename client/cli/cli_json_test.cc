// --json output of every command: one document, or JSON lines, and nothing else.
#include <filesystem>
#include <fstream>

#include "client/cli/cli_fixture.h"
#include "client/cli/daemon.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

TEST_F(CliTest, CommandHelpMatchesOverview) {
  ASSERT_EQ(Run({"help", "--json"}), kExitOk);
  const Json all = Json::parse(out_.str())["commands"];
  EXPECT_EQ(all.size(), AllCommands().size());
  for (const Json& command : all) {
    const std::string name = command["name"];
    for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{
             {"help", name, "--json"}, {"help", "--json", name}, {name, "--help", "--json"}}) {
      ASSERT_EQ(Run(args, false), kExitOk) << err_.str();
      const Json said = Json::parse(out_.str(), nullptr, false);
      EXPECT_TRUE(said == command) << args[0] << " " << args[1] << " " << args[2];
    }
  }
  EXPECT_EQ(Run({"help", "srve", "--json"}), kExitUsage);
  EXPECT_THAT(std::string(Json::parse(out_.str())["error"]["message"]), HasSubstr("serve?"));
  EXPECT_EQ(Run({"help", "serve"}), kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr("Usage: espalier serve"));
}

TEST_F(CliTest, AnExportedProfileIsWrittenAndSaid) {
  const std::string profile = R"({"espalier_profile":1,"operators":{"entries":[]}})";
  fake_.state()->profile.set_json(profile);
  const std::string file = home_ + "/ours.json";
  ASSERT_EQ(Run({"profile", "export", file, "--json"}), kExitOk) << err_.str();
  const Json said = Json::parse(out_.str(), nullptr, false);
  EXPECT_EQ(said["written"], file) << out_.str();
  EXPECT_EQ(said["bytes"], profile.size());
  std::ifstream in(file);
  std::string text;
  std::getline(in, text);
  EXPECT_EQ(text, profile);
  EXPECT_EQ(Run({"profile", "export", home_ + "/nowhere/ours.json", "--json"}), kExitFailed);
  EXPECT_TRUE(Json::parse(out_.str()).contains("error"));
}

// For example, from a coordinator of another version.
TEST_F(CliTest, ADifferenceThatIsNoJsonIsAnError) {
  std::ofstream(home_ + "/plan.json") << R"({"operators": [{"node": "x"}]})";
  fake_.state()->difference.set_json("{\"a\": ");
  const std::string plan = home_ + "/plan.json";
  EXPECT_EQ(Run({"plan", "diff", plan, plan, "--json"}), kExitFailed) << out_.str();
  EXPECT_EQ(Json::parse(out_.str())["error"]["code"], "DATA_LOSS");
}

TEST_F(CliTest, EveryAnswerIsADocumentOrLines) {
  std::filesystem::create_directories(home_ + "/model");
  std::ofstream(home_ + "/model/config.json") << "{}";
  std::ofstream(home_ + "/prompts.json") << R"(["one", "two"])";
  std::ofstream(home_ + "/plan.json") << R"({"operators": [{"node": "x"}]})";
  std::ofstream(LogFile(home_)) << "one line\nanother\n";
  fake_.state()->profile.set_json(R"({"espalier_profile":1})");
  fake_.state()->machines.set_text("{\"devices\": 8}\n");
  fake_.state()->difference.set_json("{}");
  fake_.state()->replies = {Piece("a"), Last(2, 0, 0, 1)};
  fake_.state()->speculated = fake_.state()->replies;
  fake_.state()->proof.set_passed(true);
  fake_.state()->served.set_name("llm");
  const std::string text = home_ + "/text.txt", plan = home_ + "/plan.json";
  const std::vector<std::vector<std::string>> documents = {
      {"help"},
      {"help", "train"},
      {"version"},
      {"status"},
      {"train", "--model=llama:tiny", "-d", text, "--dry-run"},
      {"plan", "--model=llama:tiny"},
      {"plan", "diff", plan, plan},
      {"explain", "job-1"},
      {"machines"},
      {"machines", "h200"},
      {"profile", "export"},
      {"profile", "export", home_ + "/profile.json"},
      {"profile", "show"},
      {"jobs"},
      {"jobs", "get", "job-1"},
      {"models", "upload", "m", home_ + "/model"},
      {"models"},
      {"models", "download", "m", home_ + "/back"},
      {"models", "quantize", "m", "--weights=int8", "--out=n"},
      {"models", "delete", "m"},
      {"backup", home_ + "/store.db"},
      {"serve"},
      {"serve", "llm"},
      {"embed", "llm", "x"},
      {"generate", "llm", "x", "--compare"},
      {"bench", "llm", "--requests=2"},
      {"verify-lossless", "--llm=" + home_ + "/model", "--ngram=2"},
  };
  for (std::vector<std::string> args : documents) {
    const std::string shown = args[0] + " " + (args.size() > 1 ? args[1] : "");
    args.push_back("--json");
    EXPECT_EQ(Run(args), kExitOk) << shown << ": " << err_.str();
    EXPECT_FALSE(Json::parse(out_.str(), nullptr, false).is_discarded()) << shown;
  }
  const std::vector<std::vector<std::string>> streams = {
      {"train", "--model=llama:tiny", "-d", text, "--steps=3"},
      {"train", "--model=llama:tiny", "-d", text, "--steps=3", "--detach"},
      {"jobs", "watch", "job-1"},
      {"logs", "job-1"},
      {"logs", "job-1", "--follow"},
      {"logs"},
      {"generate", "llm", "x"},
      {"chat", "llm", "x"},
  };
  for (std::vector<std::string> args : streams) {
    args.push_back("--json");
    EXPECT_EQ(Run(args), kExitOk) << args[0] << ": " << err_.str();
    std::istringstream lines(out_.str());
    int count = 0;
    for (std::string line; std::getline(lines, line); ++count) {
      EXPECT_TRUE(Json::parse(line, nullptr, false).is_object()) << args[0] << ": " << line;
    }
    EXPECT_GT(count, 0) << args[0];
  }
}

}  // namespace
}  // namespace espalier
