#include "server/recordings/run_names.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/nearest.h"
#include "ops/graph/name_pattern.h"

namespace espalier {
namespace {

constexpr size_t kMostOfName = 200;  // in messages
constexpr size_t kMostListed = 8;

// "NAME@V" and "NAME@*".
struct VersionedName {
  absl::string_view name;
  std::optional<int64_t> version;  // nothing: all
};

std::optional<VersionedName> SplitVersion(absl::string_view run) {
  const size_t at = run.rfind('@');
  if (at == absl::string_view::npos || at == 0) return std::nullopt;
  VersionedName split{run.substr(0, at), std::nullopt};
  const absl::string_view version = run.substr(at + 1);
  if (version == "*") return split;
  int64_t number = 0;
  if (!absl::SimpleAtoi(version, &number) || number <= 0) return std::nullopt;
  split.version = number;
  return split;
}

std::string Quoted(absl::string_view name) {
  return absl::StrCat("'", name.substr(0, kMostOfName), "'");
}

// "1, 2 and 5"; of many the last ones.
std::string ListVersions(const std::map<int64_t, std::string>& jobs) {
  std::vector<std::string> last;
  for (auto it = jobs.rbegin(); it != jobs.rend() && last.size() < kMostListed; ++it) {
    last.push_back(absl::StrCat(it->first));
  }
  std::reverse(last.begin(), last.end());
  return absl::StrCat(jobs.size() > last.size() ? "..., " : "", absl::StrJoin(last, ", "));
}

}  // namespace

int64_t RunNames::TakeVersion(const std::string& owner, const std::string& experiment) {
  return ++experiments_[{experiment, owner}].last;
}

void RunNames::Reserve(const std::string& owner, const std::string& experiment, int64_t version) {
  int64_t& last = experiments_[{experiment, owner}].last;
  last = std::max(last, version);
}

int64_t RunNames::LastVersion(const std::string& owner, const std::string& experiment) const {
  const auto found = experiments_.find({experiment, owner});
  return found == experiments_.end() ? 0 : found->second.last;
}

void RunNames::Put(const RunName& run) {
  Remove(run.job_id);
  const Key key{run.experiment, run.owner};
  Experiment& experiment = experiments_[key];
  experiment.jobs[run.version] = run.job_id;
  experiment.last = std::max(experiment.last, run.version);
  jobs_[run.job_id] = {key, run.version};
}

void RunNames::Remove(const std::string& job_id) {
  const auto known = jobs_.find(job_id);
  if (known == jobs_.end()) return;
  // The experiment stays, as its versions are not given again.
  experiments_[known->second.first].jobs.erase(known->second.second);
  jobs_.erase(known);
}

RunNames::Experiments RunNames::Named(absl::string_view name, const RunCaller& caller) const {
  Experiments found;
  for (auto it = experiments_.lower_bound({std::string(name), ""});
       it != experiments_.end() && it->first.experiment == name; ++it) {
    if (it->second.jobs.empty() || !caller.may_see(it->first.owner)) continue;
    found.emplace_back(&it->first, &it->second);
  }
  return found;
}

RunNames::Experiments RunNames::Matching(absl::string_view pattern, const RunCaller& caller) const {
  Experiments found;
  for (const auto& [key, experiment] : experiments_) {
    if (experiment.jobs.empty() || !caller.may_see(key.owner)) continue;
    if (MatchesPattern(pattern, key.experiment)) found.emplace_back(&key, &experiment);
  }
  return found;
}

absl::StatusOr<std::vector<RunName>> RunNames::Find(absl::string_view run, RunVersions versions,
                                                    const RunCaller& caller) const {
  if (run.empty() && versions == RunVersions::kNewest) {
    return absl::InvalidArgumentError("run: name an experiment, NAME@VERSION or a job's id");
  }
  if (const auto job = jobs_.find(std::string(run));
      job != jobs_.end() && caller.may_see(job->second.first.owner)) {
    const auto& [key, version] = job->second;
    return std::vector<RunName>{{key.experiment, version, key.owner, job->first}};
  }
  std::optional<VersionedName> versioned = SplitVersion(run);
  Experiments found;
  if (versioned.has_value()) {
    found = Named(versioned->name, caller);
    if (found.empty() && absl::StrContains(versioned->name, '*')) {
      found = Matching(versioned->name, caller);
    }
  }
  const bool is_version = !found.empty();
  const absl::string_view name = is_version ? versioned->name : run;
  if (found.empty()) found = Named(run, caller);
  if (found.empty() && absl::StrContains(run, '*')) found = Matching(run, caller);
  if (found.empty() && run.empty()) {
    found = Matching("*", caller);
    if (found.empty()) return std::vector<RunName>();
  }
  if (found.empty()) {
    std::vector<std::string> known;
    for (const auto& [key, experiment] : Matching("*", caller)) {
      if (known.empty() || known.back() != key->experiment) known.push_back(key->experiment);
    }
    const absl::string_view meant = versioned.has_value() ? versioned->name : run;
    return absl::NotFoundError(absl::StrCat("no experiment or job is called ", Quoted(meant),
                                            DidYouMean(meant, known),
                                            "; `espalier runs` lists them"));
  }
  const bool is_pattern = found.front().first->experiment != name;
  if (versions == RunVersions::kNewest && !is_pattern && found.size() > 1) {
    const auto own = std::find_if(found.begin(), found.end(), [&](const auto& experiment) {
      return experiment.first->owner == caller.owner;
    });
    if (own == found.end()) {
      std::vector<std::string> owners;
      for (const auto& [key, experiment] : found) {
        owners.push_back(key->owner.empty() ? "nobody" : key->owner);
      }
      return absl::InvalidArgumentError(absl::StrCat("run: ", Quoted(name), " is an experiment of ",
                                                     absl::StrJoin(owners, ", "),
                                                     "; name the job's id instead"));
    }
    found = {*own};
  }
  std::vector<RunName> runs;
  for (const auto& [key, experiment] : found) {
    const auto add = [&, key = key](const auto& job) {
      runs.push_back({key->experiment, job.first, key->owner, job.second});
    };
    if (is_version && versioned->version.has_value()) {
      const auto job = experiment->jobs.find(*versioned->version);
      if (job != experiment->jobs.end()) add(*job);
    } else if (is_version || versions == RunVersions::kAll) {
      std::for_each(experiment->jobs.begin(), experiment->jobs.end(), add);
    } else {
      add(*experiment->jobs.rbegin());
    }
  }
  if (!runs.empty()) return runs;
  // Only a version can be missing.
  return absl::NotFoundError(is_pattern
                                 ? absl::StrCat("no experiment that matches ", Quoted(name),
                                                " has a version ", *versioned->version)
                                 : absl::StrCat("experiment ", Quoted(name), " has no version ",
                                                *versioned->version, "; it has ",
                                                ListVersions(found.front().second->jobs)));
}

}  // namespace espalier
