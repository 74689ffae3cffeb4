// What jobs that are not over read and will write, by the names of artifacts. No threads.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "espalier/v1/training.pb.h"
#include "server/artifacts/artifact_store.h"

namespace espalier {

// The artifacts that a job reads whenever it is planned.
std::set<std::string> ArtifactsOf(const v1::TrainingSpec& spec);

class UnfinishedJobs {
 public:
  // No effect if the job is there.
  void Add(int64_t number, const v1::Job& job);
  void Remove(int64_t number);
  bool Has(int64_t number) const { return jobs_.contains(number); }

  // For each artifact that jobs read when they are planned again, the oldest of them.
  std::vector<ArtifactUse> Inputs() const;
  // The owner of a job that will write this artifact; nothing if there is none.
  std::optional<std::string> OwnerOfOutput(const std::string& artifact) const;

 private:
  struct Entry {
    std::string id, owner, output;
    std::set<std::string> inputs;
  };
  std::map<int64_t, Entry> jobs_;                               // by number
  std::map<std::string, std::set<int64_t>> readers_, writers_;  // by artifact
};

}  // namespace espalier
