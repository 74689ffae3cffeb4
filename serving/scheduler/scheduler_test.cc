#include "serving/scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

RequestView Prompt(int64_t id, int length, int computed = 0) {
  return {.id = id, .length = length, .computed = {computed}};
}

RequestView Decoding(int64_t id, int length, int tree_nodes = 0, bool may_shrink = true) {
  return {.id = id,
          .length = length,
          .started = true,
          .computed = {length - 1},
          .tree_nodes = tree_nodes,
          .tree_may_shrink = may_shrink};
}

SchedulerInput Input(int max_rows, int free_slots, int total_slots = 1000) {
  return {.max_rows = max_rows,
          .max_running = 8,
          .free_slots = {free_slots},
          .total_slots = {total_slots}};
}

const Assignment* Find(const Schedule& schedule, int64_t id) {
  for (const Assignment& assignment : schedule.work) {
    if (assignment.id == id) return &assignment;
  }
  return nullptr;
}

TEST(Scheduler, NothingToDo) {
  const Schedule schedule = MakeSchedule(Input(10, 100));
  EXPECT_THAT(schedule.work, IsEmpty());
}

TEST(Scheduler, ALongPromptIsCutIntoChunksBesideDecoding) {
  SchedulerInput input = Input(10, 500);
  input.running = {Decoding(1, 20), Prompt(2, 50, 10)};
  const Schedule schedule = MakeSchedule(input);
  EXPECT_TRUE(Find(schedule, 1)->decodes);
  EXPECT_EQ(Find(schedule, 1)->rows, 1);
  EXPECT_EQ(Find(schedule, 2)->rows, 9);
  EXPECT_FALSE(Find(schedule, 2)->decodes);
}

TEST(Scheduler, PromptsKeepAQuarterOfTheRowsAgainstTrees) {
  SchedulerInput input = Input(40, 500);
  input.running = {Decoding(1, 20, 30), Decoding(2, 20, 30), Prompt(3, 100)};
  const Schedule schedule = MakeSchedule(input);
  EXPECT_GE(Find(schedule, 3)->rows, 10);
  EXPECT_EQ(Find(schedule, 2)->rows, 1);
  EXPECT_GT(Find(schedule, 1)->tree_nodes, 20);
}

TEST(Scheduler, SampledTreesAreWholeOrWaitTheirTurn) {
  SchedulerInput input = Input(20, 500);
  input.running = {Decoding(1, 20, 12, false), Decoding(2, 20, 12, false)};
  Schedule schedule = MakeSchedule(input);
  EXPECT_EQ(Find(schedule, 1)->tree_nodes, 12);
  EXPECT_EQ(Find(schedule, 2), nullptr);
  input.running[0].last_step = 1;
  schedule = MakeSchedule(input);
  EXPECT_EQ(Find(schedule, 1), nullptr);
  EXPECT_EQ(Find(schedule, 2)->tree_nodes, 12);
}

TEST(Scheduler, AdmitsInOrderOfArrivalAndNeverPastOneThatDoesNotFit) {
  SchedulerInput input = Input(100, 60, 60);
  input.running = {Decoding(1, 10)};
  input.waiting = {Prompt(2, 20), Prompt(3, 90), Prompt(4, 1)};
  EXPECT_THAT(MakeSchedule(input).admit, ElementsAre(2));
}

TEST(Scheduler, AdmitsNoMoreThanMayRun) {
  SchedulerInput input = Input(100, 500);
  input.max_running = 2;
  input.waiting = {Prompt(1, 5), Prompt(2, 5), Prompt(3, 5)};
  EXPECT_THAT(MakeSchedule(input).admit, ElementsAre(1, 2));
}

TEST(Scheduler, TheYoungestRequestIsPreempted) {
  SchedulerInput input = Input(100, 0);
  input.running = {Decoding(1, 30), Decoding(2, 30), Decoding(3, 5)};
  const Schedule schedule = MakeSchedule(input);
  EXPECT_THAT(schedule.preempt, ElementsAre(3));
  EXPECT_NE(Find(schedule, 1), nullptr);
  EXPECT_NE(Find(schedule, 2), nullptr);
  EXPECT_EQ(Find(schedule, 3), nullptr);
}

