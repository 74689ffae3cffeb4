#include "client/cli/history/no_match.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace espalier {
namespace {

TEST(NoMatch, NamesWhatWasMeant) {
  const std::set<std::string> names = {"accuracy", "grad(w)", "histogram(grad(w), 64)", "loss",
                                       "norm(grad(w))"};
  const auto said = [&](const std::string& log) { return WhyNothingMatches({log}, names); };
  EXPECT_EQ(said("lss"), "; there is no lss; did you mean 'loss'?");
  EXPECT_EQ(said("norm(grad(v))"), "; there is no norm(grad(v)); did you mean 'norm(grad(w))'?");
  EXPECT_EQ(said("loss,accuracy"),
            "; there is no loss,accuracy; --log may be given several times: --log=loss "
            "--log=accuracy");
  EXPECT_EQ(said("zz\x1b[2J"),
            "; there is no zz\uFFFD[2J; there are accuracy, grad(w), histogram(grad(w), 64), loss, "
            "norm(grad(w))");
  EXPECT_EQ(WhyNothingMatches({"loss", "acuracy"}, names),
            "; there is no acuracy; did you mean 'accuracy'?");
  // Other steps were asked for.
  for (const std::string log : {"loss", "norm(grad(*))", "histogram( grad(w),64)"}) {
    EXPECT_EQ(said(log), "; there are values of other steps, or from another source");
  }
  EXPECT_EQ(WhyNothingMatches({"loss"}, {}), "");
}

}  // namespace
}  // namespace espalier
