#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "client/cli/command.h"

int main(int argc, char** argv) {
  // Without SIGPIPE, a closed pipe shows as a write error, so commands can clean up.
  signal(SIGPIPE, SIG_IGN);
  espalier::Environment environment;
  environment.out = &std::cout;
  environment.err = &std::cerr;
  environment.in = &std::cin;
  environment.getenv = [](const char* name) -> const char* { return std::getenv(name); };
  environment.terminal = espalier::DetectTerminal(STDOUT_FILENO, environment.getenv);
  environment.err_terminal = espalier::DetectTerminal(STDERR_FILENO, environment.getenv);
  environment.seconds = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
  environment.output_closed = [] {
    pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
    return poll(&out, 1, 0) == 1 && (out.revents & (POLLERR | POLLHUP)) != 0;
  };
  std::error_code error;
  environment.program = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (error) environment.program = argv[0];
  return espalier::RunEspalier({argv + 1, argv + argc}, environment);
}
