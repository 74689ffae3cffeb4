// For tests of replays: linked to espalier-worker's main, makes a worker whose kernel of one
// operator is wrong in its last bit from a step on: ESPALIER_TEST_FAULT="linear 57". The linker's
// --wrap lets it change the kernels that every worker registers.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "ops/kernel/kernel.h"

void RealRegisterCpuKernels(espalier::KernelRegistry& registry) asm(
    "__real__ZN8espalier18RegisterCpuKernelsERNS_14KernelRegistryE");
void FaultyRegisterCpuKernels(espalier::KernelRegistry& registry) asm(
    "__wrap__ZN8espalier18RegisterCpuKernelsERNS_14KernelRegistryE");

namespace {

struct Fault {
  std::string op;
  long long step = 0;
};

Fault ReadFault() {
  Fault fault;
  char op[64] = "";
  const char* text = std::getenv("ESPALIER_TEST_FAULT");
  if (text == nullptr || std::sscanf(text, "%63s %lld", op, &fault.step) != 2) {
    std::fprintf(stderr, "ESPALIER_TEST_FAULT: expected an operator and a step\n");
    std::exit(2);
  }
  fault.op = op;
  return fault;
}

class FaultyKernel : public espalier::Kernel {
 public:
  FaultyKernel(std::unique_ptr<espalier::Kernel> kernel, long long step)
      : kernel_(std::move(kernel)), step_(step) {}
  size_t workspace_bytes() const override { return kernel_->workspace_bytes(); }
  espalier::KernelStatus Run(const espalier::KernelArgs& args) override {
    espalier::KernelStatus status = kernel_->Run(args);
    const espalier::TensorView& output = args.outputs[0];
    if (status.ok() && args.training && args.step >= step_ &&
        output.spec.dtype == espalier::DType::kF32) {
      float* first = static_cast<float*>(output.data);
      *first = std::nextafter(*first, 1e30f);
    }
    return status;
  }

 private:
  std::unique_ptr<espalier::Kernel> kernel_;
  long long step_;
};

}  // namespace

void FaultyRegisterCpuKernels(espalier::KernelRegistry& registry) {
  const auto real = std::make_shared<espalier::KernelRegistry>();
  RealRegisterCpuKernels(*real);
  const Fault fault = ReadFault();
  for (const std::string& op : real->Ops()) {
    registry.Add(op, [real, fault, op](const espalier::KernelSpec& spec, std::string* refusal) {
      std::unique_ptr<espalier::Kernel> kernel = real->Create(spec, refusal);
      if (kernel == nullptr || op != fault.op) return kernel;
      return std::unique_ptr<espalier::Kernel>(
          std::make_unique<FaultyKernel>(std::move(kernel), fault.step));
    });
    if (const std::vector<std::string>* differ = real->HorizontalFusion(op)) {
      registry.SupportsHorizontalFusion(op, *differ);
    }
  }
}
