#include "server/jobs/operator_programs.h"

#include <gtest/gtest.h>

#include "ops/operators/register_all.h"
#include "ops/schema/registry.h"
#include "worker/device/device.h"
#include "worker/measure.h"

namespace espalier {
namespace {

NodeTypes Convolution(const Dims& x, const Dims& y, int64_t kernel, int64_t stride, int64_t pad) {
  NodeTypes types;
  types.attributes.Set("strides", std::vector<int64_t>{stride, stride});
  types.attributes.Set("pads", std::vector<int64_t>{pad, pad, pad, pad});
  types.attributes.Set("dilations", std::vector<int64_t>{1, 1});
  types.inputs = {{DType::kF32, x}, {DType::kF32, {y[1], x[1], kernel, kernel}}};
  types.outputs = {{DType::kF32, y}};
  return types;
}

// Shards of an image of 16 rows: each reads a halo and is padded only at the image's ends.
TEST(OperatorPrograms, PartsOfAnImageCanBeMeasured) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  const OpDef& def = *registry.Find("conv2d");
  const std::unique_ptr<Device> device = NewCpuDevice({.threads = 1});
  const NodeTypes parts[] = {
      Convolution({2, 3, 16, 16}, {2, 4, 16, 16}, 3, 1, 1),  // the whole
      Convolution({2, 3, 9, 16}, {2, 4, 8, 16}, 3, 1, 1),    // the first half, or the last
      Convolution({2, 3, 6, 16}, {2, 4, 4, 16}, 3, 1, 1),    // a quarter in the middle
      Convolution({2, 3, 9, 16}, {2, 4, 4, 8}, 3, 2, 1),     // by two rows at a time
      Convolution({2, 3, 8, 16}, {2, 4, 4, 8}, 3, 2, 1),
      Convolution({2, 3, 10, 16}, {2, 4, 8, 16}, 5, 1, 2),  // the first half with a halo of two
      Convolution({2, 3, 8, 16}, {2, 4, 4, 8}, 1, 2, 0),    // a row is left over
  };
  for (const NodeTypes& part : parts) {
    const std::vector<v1::Program> programs = OperatorPrograms(def, part);
    ASSERT_EQ(programs.size(), 2u);  // forward, backward
    for (const v1::Program& program : programs) {
      const absl::StatusOr<double> seconds = MeasureProgram(program, 1, device.get());
      EXPECT_TRUE(seconds.ok()) << part.inputs[0].dims[2] << " rows: " << seconds.status();
    }
  }
}

}  // namespace
}  // namespace espalier
