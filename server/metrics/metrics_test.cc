#include "server/metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace espalier {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Metrics, EveryStateIsThereFromTheStartWithZero) {
  Metrics metrics;
  const std::string text = metrics.Expose();
  for (const char* line :
       {"espalier_jobs{state=\"queued\"} 0", "espalier_jobs{state=\"recovering\"} 0",
        "espalier_workers{state=\"dead\"} 0", "espalier_workers{state=\"draining\"} 0",
        "espalier_workers{state=\"left\"} 0", "espalier_checkpoints_total 0",
        "# TYPE espalier_job_step_duration_seconds histogram", "process_start_time_seconds"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(Metrics, CountsWhatHappened) {
  Metrics metrics;
  metrics.GrpcRequest("Training/Submit", "OK", 0.01);
  metrics.GrpcRequest("Training/Submit", "OK", 0.01);
  metrics.GrpcRequest("Training/Submit", "INVALID_ARGUMENT", 0.01);
  metrics.SetJobs({{"running", 2}});
  metrics.SetJobs({{"queued", 1}});
  metrics.JobStep(0.03);
  const std::string text = metrics.Expose();
  EXPECT_THAT(text,
              HasSubstr("espalier_grpc_requests_total{code=\"OK\",method=\"Training/Submit\"} 2"));
  EXPECT_THAT(text, HasSubstr("code=\"INVALID_ARGUMENT\",method=\"Training/Submit\"} 1"));
  EXPECT_THAT(text, HasSubstr("espalier_jobs{state=\"running\"} 0"));
  EXPECT_THAT(text, HasSubstr("espalier_jobs{state=\"queued\"} 1"));
  EXPECT_THAT(text, HasSubstr("espalier_job_step_duration_seconds_bucket{le=\"0.05\"} 1"));
  EXPECT_THAT(text, HasSubstr("espalier_job_step_duration_seconds_bucket{le=\"0.02\"} 0"));
}

}  // namespace
}  // namespace espalier
