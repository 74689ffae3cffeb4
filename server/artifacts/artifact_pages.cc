#include "server/artifacts/artifact_pages.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "ops/graph/name_pattern.h"
#include "server/store/pages.h"

namespace espalier {
namespace {

bool Matches(const v1::ListArtifactsRequest& request, const v1::Artifact& artifact,
             const std::string& name) {
  if (!request.name().empty() && !MatchesPattern(request.name(), name) &&
      !MatchesPattern(request.name(), artifact.name())) {
    return false;
  }
  if (request.kinds_size() > 0 && !absl::c_linear_search(request.kinds(), artifact.kind())) {
    return false;
  }
  if (!request.owner().empty() && artifact.owner() != request.owner()) return false;
  if (artifact.created_unix_ms() < request.created_from_unix_ms()) return false;
  return request.created_before_unix_ms() == 0 ||
         artifact.created_unix_ms() < request.created_before_unix_ms();
}

// The place of an artifact in a list, as a text that sorts so.
std::string PlaceOf(const v1::Artifact& artifact, const std::string& name, bool newest_first) {
  if (!newest_first) return name;
  // Later times first.
  const uint64_t age = ~static_cast<uint64_t>(std::max<int64_t>(0, artifact.created_unix_ms()));
  return absl::StrFormat("%016x %s", age, name);
}

}  // namespace

absl::Status ListArtifacts(const ArtifactStore& artifacts, const v1::ListArtifactsRequest& request,
                           const std::function<bool(const std::string& owner)>& may_see,
                           v1::ListArtifactsReply* reply) {
  for (const int kind : request.kinds()) {
    if (kind == v1::Artifact::KIND_UNSPECIFIED || !v1::Artifact::Kind_IsValid(kind)) {
      return absl::InvalidArgumentError(absl::StrCat("kinds: there is no kind ", kind));
    }
  }
  const absl::StatusOr<size_t> size = PageSize(request.page_size());
  if (!size.ok()) return size.status();
  std::string after;
  if (!request.page_token().empty()) {
    absl::StatusOr<std::string> read = NameOfToken(request.page_token());
    if (!read.ok()) return read.status();
    after = *std::move(read);
  }
  std::map<std::string, v1::Artifact> page;  // by place; one more than fits says that more follow
  int64_t matching = 0;
  artifacts.ForEach([&](const v1::Artifact& artifact, const std::string& name) {
    if (!may_see(artifact.owner()) || !Matches(request, artifact, name)) return;
    ++matching;
    std::string place = PlaceOf(artifact, name, request.newest_first());
    if (!after.empty() && place <= after) return;
    if (page.size() > *size && place > page.rbegin()->first) return;
    v1::Artifact& shown = page[std::move(place)];
    shown = artifact;
    shown.set_name(name);
    if (page.size() > *size + 1) page.erase(std::prev(page.end()));
  });
  const bool more = page.size() > *size;
  if (more) page.erase(std::prev(page.end()));
  if (more) reply->set_next_page_token(TokenOfName(page.rbegin()->first));
  for (auto& [place, artifact] : page) *reply->add_artifacts() = std::move(artifact);
  reply->set_matching(matching);
  return absl::OkStatus();
}

}  // namespace espalier
