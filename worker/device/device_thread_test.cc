#include "worker/device/device_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

namespace espalier {
namespace {

TEST(DeviceThread, RunsAllWorkSequentiallyOnOneThread) {
  DeviceThread device;
  std::set<std::thread::id> threads;  // unguarded: used by the device's thread only
  std::atomic<int> inside{0};
  int runs = 0;
  std::vector<std::thread> users;
  for (int user = 0; user < 4; ++user) {
    users.emplace_back([&, user] {
      for (int i = 0; i < 50; ++i) {
        const absl::Status status = device.Run([&]() -> absl::Status {
          EXPECT_EQ(++inside, 1);
          threads.insert(std::this_thread::get_id());
          ++runs;
          --inside;
          return i % 2 == 0 ? absl::OkStatus() : absl::AbortedError(std::to_string(user));
        });
        // Each gets its own.
        EXPECT_EQ(status, i % 2 == 0 ? absl::OkStatus() : absl::AbortedError(std::to_string(user)));
      }
    });
  }
  for (std::thread& user : users) user.join();
  EXPECT_EQ(runs, 200);
  EXPECT_EQ(threads.size(), 1u);
  EXPECT_EQ(threads.count(std::this_thread::get_id()), 0u);
}

TEST(DeviceThread, UnusedThreadIsDestroyed) { DeviceThread device; }

}  // namespace
}  // namespace espalier
