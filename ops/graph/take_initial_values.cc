#include "ops/graph/take_initial_values.h"

#include <string>
#include <utility>

namespace espalier {

std::vector<InitialValue> TakeInitialValues(Graph* graph) {
  std::vector<InitialValue> taken;
  for (ValueId v = 0; v < static_cast<ValueId>(graph->values().size()); ++v) {
    Value& value = graph->mutable_value(v);
    if (value.kind != ValueKind::kParameter || value.constant.empty()) continue;
    taken.push_back(
        {value.name, value.type, ReaderOfBytes(std::exchange(value.constant, std::string()))});
    value.initializer = {Initializer::kStored};
  }
  return taken;
}

}  // namespace espalier
