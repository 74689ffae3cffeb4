#include "base/machine_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

namespace espalier {
namespace {

constexpr int64_t kMiB = 1 << 20;

class MachineMemoryTest : public ::testing::Test {
 protected:
  MachineMemoryTest() { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text << "\n";
  }

  const int64_t machine_ = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  const std::string root_ =
      testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(MachineMemoryTest, WithoutCgroupsReturnsTheMachinesMemory) {
  EXPECT_EQ(MachineMemory(root_), machine_);
  Write("/proc/self/cgroup", "0::/group");
  EXPECT_EQ(MachineMemory(root_), machine_);
  EXPECT_GT(DefaultMemoryLimit(), 0);
  EXPECT_LE(DefaultMemoryLimit(), machine_ / 4 * 3);
}

TEST_F(MachineMemoryTest, CgroupV2UsesTheTightestAncestorLimit) {
  Write("/proc/self/cgroup", "0::/a:b/c");
  Write("/sys/fs/cgroup/a:b/c/memory.max", "max");
  EXPECT_EQ(MachineMemory(root_), machine_);
  Write("/sys/fs/cgroup/a:b/memory.max", std::to_string(64 * kMiB));
  EXPECT_EQ(MachineMemory(root_), 64 * kMiB);
  Write("/sys/fs/cgroup/a:b/c/memory.max", std::to_string(96 * kMiB));
  EXPECT_EQ(MachineMemory(root_), 64 * kMiB);
  Write("/sys/fs/cgroup/a:b/c/memory.max", std::to_string(32 * kMiB));
  EXPECT_EQ(MachineMemory(root_), 32 * kMiB);
}

TEST_F(MachineMemoryTest, CgroupV2ContainerSeesItsLimitAtTheRoot) {
  Write("/proc/self/cgroup", "0::/");
  Write("/sys/fs/cgroup/memory.max", std::to_string(64 * kMiB));
  EXPECT_EQ(MachineMemory(root_), 64 * kMiB);
}

TEST_F(MachineMemoryTest, AvailableMemoryIsWhatTheTightestLimitLeaves) {
  EXPECT_EQ(AvailableMemory(root_), 0) << "nothing says how much";
  Write("/proc/meminfo", "MemTotal: 4194304 kB\nMemFree: 1024 kB\nMemAvailable: 1048576 kB");
  EXPECT_EQ(AvailableMemory(root_), 1024 * kMiB);
  Write("/proc/self/cgroup", "0::/a/b");
  Write("/sys/fs/cgroup/a/b/memory.max", "max");
  EXPECT_EQ(AvailableMemory(root_), 1024 * kMiB);
  Write("/sys/fs/cgroup/a/memory.max", std::to_string(256 * kMiB));
  Write("/sys/fs/cgroup/a/memory.current", std::to_string(200 * kMiB));
  EXPECT_EQ(AvailableMemory(root_), 56 * kMiB);
  // The kernel drops such pages before it kills anybody.
  Write("/sys/fs/cgroup/a/memory.stat",
        "anon 1\ninactive_file " + std::to_string(150 * kMiB) + "\nactive_file 5");
  EXPECT_EQ(AvailableMemory(root_), 206 * kMiB);
  Write("/sys/fs/cgroup/a/memory.current", std::to_string(500 * kMiB));
  EXPECT_EQ(AvailableMemory(root_), 0);
  EXPECT_GT(AvailableMemory(), 0) << "of this machine";
}

TEST_F(MachineMemoryTest, CgroupV1UsesTheMemoryController) {
  Write("/proc/self/cgroup", "9:name=systemd:/\n5:cpu:/other\n4:hugetlb,memory:/a/b\n0::/");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  Write("/sys/fs/cgroup/memory/other/memory.limit_in_bytes", std::to_string(16 * kMiB));
  EXPECT_EQ(MachineMemory(root_), machine_);
  Write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", std::to_string(64 * kMiB));
  EXPECT_EQ(MachineMemory(root_), 64 * kMiB);
  Write("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", std::to_string(32 * kMiB));
  EXPECT_EQ(MachineMemory(root_), 32 * kMiB);
}

TEST_F(MachineMemoryTest, CgroupV1ContainerSeesAPathOfTheHost) {
  Write("/proc/self/cgroup", "4:memory:/docker/0123abcd");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(64 * kMiB));
  EXPECT_EQ(MachineMemory(root_), 64 * kMiB);
}

TEST_F(MachineMemoryTest, UnparsableLimitsAreIgnored) {
  Write("/proc/self/cgroup", "nonsense\n0::/a\n1:memory");
  for (const char* text : {"", "0", "-1", "many", "99999999999999999999999"}) {
    Write("/sys/fs/cgroup/a/memory.max", text);
    EXPECT_EQ(MachineMemory(root_), machine_) << text;
  }
}

// Bytes of this process in physical memory.
int64_t Resident() {
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * sysconf(_SC_PAGE_SIZE);
}

TEST_F(MachineMemoryTest, FreePagesAreGivenBack) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers have their own heap";
#endif
  const int64_t before = Resident();
  // Blocks that the heap keeps: too small for a mapping of their own, with one in use above them.
  std::vector<std::unique_ptr<char[]>> blocks;
  for (int i = 0; i < 4096; ++i) {
    blocks.push_back(std::make_unique<char[]>(64 << 10));
    std::memset(blocks.back().get(), 1, 64 << 10);
  }
  const std::unique_ptr<char[]> last = std::move(blocks.back());
  blocks.clear();
  EXPECT_GT(Resident() - before, 200 * kMiB);
  ReturnFreeMemory();
  EXPECT_LT(Resident() - before, 32 * kMiB);
}

}  // namespace
}  // namespace espalier
