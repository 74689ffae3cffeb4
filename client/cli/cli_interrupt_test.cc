// Commands ended by a signal, and their cleanup.
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "absl/time/clock.h"
#include "client/cli/cli_fixture.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class InterruptTest : public CliTest {
 protected:
  InterruptTest() {
    std::filesystem::create_directories(home_ + "/tiny");
    std::ofstream(home_ + "/tiny/config.json") << "{}";
  }

  // Runs a proof that gets `signal` once `begun`.
  void ProveUntil(int signal, const std::function<bool()>& begun) {
    std::thread hand([&] {
      while (!begun()) absl::SleepFor(absl::Milliseconds(5));
      kill(getpid(), signal);
    });
    EXPECT_EQ(Run({"verify-lossless", "--llm=" + home_ + "/tiny", "--ngram=4", "--json"}),
              kExitInterrupted);
    hand.join();
    EXPECT_THAT(err_.str(), HasSubstr("interrupted"));
    EXPECT_EQ(Json::parse(out_.str())["error"]["code"], "CANCELLED");
    EXPECT_TRUE(fake_.state()->artifacts.empty());
  }
};

TEST_F(InterruptTest, ProofDeletesItsUploads) {
  fake_.state()->proofs_hang = true;
  ProveUntil(SIGINT, [&] { return !fake_.state()->verifies.empty(); });
  const std::string llm = fake_.state()->verifies.at(0).models().artifact();
  EXPECT_THAT(llm, HasSubstr("borrowed-"));
  EXPECT_THAT(fake_.state()->deleted, ElementsAre(llm));
}

TEST_F(InterruptTest, ProofDeletesUploadWithoutReply) {
  fake_.state()->uploads_hang = true;
  ProveUntil(SIGTERM, [&] { return fake_.state()->uploads == 1; });
  EXPECT_TRUE(fake_.state()->verifies.empty());
  EXPECT_EQ(fake_.state()->deleted.size(), 1u);
}

TEST_F(InterruptTest, DryRunDeletesItsUploads) {
  const std::vector<std::string> train = {
      "train", "--model=llama:tiny", "-d", home_ + "/text.txt", "--steps=3", "--dry-run"};
  std::ofstream(home_ + "/text.txt") << "some text";
  EXPECT_EQ(Run(train), kExitOk) << err_.str();
  const std::string uri = fake_.state()->dry_runs.at(0).spec().dataset().uri();
  EXPECT_THAT(uri, HasSubstr("artifact:borrowed-text-"));
  EXPECT_THAT(fake_.state()->deleted, ElementsAre(uri.substr(uri.find(':') + 1)));
  fake_.state()->dry_run.add_problems("it would not run");
  EXPECT_EQ(Run(train), kExitFailed);
  EXPECT_EQ(fake_.state()->deleted.size(), 2u);
  EXPECT_TRUE(fake_.state()->artifacts.empty());

  fake_.state()->dry_runs_hang = true;
  std::thread hand([&] {
    while (fake_.state()->dry_runs.size() < 3) absl::SleepFor(absl::Milliseconds(5));
    kill(getpid(), SIGINT);
  });
  EXPECT_EQ(Run(train), kExitInterrupted);
  hand.join();
  EXPECT_THAT(err_.str(), HasSubstr("nothing was queued"));
  EXPECT_EQ(fake_.state()->deleted.size(), 3u);
  EXPECT_TRUE(fake_.state()->artifacts.empty());

  // What was there before stays.
  fake_.state()->dry_runs_hang = false;
  fake_.state()->dry_run.clear_problems();
  EXPECT_EQ(Run({"models", "upload", "mine", home_ + "/text.txt"}), kExitOk) << err_.str();
  EXPECT_EQ(Run(train), kExitOk) << err_.str();
  EXPECT_EQ(fake_.state()->dry_runs.back().spec().dataset().uri(), "artifact:mine");
  EXPECT_THAT(out_.str(), HasSubstr("text.txt is there already: mine"));
  EXPECT_EQ(fake_.state()->artifacts.size(), 1u);
  EXPECT_EQ(fake_.state()->deleted.size(), 3u);
}

// A script that starts commands with SIGINT ignored relies on it.
TEST_F(InterruptTest, ASignalThatWasIgnoredStaysSo) {
  fake_.state()->proof.set_passed(true);
  auto* const before = signal(SIGHUP, SIG_IGN);
  EXPECT_EQ(Run({"verify-lossless", "--llm=big", "--ngram=4"}), kExitOk) << err_.str();
  EXPECT_EQ(signal(SIGHUP, before), SIG_IGN);
  EXPECT_EQ(signal(SIGINT, SIG_DFL), SIG_DFL);
}

}  // namespace
}  // namespace espalier
