// Accuracies: the rank of the label's logit in its row, one block per row.
#pragma once

#include "ops/cuda/label_loss.cuh"

namespace espalier {

// Returns the rank of element `index` in descending order, from 0, to all threads of the block; of
// equal values the first comes first. Comparisons with NaN are false: a NaN ranks before every
// number, and every element ranks before `index` if that is NaN.
__device__ inline int RankInRow(const float* row, int64_t classes, int64_t index) {
  const float score = row[index];
  int before = 0;
  for (int64_t i = threadIdx.x; i < classes; i += kThreads) {
    const bool after = i < index ? row[i] < score : row[i] <= score;
    before += after ? 0 : 1;
  }
  // Counts below 2^24 are exact in f32.
  return static_cast<int>(BlockSum(static_cast<float>(before)));
}

static __global__ void __launch_bounds__(kThreads)
    CorrectKernel(LabelReader labels, const float* logits, int64_t k, float* right) {
  const int64_t label = labels.At(blockIdx.x, threadIdx.x == 0);
  if (label < 0) {
    if (threadIdx.x == 0) right[blockIdx.x] = 0;
    return;
  }
  const float* row = logits + blockIdx.x * labels.classes;
  const int rank = RankInRow(row, labels.classes, label);
  if (threadIdx.x == 0) right[blockIdx.x] = rank < k && !isnan(row[label]) ? 1.0f : 0.0f;
}

// Fraction of labels among the k largest of their row.
class AccuracyKernel : public LabelLossKernel {
 public:
  AccuracyKernel(DeviceContexts& contexts, const KernelSpec& spec, const char* op, bool top)
      : LabelLossKernel(contexts, spec, op, 2), k_(top ? spec.attributes.Int("k", 5) : 1) {}
  KernelStatus Run(const KernelArgs& args) override {
    LabelReader labels;
    ESPALIER_KERNEL_RETURN_IF_ERROR(Labels(args, args.inputs[0].dims().back(), &labels));
    const int64_t rows = args.inputs[1].num_elements();
    if (rows > 0) {
      CorrectKernel<<<static_cast<unsigned>(rows), kThreads, 0, StreamOf(args)>>>(
          labels, args.inputs[0].as<float>(), k_, Values(args));
      ESPALIER_KERNEL_RETURN_IF_ERROR(LaunchStatus(op()));
    }
    return Finish(args, labels, nullptr);
  }

 private:
  const int64_t k_;
};

}  // namespace espalier
