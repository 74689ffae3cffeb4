// Reduces a tensor whose parts lie on several ranks: each rank sends a v1::ProbePart, which is
// small where the reduction allows it, and the parts become a v1::ProbeValue.
//
//   norm: square root of the sum of squares
//
//   mean, std: std is the sample's: of n elements, divided by n - 1, as torch.std; NaN of fewer
//   than 2
//
//   min, max: NaN if an element is NaN, as torch.min; NaN of no elements
//
//   count_nan: elements that are NaN
//
//   histogram: as numpy.histogram. Without bounds from the least to the greatest finite element; if
//   they are the same, 0.5 below and above (more if they exceed 2^39); 0 to 1 if there are none
//
//   quantiles: linear interpolation, as numpy.quantile; NaN if an element is NaN or there are none.
//   Returned as `elements` with the numbers of the quantiles as indices
//
//   sample: elements at indices that depend on the number of elements alone, spread evenly
//
//   top_k: the greatest first, NaN before all, as torch.topk; equal ones by index
//
//   confusion: see FinishConfusion
//
// Elements are read and added up as double, of i64 too.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/probe.pb.h"
#include "ops/probe/expression.h"
#include "ops/tensor/view.h"

namespace espalier {

class PartReducer {
 public:
  // Of a tensor of `global` dimensions. `adds_up`: parts overlap, and their elements are to be
  // added up. `only_part`: this rank adds the whole tensor in one part, unless `adds_up`.
  PartReducer(Reduction reduction, DType dtype, Dims global, bool adds_up, bool only_part);

  // Adds elements that this rank holds.
  absl::Status Add(const TensorView& part);

  // What was added. Afterwards the reducer is as new.
  v1::ProbePart Take();

 private:
  void AddBox(const TensorView& part);
  void AddClasses(const TensorView& part);
  void AddHistogram(const TensorView& part, double low, double high);
  void AddTop(const TensorView& part);
  void AddSample(const TensorView& part);
  void AddWholeHistogram(const TensorView& part);
  void AddWholeQuantiles(const TensorView& part);
  bool sends_boxes() const;

  Reduction reduction_;
  DType dtype_;
  Dims global_;
  bool adds_up_;
  bool only_part_;
  v1::ProbePart part_;
};

// Merges the parts of all ranks, in any order. `adds_up` as in PartReducer. INVALID_ARGUMENT if the
// parts are of different tensors, or do not cover the tensor exactly once; if they add up: at least
// once.
absl::StatusOr<v1::ProbeValue> Finish(const Reduction& reduction, std::vector<v1::ProbePart> parts,
                                      bool adds_up);

// Counts by label (rows) and predicted class (columns), from the parts of `logits` [..., classes]
// and `labels` [...] or [..., 1], both reduced as kConfusion. The predicted class is the greatest
// logit's, the first of equal ones, NaN before all. Negative labels, which padding has, are not
// counted. INVALID_ARGUMENT as of CheckConfusion, and for labels that are no class.
absl::StatusOr<v1::ProbeValue> FinishConfusion(std::vector<v1::ProbePart> logits,
                                               std::vector<v1::ProbePart> labels);

// INVALID_ARGUMENT unless FinishConfusion can take such tensors: floating-point logits, and labels
// that are whole numbers.
absl::Status CheckConfusion(const TensorType& logits, const TensorType& labels);

}  // namespace espalier