TEST(Scheduler, AGreedyTreeShrinksRatherThanPreempt) {
  SchedulerInput input = Input(100, 5);
  input.running = {Decoding(1, 30, 20), Decoding(2, 30)};
  const Schedule schedule = MakeSchedule(input);
  EXPECT_THAT(schedule.preempt, IsEmpty());
  EXPECT_EQ(Find(schedule, 1)->tree_nodes, 4);
}

TEST(Scheduler, APreemptedRequestKeepsItsLastTokenForTheTree) {
  RequestView view = Decoding(1, 30);
  view.computed = {0};
  SchedulerInput input = Input(100, 500);
  input.waiting = {view};
  const Schedule schedule = MakeSchedule(input);
  EXPECT_EQ(Find(schedule, 1)->rows, 29);
  EXPECT_FALSE(Find(schedule, 1)->decodes);
}

TEST(Scheduler, AnSsmsPoolCountsToo) {
  SchedulerInput input = Input(100, 500);
  input.free_slots = {500, 3};
  input.total_slots = {500, 40};
  RequestView view = Decoding(1, 30, 10);
  view.computed.push_back(29);
  input.running = {view};
  EXPECT_EQ(Find(MakeSchedule(input), 1)->tree_nodes, 2);
}

TEST(Scheduler, OnePromptDoesNotTakeAllRowsWhileOthersHaveSome) {
  SchedulerInput input = Input(64, 5000, 5000);
  input.running = {Decoding(1, 20), Prompt(2, 1000)};
  input.waiting = {Prompt(3, 10), Prompt(4, 500)};
  const Schedule schedule = MakeSchedule(input);
  EXPECT_EQ(Find(schedule, 1)->rows, 1);
  EXPECT_EQ(Find(schedule, 3)->rows, 10);  // whole
  EXPECT_GE(Find(schedule, 2)->rows, 31);
  EXPECT_GE(Find(schedule, 4)->rows, 10);
  int rows = 0;
  for (const Assignment& assignment : schedule.work) rows += assignment.rows;
  EXPECT_EQ(rows, 64);  // and none is left
}

TEST(Scheduler, AHigherPriorityPreemptsTheLowest) {
  RequestView urgent = Prompt(9, 10);
  urgent.priority = -1;
  SchedulerInput input = Input(64, 500);
  input.max_running = 2;
  input.running = {Decoding(1, 20), Decoding(2, 20)};
  input.waiting = {Prompt(3, 10)};
  EXPECT_THAT(MakeSchedule(input).preempt, IsEmpty());  // equal priority is not enough
  input.waiting = {urgent, Prompt(3, 10)};
  const Schedule schedule = MakeSchedule(input);
  EXPECT_THAT(schedule.preempt, ElementsAre(2));
  EXPECT_EQ(Find(schedule, 2), nullptr);
  EXPECT_NE(Find(schedule, 1), nullptr);
  // What came free is known in the step after.
  EXPECT_THAT(schedule.admit, IsEmpty());
  input.running.pop_back();
  EXPECT_THAT(MakeSchedule(input).admit, ElementsAre(9));
}

TEST(Scheduler, NobodyIsPreemptedIfThatDoesNotSuffice) {
  RequestView urgent = Prompt(9, 100);
  urgent.priority = -1;
  SchedulerInput input = Input(64, 20, 200);
  input.running = {Decoding(1, 121), Decoding(2, 31), Decoding(3, 31)};
  input.running[0].priority = -1;
  input.waiting = {urgent};
  const Schedule schedule = MakeSchedule(input);
  EXPECT_THAT(schedule.preempt, IsEmpty());
  EXPECT_EQ(schedule.work.size(), 3u);
  // As many as it takes.
  input.running[0].priority = 0;
  EXPECT_THAT(MakeSchedule(input).preempt, ElementsAre(3, 2, 1));
  input.waiting[0].length = 20;
  EXPECT_THAT(MakeSchedule(input).preempt, ElementsAre(3));
  // What only the victim has of its beginning is not gained.
  input.waiting[0].computed = {16};
  input.waiting[0].length = 36;
  EXPECT_THAT(MakeSchedule(input).preempt, ElementsAre(3, 2));
  input.running[1].shared = input.running[2].shared = {16};
  EXPECT_THAT(MakeSchedule(input).preempt, ElementsAre(3, 2));
}

