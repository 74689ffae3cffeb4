#include "server/access/access_control.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "google/protobuf/descriptor.h"

namespace espalier {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

}  // namespace

std::vector<std::string> TextsAt(const Message& message, absl::string_view path) {
  const size_t dot = path.find('.');
  const FieldDescriptor* field =
      message.GetDescriptor()->FindFieldByName(std::string(path.substr(0, dot)));
  const Reflection& reflection = *message.GetReflection();
  const bool last = dot == path.npos;
  std::vector<std::string> texts;
  const auto add = [&](std::vector<std::string> more) {
    for (std::string& text : more) texts.push_back(std::move(text));
  };
  if (field->is_repeated()) {
    for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
      if (last) {
        texts.push_back(reflection.GetRepeatedString(message, field, i));
      } else {
        add(TextsAt(reflection.GetRepeatedMessage(message, field, i), path.substr(dot + 1)));
      }
    }
  } else if (last) {
    texts.push_back(reflection.GetString(message, field));
  } else {
    add(TextsAt(reflection.GetMessage(message, field), path.substr(dot + 1)));
  }
  return texts;
}

void AccessControl::AddResources(ResourceKind kind, OwnerOf owner, NotFoundError not_found) {
  sources_[kind].push_back({std::move(owner), std::move(not_found)});
}

absl::StatusOr<Caller> AccessControl::Authenticate(const std::string& authorization,
                                                   const std::string& certificate) const {
  if (identify_ != nullptr && identify_certificate_ != nullptr && authorization.empty() &&
      !certificate.empty()) {
    return identify_certificate_(certificate);
  }
  return identify_ != nullptr ? identify_(authorization) : Caller::Unrestricted();
}

absl::StatusOr<Caller> AccessControl::Admit(absl::string_view method,
                                            const std::string& authorization,
                                            const std::string& certificate) const {
  absl::StatusOr<Caller> caller = Authenticate(authorization, certificate);
  if (!caller.ok()) return caller;
  const AccessRule* rule = FindAccessRule(method);
  if (rule == nullptr) {
    return absl::PermissionDeniedError(
        absl::StrCat(method, " has no rule of access, and is refused to everyone"));
  }
  if (caller->Has(rule->roles | Role::kAdmin)) return caller;
  return absl::PermissionDeniedError(absl::StrCat(
      method, " needs a key with one of the roles: ", (rule->roles | Role::kAdmin).ToString(),
      "; this one has ", caller->roles.ToString()));
}

absl::Status AccessControl::CheckRequest(absl::string_view method, const Caller& caller,
                                         const Message& request) const {
  // What follows looks things up that an unrestricted caller need not be compared with.
  if (caller.Has(Role::kAdmin) && caller.owner.empty()) return absl::OkStatus();
  const AccessRule* rule = FindAccessRule(method);
  if (rule == nullptr) return absl::OkStatus();  // Admit has refused it
  for (const ResourceField& field : rule->resources) {
    for (const std::string& text : TextsAt(request, field.path)) {
      absl::string_view name = text;
      if (!absl::ConsumePrefix(&name, field.prefix) || name.empty()) continue;
      absl::Status status = Check(caller, field.kind, field.use, std::string(name));
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

absl::Status AccessControl::Check(const Caller& caller, ResourceKind kind, ResourceUse use,
                                  const std::string& name) const {
  const auto known = sources_.find(kind);
  if (known == sources_.end()) return absl::OkStatus();  // there are none of this kind
  std::optional<std::string> owner;
  for (const Source& source : known->second) {
    if (!owner.has_value()) owner = source.owner(name);
  }
  if (!owner.has_value()) return absl::OkStatus();  // the call itself says so, where it matters
  if (use == ResourceUse::kCreate) {
    // An admin's own name is respected by other admins' names, too.
    const bool free = *owner == caller.owner || (caller.Has(Role::kAdmin) && caller.owner.empty());
    if (free) return absl::OkStatus();
    return absl::AlreadyExistsError(absl::StrCat("the name '", name, "' of ", NameOfKind(kind),
                                                 "s is another owner's; choose another name"));
  }
  if (!caller.MayUse(*owner)) return known->second.front().not_found(name, caller);
  if (use == ResourceUse::kRead || caller.MayChange(*owner)) return absl::OkStatus();
  if (use == ResourceUse::kActAs) return known->second.front().not_found(name, caller);
  return absl::PermissionDeniedError(
      absl::StrCat(NameOfKind(kind), " '", name,
                   owner->empty() ? "' has no owner; only a key with the role admin may change it"
                                  : "' belongs to another owner"));
}

}  // namespace espalier
