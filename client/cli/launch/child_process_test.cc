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
  EXPECT_TRUE(absl::IsNotFound(ChildProcess::Start(options).status()));
  options.command = {"/"};
  EXPECT_TRUE(absl::IsUnavailable(ChildProcess::Start(options).status()));
  // What a program says itself.
  EXPECT_EQ((*ChildProcess::Run({.command = {"sh", "-c", "exit 127"}}))->exit_code(), 127);
}

// As a parent may leave it.
TEST(ChildProcessTest, AnIgnoredSigchldHidesNoEnd) {
  signal(SIGCHLD, SIG_IGN);
  auto child = Shell("exit 3");
  ASSERT_NE(child, nullptr);
  const auto begin = std::chrono::steady_clock::now();
  while (!child->Ended() && std::chrono::steady_clock::now() - begin < std::chrono::seconds(5)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  ASSERT_TRUE(child->Ended());
  EXPECT_EQ(child->exit_code(), 3);
}

TEST(ChildProcessTest, AGroupOfItsOwnIsNotTheTerminals) {
  for (const bool own : {false, true}) {
    ChildOptions options;
    options.command = {"sleep", "100"};
    options.own_group = own;
    auto child = ChildProcess::Start(options);
    ASSERT_TRUE(child.ok()) << child.status();
    EXPECT_EQ(getpgid((*child)->pid()), own ? (*child)->pid() : getpgrp());
  }
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

// SLURM's USR1, or a second Ctrl-C, while everything is being stopped.
TEST(SignalQueueTest, ASignalThatNobodyWaitsForEndsNothing) {
  {
    SignalQueue signals;
    raise(SIGUSR1);
    raise(SIGINT);
  }
  sigset_t pending;
  sigpending(&pending);
  EXPECT_FALSE(sigismember(&pending, SIGUSR1));
}

}  // namespace
}  // namespace espalier
