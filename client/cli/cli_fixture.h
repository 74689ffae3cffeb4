// Fixture that runs commands in this process against an in-memory coordinator.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "client/cli/command.h"
#include "client/lib/fake_coordinator.h"

namespace espalier {

// Replies of the in-memory coordinator: one piece of an answer, and the last one.
inline v1::GenerateReply Piece(const std::string& text) {
  v1::GenerateReply reply;
  reply.set_text(text);
  return reply;
}

inline v1::GenerateReply Last(int tokens, int drafted, int accepted, int steps) {
  v1::GenerateReply reply;
  reply.set_finish_reason("length");
  reply.mutable_usage()->set_completion_tokens(tokens);
  reply.mutable_usage()->set_drafted_tokens(drafted);
  reply.mutable_usage()->set_accepted_tokens(accepted);
  reply.mutable_usage()->set_verification_steps(steps);
  return reply;
}

class CliTest : public ::testing::Test {
 protected:
  using Json = nlohmann::ordered_json;

  CliTest() {
    home_ = ::testing::TempDir() + "/cli_test_" +
            ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(home_);
    std::filesystem::create_directories(home_);
    std::ofstream(home_ + "/text.txt") << std::string(5000, 'a');
    v1::Job& job = fake_.state()->job;
    job.set_id("job-1");
    job.set_state(v1::SUCCEEDED);
    job.mutable_spec()->mutable_dataset()->set_format(v1::Dataset::TEXT);
    job.set_total_steps(3);
    job.set_steps_done(3);
    job.set_tokens_per_step(2048);
    job.set_started_unix_ms(1000);
    job.set_finished_unix_ms(3500);
    job.set_median_step_seconds(0.011);
    job.set_output_model("llm");
    job.set_parameters(4'560'000);
    (*job.mutable_evaluation())["loss"] = 0.6931471805599453;
    auto* prediction = job.mutable_plan()->mutable_prediction();
    prediction->set_step_seconds(0.010);
    prediction->add_peak_bytes(64 << 20);
    auto* other = job.mutable_plan()->add_alternatives();
    other->set_name("data parallel");
    other->mutable_prediction()->set_step_seconds(0.015);
    auto* op = job.mutable_plan()->add_operators();
    op->set_node("lm_head");
    (*op->mutable_degrees())["sample"] = 2;
    op->add_devices(0);
    op->add_devices(1);
    job.mutable_plan()->add_devices();
    job.mutable_plan()->add_devices();

    v1::JobEvent event;
    *event.mutable_job() = job;
    event.mutable_job()->set_state(v1::RUNNING);
    fake_.state()->events.push_back(event);
    for (int i = 0; i < 3; ++i) {
      event.mutable_step()->set_step(i);
      event.mutable_step()->set_seconds(0.01);
      (*event.mutable_step()->mutable_values())["loss"] = 3.0 - i;
      fake_.state()->events.push_back(event);
    }
    event.mutable_message()->set_text("worker w2 \x1b[2J lost");
    event.mutable_message()->set_level(v1::JobMessage::WARNING);
    fake_.state()->events.push_back(event);
  }

  int Run(std::vector<std::string> args, bool connect = true) {
    out_.str("");
    err_.str("");
    Environment env;
    env.out = sink_ != nullptr ? sink_ : &out_;
    env.output_closed = [this] { return output_closed_; };
    env.err = &err_;
    env.in = &in_;
    env.getenv = [](const char*) -> const char* { return nullptr; };
    env.seconds = [this] {
      if (real_time_) return absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
      return now_ += 0.001;
    };
    env.program = home_ + "/espalier";
    std::vector<std::string> where = {"--home=" + home_};
    if (connect) where.push_back("--coordinator=" + fake_.address());
    args.insert(std::find(args.begin(), args.end(), "--"), where.begin(), where.end());
    return RunEspalier(args, env);
  }
  std::vector<Json> Lines() {
    std::vector<Json> lines;
    std::istringstream text(out_.str());
    for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
    return lines;
  }

  FakeCoordinator fake_;
  std::string home_;
  std::istringstream in_;
  std::ostringstream out_, err_;
  std::atomic<double> now_ = 0;
  bool real_time_ = false;
  std::ostream* sink_ = nullptr;  // used instead of out_ if set
  bool output_closed_ = false;
};

}  // namespace espalier