// With a pipeline there are always steps in flight.
TEST(Scheduler, OnlyRequestsOutsideOfStepsInFlightArePreempted) {
  RequestView urgent = Prompt(9, 10);
  urgent.priority = -1;
  SchedulerInput input = Input(64, 500);
  input.max_running = 3;
  input.steps_in_flight = true;
  input.running = {Decoding(1, 20), Decoding(2, 20), Decoding(3, 20)};
  input.running[2].busy = input.running[2].in_flight = true;
  input.waiting = {urgent};
  EXPECT_THAT(MakeSchedule(input).preempt, ElementsAre(2));
}

TEST(Scheduler, AConcurrentPromptCausesNoPreemption) {
  SchedulerInput input = Input(16, 500);
  input.running = {Decoding(1, 20)};
  input.waiting = {Prompt(2, 100), Prompt(3, 10)};
  input.waiting[0].priority = -2;
  input.waiting[1].priority = -1;
  input.waiting[1].prefix_producer = 0;
  EXPECT_THAT(MakeSchedule(input).preempt, IsEmpty());
}

TEST(Scheduler, APreemptingRequestGetsTheFreedSlots) {
  RequestView urgent = Prompt(9, 30);
  urgent.priority = -1;
  SchedulerInput input = Input(64, 2, 100);
  input.running = {Decoding(1, 40), Decoding(2, 60)};
  input.waiting = {urgent};
  EXPECT_THAT(MakeSchedule(input).preempt, ElementsAre(2));
  input.running.pop_back();
  input.free_slots = {61};
  EXPECT_THAT(MakeSchedule(input).admit, ElementsAre(9));
}

TEST(Scheduler, SlotsThatOthersShareAreNotCountedAsFreedByPreemption) {
  SchedulerInput input = Input(100, 0);
  input.running = {Decoding(1, 30), Decoding(2, 30), Decoding(3, 30)};
  input.running[2].shared = {29};
  const Schedule schedule = MakeSchedule(input);
  // Preempting the third request frees nothing, so the second one is preempted, too.
  EXPECT_THAT(schedule.preempt, ElementsAre(3, 2));
  EXPECT_NE(Find(schedule, 1), nullptr);
}

TEST(Scheduler, ACachedPrefixIsNotRunAgainButItsIdleSlotsAreTaken) {
  RequestView view = Prompt(1, 50, 48);
  view.idle_prefix_slots = 48;
  SchedulerInput input = Input(100, 51, 60);
  input.waiting = {view};
  EXPECT_EQ(Find(MakeSchedule(input), 1)->rows, 2);
  input.free_slots = {48};
  EXPECT_THAT(MakeSchedule(input).admit, IsEmpty());
}

// The cached prefix is the LLM's: an SSM that has to run the whole prompt takes no more for it.
TEST(Scheduler, IdleSlotsAreTakenOfTheLlmsPoolAlone) {
  RequestView view{.id = 1, .length = 50, .computed = {48, 0}, .idle_prefix_slots = 48};
  SchedulerInput input = Input(100, 60, 60);
  input.free_slots = input.total_slots = {60, 51};
  input.waiting = {view};
  EXPECT_EQ(Find(MakeSchedule(input), 1)->rows, 2);
  input.free_slots[1] = 48;
  EXPECT_THAT(MakeSchedule(input).admit, IsEmpty());
}

TEST(Scheduler, RowsAreNotKeptForPromptsThatCannotRun) {
  SchedulerInput input = Input(40, 500);
  input.running = {Decoding(1, 20, 18), Decoding(2, 20, 18)};
  input.waiting = {Prompt(3, 100)};
  EXPECT_LT(Find(MakeSchedule(input), 1)->tree_nodes + Find(MakeSchedule(input), 2)->tree_nodes,
            30);
  input.max_running = 2;
  EXPECT_EQ(Find(MakeSchedule(input), 1)->tree_nodes, 18);
  EXPECT_EQ(Find(MakeSchedule(input), 2)->tree_nodes, 18);
  // A place, but no slots.
  input.max_running = 8;
  input.free_slots = {100};
  EXPECT_EQ(Find(MakeSchedule(input), 1)->tree_nodes, 18);
  EXPECT_EQ(Find(MakeSchedule(input), 2)->tree_nodes, 18);
  // It takes a place, for the step after.
  input.waiting[0].priority = -1;
  input.max_running = 2;
  input.free_slots = {500};
  EXPECT_EQ(Find(MakeSchedule(input), 1)->tree_nodes, 18);
  EXPECT_THAT(MakeSchedule(input).preempt, ElementsAre(2));
}

