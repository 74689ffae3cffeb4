#include "worker/runner/sample_rows_on_threads.h"

#include "ops/cpu/threading/parallel.h"
#include "serving/runner/row_outputs.h"

namespace espalier {

void SampleRowsOnThreads(const RunnerBatch& batch, RunnerOutput* logits) {
  // A few nanoseconds per vocabulary token.
  const int64_t work = int64_t{8} * logits->vocabulary;
  SampleRows(batch, logits, [work](int n, const std::function<void(int)>& each) {
    ParallelRanges(n, work, [&each](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) each(static_cast<int>(i));
    });
  });
}

}  // namespace espalier
