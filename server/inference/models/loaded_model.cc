#include "server/inference/models/loaded_model.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "models/kv_cache_dtype.h"
#include "server/inference/models/serve_request.h"

namespace espalier {
namespace {

constexpr char kDisabledPrefix[] = "disabled: ";  // followed by the reason

}  // namespace

v1::ServedModel DescribeRequest(const v1::ServeModelRequest& request,
                                const std::vector<v1::ModelPlacement>& placements) {
  v1::ServedModel description;
  description.set_name(request.name());
  description.set_owner(request.owner());
  description.set_artifact(request.artifact());
  description.set_artifact_version(VersionsOf(request).at(request.artifact()));
  if (request.has_graph()) {
    *description.mutable_graph()->mutable_batching() = request.graph();
    return description;
  }
  *description.mutable_ssm_artifacts() = request.ssm_artifacts();
  *description.mutable_expansion() = request.expansion();
  description.set_weights(request.weights());
  description.set_ssm_weights(request.ssm_weights());
  description.set_tune_speculation(request.tune_speculation());
  description.set_ngram_depth(request.ngram_depth());
  description.set_no_prefix_cache(request.no_prefix_cache());
  if (const auto kv_cache_dtype = KvCacheDTypeOf(request.kv_cache()); kv_cache_dtype.ok()) {
    description.set_kv_cache(KvCacheDTypeName(*kv_cache_dtype));
  }
  description.set_resident_weight_bytes(request.resident_weight_bytes());
  *description.mutable_adapters() = request.adapters();
  for (size_t m = 0; m < placements.size(); ++m) {
    if (m > 0) {
      *description.add_ssm_placements() = placements[m];
    } else {
      description.set_tensor_parallel(placements[m].tensor_parallel());
      description.set_pipeline_parallel(placements[m].pipeline_parallel());
    }
  }
  description.set_generation_config(request.generation_config());
  return description;
}

absl::Status CheckDrafting(const LoadedModel& model, size_t prompt_tokens) {
  const v1::ServedModel now = Describe(model);
  int longest = 0;
  for (const v1::ModelPlacement& ssm : now.ssm_placements()) {
    if (absl::StartsWith(ssm.state(), kDisabledPrefix)) continue;
    // An SSM drafts after the answer's first token.
    const auto most = static_cast<size_t>(ssm.draft_tokens());
    if (most == 0 || prompt_tokens < most) return absl::OkStatus();
    longest = std::max(longest, ssm.draft_tokens());
  }
  if (now.ssm_placements().empty() || now.ngram_depth() > 0) return absl::OkStatus();
  if (longest > 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the prompt has ", prompt_tokens, " tokens, and the SSMs of model '", now.name(),
        "' draft for sequences of at most ", longest,
        "; ask with a shorter prompt, serve it with SSMs of more positions or with n-gram drafts"));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "model '", now.name(), "' has no SSM that works (", now.ssm_placements(0).state(),
      "); `espalier unserve ", now.name(), "`, then serve it again"));
}

v1::ServedModel Describe(const LoadedModel& model) {
  v1::ServedModel description = model.description;
  if (model.describe) model.describe(&description);
  if (model.engine == nullptr) return description;
  const SpeculationStatistics speculation = model.engine->statistics().speculation;
  const std::vector<absl::Status>& ssms = speculation.ssm_status;
  for (int s = 0; s < std::min<int>(ssms.size(), description.ssm_placements_size()); ++s) {
    v1::ModelPlacement& place = *description.mutable_ssm_placements(s);
    const int limit = speculation.ssm_limits[s];
    if (limit < model.engine->context()) place.set_draft_tokens(std::max(1, limit));
    // An SSM whose workers are away has its own state, and may be ready before the engine notices.
    const bool away = !place.state().empty() && place.state() != "ready";
    const bool back = absl::IsUnavailable(ssms[s]) && place.state() == "ready";
    if (ssms[s].ok() || away || back) continue;
    place.set_state(absl::StrCat(kDisabledPrefix, ssms[s].message()));
  }
  return description;
}

bool AnswersRequests(const v1::ServedModel& model) {
  return model.state().empty() || model.state() == "ready";
}

absl::StatusOr<int> AdapterIndex(const v1::ServedModel& model, const std::string& adapter) {
  if (adapter.empty()) return -1;
  std::vector<std::string> names;
  for (int i = 0; i < model.adapters_size(); ++i) {
    if (model.adapters(i).name() == adapter) return i;
    names.push_back(model.adapters(i).name());
  }
  return absl::NotFoundError(
      absl::StrCat("model '", model.name(), "' has no adapter '", adapter, "'; ",
                   names.empty() ? "it is served with none"
                                 : absl::StrCat("it has: ", absl::StrJoin(names, ", "))));
}

}  // namespace espalier
