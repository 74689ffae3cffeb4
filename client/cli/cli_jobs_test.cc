// The commands that list, change and delete jobs, and list artifacts.
#include "client/cli/cli_fixture.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(CliTest, JobsAreTheNewestOnesAndTheRestIsCounted) {
  fake_.state()->more_jobs = 79;  // 80 with job-1; more-79 is the newest
  EXPECT_EQ(Run({"jobs"}), kExitOk) << err_.str();
  const std::string all = out_.str();
  EXPECT_THAT(all, HasSubstr("30 older ones are not shown; --limit=N shows more, --limit=0 all"));
  EXPECT_THAT(all, Not(HasSubstr("more-29 ")));
  EXPECT_LT(all.find("more-30 "), all.find("more-31 "));
  EXPECT_LT(all.find("more-78 "), all.find("more-79 "));
  EXPECT_NE(all.find("more-79 "), std::string::npos);

  EXPECT_EQ(Run({"jobs", "--limit=12", "--newest-first"}), kExitOk) << err_.str();
  EXPECT_LT(out_.str().find("more-79 "), out_.str().find("more-78 "));
  EXPECT_THAT(out_.str(), HasSubstr("68 older ones are not shown"));

  EXPECT_EQ(Run({"jobs", "--limit=0"}), kExitOk) << err_.str();
  EXPECT_LT(out_.str().find("job-1 "), out_.str().find("more-1 "));
  EXPECT_THAT(out_.str(), Not(HasSubstr("not shown")));

  // Scripts get all.
  EXPECT_EQ(Run({"jobs", "--json"}), kExitOk) << err_.str();
  const Json json = Json::parse(out_.str());
  ASSERT_EQ(json["jobs"].size(), 80u);
  EXPECT_EQ(json["jobs"][0]["id"], "job-1");
  EXPECT_EQ(json["matching"], 80);
}

TEST_F(CliTest, FlagsChooseTheListedJobs) {
  EXPECT_EQ(Run({"jobs", "--state=running,queued", "--state=failed", "--owner=ann", "--name=net*",
                 "--model=llm", "--since=2h", "--until=2099-01-01"}),
            kExitOk)
      << err_.str();
  const v1::ListJobsRequest request = fake_.state()->job_lists.back();
  EXPECT_THAT(request.states(), ::testing::ElementsAre(v1::RUNNING, v1::QUEUED, v1::FAILED));
  EXPECT_EQ(request.owner(), "ann");
  EXPECT_EQ(request.name(), "net*");
  EXPECT_EQ(request.model(), "llm");
  EXPECT_NEAR(static_cast<double>(request.submitted_from_unix_ms()),
              static_cast<double>(absl::ToUnixMillis(absl::Now() - absl::Hours(2))), 60'000);
  EXPECT_GT(request.submitted_before_unix_ms(), absl::ToUnixMillis(absl::Now()));

  fake_.state()->job.clear_id();
  EXPECT_EQ(Run({"jobs", "--state=failed"}), kExitOk);
  EXPECT_EQ(out_.str(), "no such jobs\n");
  EXPECT_EQ(Run({"jobs"}), kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr("no jobs yet"));
}

TEST_F(CliTest, QueuedJobsAreChanged) {
  EXPECT_EQ(Run({"jobs", "set", "job-1", "--priority=-7", "--time-limit=1h30m"}), kExitOk)
      << err_.str();
  const v1::UpdateJobRequest request = fake_.state()->updates.back();
  EXPECT_EQ(request.job_id(), "job-1");
  EXPECT_EQ(request.priority(), -7);
  EXPECT_DOUBLE_EQ(request.time_limit_seconds(), 5400);
  EXPECT_FALSE(request.idempotency_key().empty());

  // The answer has what is now so.
  fake_.state()->job.set_time_limit_seconds(5400);
  fake_.state()->job.set_running_seconds(60);
  EXPECT_EQ(Run({"jobs", "set", "job-1", "--time-limit=1h30m"}), kExitOk) << err_.str();
  EXPECT_EQ(out_.str(), "job job-1 is succeeded\nhad workers for 1m of 1h30m\n");

  EXPECT_EQ(Run({"jobs", "set", "job-1", "--time-limit=0"}), kExitOk) << err_.str();
  EXPECT_FALSE(fake_.state()->updates.back().has_priority());
  EXPECT_TRUE(fake_.state()->updates.back().has_time_limit_seconds());

  fake_.state()->update_status = absl::FailedPreconditionError("job job-1 is running");
  EXPECT_EQ(Run({"jobs", "set", "job-1", "--priority=1"}), kExitFailed);
  EXPECT_THAT(err_.str(), HasSubstr("job job-1 is running"));
}

TEST_F(CliTest, AJobIsMeantByItsNameIfOnlyOneHasIt) {
  fake_.state()->job.mutable_spec()->set_name("lm");
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"jobs", "get"}, {"jobs", "checkpoint"}, {"logs"}, {"explain"}, {"plan", "--job"}}) {
    std::vector<std::string> words = command;
    if (words.back() == "--job") {
      words.back() += "=lm";
    } else {
      words.push_back("lm");
    }
    EXPECT_EQ(Run(words), kExitOk) << words[0] << " " << words[1] << ": " << err_.str();
  }
  EXPECT_EQ(fake_.state()->explains.back().job_id(), "job-1");
  EXPECT_EQ(Run({"jobs", "set", "lm", "--priority=1"}), kExitOk) << err_.str();
  EXPECT_EQ(fake_.state()->updates.back().job_id(), "job-1");
  EXPECT_EQ(Run({"jobs", "watch", "lm"}), kExitOk) << err_.str();
  EXPECT_EQ(Run({"jobs", "delete", "lm"}), kExitOk) << err_.str();
  EXPECT_THAT(fake_.state()->deleted_jobs, ::testing::ElementsAre("job-1"));

  // An id needs no list.
  const size_t lists = fake_.state()->job_lists.size();
  EXPECT_EQ(Run({"jobs", "get", "job-1"}), kExitOk);
  EXPECT_EQ(fake_.state()->job_lists.size(), lists);
  // Nobody's name, and a pattern, are not found.
  EXPECT_EQ(Run({"jobs", "get", "ln"}), kExitNotFound);
  EXPECT_EQ(Run({"jobs", "get", "l*"}), kExitNotFound);
}

