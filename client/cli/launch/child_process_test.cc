#include "client/cli/launch/child_process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "client/cli/launch/signal_queue.h"

namespace espalier {
namespace {

std::unique_ptr<ChildProcess> Shell(const std::string& script, const std::string& input = "") {
  ChildOptions options;
  options.command = {"sh", "-c", script};
  options.input = input;
  options.environment = {{"GREETING", "hello"}};
  options.keep_output = true;
  auto child = ChildProcess::Start(options);
  return child.ok() ? *std::move(child) : nullptr;
}

void Await(ChildProcess& child) {
  while (!child.Ended()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

TEST(ChildProcessTest, InputEnvironmentOutputAndCode) {
  // More than a pipe holds, in both directions.
  const std::string much(300'000, 'x');
  auto child = Shell("cat; echo $GREETING >&2; exit 3", much);
  ASSERT_NE(child, nullptr);
  Await(*child);
  EXPECT_EQ(child->exit_code(), 3);
  EXPECT_EQ(child->output(), much);
  EXPECT_EQ(child->errors(), "hello\n");
}

TEST(ChildProcessTest, AProgramThatIsNotThere) {
  ChildOptions options;
  options.command = {"/no/such/program"};
  options.keep_output = true;
  auto child = ChildProcess::Start(options);
  ASSERT_TRUE(child.ok());
  Await(**child);
  EXPECT_EQ((*child)->exit_code(), 127);
}

TEST(ChildProcessTest, StopKillsWhatIgnoresSigterm) {
  auto child = Shell("trap '' TERM; echo on; while :; do sleep 0.05; done");
  ASSERT_NE(child, nullptr);
  while (child->output().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  child->Stop(0.1);
  EXPECT_EQ(child->exit_code(), 128 + SIGKILL);
}

TEST(ChildProcessTest, AnObjectThatGoesTakesItsProcessAlong) {
  auto child = Shell("sleep 100");
  ASSERT_NE(child, nullptr);
  const pid_t pid = child->pid();
  child.reset();
  EXPECT_NE(kill(pid, 0), 0);
}

TEST(SignalQueueTest, SignalsWaitAndChildrenGetThemAsUsual) {
  SignalQueue signals;
  EXPECT_EQ(signals.Wait(1), 0);
  raise(SIGUSR1);
  EXPECT_EQ(signals.Wait(1000), SIGUSR1);
  auto child = Shell("echo on; sleep 100");
  ASSERT_NE(child, nullptr);
  while (child->output().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  child->Signal(SIGTERM);
  Await(*child);
  EXPECT_EQ(child->exit_code(), 128 + SIGTERM);
}

}  // namespace
}  // namespace espalier
