#include "server/recordings/recorded_losses.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <variant>

namespace espalier {
namespace {

constexpr int kLossPage = 1000;

}  // namespace

absl::StatusOr<std::vector<RecordedLoss>> ReadLosses(const JobStore& jobs,
                                                     const std::string& job_id,
                                                     int64_t first_step) {
  std::vector<RecordedLoss> losses;
  int64_t after = 0;
  while (true) {
    const absl::StatusOr<std::vector<JobLogEntry>> page =
        jobs.Log(job_id, after, first_step, kLossPage);
    if (!page.ok()) return page.status();
    for (const JobLogEntry& entry : *page) {
      const auto* report = std::get_if<v1::StepReport>(&entry.entry);
      if (report == nullptr) continue;
      const auto loss = report->values().find(kLossValue);
      if (loss != report->values().end()) losses.push_back({report->step(), loss->second});
    }
    if (page->size() < kLossPage) break;
    after = page->back().sequence;
  }
  std::stable_sort(losses.begin(), losses.end(),
                   [](const RecordedLoss& a, const RecordedLoss& b) { return a.step < b.step; });
  return losses;
}

v1::LossSummary SummarizeLosses(const std::vector<RecordedLoss>& losses) {
  RecordedLoss best = losses.front();
  for (const RecordedLoss& loss : losses) {
    if (loss.loss < best.loss || (std::isnan(best.loss) && !std::isnan(loss.loss))) best = loss;
  }
  v1::LossSummary summary;
  summary.set_first(losses.front().loss);
  summary.set_last(losses.back().loss);
  summary.set_best(best.loss);
  summary.set_best_step(best.step);
  return summary;
}

bool SameBits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

}  // namespace espalier
