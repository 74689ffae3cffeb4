#include "planner/report/gantt.h"

#include <limits>

#include "gtest/gtest.h"

namespace espalier {
namespace {

TimelineTask Task(TimelineTask::Kind kind, int device, double begin, double end,
                  bool communicates = false, double bytes = 0) {
  return {kind, device, begin, end, communicates, bytes, "node"};
}

int64_t TasksIn(const Gantt& gantt) {
  int64_t tasks = 0;
  for (const GanttLane& lane : gantt.lanes) {
    for (const GanttBar& bar : lane.compute) tasks += bar.tasks;
    for (const GanttBar& bar : lane.communication) tasks += bar.tasks;
  }
  return tasks;
}

TEST(GanttTest, LongTasksKeepTheirBars) {
  Timeline timeline;
  timeline.seconds = 10;
  timeline.tasks = {Task(TimelineTask::kForward, 0, 0, 2), Task(TimelineTask::kForward, 0, 2, 4),
                    Task(TimelineTask::kReshard, 0, 4, 5, true, 100),
                    Task(TimelineTask::kBackward, 0, 4.5, 9)};
  const Gantt gantt = MakeGantt(timeline, 2);
  ASSERT_EQ(gantt.lanes.size(), 2u);
  EXPECT_EQ(gantt.seconds, 10);
  ASSERT_EQ(gantt.lanes[0].compute.size(), 3u);
  EXPECT_EQ(gantt.lanes[0].compute[1].begin, 2);
  EXPECT_EQ(gantt.lanes[0].compute[1].end, 4);
  ASSERT_EQ(gantt.lanes[0].communication.size(), 1u);
  EXPECT_EQ(gantt.lanes[0].communication[0].bytes, 100);
  EXPECT_EQ(gantt.lanes[0].busy, 9);  // overlap counts once
  EXPECT_EQ(gantt.lanes[1].busy, 0);
  EXPECT_TRUE(gantt.computing.empty());
}

TEST(GanttTest, TinyNeighborsOfAKindShareABar) {
  Timeline timeline;
  timeline.seconds = 1;
  for (int i = 0; i < 5; ++i) {
    timeline.tasks.push_back(Task(TimelineTask::kForward, 0, i * 1e-4, (i + 1) * 1e-4));
  }
  timeline.tasks.push_back(Task(TimelineTask::kBackward, 0, 5e-4, 6e-4));
  timeline.tasks.push_back(Task(TimelineTask::kBackward, 0, 0.5, 0.5001));  // far away
  const Gantt gantt = MakeGantt(timeline, 1);
  ASSERT_EQ(gantt.lanes[0].compute.size(), 3u);
  const GanttBar& bar = gantt.lanes[0].compute[0];
  EXPECT_EQ(bar.tasks, 5);
  EXPECT_NEAR(bar.busy(), 5e-4, 1e-12);
  EXPECT_NEAR(bar.end, 5e-4, 1e-12);
  EXPECT_EQ(bar.first, &timeline.tasks[0]);
  EXPECT_EQ(bar.last, &timeline.tasks[4]);
}

TEST(GanttTest, BarsStayFewAndEveryTaskIsInOne) {
  Timeline timeline;
  timeline.seconds = 1;
  for (int i = 0; i < 20000; ++i) {
    const double begin = i * 5e-5;
    timeline.tasks.push_back(Task(static_cast<TimelineTask::Kind>(i % 5), 0, begin,
                                  begin + (i % 500 == 0 ? 4.9e-5 : 1e-5), i % 2 == 0, 1));
  }
  GanttOptions options;
  options.max_bars = 100;
  const Gantt gantt = MakeGantt(timeline, 1, options);
  EXPECT_LE(gantt.lanes[0].compute.size() + gantt.lanes[0].communication.size(), 100u);
  EXPECT_EQ(TasksIn(gantt), 20000);
  EXPECT_EQ(gantt.left_out, 0);
  double bytes = 0, seconds = 0;
  for (const auto* bars : {&gantt.lanes[0].compute, &gantt.lanes[0].communication}) {
    for (const GanttBar& bar : *bars) {
      bytes += bar.bytes;
      seconds += bar.busy();
      EXPECT_EQ(bar.seconds[bar.kind], *std::max_element(bar.seconds.begin(), bar.seconds.end()));
    }
  }
  EXPECT_EQ(bytes, 20000);
  EXPECT_NEAR(seconds, 19960 * 1e-5 + 40 * 4.9e-5, 1e-9);
}

TEST(GanttTest, BusiestDevicesHaveLanesAndAllAreInTheSummary) {
  Timeline timeline;
  timeline.seconds = 10;
  for (int d = 0; d < 5; ++d) {
    timeline.tasks.push_back(Task(TimelineTask::kForward, d, 0, d + 1));
  }
  timeline.tasks.push_back(Task(TimelineTask::kReshard, 4, 5, 10, true));
  GanttOptions options;
  options.max_lanes = 2;
  options.parts = 10;
  const Gantt gantt = MakeGantt(timeline, 5, options);
  ASSERT_EQ(gantt.lanes.size(), 2u);
  EXPECT_EQ(gantt.lanes[0].device, 3);
  EXPECT_EQ(gantt.lanes[1].device, 4);
  EXPECT_EQ(gantt.other_devices, 3);
  EXPECT_EQ(gantt.least_busy, 1);
  EXPECT_EQ(gantt.most_busy, 3);
  const std::vector<double> computing = {1, .8, .6, .4, .2, 0, 0, 0, 0, 0};
  ASSERT_EQ(gantt.computing.size(), computing.size());
  for (size_t i = 0; i < computing.size(); ++i) {
    EXPECT_NEAR(gantt.computing[i], computing[i], 1e-9);
    EXPECT_NEAR(gantt.communicating[i], i < 5 ? 0 : 0.2, 1e-9);
  }
}

TEST(GanttTest, OverlappingTasksAreCutOffAndCounted) {
  Timeline timeline;
  timeline.seconds = 1;
  for (int i = 0; i < 100; ++i) timeline.tasks.push_back(Task(TimelineTask::kForward, 0, 0, 1));
  GanttOptions options;
  options.max_bars = 20;
  const Gantt gantt = MakeGantt(timeline, 1, options);
  EXPECT_EQ(gantt.lanes[0].compute.size(), 10u);
  EXPECT_EQ(gantt.left_out, 90);
}

TEST(GanttTest, UnsoundTasksAreLeftOut) {
  Timeline timeline;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  timeline.tasks = {Task(TimelineTask::kForward, 0, nan, 1),
                    Task(TimelineTask::kForward, 0, 2, 1),
                    Task(TimelineTask::kForward, -1, 0, 1),
                    Task(TimelineTask::kForward, 0, -1, 1),
                    Task(static_cast<TimelineTask::Kind>(7), 0, 0, 1),
                    Task(TimelineTask::kForward, 0, 0, 1)};
  const Gantt gantt = MakeGantt(timeline, 1);
  EXPECT_EQ(gantt.left_out, 5);
  EXPECT_EQ(TasksIn(gantt), 1);
  EXPECT_EQ(gantt.seconds, 1);
  EXPECT_EQ(MakeGantt({}, 3).seconds, 0);
}

// Order of the timeline does not matter.
TEST(GanttTest, TasksAreSorted) {
  Timeline timeline;
  timeline.seconds = 10;
  timeline.tasks = {Task(TimelineTask::kBackward, 0, 5, 6), Task(TimelineTask::kForward, 0, 1, 2)};
  const Gantt gantt = MakeGantt(timeline, 1);
  EXPECT_EQ(gantt.lanes[0].compute[0].begin, 1);
  EXPECT_EQ(gantt.lanes[0].busy, 2);
}

}  // namespace
}  // namespace espalier
