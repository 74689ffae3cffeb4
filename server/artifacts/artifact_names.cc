#include "server/artifacts/artifact_names.h"

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace espalier {

absl::Status CheckArtifactName(const std::string& name) {
  bool good = name.size() <= 128;
  for (char c : name) {
    good = good && (absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' ||
                    c == '-' || c == '/');
  }
  for (const absl::string_view part : absl::StrSplit(name, '/')) {
    good = good && !part.empty() && part[0] != '.';
  }
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("artifact name '", absl::Utf8SafeCHexEscape(name.substr(0, 160)),
                   "': 1 to 128 of the characters A-Z a-z 0-9 . _ - / are accepted; no part "
                   "between slashes is empty or starts with a dot"));
}

std::string FolderNameOf(const std::string& artifact) {
  return absl::StrReplaceAll(artifact, {{"/", "%2F"}});
}

absl::Status CheckClientArtifactName(const std::string& name) {
  if (absl::Status status = CheckArtifactName(name); !status.ok()) return status;
  absl::string_view rest = name;
  const bool made = absl::ConsumePrefix(&rest, "job-") || absl::ConsumePrefix(&rest, "boost-");
  const size_t digits = rest.find_first_not_of("0123456789");
  const bool whole = digits == rest.npos && !rest.empty();
  if (!made || !(whole || (digits > 0 && absl::StartsWith(rest.substr(digits), ".round-")))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("artifact name '", name,
                   "' is kept for what a job or boost-tuning of that number makes; "
                   "choose another"));
}

absl::StatusOr<ArtifactReference> ParseArtifactReference(const std::string& reference) {
  ArtifactReference parsed;
  const size_t at = reference.rfind('@');
  parsed.name = reference.substr(0, at);
  if (absl::Status status = CheckArtifactName(parsed.name); !status.ok()) return status;
  if (at == std::string::npos) return parsed;
  const std::string number = reference.substr(at + 1);
  if (!absl::SimpleAtoi(number, &parsed.version) || parsed.version < 1 ||
      absl::StrCat(parsed.version) != number) {
    return absl::InvalidArgumentError(
        absl::StrCat("artifact '", absl::Utf8SafeCHexEscape(reference.substr(0, 160)),
                     "': a version is a number, such as '", parsed.name, "@2'"));
  }
  return parsed;
}

absl::Status CheckArtifactFile(const std::string& name) {
  bool good = !name.empty() && name.size() <= 255;
  for (unsigned char c : name) good = good && c >= 0x20 && c != 0x7f && c != '\\';
  for (absl::string_view part : absl::StrSplit(name, '/')) {
    good = good && !part.empty() && part != "." && part != "..";
  }
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("file name '", absl::Utf8SafeCHexEscape(name.substr(0, 300)),
                   "': a relative path of at most 255 characters without '..', empty parts, "
                   "backslashes or control characters is accepted"));
}

}  // namespace espalier