TEST(Scheduler, RequestsWaitForASharedPrefixAndKeepTheirRank) {
  SchedulerInput input = Input(40, 500);
  input.running = {Prompt(1, 60, 20)};
  input.waiting = {Prompt(2, 60, 16), Prompt(3, 60, 16), Prompt(4, 9), Prompt(5, 9)};
  input.waiting[0].prefix_producer = input.waiting[1].prefix_producer = 1;
  input.max_running = 4;
  EXPECT_THAT(MakeSchedule(input).admit, ElementsAre(4));
  input.max_running = 8;
  EXPECT_THAT(MakeSchedule(input).admit, ElementsAre(4, 5));
  // Nor do they take slots that these are known to need.
  input.free_slots = {40 + 2 * 45 + 10 + 1000 / 16};
  EXPECT_THAT(MakeSchedule(input).admit, IsEmpty());
  // None is there any more.
  input.free_slots = {500};
  input.running.clear();
  EXPECT_THAT(MakeSchedule(input).admit, ElementsAre(2, 3, 4, 5));
}

TEST(Scheduler, ABusyRequestGetsNoWorkAndKeepsItsSlots) {
  SchedulerInput input = Input(40, 0, 60);
  input.running = {Decoding(1, 20), Decoding(2, 20), Decoding(3, 20)};
  input.running[2].computed = {20};
  input.running[2].busy = true;
  input.steps_in_flight = true;
  // No slot is free: alone, the last one would make room.
  Schedule schedule = MakeSchedule(input);
  EXPECT_THAT(schedule.preempt, IsEmpty());
  EXPECT_THAT(schedule.work, IsEmpty());
  input.free_slots = {10};
  schedule = MakeSchedule(input);
  EXPECT_NE(Find(schedule, 1), nullptr);
  EXPECT_NE(Find(schedule, 2), nullptr);
  EXPECT_EQ(Find(schedule, 3), nullptr);
}

TEST(Scheduler, TheLongestWaitingRequestsDecodeFirst) {
  SchedulerInput input = Input(40, 100);
  input.running = {Decoding(1, 20, 5), Decoding(2, 20, 5), Decoding(3, 20, 5), Prompt(4, 30)};
  input.running[0].last_step = 9;
  input.running[1].last_step = 8;
  input.running[2].last_step = 7;
  input.max_decoding = 2;
  const Schedule schedule = MakeSchedule(input);
  EXPECT_EQ(Find(schedule, 1), nullptr);
  EXPECT_EQ(Find(schedule, 2)->tree_nodes, 5);
  EXPECT_EQ(Find(schedule, 3)->tree_nodes, 5);
  EXPECT_NE(Find(schedule, 4), nullptr);
}

TEST(Scheduler, ARequestWithoutSlotsDoesNotBlockTheNext) {
  SchedulerInput input = Input(40, 1, 60);
  input.running = {Decoding(1, 20), Decoding(2, 20)};
  input.running[0].last_step = 9;
  input.running[1].computed = {19, 0};  // drafts by an SSM whose pool is full
  input.running[0].computed = {19, -1};
  input.free_slots = {1, 0};
  input.total_slots = {60, 60};
  input.max_decoding = 1;
  EXPECT_NE(Find(MakeSchedule(input), 1), nullptr);
}

