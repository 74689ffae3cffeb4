// Hosts with more runnable threads than cores, and buffered messages.
#include "planner/simulator/cpu_contention.h"

#include "gtest/gtest.h"
#include "planner/cost/analytic_cost.h"
#include "planner/machine/communication.h"
#include "planner/search/search_space.h"
#include "planner/simulator/simulator.h"
#include "planner/testing/graphs.h"

namespace espalier {
namespace {

std::vector<v1::Device> OnOneHost(int devices, int cores, int threads = 1) {
  std::vector<v1::Device> list(devices);
  for (v1::Device& device : list) {
    device.set_kind(v1::Device::CPU);
    device.set_host("host");
    device.set_host_cores(cores);
    device.set_threads(threads);
  }
  return list;
}

Task Work(int device, Picoseconds duration) { return {device, -1, {}, duration}; }

Picoseconds Simulate(const CpuContention& cores, const TaskList& tasks,
                     std::vector<TaskSpan>* spans = nullptr) {
  std::vector<const Task*> list;
  for (const Task& task : tasks) list.push_back(&task);
  return cores.Run(list, spans);
}

TEST(CpuContentionTest, FourDevicesOnTwoCoresTakeTwiceAsLong) {
  const CpuContention cores(OnOneHost(4, 2));
  EXPECT_TRUE(cores.needed());
  EXPECT_FALSE(CpuContention(OnOneHost(2, 2)).needed());
  EXPECT_EQ(Simulate(cores, {Work(0, 1000), Work(1, 1000), Work(2, 1000), Work(3, 1000)}), 2000);
  // In sequence there is no contention.
  EXPECT_EQ(Simulate(cores, {Work(0, 1000), Work(0, 500)}), 1500);
}

TEST(CpuContentionTest, SpeedsChangeWhenWorkEnds) {
  const CpuContention cores(OnOneHost(3, 2));
  // Both run at 2/3: at 900 the short one ends, with 400 left of the others.
  std::vector<TaskSpan> spans;
  EXPECT_EQ(Simulate(cores, {Work(0, 600), Work(1, 1000), Work(2, 1000)}, &spans), 1300);
  EXPECT_EQ(spans[0].end, 900);
  EXPECT_EQ(spans[1].end, 1300);
}

TEST(CpuContentionTest, ThreadsCountAndOtherHostsDoNot) {
  std::vector<v1::Device> devices = OnOneHost(2, 6, /*threads=*/4);
  EXPECT_EQ(Simulate(CpuContention(devices), {Work(0, 900), Work(1, 900)}),
            1200);  // 8 threads, 6 cores
  devices[1].set_host("another");
  EXPECT_FALSE(CpuContention(devices).needed());
  EXPECT_EQ(Simulate(CpuContention(devices), {Work(0, 900), Work(1, 900)}), 900);
  // GPUs do not use their host's cores.
  devices = OnOneHost(8, 2);
  for (v1::Device& device : devices) device.set_kind(v1::Device::CUDA);
  EXPECT_FALSE(CpuContention(devices).needed());
}

// A measurement with all ranks active already includes their contention.
TEST(CpuContentionTest, CollectivesAreSlowedByOthersOnly) {
  const CpuContention cores(OnOneHost(4, 2));
  EXPECT_EQ(Simulate(cores, {{0, -1, {0, 1, 2, 3}, 1000}}), 1000);
  EXPECT_EQ(Simulate(cores, {{0, -1, {0, 1}, 1000}, Work(2, 1000), Work(3, 1000)}), 2000);
}

TEST(CpuContentionTest, BufferedMessagesDoNotBlockTheSender) {
  Task message{0, 1, {}, 300};
  message.send_duration = 100;
  const TaskList tasks = {message, Work(0, 1000), Work(1, 200)};
  // The receiver waits from the start: it has the message 300 after 100.
  std::vector<TaskSpan> spans;
  EXPECT_EQ(Simulate(CpuContention(OnOneHost(2, 4)), tasks, &spans), 1100);
  EXPECT_EQ(spans[0].sent_end, 100);
  EXPECT_EQ(spans[0].end, 400);
  EXPECT_EQ(spans[2].end, 600);
  std::vector<Picoseconds> clocks(2, 0);
  for (const Task& task : tasks) RunTask(task, clocks.data());
  EXPECT_EQ(clocks, (std::vector<Picoseconds>{1100, 600}));
  // A late receiver does not keep the sender waiting.
  clocks = {0, 5000};
  RunTask(message, clocks.data());
  EXPECT_EQ(clocks, (std::vector<Picoseconds>{100, 5300}));
}

v1::CommunicationProfile Profile() {
  v1::CommunicationProfile profile;
  for (double bytes : {64.0, 65536.0}) {
    auto* message = profile.add_messages();
    message->set_bytes(bytes);
    message->set_send_seconds(1e-6 + bytes / 5e9);
    message->set_receive_seconds(2e-5 + bytes / 1e9);
    auto* sum = profile.add_collectives();
    sum->set_kind(v1::CollectiveInstruction::ALL_REDUCE);
    sum->set_ranks(2);
    sum->set_bytes(bytes);
    sum->set_seconds(5e-5 + bytes / 5e8);
  }
  return profile;
}

// A machine of 4 devices, with that profile.
struct Bench {
  Bench(Graph g, int cores)
      : graph(std::move(g)),
        structure(*BuildStructure(TestRegistry(), graph, false, 0)),
        table(structure),
        machine(MachineOf(cores)),
        costs(structure, table, machine, analytic, TestOptimizer()),
        space(structure, {.num_devices = 4}) {}

