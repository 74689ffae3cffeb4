// The roofline model: an operator takes the longer of its arithmetic at the device's matmul rate
// and its memory traffic at the device's bandwidth, plus the launch overhead. Used where no
// measurement exists.
#pragma once

#include <memory>

#include "planner/planner.h"

namespace espalier {

class AnalyticCost : public CostModel {
 public:
  Times Measure(const OpDef& def, const NodeTypes& shard, const v1::Device& device) override;
  std::unique_ptr<CostModel> Fork() override { return std::make_unique<AnalyticCost>(); }
};

}  // namespace espalier
