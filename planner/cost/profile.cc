#include "planner/cost/profile.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json/bounded_json.h"
#include "espalier/v1/program.pb.h"
#include "nlohmann/json.hpp"
#include "planner/machine/communication.h"

namespace espalier {
namespace {

using nlohmann::json;
using Collective = v1::CollectiveInstruction;

constexpr int kVersion = 1;
constexpr size_t kMaxBytes = size_t{256} << 20;

absl::Status Bad(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("profile: ", what));
}

json ToJson(const std::string& key, const v1::CommunicationProfile& profile) {
  json messages = json::array(), collectives = json::array();
  for (const auto& m : profile.messages()) {
    messages.push_back({{"bytes", m.bytes()},
                        {"send_seconds", m.send_seconds()},
                        {"receive_seconds", m.receive_seconds()}});
  }
  for (const auto& c : profile.collectives()) {
    collectives.push_back({{"kind", Collective::Kind_Name(static_cast<Collective::Kind>(c.kind()))},
                           {"ranks", c.ranks()},
                           {"bytes", c.bytes()},
                           {"seconds", c.seconds()}});
  }
  return {{"between", key}, {"messages", messages}, {"collectives", collectives}};
}

// Returns `list` of `entry`; empty if absent.
absl::StatusOr<std::vector<json>> ListIn(const json& entry, const char* list,
                                         const std::string& place) {
  const auto found = entry.find(list);
  if (found == entry.end()) return std::vector<json>();
  if (!found->is_array()) return Bad(absl::StrCat(place, ".", list, " must be an array"));
  return std::vector<json>(found->begin(), found->end());
}

// A number; CommunicationModel checks its range.
absl::Status Read(const json& entry, const char* field, const std::string& place, double* value) {
  const auto found = entry.is_object() ? entry.find(field) : entry.end();
  if (!entry.is_object() || found == entry.end() || !found->is_number()) {
    return Bad(absl::StrCat(place, ".", field, " must be a number"));
  }
  *value = found->get<double>();
  return absl::OkStatus();
}

absl::StatusOr<v1::CommunicationProfile> FromJson(const json& entry, const std::string& place) {
  v1::CommunicationProfile profile;
  auto messages = ListIn(entry, "messages", place);
  if (!messages.ok()) return messages.status();
  for (size_t i = 0; i < messages->size(); ++i) {
    const std::string at = absl::StrCat(place, ".messages[", i, "]");
    double bytes = 0, send = 0, receive = 0;
    absl::Status s = Read((*messages)[i], "bytes", at, &bytes);
    if (s.ok()) s = Read((*messages)[i], "send_seconds", at, &send);
    if (s.ok()) s = Read((*messages)[i], "receive_seconds", at, &receive);
    if (!s.ok()) return s;
    auto* message = profile.add_messages();
    message->set_bytes(bytes);
    message->set_send_seconds(send);
    message->set_receive_seconds(receive);
  }
  auto collectives = ListIn(entry, "collectives", place);
  if (!collectives.ok()) return collectives.status();
  for (size_t i = 0; i < collectives->size(); ++i) {
    const std::string at = absl::StrCat(place, ".collectives[", i, "]");
    double ranks = 0, bytes = 0, seconds = 0;
    absl::Status s = Read((*collectives)[i], "ranks", at, &ranks);
    if (s.ok()) s = Read((*collectives)[i], "bytes", at, &bytes);
    if (s.ok()) s = Read((*collectives)[i], "seconds", at, &seconds);
    if (!s.ok()) return s;
    const auto name = (*collectives)[i].find("kind");
    Collective::Kind kind = Collective::KIND_UNSPECIFIED;
    if (name == (*collectives)[i].end() || !name->is_string() ||
        !Collective::Kind_Parse(name->get<std::string>(), &kind)) {
      return Bad(absl::StrCat(at,
                              ".kind: accepted are ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, "
                              "ALL_TO_ALL and BROADCAST"));
    }
    if (!(ranks >= 2 && ranks <= 1e6) || ranks != std::floor(ranks)) {
      return Bad(absl::StrCat(at, ".ranks is ", ranks, "; it must be a whole number from 2 on"));
    }
    auto* collective = profile.add_collectives();
    collective->set_kind(kind);
    collective->set_ranks(static_cast<int>(ranks));
    collective->set_bytes(bytes);
    collective->set_seconds(seconds);
  }
  absl::Status s = CommunicationModel::Create(profile).status();
  if (!s.ok()) return Bad(absl::StrCat(place, ": ", std::string(s.message())));
  return profile;
}

}  // namespace

