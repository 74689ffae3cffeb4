#include "client/cli/launch/host_file.h"

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/terminal/text.h"

namespace espalier {
namespace {

constexpr int kMostSlots = 1024;

absl::Status Bad(int line, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(
      "line ", line, ": ", what, "; a line is: host [slots=N] [devices=cpu|cuda:0,cuda:1,...]"));
}

bool IsDevice(absl::string_view device) {
  int ordinal = 0;
  return device == "cpu" || (absl::ConsumePrefix(&device, "cuda:") &&
                             absl::SimpleAtoi(device, &ordinal) && ordinal >= 0);
}

// ssh would take a leading dash for an option.
bool IsAddress(absl::string_view address) {
  return !address.empty() && address[0] != '-' &&
         std::all_of(address.begin(), address.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) ||
                  absl::string_view("-_.@:%[]").find(static_cast<char>(c)) !=
                      absl::string_view::npos;
         });
}

}  // namespace

std::string NameOf(const LaunchHost& host) {
  const size_t at = host.address.rfind('@');
  return at == std::string::npos ? host.address : host.address.substr(at + 1);
}

absl::StatusOr<std::vector<LaunchHost>> ParseHostFile(absl::string_view text) {
  std::vector<LaunchHost> hosts;
  std::set<std::string> names;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = line.substr(0, line.find('#'));
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    LaunchHost host;
    host.line = number;
    host.address = words[0];
    if (!IsAddress(host.address)) {
      return Bad(number, absl::StrCat("\"", Printable(host.address), "\" is no host"));
    }
    for (size_t i = 1; i < words.size(); ++i) {
      absl::string_view word = words[i];
      if (absl::ConsumePrefix(&word, "slots=")) {
        if (!absl::SimpleAtoi(word, &host.slots) || host.slots < 1 || host.slots > kMostSlots) {
          return Bad(number, absl::StrCat("slots=", Printable(word), " is no number from 1 to ",
                                          kMostSlots));
        }
      } else if (absl::ConsumePrefix(&word, "devices=")) {
        host.devices = absl::StrSplit(word, ',');
        for (const std::string& device : host.devices) {
          if (!IsDevice(device)) {
            return Bad(number, absl::StrCat("\"", Printable(device), "\" is no device"));
          }
        }
      } else {
        return Bad(number, absl::StrCat("\"", Printable(words[i]), "\" is not understood"));
      }
    }
    if (!host.devices.empty() && host.slots != 0 &&
        host.slots != static_cast<int>(host.devices.size())) {
      return Bad(number, absl::StrCat(host.slots, " slots and ", host.devices.size(), " devices"));
    }
    if (!host.devices.empty()) host.slots = static_cast<int>(host.devices.size());
    if (!names.insert(NameOf(host)).second) {
      return Bad(number, absl::StrCat(NameOf(host), " stands here twice"));
    }
    hosts.push_back(std::move(host));
  }
  if (hosts.empty()) return absl::InvalidArgumentError("there is no host in it");
  return hosts;
}

absl::StatusOr<std::vector<std::string>> DevicesOf(const LaunchHost& host, int gpus) {
  const auto on_gpu = [](const std::string& device) { return device != "cpu"; };
  std::vector<std::string> devices = host.devices;
  if (devices.empty()) {
    for (int i = 0; i < (host.slots > 0 ? host.slots : std::max(1, gpus)); ++i) {
      devices.push_back(gpus > 0 ? absl::StrCat("cuda:", i) : "cpu");
    }
  }
  for (const std::string& device : devices) {
    int ordinal = 0;
    if (!on_gpu(device) || (absl::SimpleAtoi(device.substr(5), &ordinal) && ordinal < gpus)) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        host.address, " has ", gpus, " GPUs, and line ", host.line, " of the hosts file asks for ",
        device, gpus > 0 ? "; workers on its cores instead: devices=cpu,..." : ""));
  }
  return devices;
}

}  // namespace espalier
