// Opens the plug-in as the worker does; without a GPU it must return errors, not crash.
#include <dlfcn.h>

#include <string>

#include "gtest/gtest.h"
#include "ops/cuda/runtime/plugin.h"

namespace espalier {
namespace {

class LoadTest : public testing::Test {
 protected:
  static CudaPlugin* Open(int abi) {
    void* library = dlopen("ops/cuda/libespalier_cuda.so", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      ADD_FAILURE() << dlerror();
      return nullptr;
    }
    auto entry = reinterpret_cast<CudaPluginEntry>(dlsym(library, kCudaPluginSymbol));
    if (entry == nullptr) {
      ADD_FAILURE() << "the plug-in has no " << kCudaPluginSymbol;
      return nullptr;
    }
    return entry(abi);
  }
};

TEST_F(LoadTest, AnotherInterfaceVersionIsRefused) { EXPECT_EQ(Open(kCudaPluginAbi + 1), nullptr); }

TEST_F(LoadTest, EveryKernelIsRegisteredForwardAndBackward) {
  CudaPlugin* plugin = Open(kCudaPluginAbi);
  ASSERT_NE(plugin, nullptr);
  KernelRegistry registry;
  plugin->RegisterKernels(&registry);
  for (const char* op : {"linear", "linear_grad", "conv2d", "conv2d_grad", "attention",
                         "attention_grad", "paged_attention", "adam_update", "reshape"}) {
    EXPECT_TRUE(registry.Has(op)) << op;
  }
}

TEST_F(LoadTest, ADeviceThatIsNotThereIsAnErrorNotACrash) {
  CudaPlugin* plugin = Open(kCudaPluginAbi);
  ASSERT_NE(plugin, nullptr);
  const int absent = static_cast<int>(plugin->Devices().size());
  void* memory = nullptr;
  EXPECT_NE(plugin->Allocate(absent, 16, &memory).error.find("there is no GPU"), std::string::npos);
  EXPECT_FALSE(plugin->SetCurrent(absent).ok());
  EXPECT_FALSE(plugin->Synchronize(-1).ok());
  EXPECT_EQ(plugin->Stream(absent), nullptr);
  std::string error;
  EXPECT_EQ(plugin->CreateCommunicator(
                absent, "", 0, 1, [] { return true; }, &error),
            nullptr);
  EXPECT_FALSE(error.empty());
}

TEST_F(LoadTest, AnUnsupportedTypeIsRefusedWithAReason) {
  CudaPlugin* plugin = Open(kCudaPluginAbi);
  ASSERT_NE(plugin, nullptr);
  KernelRegistry registry;
  plugin->RegisterKernels(&registry);
  KernelSpec spec;
  spec.op = "relu";
  spec.inputs = {TensorSpec::Whole({DType::kI32, {4}})};
  spec.outputs = spec.inputs;
  std::string error;
  EXPECT_EQ(registry.Create(spec, &error), nullptr);
  EXPECT_NE(error.find("i32"), std::string::npos) << error;
}

}  // namespace
}  // namespace espalier
