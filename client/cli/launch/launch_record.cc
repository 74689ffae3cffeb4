#include "client/cli/launch/launch_record.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/sha256.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

std::string PathOf(const std::string& home, const std::string& id) {
  return absl::StrCat(LaunchHome(home, id), "/record.json");
}

// Writes a file that only the user may read; the whole of it, or nothing. AlreadyExists if it
// exists and `replace` is false.
absl::Status Write(const std::string& path, const std::string& text, bool replace = true) {
  const auto cannot = [&](const std::string& what, int number) {
    return absl::UnavailableError(
        absl::StrCat("cannot write ", path, ": ", what, ": ", std::strerror(number)));
  };
  const fs::path folder = fs::path(path).parent_path();
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error) fs::permissions(folder, fs::perms::owner_all, error);
  if (error) return cannot(folder.string(), error.value());
  std::string next = path + ".XXXXXX";
  const int file = mkostemp(next.data(), O_CLOEXEC);  // of mode 0600
  if (file < 0) return cannot(next, errno);
  const absl::Cleanup remove = [&] { unlink(next.c_str()); };
  size_t done = 0;
  int failed = 0;
  while (done < text.size() && failed == 0) {
    const ssize_t n = write(file, text.data() + done, text.size() - done);
    if (n > 0) done += static_cast<size_t>(n);
    if (n < 0 && errno != EINTR) failed = errno;
  }
  // A power cut must not leave an empty file: it says what to stop.
  if (failed == 0 && fsync(file) != 0) failed = errno;
  if (close(file) != 0 && failed == 0) failed = errno;
  if (failed != 0) return cannot(next, failed);
  const int made = replace ? rename(next.c_str(), path.c_str()) : link(next.c_str(), path.c_str());
  if (made != 0 && !replace && errno == EEXIST) {
    return absl::AlreadyExistsError(absl::StrCat(path, " exists already"));
  }
  return made == 0 ? absl::OkStatus() : cannot("as " + next, errno);
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
  return Write(PathOf(home, record.id), Encode(record), /*replace=*/false);
}

absl::Status WriteLaunchRecord(const std::string& home, const LaunchRecord& record) {
  return Write(PathOf(home, record.id), Encode(record));
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
