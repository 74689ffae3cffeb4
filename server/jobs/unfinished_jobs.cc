#include "server/jobs/unfinished_jobs.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace espalier {

std::set<std::string> ArtifactsOf(const v1::TrainingSpec& spec) {
  std::set<std::string> artifacts = {spec.onnx_artifact(), spec.init_artifact(),
                                     spec.tokenizer_artifact()};
  for (const std::string& uri : {spec.dataset().uri(), spec.validation().dataset().uri()}) {
    absl::string_view artifact = uri;
    if (absl::ConsumePrefix(&artifact, "artifact:")) artifacts.emplace(artifact);
  }
  artifacts.erase("");
  return artifacts;
}

void UnfinishedJobs::Add(int64_t number, const v1::Job& job) {
  if (Has(number)) return;
  const v1::TrainingSpec& spec = job.spec();
  Entry entry;
  entry.id = job.id();
  entry.owner = job.owner();
  entry.output = spec.output_model().empty() ? job.id() : spec.output_model();
  entry.inputs = ArtifactsOf(spec);
  for (const std::string& artifact : entry.inputs) readers_[artifact].insert(number);
  writers_[entry.output].insert(number);
  jobs_[number] = std::move(entry);
}

void UnfinishedJobs::Remove(int64_t number) {
  const auto found = jobs_.find(number);
  if (found == jobs_.end()) return;
  const auto forget = [number](const std::string& artifact, auto* jobs) {
    const auto users = jobs->find(artifact);
    users->second.erase(number);
    if (users->second.empty()) jobs->erase(users);
  };
  for (const std::string& artifact : found->second.inputs) forget(artifact, &readers_);
  forget(found->second.output, &writers_);
  jobs_.erase(found);
}

std::vector<ArtifactUse> UnfinishedJobs::Inputs() const {
  std::vector<ArtifactUse> uses;
  for (const auto& [artifact, numbers] : readers_) {
    const std::string& id = jobs_.at(*numbers.begin()).id;
    uses.push_back({artifact, absl::StrCat(id, ", which is not over"),
                    absl::StrCat("wait for it, or cancel it: espalier jobs cancel ", id)});
  }
  return uses;
}

std::optional<std::string> UnfinishedJobs::OwnerOfOutput(const std::string& artifact) const {
  const auto found = writers_.find(artifact);
  if (found == writers_.end()) return std::nullopt;
  return jobs_.at(*found->second.begin()).owner;
}

}  // namespace espalier
