#include "client/cli/cli_fixture.h"
#include "client/cli/launch/launch_context.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(CliTest, SlurmScriptHasWhatIsAskedFor) {
  ASSERT_EQ(Run({"slurm", "script", "--nodes=2", "--gpus=4", "--cpus-per-task=8", "--mem=64G",
                 "--time=2-00", "--partition=long", "--", "train", "--model=llama:tiny", "-d",
                 "it's a book.txt", "--steps=3"}),
            kExitOk)
      << err_.str();
  const std::string script = out_.str();
  for (const char* const line :
       {"#!/bin/bash\n", "#SBATCH --nodes=2\n", "#SBATCH --ntasks-per-node=4 ",
        "#SBATCH --gpus-per-node=4 ", "#SBATCH --cpus-per-task=8\n", "#SBATCH --mem=64G\n",
        "#SBATCH --time=2-00\n", "#SBATCH --partition=long\n", "#SBATCH --requeue\n",
        "#SBATCH --signal=B:USR1@120 ", "srun --label --cpus-per-task=$SLURM_CPUS_PER_TASK ",
        "train --model=llama:tiny -d 'it'\\''s a book.txt' --steps=3\n"}) {
    EXPECT_THAT(script, HasSubstr(line));
  }
  EXPECT_THAT(script, Not(HasSubstr("account")));
}

TEST_F(CliTest, SlurmScriptPassesOptionsOfSbatchOn) {
  ASSERT_EQ(Run({"slurm", "script", "--qos=high", "--constraint=a100&ib", "--gres=nvme:1",
                 "--reservation=course", "--mail-user=ann@example.org", "--exclude=n[3-4]",
                 "--nodelist=n1", "--comment=thesis", "--sbatch=exclusive",
                 "--sbatch=dependency=afterok:7", "--sbatch=--mem-per-cpu=2G", "--", "train", "-d",
                 "t.txt"}),
            kExitOk)
      << err_.str();
  for (const char* const option :
       {"qos=high", "constraint=a100&ib", "gres=nvme:1", "reservation=course",
        "mail-user=ann@example.org", "mail-type=END,FAIL", "exclude=n[3-4]", "nodelist=n1",
        "comment=thesis", "exclusive", "dependency=afterok:7", "mem-per-cpu=2G"}) {
    EXPECT_THAT(out_.str(), HasSubstr(absl::StrCat("\n#SBATCH --", option, "\n")));
  }
  // What sbatch would take for another line, what the file sets, and what would stop it.
  const std::pair<const char*, const char*> wrong[] = {
      {"--sbatch=nodes=4", "use --nodes"},
      {"--sbatch=--partit=long", "use --partition"},
      {"--sbatch=qos=low", "use --qos"},
      {"--sbatch=gpus-per-task=1", "use --gpus"},
      {"--sbatch=no-requeue", "--no-requeue does not go with this batch file"},
      {"--sbatch=array=1-9", "does not go with this batch file"},
      {"--sbatch=hold\n#SBATCH --uid=0", "accepted is a long option of sbatch"},
      {"--sbatch=export=A\n#SBATCH --uid=0", "edit the batch file instead"},
      {"--sbatch=export=A B", "edit the batch file instead"},
      {"--sbatch=-C", "accepted is a long option of sbatch"},
      {"--sbatch=Exclusive", "accepted is a long option of sbatch"},
      {"--sbatch=export=", "accepted is a long option of sbatch"},
      {"--qos=high\n#SBATCH --uid=0", "edit the batch file instead"},
      {"--comment=two words", "edit the batch file instead"},
      {"--mail-type=END", "--mail-user=ADDRESS"},
  };
  for (const auto& [flag, message] : wrong) {
    EXPECT_EQ(Run({"slurm", "script", flag, "--", "train", "-d", "t.txt"}), kExitUsage) << flag;
    EXPECT_THAT(err_.str(), HasSubstr(message)) << flag;
  }
}

