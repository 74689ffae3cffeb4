#include <algorithm>
#include <cstring>

#include "ops/kernel/packed_weights.h"
#include "worker/executor/executor_fixture.h"
#include "worker/executor/multi_tensor_ops.h"

namespace espalier {
namespace {

constexpr int64_t kRows = 5, kIn = 64;
const std::vector<int64_t> kOuts = {48, 16, 200};

// Serving: matrices of `bits` bits (32: `linear`) with kOuts outputs, all multiplied by one x; the
// second has a bias. Other instructions separate them if `apart`.
ProgramWriter Products(int bits, bool apart) {
  ProgramWriter w;
  w.program.set_batch_invariant(true);
  const int other = w.Buffer("other", {4});
  const auto normal = [&](const std::string& name, Dims dims) {
    const int b = w.Buffer(name, dims, v1::PARAMETER_SHARD);
    w.program.mutable_buffers(b)->mutable_initializer()->set_kind(v1::Initializer::NORMAL);
    w.program.mutable_buffers(b)->mutable_initializer()->set_scale(1);
    return b;
  };
  const int x = normal("x", {kRows, kIn});
  for (size_t i = 0; i < kOuts.size(); ++i) {
    const std::string number = std::to_string(i);
    const int64_t out = kOuts[i];
    const PackedWeights packed{bits, out, kIn};
    const int weight = bits == 32 ? normal("weight" + number, {out, kIn})
                       : bits == 16
                           ? w.Buffer("weight" + number, {out, kIn}, v1::PERSISTENT, v1::BF16)
                           : w.Buffer("weight" + number, {packed.blocks(), packed.block_bytes()},
                                      v1::PERSISTENT, v1::U8);
    const int bias = i == 1 ? normal("bias", {out}) : -1;
    const int y = w.Buffer("y" + number, {kRows, out});
    w.Compute(bits == 32 ? "linear" : "quantized_linear", {x, weight, bias}, {y});
    v1::Instruction* made = w.program.mutable_instructions(w.program.instructions_size() - 1);
    made->set_node("product" + number);
    auto& attributes = *made->mutable_compute()->mutable_attributes();
    attributes["activation"].set_s("silu");
    if (bits < 32) {
      attributes["bits"].set_i(bits);
      attributes["out"].set_i(out);
      attributes["source"].set_s("weight" + number);
    }
    if (apart) w.Add("other")->mutable_fill()->set_buffer(other);
  }
  return w;
}

class ExecutorProductsTest : public ExecutorTest {
 protected:
  std::vector<int> Joint(const v1::Program& program) {
    absl::StatusOr<CheckedProgram> checked = CheckProgram(program);
    EXPECT_TRUE(checked.ok()) << checked.status();
    ProgramMemory memory;
    EXPECT_TRUE(memory.Place(program, *checked, device_.get(), nullptr).ok());
    return MultiTensorGroups(program, memory, FindSwapDependencies(program, memory),
                             device_->kernels());
  }

  // Outputs after a step; every matrix has finite numbers.
  std::vector<char> Results(Executor& executor) {
    std::vector<char> all;
    for (int b = 0; b < executor.num_buffers(); ++b) {
      if (executor.buffer(b).kind() != v1::PERSISTENT) continue;
      std::vector<char> bytes(static_cast<size_t>(executor.spec(b).bytes()));
      for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 % 50);
      EXPECT_TRUE(executor.WriteBuffer(b, bytes.data(), static_cast<int64_t>(bytes.size())).ok());
    }
    absl::StatusOr<StepResult> step = executor.Step(0, /*profile=*/true);
    EXPECT_TRUE(step.ok()) << step.status();
    for (size_t i = 0; i < kOuts.size(); ++i) {
      const std::string number = std::to_string(i);
      EXPECT_EQ(std::count_if(step->profile.begin(), step->profile.end(),
                              [&](const auto& time) { return time.node == "product" + number; }),
                1);
      std::vector<char> y(static_cast<size_t>(kRows * kOuts[i] * 4));
      EXPECT_TRUE(executor
                      .ReadBuffer(executor.FindBuffer("y" + number), y.data(),
                                  static_cast<int64_t>(y.size()))
                      .ok());
      all.insert(all.end(), y.begin(), y.end());
    }
    return all;
  }
};

TEST_F(ExecutorProductsTest, FusedProductsOfOneInputGiveTheSameBits) {
  for (const int bits : {32, 16, 8, 4}) {
    ASSERT_EQ(Joint(Products(bits, false).program), (std::vector<int>{3, 0, 0})) << bits;
    auto together = Make(Products(bits, false).program);
    auto apart = Make(Products(bits, true).program);
    ASSERT_TRUE(together.ok()) << together.status();
    ASSERT_TRUE(apart.ok()) << apart.status();
    const std::vector<char> results = Results(**together);
    EXPECT_EQ(results, Results(**apart)) << bits;
    EXPECT_GT(std::count_if(results.begin(), results.end(), [](char c) { return c != 0; }),
              static_cast<int64_t>(results.size() / 2));
  }
}

TEST_F(ExecutorProductsTest, FusesOnlySimilarDisjointProducts) {
  using Counts = std::vector<int>;
  const v1::Program all = Products(8, false).program;
  const auto compute = [](v1::Program& program, int i) {
    return program.mutable_instructions(i)->mutable_compute();
  };
  EXPECT_EQ(Joint(Products(8, true).program), (Counts{1, 1, 1, 1, 1, 1}));
  {
    v1::Program other = all;  // training: another kernel
    other.set_batch_invariant(false);
    EXPECT_EQ(Joint(other), (Counts{1, 1, 1}));
  }
  {
    v1::Program other = all;
    (*compute(other, 2)->mutable_attributes())["activation"].set_s("none");
    EXPECT_EQ(Joint(other), (Counts{2, 0, 1}));
  }
  {
    v1::Program other = all;  // the last output overlaps x
    v1::Buffer& x = *other.mutable_buffers(compute(other, 0)->inputs(0));
    x.set_kind(v1::SCRATCH);
    x.clear_initializer();
    x.set_offset_bytes(other.buffers(compute(other, 2)->outputs(0)).offset_bytes());
    EXPECT_EQ(Joint(other), (Counts{2, 0, 1}));
  }
}

}  // namespace
}  // namespace espalier
