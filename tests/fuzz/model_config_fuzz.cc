// Fuzzes model configurations: any config.json is a graph that binds, or an error; any
// adapter_config.json an adapter or an error.
#include <cstddef>
#include <cstdint>

#include "models/adapter_config.h"
#include "models/model.h"
#include "ops/operators/register_all.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace espalier;
  static const OpRegistry* const registry = [] {
    auto* built = new OpRegistry;
    RegisterAllOperators(*built);
    return built;
  }();
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<AdapterConfig> adapter = ReadAdapterConfig(text);
  if (adapter.ok() && adapter->rank < 1) __builtin_trap();
  absl::StatusOr<LanguageModel> model = ReadModel(text);
  if (!model.ok()) return 0;
  absl::StatusOr<ServingModel> serving = BuildServing(*registry, *model, {4, 4, 16, 2, 16, 16});
  if (!serving.ok()) return 0;
  // Errors must name a field, so the graph of an accepted configuration must bind.
  if (!BindAndInfer(*registry, 1, &serving->graph).ok()) __builtin_trap();
  return 0;
}
