// Rows that a replay reads not because it was asked for them, but to compute others.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/replay.pb.h"
#include "ops/probe/expression.h"
#include "ops/tensor/shape.h"

namespace espalier {

// Removes the rows of `sources`, probes of tensors in full, from the rows of a step, and returns
// their tensors by HistoryRow.name. Of several rows of a source, the last is removed: the replay
// may have been asked for it, too. Internal if there is none.
absl::StatusOr<std::map<std::string, v1::TensorValue>> TakeSourceRows(
    const std::vector<ProbeExpression>& sources, int64_t step, std::vector<v1::HistoryRow>* rows);

// The elements of a tensor in `type`: those of 16 bits may be wanted as F32. Internal, with `name`,
// if it is of another type.
absl::StatusOr<std::string> ElementsAs(const v1::TensorValue& tensor, const TensorType& type,
                                       const std::string& name);

}  // namespace espalier
