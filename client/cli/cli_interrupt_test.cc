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
