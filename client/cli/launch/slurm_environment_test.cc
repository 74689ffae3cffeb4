#include "client/cli/launch/slurm_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using Variables = std::map<std::string, std::string>;

GetEnv Of(const Variables& variables) {
  return [variables](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

constexpr int64_t kGigabyte = int64_t{1} << 30;
const MachineFacts kMachine = {32, 64 * kGigabyte};

// A task of `srun` on a node, with what Slurm 22.05 sets.
Variables Task(const Variables& more = {}) {
  Variables task = {{"SLURM_PROCID", "3"},
                    {"SLURM_LOCALID", "1"},
                    {"SLURM_NODEID", "1"},
                    {"SLURMD_NODENAME", "gpu02"},
                    {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                    {"SLURM_CPUS_ON_NODE", "16"},
                    {"SLURM_LAUNCH_NODE_IPADDR", "10.1.0.1"}};
  for (const auto& [name, value] : more) task[name] = value;
  return task;
}

TEST(SlurmEnvironmentTest, NodeLists) {
  EXPECT_THAT(*ExpandNodeList("n1"), ElementsAre("n1"));
  EXPECT_THAT(*ExpandNodeList("n[1-3],login"), ElementsAre("n1", "n2", "n3", "login"));
  EXPECT_THAT(*ExpandNodeList("gpu[08-10,7]"), ElementsAre("gpu08", "gpu09", "gpu10", "gpu7"));
  EXPECT_THAT(*ExpandNodeList("r[1-2]n[01,03].site"),
              ElementsAre("r1n01.site", "r1n03.site", "r2n01.site", "r2n03.site"));
  EXPECT_THAT(*ExpandNodeList("c[0-4999]"), SizeIs(5000));
}

TEST(SlurmEnvironmentTest, ListsThatAreNone) {
  for (const char* const list : {"", "n1,", "n[1", "n1]", "n[]", "n[a-b]", "n[3-1]", "n[1-2-3]",
                                 "n[-1]", "n[0-9999999999]", "n[0-999]m[0-999]"}) {
    EXPECT_FALSE(ExpandNodeList(list).ok()) << list;
  }
  for (const char* const tasks : {"", "x", "0", "2(x0)", "2(x", "2(x99999999)", "2,,1"}) {
    EXPECT_FALSE(ExpandTasks(tasks).ok()) << tasks;
  }
}

TEST(SlurmEnvironmentTest, TasksByNode) {
  EXPECT_THAT(*ExpandTasks("2(x3),1"), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(*ExpandTasks("4"), ElementsAre(4));
}

TEST(SlurmEnvironmentTest, ATaskHasItsShareOfTheNode) {
  const auto task = ReadSlurmTask(Of(Task()), kMachine);
  ASSERT_TRUE(task.ok()) << task.status();
  EXPECT_EQ(task->name, "gpu02-1");
  EXPECT_EQ(task->device, "cpu");
  EXPECT_EQ(task->threads, 8);
  EXPECT_EQ(task->memory, 32 * kGigabyte);
  EXPECT_EQ(task->launcher, "10.1.0.1");
}

TEST(SlurmEnvironmentTest, TheMaskBoundsTheThreads) {
  EXPECT_EQ(ReadSlurmTask(Of(Task({{"SLURM_CPUS_PER_TASK", "4"}})), kMachine)->threads, 4);
  // The task is bound to fewer.
  EXPECT_EQ(ReadSlurmTask(Of(Task({{"SLURM_CPUS_PER_TASK", "4"}})), {2, kGigabyte})->threads, 2);
}

TEST(SlurmEnvironmentTest, MemoryOfTheJob) {
  const auto memory = [](const Variables& more) {
    return ReadSlurmTask(Of(Task(more)), kMachine)->memory;
  };
  EXPECT_EQ(memory({{"SLURM_MEM_PER_NODE", "8192"}}), 4 * kGigabyte);
  EXPECT_EQ(memory({{"SLURM_MEM_PER_CPU", "1024"}, {"SLURM_CPUS_PER_TASK", "4"}}), 4 * kGigabyte);
  // All of the node's.
  EXPECT_EQ(memory({{"SLURM_MEM_PER_NODE", "0"}}), 32 * kGigabyte);
  // A cgroup leaves less.
  EXPECT_EQ(ReadSlurmTask(Of(Task({{"SLURM_MEM_PER_NODE", "8192"}})), {8, 2 * kGigabyte})->memory,
            kGigabyte);
}

TEST(SlurmEnvironmentTest, Gpus) {
  const auto device = [](const Variables& more) {
    return ReadSlurmTask(Of(Task(more)), kMachine)->device;
  };
  // --gpus-per-node: all tasks of the node see all of its GPUs.
  EXPECT_EQ(device({{"CUDA_VISIBLE_DEVICES", "0,1"}, {"SLURM_GPUS_ON_NODE", "2"}}), "cuda:1");
  // --gpus-per-task: each sees its own.
  EXPECT_EQ(device({{"CUDA_VISIBLE_DEVICES", "1"}, {"SLURM_GPUS_ON_NODE", "2"}}), "cuda:0");
  EXPECT_EQ(device({{"SLURM_GPUS_ON_NODE", "4"}}), "cuda:1");
  EXPECT_EQ(device({{"CUDA_VISIBLE_DEVICES", "NoDevFiles"}, {"SLURM_GPUS_ON_NODE", "0"}}), "cpu");
}

TEST(SlurmEnvironmentTest, MoreTasksThanGpus) {
  const auto task = ReadSlurmTask(
      Of(Task({{"CUDA_VISIBLE_DEVICES", "0"}, {"SLURM_GPUS_ON_NODE", "1"}})), kMachine);
  EXPECT_EQ(task.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(task.status().message()),
              HasSubstr("node gpu02 has 1 GPUs for this job and 2 tasks"));
}

TEST(SlurmEnvironmentTest, OutsideOfSlurm) {
  EXPECT_THAT(std::string(ReadSlurmTask(Of({}), kMachine).status().message()), HasSubstr("srun"));
  EXPECT_THAT(std::string(ReadSlurmJob(Of({})).status().message()), HasSubstr("sbatch"));
}

TEST(SlurmEnvironmentTest, TheJob) {
  const auto job = ReadSlurmJob(Of({{"SLURM_JOB_ID", "42"},
                                    {"SLURM_JOB_NODELIST", "gpu[01-02]"},
                                    {"SLURM_TASKS_PER_NODE", "2(x2)"},
                                    {"SLURM_RESTART_COUNT", "1"},
                                    {"SLURM_SUBMIT_DIR", "/home/me"}}));
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->id, "42");
  EXPECT_THAT(job->nodes, ElementsAre("gpu01", "gpu02"));
  EXPECT_EQ(job->tasks, 4);
  EXPECT_EQ(job->restarts, 1);
  EXPECT_EQ(job->submit_folder, "/home/me");
}

}  // namespace
}  // namespace espalier
