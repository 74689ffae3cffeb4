// The shell scripts that `espalier launch ssh` runs on the hosts.
#pragma once

#include <string>
#include <vector>

namespace espalier {

// Facts about a host, as answers (remote_shell.h): machine, here and there (the addresses of
// the connection's two ends), cpus, memory, gpus, bundle, runner.
// `bundle_key`: of the bundle that is looked for; empty: none.
std::string ProbeScript(const std::string& bundle_key);

// Unpacks a bundle from its standard input into the folder of its content. One line.
std::string UnpackScript(const std::string& bundle_key);

// Folder of the programs of a bundle, for use in scripts, which expand $HOME.
std::string BundleFolder(const std::string& bundle_key);
// Folder of what a launch keeps on a host, likewise.
std::string LaunchFolder(const std::string& launch);

// What names a process on its host. All are words without special characters.
struct ProcessName {
  std::string launch;  // id
  std::string name;    // within the launch, on all its hosts: they may share a home
  std::string owner;   // the launch's nonce
};

// A process that goes on after the connection, with its output in a log.
struct RemoteProcess : ProcessName {
  std::string program;             // a word of the script, quoted
  std::vector<std::string> flags;  // {LAUNCH} stands for its folder
  std::string secret;    // content of the file {LAUNCH}/NAME.secret, which only the user reads
  bool systemd = false;  // as a unit of the user's systemd
};
// Answers: started. Fails if a process of this name still runs, or after this launch's StopScript.
std::string StartScript(const RemoteProcess& process);
// Waits for the ready file of the coordinator. Answers: grpc, folder and, in base64, ca and key.
std::string AwaitReadyScript(const RemoteProcess& process, int seconds);
// Answers: running=yes or no. If not, the log's end goes to the errors.
std::string CheckScript(const ProcessName& process);
// Ends exactly what this owner's StartScript has started: SIGTERM, and SIGKILL after so many
// seconds. Answers: stopped=yes, no if it did not run, other if it is another launch's. With
// `ask_twice`, at which a worker does not wait until jobs can do without it.
std::string StopScript(const ProcessName& process, int seconds, bool ask_twice);

}  // namespace espalier
