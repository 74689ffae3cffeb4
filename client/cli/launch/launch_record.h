// What a launch by ssh has started, as the machine remembers it that launched: to stop exactly
// that.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace espalier {

struct StartedProcess {
  std::string host;    // as ssh takes it; empty: this host
  std::string name;    // within the launch
  std::string worker;  // name of the worker; empty: the coordinator
  std::string device;
};

struct LaunchRecord {
  std::string id;                         // of the hosts file: the same one for each launch of it
  std::string owner;                      // of this launch alone
  std::string hosts_file;                 // absolute
  std::string ssh;                        // the client's command line
  std::string coordinator;                // host:port; empty: not ready yet
  std::string data;                       // the coordinator's data folder, on its host
  std::vector<StartedProcess> processes;  // in the order of their start
};

// The home that has the records of launches: `home` of the command line, or, where that is a
// launch's own (LaunchHome), the one that the launch is in.
std::string HomeOfLaunches(const std::string& home);

// Id of the launch of a hosts file.
std::string LaunchId(const std::string& hosts_file);

// Folder of a launch on this machine. It is a --home of the command line, with the coordinator's
// address, CA and key.
std::string LaunchHome(const std::string& home, const std::string& id);

// Makes the record of a launch that begins. AlreadyExists if there is one of its id.
absl::Status ClaimLaunch(const std::string& home, const LaunchRecord& record);
// `home` is the command line's. NotFound if there is no such launch, DataLoss if its record cannot
// be read.
absl::StatusOr<LaunchRecord> ReadLaunchRecord(const std::string& home, const std::string& id);
absl::Status WriteLaunchRecord(const std::string& home, const LaunchRecord& record);
// Makes the folder the command line's home of record.coordinator.
absl::Status WriteLaunchHome(const std::string& home, const LaunchRecord& record,
                             const std::string& ca_pem, const std::string& key);
// Forgets a launch, and the key of its coordinator.
void RemoveLaunchRecord(const std::string& home, const std::string& id);

}  // namespace espalier