TEST_F(CliTest, SlurmScriptSaysHowManyCoresAGpuHas) {
  ASSERT_EQ(Run({"slurm", "script", "--gpus=2", "--", "train", "-d", "t.txt"}), kExitOk)
      << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("\n# SLURM gives each worker one core; more: "));
  ASSERT_EQ(Run({"slurm", "script", "--gpus=2", "--cpus-per-task=8", "--", "train", "-d", "t.txt"}),
            kExitOk);
  EXPECT_THAT(out_.str(), Not(HasSubstr("gives each worker")));
}

// A signal at once would requeue the batch job for ever.
TEST_F(CliTest, SlurmSignalsInTheLastQuarterOfTheTime) {
  for (const auto& [time, seconds] :
       {std::pair("1:00", 15), std::pair("4", 60), std::pair("8:00", 120), std::pair("0:02:00", 30),
        std::pair("0-0:2", 30), std::pair("2-12", 120), std::pair("UNLIMITED", 120)}) {
    ASSERT_EQ(Run({"slurm", "script", absl::StrCat("--time=", time), "--", "train", "-d", "t.txt"}),
              kExitOk);
    EXPECT_THAT(out_.str(), HasSubstr(absl::StrCat("--signal=B:USR1@", seconds, " "))) << time;
  }
  ASSERT_EQ(Run({"slurm", "script", "--time=2", "--signal=90", "--", "train", "-d", "t.txt"}),
            kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr("--signal=B:USR1@90 "));
}

TEST_F(CliTest, SlurmScriptChecksTheTraining) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--"}, "missing: a training command"},
      {{"--", "serve", "llm"}, "\"serve\" is no training command"},
      {{"--", "train", "--stps=3"}, "did you mean --steps?"},
      {{"--", "train", "--detach"}, "train --detach: a batch job submits its training"},
      {{"--", "train", "--coordinator=a:1"}, "train --coordinator"},
      {{"--", "train"}, "train: missing --dataset=FILE"},
      {{"--gpus=2", "--ntasks-per-node=3", "--", "train", "-d", "t.txt"},
       "each worker needs a GPU of its own"},
      {{"--time=2", "--signal=120", "--", "train", "-d", "t.txt"},
       "--signal=120 is not below --time=2, 120 seconds"},
      {{"--account=me\n#SBATCH --uid=0", "--", "train", "-d", "t.txt"},
       "edit the batch file instead"},
  };
  for (const auto& [args, message] : cases) {
    std::vector<std::string> words = {"slurm", "script"};
    words.insert(words.end(), args.begin(), args.end());
    EXPECT_EQ(Run(words), kExitUsage);
    EXPECT_THAT(err_.str(), HasSubstr(message));
  }
}

TEST_F(CliTest, SlurmRunAndWorkerBelongIntoABatchJob) {
  EXPECT_EQ(Run({"slurm", "run", "--workers=srun x", "--", "train", "-d", "t.txt"}), kExitFailed);
  EXPECT_THAT(err_.str(), HasSubstr("this is no job of SLURM"));
  EXPECT_EQ(Run({"slurm", "worker"}), kExitFailed);
  EXPECT_THAT(err_.str(), HasSubstr("ESPALIER_COORDINATOR is not set"));
}

