// Names of runs: "NAME" (an experiment), "NAME@V" (its version V), "NAME@*", "lm*", or a job's id.
// No threads.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace espalier {

// A job as a version of an experiment. Experiments of different owners are different ones, whatever
// their names.
struct RunName {
  std::string experiment;
  int64_t version = 0;
  std::string owner;
  std::string job_id;

  bool operator==(const RunName&) const = default;
};

// Which versions a name without "@" means.
enum class RunVersions {
  kNewest,  // as in ReplaySpec.run
  kAll,     // as in ListRunsRequest.run
};

// The caller who names runs.
struct RunCaller {
  std::string owner;                                      // who has experiments of its own
  std::function<bool(const std::string& owner)> may_see;  // whose jobs it may see
};

class RunNames {
 public:
  // Returns the experiment's next version: greater than all that were put, given or reserved.
  int64_t TakeVersion(const std::string& owner, const std::string& experiment);
  // Versions up to this one were given, perhaps to jobs that are deleted.
  void Reserve(const std::string& owner, const std::string& experiment, int64_t version);
  // The greatest version that was put, given or reserved; 0: none.
  int64_t LastVersion(const std::string& owner, const std::string& experiment) const;

  // Replaces the run of the same job.
  void Put(const RunName& run);
  void Remove(const std::string& job_id);

  // Returns the runs that `run` names, of those that the caller may see: experiments in the order
  // of their names, of each in that of the versions; never none. A job's id goes before a name,
  // and "NAME@V" before an experiment that is called so. With kNewest a name without "*" means the
  // caller's own experiment, if there is one.
  //
  // Returns NotFound, with a similar name or the versions that there are; InvalidArgument if
  // kNewest is asked for an empty name, or one that several other owners use.
  absl::StatusOr<std::vector<RunName>> Find(absl::string_view run, RunVersions versions,
                                            const RunCaller& caller) const;

 private:
  // Ordered by name first, as names are looked up without their owner.
  struct Key {
    std::string experiment, owner;
    auto operator<=>(const Key&) const = default;
  };
  struct Experiment {
    std::map<int64_t, std::string> jobs;  // by version
    int64_t last = 0;                     // version that was given
  };
  using Experiments = std::vector<std::pair<const Key*, const Experiment*>>;

  // Those that the caller may see and that have jobs.
  Experiments Named(absl::string_view name, const RunCaller& caller) const;
  Experiments Matching(absl::string_view pattern, const RunCaller& caller) const;

  std::map<Key, Experiment> experiments_;
  std::map<std::string, std::pair<Key, int64_t>> jobs_;  // experiment and version, by id
};

}  // namespace espalier
