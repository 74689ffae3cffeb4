#include "server/jobs/keep_results.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "planner/pcg/structure.h"
#include "server/jobs/submitted_graph.h"

namespace espalier {

absl::Status KeepResults(const std::vector<std::string>& names, Graph* graph,
                         std::vector<std::string>* notes) {
  graph->metadata[kResultsMetadata] = kResultsKept;
  for (const std::string& name : names) {
    const ValueId value = graph->FindValue(name);
    if (value == kNoValue || graph->value(value).producer == kNoNode) {
      return absl::InvalidArgumentError(
          absl::StrCat("keep: the graph computes no tensor '", name, "'"));
    }
    const ValueId same = graph->FindOutput(name);
    if (same != kNoValue && same != value) {
      return absl::InvalidArgumentError(absl::StrCat(
          "keep: '", name, "' is the name of an output, '", graph->value(same).name, "', too"));
    }
    if (same == kNoValue) graph->outputs.emplace_back(name, value);
  }
  std::erase_if(*notes, [](const std::string& note) { return absl::EndsWith(note, kNotComputed); });
  return absl::OkStatus();
}

}  // namespace espalier
