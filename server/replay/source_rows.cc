#include "server/replay/source_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/graph/graph_proto.h"
#include "ops/tensor/half_conversion.h"
#include "ops/tensor/view.h"

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

absl::StatusOr<std::string> ElementsAs(const v1::TensorValue& tensor, const TensorType& type,
                                       const std::string& name) {
  const DType dtype = FromProto(tensor.dtype());
  const Dims dims(tensor.dims().begin(), tensor.dims().end());
  if (dims == type.dims &&
      tensor.data().size() == static_cast<size_t>(TensorSpec::Whole({dtype, dims}).bytes())) {
    if (dtype == type.dtype) return tensor.data();
    if (IsNarrow(dtype) && type.dtype == DType::kF32) {
      std::string wide(static_cast<size_t>(type.bytes()), '\0');
      for (int64_t i = 0; i < NumElements(dims); ++i) {
        uint16_t bits = 0;
        std::memcpy(&bits, tensor.data().data() + i * 2, sizeof(bits));
        const float element = NarrowToF32(dtype, bits);
        std::memcpy(wide.data() + i * 4, &element, sizeof(element));
      }
      return wide;
    }
  }
  return absl::InternalError(absl::StrCat("'", name, "' is ", ToString(TensorType{dtype, dims}),
                                          ", expected ", ToString(type)));
}

}  // namespace espalier
