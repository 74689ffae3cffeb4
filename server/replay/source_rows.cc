#include "server/replay/source_rows.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace espalier {

absl::StatusOr<std::map<std::string, v1::TensorValue>> TakeSourceRows(
    const std::vector<ProbeExpression>& sources, int64_t step, std::vector<v1::HistoryRow>* rows) {
  std::map<std::string, v1::TensorValue> taken;
  for (const ProbeExpression& source : sources) {
    const std::string name = TargetsToString(source), reduction = ToString(source.reduction);
    const auto row = std::find_if(rows->rbegin(), rows->rend(), [&](const v1::HistoryRow& one) {
      return one.name() == name && one.reduction() == reduction && one.step() == step;
    });
    if (row == rows->rend()) {
      return absl::InternalError(absl::StrCat("'", name, "' of step ", step, " was not read"));
    }
    taken.emplace(name, std::move(*row->mutable_value()->mutable_tensor()));
    rows->erase(std::next(row).base());
  }
  return taken;
}

}  // namespace espalier
