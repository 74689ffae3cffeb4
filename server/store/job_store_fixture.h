// What the tests of job stores write and read.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

#include "server/store/job_store.h"

namespace espalier {

class JobStoreTest : public ::testing::Test {
 protected:
  virtual JobStore& store() = 0;

  static JobWrite Create(const std::string& id) {
    JobWrite write;
    write.create = true;
    write.job.emplace();
    write.job->job.set_id(id);
    write.job->job.set_state(v1::QUEUED);
    write.job->job.mutable_spec()->set_name("n");
    write.job->job.mutable_spec()->mutable_graph()->set_name("g");
    return write;
  }
  static v1::StepReport Report(int64_t step, double loss) {
    v1::StepReport report;
    report.set_step(step);
    (*report.mutable_values())["loss"] = loss;
    return report;
  }
  static v1::JobMessage Message(const std::string& text,
                                v1::JobMessage::Level level = v1::JobMessage::INFO) {
    v1::JobMessage message;
    message.set_text(text);
    message.set_level(level);
    return message;
  }
  // "hello", or of another level than INFO "WARNING: hello".
  std::vector<std::string> LogOf(const std::string& id, int64_t after = 0, int64_t from = 0) {
    std::vector<std::string> lines;
    auto entries = store().Log(id, after, from, 1000);
    EXPECT_TRUE(entries.ok()) << entries.status();
    const auto line = [](const v1::StepReport& report) {
      return std::to_string(report.step()) + ":" +
             std::to_string(static_cast<int>(report.values().at("loss")));
    };
    for (const JobLogEntry& entry : *entries) {
      if (const auto* report = std::get_if<v1::StepReport>(&entry.entry)) {
        lines.push_back(line(*report));
      } else if (const auto* validation = std::get_if<LoggedValidation>(&entry.entry)) {
        lines.push_back("val " + line(validation->report));
      } else {
        const auto& message = std::get<v1::JobMessage>(entry.entry);
        lines.push_back(message.level() == v1::JobMessage::INFO
                            ? message.text()
                            : v1::JobMessage::Level_Name(message.level()) + ": " + message.text());
      }
    }
    return lines;
  }
};

}  // namespace espalier