std::string CommunicationKey(const std::vector<v1::Device>& devices) {
  std::map<std::string, std::map<std::string, int>> hosts;
  for (size_t d = 0; d < devices.size(); ++d) {
    const v1::Device& device = devices[d];
    // The key contains no host names.
    const std::string host = device.host().empty() ? absl::StrCat("\n", d) : device.host();
    ++hosts[host][DeviceKey(device)];
  }
  std::vector<std::string> groups;
  for (const auto& [host, kinds] : hosts) {
    groups.push_back(absl::StrJoin(kinds, ", ", [](std::string* out, const auto& kind) {
      absl::StrAppend(out, kind.second, " x ", kind.first);
    }));
  }
  std::sort(groups.begin(), groups.end());
  return absl::StrJoin(groups, " | ");
}

std::string SaveProfile(const MeasuredCost& operators, const CommunicationProfiles& communication) {
  json list = json::array();
  for (const auto& [key, profile] : communication) list.push_back(ToJson(key, profile));
  const json root = {{"espalier_profile", kVersion},
                     {"operators", json::parse(operators.Save())},
                     {"communication", std::move(list)}};
  return root.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

absl::Status LoadProfile(const std::string& text, MeasuredCost* operators,
                         CommunicationProfiles* communication) {
  if (text.size() > kMaxBytes) {
    return Bad(absl::StrCat(text.size(), " bytes; at most ", kMaxBytes, " are accepted"));
  }
  const absl::StatusOr<json> parsed = ParseBoundedJson<json>(text, {.depth = 16});
  if (!parsed.ok()) return Bad(absl::StrCat("the text ", parsed.status().message()));
  const json& root = *parsed;
  if (!root.is_object()) return Bad("the text is not a JSON object");
  const auto version = root.find("espalier_profile");
  if (version == root.end() || *version != kVersion) {
    return Bad(absl::StrCat("field 'espalier_profile' must be ", kVersion,
                            "; is it a file that `espalier profile export` wrote?"));
  }
  CommunicationProfiles loaded;
  const auto list = root.find("communication");
  if (list == root.end() || !list->is_array()) return Bad("'communication' must be an array");
  for (size_t i = 0; i < list->size(); ++i) {
    const json& entry = (*list)[i];
    const std::string place = absl::StrCat("communication[", i, "]");
    if (!entry.is_object() || !entry.contains("between") || !entry["between"].is_string()) {
      return Bad(absl::StrCat(place, ".between must be text, the devices that talk"));
    }
    absl::StatusOr<v1::CommunicationProfile> profile = FromJson(entry, place);
    if (!profile.ok()) return profile.status();
    if (!loaded.emplace(entry["between"].get<std::string>(), *std::move(profile)).second) {
      return Bad(absl::StrCat(place, ".between is there twice; each must be once"));
    }
  }
  const auto table = root.find("operators");
  if (table == root.end() || !table->is_object()) return Bad("'operators' must be an object");
  if (absl::Status s = operators->Load(table->dump()); !s.ok()) {
    return Bad(absl::StrCat("operators: ", std::string(s.message())));
  }
  for (auto& [key, profile] : loaded) (*communication)[key] = std::move(profile);
  return absl::OkStatus();
}

}  // namespace espalier
