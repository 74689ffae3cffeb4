// `espalier replay` of replays that the coordinator keeps, and wrong usage of it.
#include "client/cli/cli_fixture.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class CliReplayTest : public CliTest {
 protected:
  // Of so many versions of lm.
  static v1::ReplayInfo Replay(const std::string& id, const std::vector<int>& versions) {
    v1::ReplayInfo replay;
    replay.set_id(id);
    replay.set_state(v1::REPLAY_SUCCEEDED);
    replay.mutable_spec()->set_run(versions.size() == 1 ? "lm" : "lm@*");
    replay.mutable_spec()->add_log("norm(grad(*))");
    replay.mutable_spec()->set_first_step(10);
    replay.set_created_unix_ms(1'000);
    replay.set_finished_unix_ms(3'500);
    replay.set_rows(20);
    for (const int version : versions) {
      replay.add_runs(absl::StrCat("lm@", version));
      replay.add_job_ids(absl::StrCat("job-", version));
      v1::ReplaySegment& segment = *replay.add_segments();
      segment.set_job_id(absl::StrCat("job-", version));
      segment.set_checkpoint_step(5);
      segment.set_first_step(10);
      segment.set_end_step(30);
      segment.set_state(v1::REPLAY_SUCCEEDED);
      segment.mutable_comparison()->set_bits(true);
      segment.mutable_comparison()->set_compared(25);
    }
    return replay;
  }
};

TEST_F(CliReplayTest, ReplaysAreListedWithTheVersionsThatTheyAreOf) {
  fake_.state()->replays = {Replay("replay-1", {3}), Replay("replay-2", {1, 2, 3, 5, 9})};
  EXPECT_EQ(Run({"replay", "list"}), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), AllOf(HasSubstr("\nreplay-1  lm@3      "),
                                HasSubstr("\nreplay-2  lm@1-3,5,9  succeeded  125/125")));
  EXPECT_EQ(Run({"replay", "list", "--json"}), kExitOk) << err_.str();
  const Json listed = Json::parse(out_.str())["replays"];
  EXPECT_EQ(listed[0]["runs"], Json({"lm@3"}));
  EXPECT_EQ(listed[1]["runs"].size(), 5u);
}

TEST_F(CliReplayTest, OneIsShownWithItsQuestionAndWhatWasCompared) {
  fake_.state()->replays = {Replay("replay-1", {3})};
  EXPECT_EQ(Run({"replay", "get", "replay-1"}), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(),
              AllOf(HasSubstr("replay-1 of lm@3: succeeded, 25 of 25 steps, 20 answers\n"),
                    HasSubstr("asked: norm(grad(*)); steps 10:\n"), HasSubstr(", took 2.50 s\n"),
                    HasSubstr("losses that equal the recorded ones to the bit: 25\n"),
                    HasSubstr("\nlm@3  training                5   10:30  succeeded  25/25  "
                              "25, to the bit\n")));
  v1::ReplayInfo& replay = fake_.state()->replays[0];
  replay.mutable_spec()->set_at_checkpoints(true);
  replay.set_state(v1::REPLAY_DIFFERS);
  replay.mutable_difference()->set_job_id("job-3");
  replay.mutable_difference()->set_step(17);
  replay.mutable_difference()->set_cause("it was another dataset");
  EXPECT_EQ(Run({"replay", "get", "replay-1"}), kExitOk) << "it is no failure to show one";
  EXPECT_THAT(out_.str(), AllOf(HasSubstr("of lm@3: differs"), HasSubstr("; checkpoints 10:\n"),
                                HasSubstr("at step 17"), HasSubstr("it was another dataset"),
                                Not(HasSubstr("to the bit:"))));
  EXPECT_EQ(Run({"replay", "get", "replay-1", "--json"}), kExitOk);
  EXPECT_EQ(Json::parse(out_.str())["state"], "REPLAY_DIFFERS");
  EXPECT_EQ(Run({"replay", "get", "replay-9"}), kExitNotFound);
}

