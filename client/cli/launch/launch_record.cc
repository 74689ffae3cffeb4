#include "client/cli/launch/launch_record.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/sha256.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

std::string PathOf(const std::string& home, const std::string& id) {
  return absl::StrCat(LaunchHome(home, id), "/record.json");
}

// Replaces a file that only the user may read.
absl::Status Write(const std::string& path, const std::string& text) {
  const std::string next = path + ".new";
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  fs::permissions(fs::path(path).parent_path(), fs::perms::owner_all, error);
  std::ofstream out(next, std::ios::trunc);
  fs::permissions(next, fs::perms::owner_read | fs::perms::owner_write, error);
  out << text;
  out.close();
  if (out) fs::rename(next, path, error);
  if (out && !error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", error.message()));
}

}  // namespace

std::string LaunchHome(const std::string& home, const std::string& id) {
  return absl::StrCat(home, "/launches/", id);
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
    return absl::DataLossError(absl::StrCat(PathOf(home, id), " is damaged: ", error.what()));
  }
}

absl::Status WriteLaunchRecord(const std::string& home, const LaunchRecord& record) {
  nlohmann::ordered_json json;
  json["id"] = record.id;
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
  return Write(PathOf(home, record.id), json.dump(2) + "\n");
}

absl::Status WriteLaunchHome(const std::string& home, const LaunchRecord& record,
                             const std::string& ca_pem, const std::string& key) {
  const std::string folder = LaunchHome(home, record.id);
  nlohmann::ordered_json connection;
  connection["grpc"] = record.coordinator;
  connection["ca_file"] = folder + "/ca.pem";
  connection["token_file"] = folder + "/key";
  absl::Status status = Write(folder + "/ca.pem", ca_pem);
  if (status.ok()) status = Write(folder + "/key", key);
  if (status.ok()) status = Write(folder + "/connection.json", connection.dump() + "\n");
  return status;
}

void RemoveLaunchRecord(const std::string& home, const std::string& id) {
  std::error_code ignored;
  fs::remove_all(LaunchHome(home, id), ignored);
}

}  // namespace espalier
