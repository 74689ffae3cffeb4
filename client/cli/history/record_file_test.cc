#include "client/cli/history/record_file.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

TEST(RecordFileTest, ChecksumsAreThoseOfRfc3720) {
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

}  // namespace
}  // namespace espalier