TEST_F(CliReplayTest, SomeAreDeletedAndTheFirstThatCannotBeIsTheCommandsError) {
  fake_.state()->replays = {Replay("replay-1", {1}), Replay("replay-2", {1})};
  EXPECT_EQ(Run({"replay", "delete", "replay-1", "replay-9", "replay-2"}), kExitNotFound);
  EXPECT_EQ(out_.str(), "replay-1 deleted\nreplay-2 deleted\n");
  EXPECT_THAT(err_.str(), HasSubstr("'replay-9'"));
  EXPECT_TRUE(fake_.state()->replays.empty());
  fake_.state()->replays = {Replay("replay-1", {1})};
  EXPECT_EQ(Run({"replay", "delete", "replay-1", "--json"}), kExitOk);
  EXPECT_EQ(Json::parse(out_.str())["deleted"], Json({"replay-1"}));
}

// Nobody listens there: usage is checked before a coordinator is asked.
TEST_F(CliReplayTest, WrongUsageIsToldFromWhatCannotBeDone) {
  const std::vector<std::vector<std::string>> wrong = {
      {"replay"},
      {"replay", ""},
      {"replay", "lm", "lm@2"},
      {"replay", "lm", "--log=nrm(w)"},
      {"replay", "lm", "--log=norm("},
      {"replay", "lm", "--steps=5:5"},
      {"replay", "lm", "--steps=x"},
      {"replay", "lm", "--segment=4/3"},
      {"replay", "lm", "--segment=0/3"},
      {"replay", "lm", "--segment=1"},
      {"replay", "lm", "--every=0"},
      {"replay", "lm", "--at=steps"},
      {"replay", "lm", "--evaluate=holdout"},
      {"replay", "lm", "--log-graph=" + home_ + "/none.onnx"},
      {"replay", "get"},
      {"replay", "get", "replay-1", "replay-2"},
      {"replay", "delete"},
      {"replay", "delete", "replay-1", "--steps=1:2"},
      {"replay", "list", "lm", "lm"},
      {"history"},
      {"history", "lm", "--steps=5:5"},
      {"history", "lm", "--source=both"},
      {"history", "lm", "--csv=-", "--json"},
      {"runs", "get"},
      {"runs", "get", "lm", "--limit=3"},
      {"runs", "diff", "lm"},
      {"runs", "lm", "lm"},
      {"runs", "--limit=-1"},
  };
  for (std::vector<std::string> arguments : wrong) {
    arguments.push_back("--coordinator=127.0.0.1:1");
    EXPECT_EQ(Run(arguments, false), kExitUsage)
        << ::testing::PrintToString(arguments) << err_.str();
    EXPECT_THAT(err_.str(), HasSubstr("Try: espalier help " + arguments[0]));
  }
  const std::vector<std::vector<std::string>> unreachable = {
      {"replay", "lm"}, {"replay", "get", "replay-1"}, {"history", "lm"}, {"runs", "get", "lm"}};
  for (std::vector<std::string> arguments : unreachable) {
    arguments.push_back("--coordinator=127.0.0.1:1");
    EXPECT_EQ(Run(arguments, false), kExitUnreachable) << ::testing::PrintToString(arguments);
  }
}

TEST_F(CliReplayTest, WhatRecordedRunsNeedIsDeletedOnlyByForce) {
  fake_.state()->artifacts["book"].set_name("book");
  fake_.state()->delete_status =
      absl::FailedPreconditionError("artifact 'book' is needed to replay lm@3 (job-3)");
  EXPECT_EQ(Run({"models", "delete", "book"}), kExitFailed);
  EXPECT_THAT(err_.str(), HasSubstr("lm@3 (job-3)"));
  fake_.state()->delete_status = absl::OkStatus();
  EXPECT_EQ(Run({"models", "delete", "book", "--force"}), kExitOk) << err_.str();
  EXPECT_THAT(fake_.state()->forced, ElementsAre("book"));
  EXPECT_EQ(Run({"models", "--force"}), kExitUsage);
}

TEST_F(CliReplayTest, AnUploadedDatasetIsEvaluatedByItsName) {
  fake_.state()->artifacts["other"].set_name("other");
  fake_.state()->artifacts["other"].set_kind(v1::Artifact::DATASET);
  EXPECT_EQ(Run({"replay", "lm", "--at=checkpoints", "--evaluate=" + home_ + "/none.txt"}),
            kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("no dataset of that name is uploaded"));
}

}  // namespace
}  // namespace espalier
