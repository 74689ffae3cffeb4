#include "server/http/serialization_thread.h"

#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace espalier {
namespace {

TEST(SerializationThread, RunsTasksInOrderAndDrainsOnDestruction) {
  std::vector<int> done;
  absl::Notification go;
  std::thread::id other;
  {
    SerializationThread thread;
    thread.Run([&] {
      other = std::this_thread::get_id();
      go.WaitForNotification();
    });
    // Run does not wait for the first task.
    for (int i = 0; i < 5; ++i) thread.Run([&done, i] { done.push_back(i); });
    EXPECT_TRUE(done.empty());
    go.Notify();
  }
  EXPECT_NE(other, std::this_thread::get_id());
  EXPECT_EQ(done, (std::vector<int>{0, 1, 2, 3, 4}));
}

}  // namespace
}  // namespace espalier
