#include "worker/runner/in_process_model_runner.h"

#include <thread>
#include <utility>

#include "worker/collective/in_process_communicator.h"

namespace espalier {

absl::StatusOr<std::unique_ptr<InProcessModelRunner>> InProcessModelRunner::Create(
    const std::vector<v1::Program>& programs, const std::string& folder, const RunnerLimits& limits,
    int max_output_rows, const WeightMap& weights) {
  std::unique_ptr<InProcessModelRunner> all(new InProcessModelRunner());
  all->limits_ = limits;
  all->communicators_ =
      NewInProcessCommunicators(static_cast<int>(programs.size()), absl::Seconds(10));
  for (size_t r = 0; r < programs.size(); ++r) {
    all->devices_.push_back(NewCpuDevice({1, int64_t{1} << 30}));
    absl::StatusOr<std::unique_ptr<ProgramModelRunner>> rank = ProgramModelRunner::CreateRank(
        programs[r], folder, limits, max_output_rows, all->devices_.back().get(), weights);
    if (!rank.ok()) return rank.status();
    (*rank)->executor().SetCommunicator(all->communicators_[r].get());
    all->ranks_.push_back(*std::move(rank));
  }
  return all;
}

absl::Status InProcessModelRunner::Step(const RunnerBatch& batch, RunnerOutput* logits) {
  std::vector<absl::Status> ends(ranks_.size());
  std::vector<RunnerOutput> results(ranks_.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    threads.emplace_back([&, r] { ends[r] = ranks_[r]->Step(batch, &results[r]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (!ends[r].ok()) return ends[r];
    if (ranks_[r]->has_logits()) *logits = std::move(results[r]);
  }
  return absl::OkStatus();
}

}  // namespace espalier
