#include "client/cli/launch/launch_record.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/sha256.h"
#include "client/cli/launch/whole_file.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

constexpr char kLaunches[] = "launches", kRecord[] = "record.json";

std::string PathOf(const std::string& home, const std::string& id) {
  return absl::StrCat(LaunchHome(home, id), "/", kRecord);
}

}  // namespace

std::string LaunchHome(const std::string& home, const std::string& id) {
  return absl::StrCat(home, "/", kLaunches, "/", id);
}

std::string HomeOfLaunches(const std::string& home) {
  const fs::path path = fs::path(home) / "";  // without a trailing "/" parent_path is the folder
  const fs::path own = path.parent_path();
  std::error_code error;
  const bool is_launch =
      own.parent_path().filename() == kLaunches && fs::exists(own / kRecord, error);
  return is_launch ? own.parent_path().parent_path().string() : home;
}

std::string LaunchId(const std::string& hosts_file) {
  std::error_code error;
  return Sha256Hex(fs::weakly_canonical(hosts_file, error).string()).substr(0, 10);
}

absl::StatusOr<LaunchRecord> ReadLaunchRecord(const std::string& home, const std::string& id) {
  std::ifstream in(PathOf(home, id), std::ios::binary);
  if (!in) return absl::NotFoundError("there is no such launch");
  std::ostringstream text;
  text << in.rdbuf();
  try {
    const auto json = nlohmann::json::parse(text.str());
    LaunchRecord record;
    record.id = json.at("id");
    record.owner = json.value("owner", "");
    record.hosts_file = json.at("hosts_file");
    record.ssh = json.at("ssh");
    record.coordinator = json.at("coordinator");
    record.data = json.at("data");
    for (const auto& process : json.at("processes")) {
      record.processes.push_back(
          {process.at("host"), process.at("name"), process.at("worker"), process.at("device")});
    }
    return record;
  } catch (const nlohmann::json::exception& error) {
    return absl::DataLossError(absl::StrCat(
        PathOf(home, id), " is damaged, so that nobody knows what this launch has started: ",
        error.what(), "; end its processes on the hosts by hand (~/.espalier/launch/", id,
        "/*.pid there), then remove ", LaunchHome(home, id)));
  }
}

namespace {

std::string Encode(const LaunchRecord& record) {
  nlohmann::ordered_json json;
  json["id"] = record.id;
  json["owner"] = record.owner;
  json["hosts_file"] = record.hosts_file;
  json["ssh"] = record.ssh;
  json["coordinator"] = record.coordinator;
  json["data"] = record.data;
  json["processes"] = nlohmann::ordered_json::array();
  for (const StartedProcess& process : record.processes) {
    json["processes"].push_back({{"host", process.host},
                                 {"name", process.name},
                                 {"worker", process.worker},
                                 {"device", process.device}});
  }
  return json.dump(2) + "\n";
}

}  // namespace

absl::Status ClaimLaunch(const std::string& home, const LaunchRecord& record) {
  return WriteWholeFile(PathOf(home, record.id), Encode(record), /*replace=*/false);
}

absl::Status WriteLaunchRecord(const std::string& home, const LaunchRecord& record) {
  return WriteWholeFile(PathOf(home, record.id), Encode(record));
}

absl::Status WriteLaunchHome(const std::string& home, const LaunchRecord& record,
                             const std::string& ca_pem, const std::string& key) {
  const std::string folder = LaunchHome(home, record.id);
  nlohmann::ordered_json connection;
  connection["grpc"] = record.coordinator;
  connection["ca_file"] = folder + "/ca.pem";
  connection["token_file"] = folder + "/key";
  absl::Status status = WriteWholeFile(folder + "/ca.pem", ca_pem);
  if (status.ok()) status = WriteWholeFile(folder + "/key", key);
  if (status.ok()) status = WriteWholeFile(folder + "/connection.json", connection.dump() + "\n");
  return status;
}

void RemoveLaunchRecord(const std::string& home, const std::string& id) {
  std::error_code ignored;
  fs::remove_all(LaunchHome(home, id), ignored);
}

}  // namespace espalier
