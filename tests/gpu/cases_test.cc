// Tests the GPU check itself, with the CPU's kernels as both backends.

#include "gtest/gtest.h"
#include "ops/operators/register_all.h"
#include "tests/gpu/compare.h"
#include "tests/gpu/property_inputs.h"

namespace espalier::gpu_check {
namespace {

class GpuCheckTest : public testing::Test {
 protected:
  GpuCheckTest() { RegisterAllOperators(ops_); }

  OpRegistry ops_;
  std::unique_ptr<Backend> cpu_ = NewCpuBackend();
};

TEST_F(GpuCheckTest, EveryCaseIsValidAndRepeatsOnTheCpu) {
  for (const Case& c : AllCases()) {
    for (const Verdict& v : RunCase(c, ops_, *cpu_, *cpu_)) {
      EXPECT_EQ(v.failure, "") << v.label;
      EXPECT_EQ(v.worst, 0) << v.label;
    }
  }
}

TEST_F(GpuCheckTest, PropertiesOfServingHoldOnTheCpu) {
  int checked = 0;
  const auto add = [&](const std::string& label, const std::string& failure) {
    ++checked;
    EXPECT_EQ(failure, "") << label;
  };
  CheckServing(*cpu_, add);
  CheckAttention(*cpu_, add);
  EXPECT_GT(checked, 20);
}

// A backend that corrupts one element of one operand after every run.
class SpoilingBackend : public Backend {
 public:
  SpoilingBackend(Backend* inner, bool input, double error)
      : inner_(inner), input_(input), error_(error) {}
  const KernelRegistry& kernels() const override { return inner_->kernels(); }
  std::string Run(const KernelSpec& spec, const RunOptions& options,
                  std::vector<HostTensor>* inputs, std::vector<HostTensor>* outputs) override {
    const std::string error = inner_->Run(spec, options, inputs, outputs);
    HostTensor& spoilt = input_ ? (*inputs)[0] : (*outputs)[0];
    const int64_t last = spoilt.spec.num_elements() - 1;
    SetValue(&spoilt, last, ValueAt(spoilt, last) + error_);
    return error;
  }

 private:
  Backend* inner_;
  bool input_;
  double error_;
};

TEST_F(GpuCheckTest, DetectsAWrongElement) {
  const Case linear{.op = "linear",
                    .inputs = {{{DType::kF32, {8, 16}}, {}}, {{DType::kF32, {4, 16}}, {}}},
                    .sum_length = 16};
  for (bool input : {false, true}) {
    SpoilingBackend wrong(cpu_.get(), input, 1e-4), close(cpu_.get(), input, 1e-7);
    for (const Verdict& v : RunCase(linear, ops_, *cpu_, wrong))
      EXPECT_NE(v.failure, "") << v.label;
    for (const Verdict& v : RunCase(linear, ops_, *cpu_, close))
      EXPECT_EQ(v.failure, "") << v.label;
  }
}

}  // namespace
}  // namespace espalier::gpu_check
