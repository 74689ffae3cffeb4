#include "client/cli/launch/slurm_training.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "client/cli/launch/whole_file.h"

namespace espalier {
namespace {

std::string TrainingFile(const std::string& home) { return home + "/training.json"; }

}  // namespace

absl::StatusOr<std::optional<BatchTraining>> ReadBatchTraining(const std::string& home) {
  std::ifstream in(TrainingFile(home), std::ios::binary);
  if (!in) return std::optional<BatchTraining>();
  std::ostringstream text;
  text << in.rdbuf();
  try {
    const auto json = nlohmann::json::parse(text.str());
    return BatchTraining{json.at("batch_job"), json.at("words"), json.at("before"), json.at("id")};
  } catch (const nlohmann::json::exception& error) {
    return absl::DataLossError(
        absl::StrCat(TrainingFile(home), " is damaged: ", error.what(),
                     "; without it this batch job begins a training of its own"));
  }
}

absl::Status WriteBatchTraining(const std::string& home, const BatchTraining& training) {
  nlohmann::ordered_json json;
  json["batch_job"] = training.batch_job;
  json["words"] = training.words;
  json["before"] = training.before;
  json["id"] = training.id;
  return WriteWholeFile(TrainingFile(home), json.dump(2) + "\n");
}

std::string TrainingToResume(const std::optional<BatchTraining>& known,
                             const std::string& batch_job, int restarts,
                             const std::vector<std::string>& words,
                             const std::vector<KnownTraining>& jobs) {
  if (!known.has_value() || known->words != words) return "";
  const auto find = [&](const std::string& id) {
    return std::find_if(jobs.begin(), jobs.end(), [&](const auto& job) { return job.id == id; });
  };
  auto job = find(known->id);
  if (known->id.empty()) {
    // The run ended while it submitted: what came next is what it submitted.
    const auto before = find(known->before);
    job = before == jobs.end() ? jobs.begin() : std::next(before);
  }
  if (job == jobs.end()) return "";
  // An ended training is this job's result only if an earlier run of this job has submitted it.
  if (job->is_over && (known->batch_job != batch_job || restarts == 0)) return "";
  return job->id;
}

}  // namespace espalier
