#include "ops/cpu/labels.h"

namespace espalier {

KernelStatus CheckLabels(const std::string& op, const TensorView& labels, int64_t classes,
                         int64_t ignore_index) {
  const int64_t count = labels.num_elements();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t label = IntegerAt(labels, i);
    if ((label >= 0 && label < classes) || label == ignore_index) continue;
    return KernelStatus::Error(op + ": labels" + PlaceInWhole(labels, i) + " is " +
                               std::to_string(label) + ", accepted are 0 to " +
                               std::to_string(classes - 1) + ", or " +
                               std::to_string(ignore_index) + " to ignore the row");
  }
  return KernelStatus::Ok();
}

}  // namespace espalier
