// Any bytes are a graph or an error, never a crash: the importer reads files of strangers.
#include <cstddef>
#include <cstdint>
#include <string>

#include "ops/graph/graph.h"
#include "ops/onnx/cpu_evaluator.h"
#include "ops/onnx/import.h"
#include "ops/operators/register_all.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace espalier;
  static const OpRegistry* const registry = [] {
    auto* built = new OpRegistry;
    RegisterAllOperators(*built);
    return built;
  }();
  ImportOptions options;
  options.evaluator = CpuEvaluator();
  options.folder = "/nonexistent";
  absl::StatusOr<Graph> graph =
      ImportOnnx(*registry, std::string(reinterpret_cast<const char*>(data), size), options);
  if (graph.ok()) (void)BindAndInfer(*registry, 3, &*graph);
  return 0;
}
