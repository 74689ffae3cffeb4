#include "server/jobs/kept_plan.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

v1::Device Device(int64_t memory, const std::string& model = "cpu") {
  v1::Device device;
  device.set_kind(v1::Device::CPU);
  device.set_model(model);
  device.set_memory_bytes(memory);
  return device;
}

TEST(KeptPlan, TheSameWorkersKeepIt) {
  v1::Plan plan;
  EXPECT_FALSE(CanKeepPlan(plan, "", {})) << "there is none";
  plan.add_operators();
  plan.set_graph_fingerprint("g");
  *plan.add_devices() = Device(10);
  *plan.add_devices() = Device(20);
  EXPECT_TRUE(CanKeepPlan(plan, "g", {Device(10), Device(20)}));
  v1::Device faster = Device(11);
  faster.set_matmul_flops(1e12);
  EXPECT_TRUE(CanKeepPlan(plan, "g", {faster, Device(20)})) << "only its speed was measured anew";
  EXPECT_FALSE(CanKeepPlan(plan, "h", {Device(10), Device(20)})) << "another graph";
  EXPECT_FALSE(CanKeepPlan(plan, "g", {Device(10)})) << "fewer workers";
  EXPECT_FALSE(CanKeepPlan(plan, "g", {Device(10), Device(20), Device(20)})) << "more";
  EXPECT_FALSE(CanKeepPlan(plan, "g", {Device(20), Device(10)})) << "less memory for rank 1";
  EXPECT_FALSE(CanKeepPlan(plan, "g", {Device(10), Device(20, "gpu")})) << "another model";
}

}  // namespace
}  // namespace espalier