TEST_F(CliTest, OfSeveralJobsOfANameTheOneThatIsNotOverIsMeant) {
  fake_.state()->job.mutable_spec()->set_name("lm");
  fake_.state()->job.set_state(v1::RUNNING);
  fake_.state()->more_jobs = 2;
  fake_.state()->more_jobs_state = v1::FAILED;
  EXPECT_EQ(Run({"jobs", "set", "lm", "--time-limit=1h"}), kExitOk) << err_.str();
  EXPECT_EQ(fake_.state()->updates.back().job_id(), "job-1");

  fake_.state()->more_jobs_state = v1::QUEUED;
  EXPECT_EQ(Run({"jobs", "delete", "lm"}), kExitFailed);
  EXPECT_THAT(err_.str(), HasSubstr("3 jobs that are not over have the name 'lm': more-2, more-1, "
                                    "job-1; give the id of one"));
  fake_.state()->job.set_state(v1::SUCCEEDED);
  fake_.state()->more_jobs = 20;
  fake_.state()->more_jobs_state = v1::SUCCEEDED;
  EXPECT_EQ(Run({"logs", "lm"}), kExitFailed);
  EXPECT_THAT(err_.str(), HasSubstr("21 jobs have the name 'lm': more-20, "));
  EXPECT_THAT(err_.str(), HasSubstr("more-11, ...; give the id of one"));
  EXPECT_TRUE(fake_.state()->deleted_jobs.empty());
  EXPECT_TRUE(fake_.state()->watches.empty());
}

TEST_F(CliTest, ACancelledJobSaysWhatIsLost) {
  v1::Job job = fake_.state()->job;
  job.set_state(v1::CANCELLED);
  job.set_steps_done(9144);
  job.set_checkpoint_step(9000);
  fake_.state()->job = job;
  EXPECT_EQ(Run({"jobs", "cancel", "job-1"}), kExitOk) << err_.str();
  EXPECT_EQ(out_.str(),
            "job job-1 is cancelled\n"
            "144 steps since its checkpoint of step 9000 are lost; `espalier jobs checkpoint "
            "job-1` before a cancel keeps what is trained\n");
  fake_.state()->job.set_checkpoint_step(0);
  fake_.state()->job.set_steps_done(1);
  EXPECT_EQ(Run({"jobs", "cancel", "job-1"}), kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr("1 step, of which there is no checkpoint, is lost; "));
  fake_.state()->job.set_checkpoint_step(1);
  EXPECT_EQ(Run({"jobs", "cancel", "job-1"}), kExitOk);
  EXPECT_EQ(out_.str(), "job job-1 is cancelled\n");
}

// As people see them in the test's zone, whatever that is.
TEST_F(CliTest, LogsHaveTimesAndNameTheZoneOnce) {
  const auto text = [](int64_t ms) {
    return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixMillis(ms), absl::LocalTimeZone());
  };
  constexpr int64_t kFirst = 1'700'000'000'000;
  {
    auto state = fake_.state();
    state->events.resize(5);
    state->events[1].mutable_step()->set_unix_ms(kFirst);
    state->events[2].mutable_step()->set_unix_ms(kFirst + 2000);
    state->events[4].mutable_message()->set_unix_ms(kFirst + 5000);
    state->job.set_created_unix_ms(kFirst - 1000);
  }
  EXPECT_EQ(Run({"logs", "job-1"}), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), ::testing::StartsWith("times are in "));
  EXPECT_THAT(out_.str(), HasSubstr("\n" + text(kFirst) + "  step 0  10.0 ms"));
  EXPECT_THAT(out_.str(), HasSubstr("\n" + text(kFirst + 2000) + "  step 1  10.0 ms"));
  // Of a coordinator that kept no time.
  EXPECT_THAT(out_.str(), HasSubstr("\n" + std::string(21, ' ') + "step 2  10.0 ms"));
  EXPECT_THAT(out_.str(), HasSubstr("\n" + text(kFirst + 5000) + "  warning: worker w2 "));
  const std::string first = out_.str();
  EXPECT_EQ(first.find("times are in"), first.rfind("times are in"));

  EXPECT_EQ(Run({"jobs", "get", "job-1"}), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("; times are in "));
  EXPECT_THAT(out_.str(), HasSubstr("\n  " + text(kFirst + 5000) + "  warning: worker w2 "));

  EXPECT_EQ(Run({"logs", "job-1", "--json"}), kExitOk) << err_.str();
  EXPECT_EQ(Lines()[0]["step"]["unix_ms"], kFirst);
  EXPECT_EQ(Lines()[3]["message"]["unix_ms"], kFirst + 5000);
}