// Simulates random requests to completion, executing every schedule and checking its limits.
TEST(SchedulerRandom, RespectsEveryLimitAndEveryRequestEnds) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    std::mt19937_64 random(seed);
    const int pools = 1 + static_cast<int>(random() % 3);
    const int most_tree = static_cast<int>(random() % 12);
    const int max_rows = most_tree + 1 + static_cast<int>(random() % 30);
    const int longest = 60;
    const int total = longest + most_tree * 2 + static_cast<int>(random() % 100);
    struct Live {
      RequestView view;
      int end;
    };
    std::map<int64_t, Live> live;
    std::vector<int64_t> running, waiting;
    const auto enqueue = [&](int64_t id, std::vector<int64_t>* queue) {
      const auto after = [&](int64_t a, int64_t b) { return live[a].view.Outranks(live[b].view); };
      queue->insert(std::upper_bound(queue->begin(), queue->end(), id, after), id);
    };
    int arrived = 0, ended = 0;
    for (int step = 1; ended < 60; ++step) {
      ASSERT_LT(step, 20000) << "seed " << seed;
      while (arrived < 60 && random() % 3 == 0) {
        const int64_t id = ++arrived;
        const int length = 1 + static_cast<int>(random() % 40);
        Live one;
        one.view = {.id = id, .length = length, .tree_may_shrink = random() % 2 == 0};
        if (seed % 2 == 1) one.view.priority = static_cast<int>(random() % 3);
        for (int pool = 0; pool < pools; ++pool) {
          one.view.computed.push_back(pool > 0 && random() % 4 == 0 ? -1 : 0);
        }
        one.end = length + 1 + static_cast<int>(random() % (longest - length));
        live[id] = one;
        enqueue(id, &waiting);
      }
      SchedulerInput input{.max_rows = max_rows, .max_running = 6};
      input.free_slots.assign(pools, total);
      input.total_slots.assign(pools, total);
      for (const int64_t id : running) {
        RequestView& view = live[id].view;
        view.tree_nodes = view.started ? std::min(most_tree, live[id].end - view.length - 1) : 0;
        for (int pool = 0; pool < pools; ++pool) {
          input.free_slots[pool] -= std::max(0, view.computed[pool]);
        }
        input.running.push_back(view);
      }
      for (const int64_t id : waiting) input.waiting.push_back(live[id].view);
      const Schedule schedule = MakeSchedule(input);
      ASSERT_TRUE(!schedule.work.empty() || !schedule.preempt.empty() ||
                  (running.empty() && waiting.empty()))
          << "seed " << seed << " step " << step;

      for (const int64_t id : schedule.preempt) {
        ASSERT_EQ(running.back(), id) << "not the lowest in rank";
        running.pop_back();
        enqueue(id, &waiting);
        for (int pool = 0; pool < pools; ++pool) {
          int& computed = live[id].view.computed[pool];
          input.free_slots[pool] += std::max(0, computed);
          computed = std::min(computed, 0);
        }
      }
      for (const int64_t id : schedule.admit) {
        ASSERT_EQ(waiting.front(), id) << "out of order";
        waiting.erase(waiting.begin());
        enqueue(id, &running);
      }
      ASSERT_LE(running.size(), 6u);
      int rows = 0;
      std::set<int64_t> seen;
      for (const Assignment& assignment : schedule.work) {
        ASSERT_TRUE(seen.insert(assignment.id).second);
        ASSERT_TRUE(std::count(running.begin(), running.end(), assignment.id));
        RequestView& view = live[assignment.id].view;
        rows += assignment.rows + assignment.tree_nodes;
        ASSERT_GE(assignment.rows, 1);
        if (assignment.decodes && !view.tree_may_shrink) {
          ASSERT_EQ(assignment.tree_nodes, view.tree_nodes);
        }
        for (int pool = 0; pool < pools; ++pool) {
          if (view.computed[pool] < 0) continue;
          input.free_slots[pool] -=
              view.computed[0] + assignment.rows - view.computed[pool] + assignment.tree_nodes;
          ASSERT_GE(input.free_slots[pool], 0) << "pool " << pool;
        }
      }
      ASSERT_LE(rows, max_rows);
      for (const Assignment& assignment : schedule.work) {
        RequestView& view = live[assignment.id].view;
        const int target = view.computed[0] + assignment.rows;
        for (int pool = pools - 1; pool >= 0; --pool) {
          if (view.computed[pool] < 0) continue;
          view.computed[pool] = pool == 0 ? target : target - static_cast<int>(random() % 2);
        }
        if (target < view.length) continue;
        const int accepted = assignment.tree_nodes > 0
                                 ? static_cast<int>(random() % (assignment.tree_nodes + 1))
                                 : 0;
        view.computed[0] += accepted;
        view.length += accepted + 1;
        view.started = true;
        view.last_step = step;
        if (view.length >= live[assignment.id].end) {
          running.erase(std::find(running.begin(), running.end(), assignment.id));
          ++ended;
        }
      }
    }
  }
}

}  // namespace
}  // namespace espalier