// Stand-ins for SLURM's tools in the PATH.
class LaunchSlurmTest : public CliTest {
 protected:
  LaunchSlurmTest() { setenv("PATH", (home_ + "/bin:" + path_).c_str(), 1); }
  ~LaunchSlurmTest() override { setenv("PATH", path_.c_str(), 1); }
  void Tool(const std::string& name, const std::string& script) {
    const std::filesystem::path path = home_ + "/bin/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }

  const std::string path_ = getenv("PATH");
};

TEST_F(LaunchSlurmTest, AJobOfAnotherClusterIsFollowedThere) {
  Tool("sbatch", "cat > /dev/null; echo '42;far'");
  Tool("scontrol",
       "[ \"$*\" = '--clusters=far --oneliner show job 42' ] || exit 1\n"
       "echo 'JobId=42 JobState=COMPLETED ExitCode=0:0'");
  EXPECT_EQ(Run({"launch", "slurm", "--", "train", "-d", "t.txt"}), kExitOk) << err_.str();
  EXPECT_EQ(Run({"launch", "slurm", "--detach", "--", "train", "-d", "t.txt"}), kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr("squeue --clusters=far -j 42"));
  EXPECT_THAT(out_.str(), HasSubstr("scancel --clusters=far 42"));
}

TEST_F(LaunchSlurmTest, ItEndsWithTheExitCodeOfTheJob) {
  Tool("sbatch", "cat > /dev/null; echo 42");
  for (const auto& [field, code] : {std::pair<const char*, int>{"3:0", 3},
                                    {"0:9", 137},
                                    {"0:0", kExitFailed},
                                    {"", kExitFailed}}) {
    Tool("scontrol", absl::StrCat("echo 'JobId=42 JobState=FAILED ExitCode=", field, "'"));
    EXPECT_EQ(Run({"launch", "slurm", "--", "train", "-d", "t.txt"}), code) << field;
    EXPECT_THAT(err_.str(), HasSubstr("SLURM job 42 has ended as FAILED"));
  }
}

TEST_F(CliTest, FlagsOfAnotherVerbAreRefused) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"launch", "slurm", "--trusted-network", "--", "train", "-d", "t.txt"},
       "--trusted-network applies to launch ssh, not to launch slurm"},
      {{"launch", "ssh", "hosts", "--nodes=4"},
       "--nodes applies to launch slurm, not to launch ssh"},
      {{"launch", "ssh", "hosts", "--detach"},
       "--detach applies to launch slurm, not to launch ssh"},
      {{"slurm", "script", "--timeout=9", "--", "train", "-d", "t.txt"},
       "--timeout applies to slurm run, not to slurm script"},
      {{"slurm", "worker", "--nodes=2"}, "--nodes applies to slurm script, not to slurm worker"},
      {{"slurm", "run", "--trusted-network", "--", "train", "-d", "t.txt"},
       "--trusted-network applies to slurm worker, not to slurm run"},
  };
  for (const auto& [args, message] : cases) {
    EXPECT_EQ(Run(args), kExitUsage);
    EXPECT_THAT(err_.str(), HasSubstr(message));
  }
}

TEST_F(CliTest, LaunchSshNeedsPrograms) {
  std::ofstream(home_ + "/hosts") << "a\n";
  EXPECT_EQ(Run({"launch", "ssh", home_ + "/hosts"}), kExitFailed);
  EXPECT_THAT(err_.str(), HasSubstr("--bundle=FILE"));
  EXPECT_EQ(Run({"launch", "ssh", home_ + "/hosts", "--stop"}), kExitNotFound);
  EXPECT_THAT(err_.str(), HasSubstr("nothing is running of"));
  std::ofstream(home_ + "/my hosts") << "a\n";
  EXPECT_EQ(Run({"launch", "ssh", home_ + "/my hosts", "--stop"}), kExitNotFound);
  EXPECT_THAT(err_.str(), HasSubstr("`espalier launch ssh '" + home_ + "/my hosts'` starts it"));
  EXPECT_EQ(Run({"launch", "ssh", home_ + "/none", "--remote-bin=/opt"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("cannot read"));
}

// What is set for another coordinator is nothing for that of a launch.
TEST(LaunchContext, AHomeHidesWhatLeadsElsewhere) {
  Environment before;
  before.getenv = [](const char* name) { return name; };
  const Environment with = WithVariables(before, VariablesOfHome("/launch"));
  EXPECT_STREQ(with.getenv("ESPALIER_HOME"), "/launch");
  for (const char* const name :
       {"ESPALIER_COORDINATOR", "ESPALIER_HTTP", "ESPALIER_TOKEN", "ESPALIER_TOKEN_FILE",
        "ESPALIER_CA_FILE", "ESPALIER_CERT_FILE", "ESPALIER_KEY_FILE"}) {
    EXPECT_STREQ(with.getenv(name), "") << name;
  }
  EXPECT_STREQ(with.getenv("PATH"), "PATH");
}

TEST_F(CliTest, CheckpointOfAJob) {
  EXPECT_EQ(Run({"jobs", "checkpoint", "job-1"}), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("job job-1 has a checkpoint of step 2"));
  EXPECT_EQ(Run({"jobs", "list", "--timeout=3"}), kExitUsage);
}

}  // namespace
}  // namespace espalier
