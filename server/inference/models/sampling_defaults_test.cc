#include "server/inference/models/sampling_defaults.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace espalier {
namespace {

v1::SamplingOptions Defaults(const char* json) {
  const auto config = ReadGenerationConfig(json);
  EXPECT_TRUE(config.ok()) << config.status();
  const auto defaults = SamplingDefaults(*config);
  EXPECT_TRUE(defaults.ok()) << defaults.status();
  return *defaults;
}

constexpr char kLlamaChat[] =
    R"({"bos_token_id": 1, "do_sample": true, "eos_token_id": 2, "temperature": 0.6,
        "top_p": 0.9, "top_k": 40, "repetition_penalty": 1.1, "max_length": 4096})";

TEST(SamplingDefaults, FillWhatTheRequestLeavesOutAndNothingElse) {
  v1::SamplingOptions request;
  request.set_top_p(1);
  request.set_top_k(0);
  request.set_seed(7);
  request.add_bad_words("no");
  FillSampling(Defaults(kLlamaChat), &request);
  EXPECT_EQ(request.temperature(), 0.6);
  EXPECT_EQ(request.repetition_penalty(), 1.1);
  EXPECT_EQ(request.top_p(), 1);
  EXPECT_TRUE(request.has_top_k());
  EXPECT_EQ(request.top_k(), 0);
  EXPECT_EQ(request.seed(), 7u);
  EXPECT_EQ(request.bad_words_size(), 1);
  EXPECT_FALSE(request.has_min_p());
}

TEST(SamplingDefaults, AnExplicitZeroTemperatureStaysGreedy) {
  v1::SamplingOptions request;
  request.set_temperature(0);
  FillSampling(Defaults(kLlamaChat), &request);
  EXPECT_TRUE(request.has_temperature());
  EXPECT_EQ(request.temperature(), 0);
}

TEST(SamplingDefaults, DoSampleWithoutParameters) {
  EXPECT_EQ(Defaults(R"({"do_sample": true})").temperature(), 1);
  const v1::SamplingOptions greedy = Defaults(R"({"do_sample": false, "temperature": 0.7})");
  EXPECT_TRUE(greedy.has_temperature());
  EXPECT_EQ(greedy.temperature(), 0);
  EXPECT_FALSE(Defaults(R"({"eos_token_id": 2})").has_temperature());
}

TEST(SamplingDefaults, InvalidConfigValueIsAnError) {
  for (const char* json : {R"({"repetition_penalty": 1e300})", R"({"suppress_tokens": "all"})"}) {
    const auto config = ReadGenerationConfig(json);
    ASSERT_TRUE(config.ok());
    const absl::Status status = SamplingDefaults(*config).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                ::testing::AllOf(::testing::HasSubstr("generation_config.json"),
                                 ::testing::HasSubstr("generation_config=none")));
  }
}

}  // namespace
}  // namespace espalier