  static Machine MachineOf(int cores) {
    Machine machine = TestMachine(4);
    for (v1::Device& device : machine.devices) {
      device.set_kind(v1::Device::CPU);
      device.set_threads(1);
      device.set_host(cores > 0 ? "host" : "");
      device.set_host_cores(cores);
    }
    machine.communication =
        std::make_shared<const CommunicationModel>(*CommunicationModel::Create(Profile()));
    return machine;
  }

  std::vector<Simulator::Change> RandomChanges(Random* random, int64_t most) {
    std::vector<Simulator::Change> changes;
    for (NodeId node : structure.LiveNodes()) {
      if (random->Below(static_cast<int64_t>(structure.nodes.size())) >= most) continue;
      changes.emplace_back(node, table.Get(node, space.Draw(node, random)));
    }
    return changes;
  }

  Placement Draw(Random* random) {
    Placement placement(structure.nodes.size(), nullptr);
    for (NodeId n : structure.LiveNodes()) placement[n] = table.Get(n, space.Draw(n, random));
    return placement;
  }

  Graph graph;
  PcgStructure structure;
  ConfigTable table;
  AnalyticCost analytic;
  Machine machine;
  CostTables costs;
  SearchSpace space;
};

// With measured messages, on separate hosts (0), with enough cores and with too few.
TEST(CpuContentionTest, DeltaEqualsFullExactly) {
  for (int cores : {0, 2}) {
    for (Graph graph : {Cnn(), Llama(SmallLlama(2))}) {
      Bench bench(std::move(graph), cores);
      EXPECT_EQ(bench.costs.cpu_contention().needed(), cores == 2);
      Simulator delta(bench.structure, bench.table, bench.costs);
      Simulator full(bench.structure, bench.table, bench.costs, /*full_only=*/true);
      Random random(5);
      const Placement start = bench.Draw(&random);
      ASSERT_EQ(delta.Reset(start), absl::OkStatus());
      ASSERT_EQ(full.Reset(start), absl::OkStatus());
      int taken = 0, refused = 0;
      for (int round = 0; round < 600; ++round) {
        const std::vector<Simulator::Change> changes = bench.RandomChanges(&random, 2);
        Picoseconds limit = Simulator::kNoLimit;
        if (round % 2 == 0) limit = delta.cost() + delta.cost() / 100;
        absl::StatusOr<Picoseconds> cost = delta.Propose(changes, limit);
        absl::StatusOr<Picoseconds> expected = full.Propose(changes);
        ASSERT_TRUE(cost.ok() && expected.ok());
        if (*cost >= limit) {
          ASSERT_GE(*expected, limit);
          delta.Reject();
          full.Reject();
          ++refused;
          continue;
        }
        ASSERT_EQ(*cost, *expected) << cores << " cores, round " << round;
        if (random.Real() < 0.3) {
          delta.Accept();
          full.Accept();
          ++taken;
        } else {
          delta.Reject();
          full.Reject();
        }
      }
      EXPECT_GT(taken, 50);
      EXPECT_GT(refused, 50);
    }
  }
}

// With enough cores, the event simulation equals the sweep in program order to the picosecond.
TEST(CpuContentionTest, EnoughCoresMatchTheSweep) {
  Random random(9);
  for (int round = 0; round < 100; ++round) {
    TaskList tasks;
    std::vector<Picoseconds> clocks(4, 0);
    for (int t = 0; t < 200; ++t) {
      Task task = Work(static_cast<int>(random.Below(4)), 1 + random.Below(1000));
      const int other = static_cast<int>(random.Below(4));
      if (other != task.device && random.Below(3) == 0) {
        task.peer = other;
        if (random.Below(2) == 0) task.send_duration = random.Below(100);
      } else if (random.Below(5) == 0) {
        task.group = {0, 2, 3};
      }
      RunTask(task, clocks.data());
      tasks.push_back(std::move(task));
    }
    EXPECT_EQ(Simulate(CpuContention(OnOneHost(4, 64)), tasks),
              *std::max_element(clocks.begin(), clocks.end()));
  }
}

// The timeline matches the simulated step, and no device does two things at once.
TEST(CpuContentionTest, TimelineMatchesTheSimulatedStep) {
  Bench bench(Llama(SmallLlama(2)), 2);
  Random random(11);
  for (int round = 0; round < 10; ++round) {
    Simulator simulator(bench.structure, bench.table, bench.costs);
    ASSERT_EQ(simulator.Reset(bench.Draw(&random)), absl::OkStatus());
    const Timeline timeline = simulator.MakeTimeline({});
    EXPECT_DOUBLE_EQ(timeline.seconds, ToSeconds(simulator.time()));
    std::vector<double> free(4, 0);
    for (const TimelineTask& task : timeline.tasks) {
      EXPECT_GE(task.begin, free[task.device] - 1e-15);
      free[task.device] = task.end;
    }
  }
}

}  // namespace
}  // namespace espalier