TEST_F(CliTest, JobsAreDeletedAndTheOthersStayInTheQueue) {
  EXPECT_EQ(Run({"jobs", "delete", "job-1", "job-2"}), kExitOk) << err_.str();
  EXPECT_EQ(out_.str(), "job job-1 deleted\njob job-2 deleted\n");
  EXPECT_THAT(fake_.state()->deleted_jobs, ::testing::ElementsAre("job-1", "job-2"));
  EXPECT_EQ(Run({"jobs", "delete", "job-3", "--json"}), kExitOk) << err_.str();
  EXPECT_EQ(Json::parse(out_.str())["deleted"], Json::parse(R"(["job-3"])"));

  fake_.state()->delete_job_status =
      absl::FailedPreconditionError("job job-4 is running; cancel it first");
  EXPECT_EQ(Run({"jobs", "delete", "job-4"}), kExitFailed);
  EXPECT_THAT(err_.str(), HasSubstr("cancel it first"));
}

TEST_F(CliTest, TrainSetsPriorityAndTimeLimit) {
  EXPECT_EQ(Run({"train", "--model=llama:tiny", "-d", home_ + "/text.txt", "--priority=40",
                 "--time-limit=2h"}),
            kExitOk)
      << err_.str();
  const v1::TrainingSpec spec = fake_.state()->submits.at(0).spec();
  EXPECT_EQ(spec.priority(), 40);
  EXPECT_DOUBLE_EQ(spec.time_limit_seconds(), 7200);
}

TEST_F(CliTest, AJobSaysWhereItStandsAndWhatItHasUsed) {
  fake_.state()->job.set_state(v1::QUEUED);
  fake_.state()->job.set_queue_position(3);
  fake_.state()->job.set_priority(50);
  fake_.state()->job.set_priority_among_owners(10);
  fake_.state()->job.set_running_seconds(90);
  fake_.state()->job.set_time_limit_seconds(7200);
  EXPECT_EQ(Run({"jobs", "get", "job-1"}), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(),
              HasSubstr("number 3 in the queue, priority 50 (10 among other owners' jobs), had "
                        "workers for 1m30s of 2h\n"));
}

TEST_F(CliTest, ArtifactsAreFilteredAndCounted) {
  EXPECT_EQ(Run({"models", "upload", "m", home_ + "/text.txt"}), kExitOk) << err_.str();
  EXPECT_EQ(Run({"models", "--kind=dataset", "--name=m*", "--owner=ann", "--since=7d",
                 "--newest-first", "--limit=5"}),
            kExitOk)
      << err_.str();
  const v1::ListArtifactsRequest request = fake_.state()->artifact_lists.back();
  EXPECT_THAT(request.kinds(), ::testing::ElementsAre(v1::Artifact::DATASET));
  EXPECT_EQ(request.name(), "m*");
  EXPECT_EQ(request.owner(), "ann");
  EXPECT_TRUE(request.newest_first());
  EXPECT_EQ(request.page_size(), 5);
  EXPECT_GT(request.created_from_unix_ms(), 0);
}

TEST_F(CliTest, FlagsOfOtherSubcommandsAreRefused) {
  const std::vector<std::vector<std::string>> wrong = {
      {"jobs", "get", "job-1", "--state=running"},
      {"jobs", "set", "job-1"},
      {"jobs", "set", "job-1", "--time-limit=2"},
      {"jobs", "set", "job-1", "--priority=1001"},
      {"jobs", "list", "--priority=1"},
      {"jobs", "delete"},
      {"jobs", "--state=runing"},
      {"jobs", "--since=yesterday"},
      {"jobs", "--limit=-1"},
      {"models", "delete", "m", "--name=x"},
      {"models", "--kind=modle"},
      {"train", "--model=llama:tiny", "-d", home_ + "/text.txt", "--time-limit=soon"},
      {"train", "--model=llama:tiny", "-d", home_ + "/text.txt", "--priority=5000"},
  };
  for (const auto& args : wrong) {
    EXPECT_EQ(Run(args), kExitUsage) << args[0] << " " << args[1] << ": " << err_.str();
  }
  EXPECT_TRUE(fake_.state()->updates.empty());
  EXPECT_TRUE(fake_.state()->submits.empty());
}

}  // namespace
}  // namespace espalier
